"""The error tree: what an operator reads, and which of several errors counts."""

from __future__ import annotations

import asyncio

import pytest

from offloaderd.core.errors import Closed, CorruptData, Denied, Fenced, OffloaderError, Transient, first_of


def test_message_and_hint_make_one_line() -> None:
    """The hint follows in brackets; without one there are none."""
    assert str(Denied("no rights", hint="ask for them")) == "no rights (ask for them)"
    assert str(Denied("no rights")) == "no rights"
    assert (
        str(CorruptData(key="k", offset=7, expected=1, found=2)) == "corrupt data in k at byte 7: expected 1, found 2"
    )


CORRUPT = CorruptData(key="k", offset=0, expected=1, found=2)


@pytest.mark.parametrize(
    ("errors", "counts"),
    [
        ([Transient("a"), Transient("b")], "a"),
        ([RuntimeError("a"), Transient("b")], "b"),
        ([Transient("a"), Fenced("b")], "b"),
        ([Closed("a"), CORRUPT], str(CORRUPT)),
        ([Fenced("a"), ExceptionGroup("inner", [ValueError("x"), Fenced("c")])], "a"),
        ([ExceptionGroup("inner", [ExceptionGroup("deep", [Transient("a")])]), Transient("b")], "a"),
    ],
)
def test_the_most_urgent_error_of_a_group_counts(errors: list[Exception], counts: str) -> None:
    """What must stop the work before what may be tried again, ours before strangers, the first of equals."""
    assert str(first_of(ExceptionGroup("group", errors))) == counts


def test_what_ends_the_process_counts_most() -> None:
    """Ctrl-C is not hidden by an error that it caused."""
    assert isinstance(first_of(BaseExceptionGroup("group", [Fenced("a"), KeyboardInterrupt()])), KeyboardInterrupt)


async def test_an_error_raised_from_a_task_group_is_itself() -> None:
    """On every Python that is supported: no group around the one error."""

    async def fail() -> None:
        raise OffloaderError("itself")

    async def work() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None

    with pytest.raises(OffloaderError, match="itself"):
        await work()
