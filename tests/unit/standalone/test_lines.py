"""Lines become entries: batches, limits, odd ends, pipes."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import InvalidInput, OffloaderError
from offloaderd.standalone import dataset
from offloaderd.standalone.dataset import Lines
from tests.virtual import virtually

if TYPE_CHECKING:
    from pathlib import Path


async def collect(source: Lines) -> list[list[bytes]]:
    """Read everything."""
    return [batch async for batch in source.batches()]


@given(content=st.lists(st.binary(max_size=40)).map(b"\n".join), chunk=st.integers(1, 64))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_comes_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, chunk: int
) -> None:
    """Whatever the bytes and however they are cut when read, the entries are the lines that are not empty."""
    path = tmp_path / "lines"
    path.write_bytes(content)
    monkeypatch.setattr(dataset, "CHUNK_BYTES", chunk)
    source = Lines(str(path))
    found = [entry for batch in virtually(collect(source)) for entry in batch]
    expected = content.split(b"\n")
    assert found == [line for line in expected if line]
    ends_open = bool(expected[-1])
    assert source.skipped == sum(not line for line in (expected if ends_open else expected[:-1]))
    assert source.total_bytes == len(content)


async def test_batches_are_bounded_in_bytes_and_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is larger than the limits, unless one entry is."""
    monkeypatch.setattr(dataset, "BATCH_BYTES", 10)
    monkeypatch.setattr(dataset, "BATCH_ENTRIES", 3)
    path = tmp_path / "lines"
    path.write_bytes(b"aaaa\nbbbb\ncccc\n" + b"d" * 30 + b"\n" + b"e\n" * 7)
    sizes = [[len(entry) for entry in batch] for batch in await collect(Lines(str(path)))]
    assert sizes == [[4, 4], [4], [30], [1, 1, 1], [1, 1, 1], [1]]


@pytest.mark.parametrize("end", [b"\n", b""])
async def test_a_line_that_is_too_long_is_named(tmp_path: Path, end: bytes) -> None:
    """The number of the line is right, and what came before it was handed on."""
    path = tmp_path / "lines"
    path.write_bytes(b"a\n\n" + b"x" * 11 + end)
    source = Lines(str(path), entry_bytes_max=10)
    found: list[bytes] = []

    async def drain() -> None:
        async for batch in source.batches():
            found.extend(batch)

    with pytest.raises(InvalidInput, match=r"line 3 has .*11 bytes; an entry has at most 10"):
        await drain()
    assert found in ([b"a"], [])


async def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading stops as soon as the limit is passed."""
    monkeypatch.setattr(dataset, "CHUNK_BYTES", 16)
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 100_000)
    with pytest.raises(InvalidInput, match=r"line 1 has at least \d\d bytes"):
        await collect(Lines(str(path), entry_bytes_max=40))


@pytest.mark.parametrize("name", ["missing", "."])
async def test_what_cannot_be_read_is_one_clear_error(tmp_path: Path, name: str) -> None:
    """A missing file and a directory name the path and the reason."""
    with pytest.raises(OffloaderError, match=f"cannot read {tmp_path}"):
        await collect(Lines(str(tmp_path / name)))


async def test_a_pipe_hands_on_what_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are given while the writer is still there; waiting for more can be cancelled at once."""
    reading, writing = os.pipe()
    monkeypatch.setattr(dataset, "opened", lambda _: reading)
    monkeypatch.setattr(dataset, "POLL_S", 0)  # it waits in real time, which does not pass here
    source = Lines("pipe")
    batches = source.batches()
    try:
        os.write(writing, b"one\ntw")
        assert await anext(batches) == [b"one"]
        assert source.total_bytes is None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(batches)
    finally:
        os.close(writing)
        await batches.aclose()  # type: ignore[attr-defined]
