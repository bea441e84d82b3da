"""The targets of `make fuzz`, unguided: seeds, and what is near them, end in an answer or an error of ours."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import InvalidInput
from tests.fuzz.targets import Target, targets

TARGETS = targets()


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_near_the_seeds_and_far_from_them(name: str, data: st.DataObject) -> None:
    """A flipped byte, a cut, something put in, or anything at all."""
    target = TARGETS[name]
    content = bytearray(data.draw(st.sampled_from((*target.seeds, b""))))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=9))
    target.feed(bytes(content))


def test_a_decoder_that_falls_is_told_from_one_that_answers() -> None:
    """Our errors are answers, all others go through to the fuzzer."""

    def fall(data: bytes) -> object:
        raise InvalidInput("no") if data else KeyError("yes")

    Target(fall).feed(b"x")
    with pytest.raises(KeyError):
        Target(fall).feed(b"")
