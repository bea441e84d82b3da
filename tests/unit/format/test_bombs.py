"""Manifests that are small in the bucket and would be large in memory: refused before they are, whoever wrote them.

What a parser of protobuf allocates is not Python's to count, so each is read by a process that may have little memory.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from offloaderd.core.entries import ENTRY_OVERHEAD_BYTES
from offloaderd.core.errors import CorruptData
from offloaderd.format import manifest_bytes, v1, v2
from offloaderd.format.manifest import Broken
from offloaderd.format.pb.storage import manifest_pb2 as pb
from offloaderd.format.v1_and_v2 import INDEX_BYTES_MAX
from tests.unit.format import builders
from tests.unit.format.builders import KEY, sealed

BOMB_BYTES = 20 << 20
ROOM_BYTES = 400 << 20
"""For the process, with its libraries; the parser takes 1.7 GiB for the first of these."""

BLOCKS, LEDGERS, LOSSES = "62", "5a", "72"
TOO_LARGE = f"a manifest that takes at most {manifest_bytes.PARSED_BYTES_MAX} bytes of memory"
BOMBS = {
    "empty-blocks": (f"bytes.fromhex('{BLOCKS}00') * {BOMB_BYTES // 2}", "at least one entry in block 0"),
    "small-blocks": (f"bytes.fromhex('{BLOCKS}05180128 9001') * {BOMB_BYTES // 7}", TOO_LARGE),
    "sparse-positions": (f"bytes.fromhex('{BLOCKS}87808005 1801 3a80808005') + bytes({10 << 20})", TOO_LARGE),
    "empty-ledgers": (f"bytes.fromhex('{LEDGERS}00') * {BOMB_BYTES // 2}", TOO_LARGE),
    "empty-losses": (f"bytes.fromhex('{LOSSES}00') * {BOMB_BYTES // 2}", TOO_LARGE),
    "numbers": (f"bytes.fromhex('2001') * {BOMB_BYTES // 2}", TOO_LARGE),
}
READ = """
import resource, sys
from offloaderd.core.errors import CorruptData
from offloaderd.format import manifest_bytes
from tests.unit.format.builders import sealed
data = sealed({body})
resource.setrlimit(resource.RLIMIT_DATA, ({room}, {room}))
try:
    manifest_bytes.decode(data, key="k")
except CorruptData as error:
    print(error)
"""


@pytest.mark.parametrize(("body", "expected"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_in_little_memory(body: str, expected: str) -> None:
    """Without a word of how long the data is: as a rebuild reads it, or somebody who lists the bucket."""
    done = subprocess.run(
        [sys.executable, "-c", READ.format(body=body, room=ROOM_BYTES)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"corrupt data in k at byte 24: expected {expected}"), done.stderr[-500:]


def test_no_more_blocks_are_looked_at_than_the_data_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However well they follow each other: the store says how long the data object is."""
    monkeypatch.setattr(manifest_bytes, "BLOCKS_SPARE", 0)
    segment = builders.small_segment(preamble=True)
    data = manifest_bytes.encode(segment.manifest)
    assert manifest_bytes.decode(data, key=KEY, data_bytes=segment.manifest.data_bytes) == segment.manifest
    few = ENTRY_OVERHEAD_BYTES * (len(segment.manifest.blocks) - 1)
    with pytest.raises(CorruptData, match=f"blocks in {few} bytes of data"):
        manifest_bytes.decode(data, key=KEY, data_bytes=few)


def test_what_a_sound_manifest_takes_is_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what its blocks, positions and chunks take, not by its length."""
    segment = builders.small_segment(preamble=True)
    data = manifest_bytes.encode(segment.manifest)
    monkeypatch.setattr(manifest_bytes, "PARSED_BYTES_MAX", 2000)
    with pytest.raises(CorruptData, match="at most 2000 bytes of memory"):
        manifest_bytes.decode(data, key=KEY)


def test_the_chunks_of_a_block_are_counted_before_they_are_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an integer while its block is read, and 4 bytes afterwards."""
    chunks = 1000
    block = pb.SegmentBlock(entry_count=1, chunk_crc32c=range(chunks))
    encoded = pb.SegmentManifest(blocks=[block]).SerializeToString()
    read = manifest_bytes.BLOCK_BYTES + manifest_bytes.CHUNK_BYTES * chunks
    monkeypatch.setattr(manifest_bytes, "PARSED_BYTES_MAX", len(encoded) + read - 1)
    with pytest.raises(Broken, match="at most"):
        manifest_bytes.taken_apart(memoryview(encoded), data_bytes=None)
    assert sys.getsizeof(1 << 31) + 8 <= manifest_bytes.CHUNK_BYTES  # an integer, and its place in a list


@pytest.mark.parametrize("decode", [v1.decode_index, v2.decode_index])
def test_an_index_that_is_too_long_is_not_taken_apart(decode: type) -> None:
    """Each of its entries takes fifteen times as much in memory."""
    with pytest.raises(CorruptData, match=f"an index of at most {INDEX_BYTES_MAX} bytes"):
        decode(bytes(INDEX_BYTES_MAX + 1), key=KEY)


def test_a_name_is_found_without_the_rest() -> None:
    """Of a manifest that is damaged elsewhere; far behind everything else nobody looks for it."""
    body = pb.SegmentManifest(managed_ledger="a/b/persistent/c").SerializeToString()
    assert manifest_bytes.managed_ledger(memoryview(body + bytes.fromhex("6200") * 100)) == "a/b/persistent/c"
    assert manifest_bytes.managed_ledger(memoryview(bytes.fromhex("6200") * 100 + body)) == ""
    assert sealed(body)
