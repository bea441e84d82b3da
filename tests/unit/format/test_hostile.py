"""Every decoder against bytes that nobody wrote: only CorruptData, at once, and without memory on a liar's word.

The decoders ignore no byte, so whatever they do accept is, written again, what they were given.
"""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core import entries
from offloaderd.core.errors import CorruptData
from offloaderd.format import manifest_bytes, v1, v2
from offloaderd.format.v2 import GROUP_HEAD
from offloaderd.testing.builders import decode_block, encode_block
from tests.unit.format import builders
from tests.unit.format.builders import KEY, sealed

if TYPE_CHECKING:
    from collections.abc import Callable

SEGMENT = builders.small_segment(preamble=True)
LEDGER_BLOCKS, LEDGER_DATA, LEDGER_INDEX = builders.build_ledger([b"abc", b"de", b"0123456789"], block_bytes_max=180)
V1_BLOCK = LEDGER_DATA[: LEDGER_BLOCKS[0].length]
V2_BLOCK = b"".join(v2.encode_block(7, 41, [b"abc", b"", b"de"], block_bytes_min=180).chunks)


def again_entries(data: bytes) -> bytes:
    """Read entries and write them again, with padding up to the same length."""
    payloads = entries.decode_entries(data, start=0, first_entry_id=0, key=KEY, at=0)
    framed = b"".join(entries.frame(0, payloads))
    return framed + entries.padding(len(data) - len(framed))


def again_v1_block(data: bytes) -> bytes:
    """Read a V1 block and write it again."""
    batch = decode_block(data, ledger_id=1, key=KEY, at=0)
    return b"".join(encode_block(batch.first_entry_id, batch.payloads, block_bytes=len(data)))


def again_v2_block(data: bytes) -> bytes:
    """Read a V2 block and write it again; cuts the pad that the writer adds where a foreign block has less."""
    batch = v2.decode_block(data, key=KEY, at=0)
    block = v2.encode_block(batch.ledger_id, batch.first_entry_id, batch.payloads, block_bytes_min=len(data))
    written = b"".join(block.chunks)[: len(data)]
    return written[:12] + struct.pack(">q", len(data)) + written[20:]


def again_v1_index(data: bytes) -> bytes:
    """Read a V1 index and write it again."""
    index = v1.decode_index(data, key=KEY)
    return v1.encode_index(index.data_bytes, index.metadata, index.entries)


def again_v2_index(data: bytes) -> bytes:
    """Read a V2 index and write it again, its groups in the order in which they were."""
    index = v2.decode_index(data, key=KEY)
    groups = [
        GROUP_HEAD.pack(group.ledger_id, len(group.entries), len(group.metadata))
        + group.metadata
        + b"".join(struct.pack(">qiq", *entry) for entry in group.entries)
        for group in index.groups
    ]
    groups.sort(key=data.find)
    return v2.encode_index(index.data_bytes, index.groups)[:24] + b"".join(groups)


def again_manifest(data: bytes) -> bytes:
    """Read a manifest and write it again."""
    return manifest_bytes.encode(manifest_bytes.decode(data, key=KEY))


OBJECTS = {
    "entries": (again_entries, b"".join(entries.frame(0, [b"abc", b"", b"de"])) + entries.padding(7)),
    "v1-block": (again_v1_block, V1_BLOCK),
    "v2-block": (again_v2_block, V2_BLOCK),
    "v1-index": (again_v1_index, LEDGER_INDEX),
    "v2-index": (again_v2_index, SEGMENT.index),
    "manifest": (again_manifest, manifest_bytes.encode(SEGMENT.manifest)),
    "manifest-chunks": (again_manifest, manifest_bytes.encode(builders.chunked_segment().manifest)),
}
each_object = pytest.mark.parametrize(("again", "valid"), OBJECTS.values(), ids=OBJECTS)


def accepted(again: Callable[[bytes], bytes], data: bytes) -> bool:
    """Say whether `data` was accepted; if so nothing of it may have been ignored."""
    try:
        written = again(data)
    except CorruptData as error:
        refusal = error
    else:
        assert written == data
        return True
    assert refusal.key == KEY
    assert 0 <= refusal.offset <= len(data)
    assert len(str(refusal)) < 500
    return False


@each_object
def test_valid_objects_are_accepted(again: Callable[[bytes], bytes], valid: bytes) -> None:
    """The objects that the other tests spoil are right to begin with."""
    assert accepted(again, valid)


@each_object
@given(data=st.binary(max_size=400))
def test_arbitrary_bytes(again: Callable[[bytes], bytes], valid: bytes, data: bytes) -> None:
    """Anything at all is refused or understood to the last byte."""
    accepted(again, data)


@each_object
@given(data=st.data())
def test_overwritten_bytes(again: Callable[[bytes], bytes], valid: bytes, data: st.DataObject) -> None:
    """A valid object with some bytes overwritten, which gets past the magic, is refused or understood."""
    at = data.draw(st.integers(4, len(valid) - 1))
    piece = data.draw(st.binary(min_size=1, max_size=16) | st.just(b"\xff" * 8) | st.just(b"\x7f" + b"\xff" * 7))
    accepted(again, (valid[:at] + piece + valid[at + len(piece) :])[: len(valid)])


@each_object
@given(tail=st.binary(max_size=64), cut=st.integers(0, 64))
def test_replaced_tails(again: Callable[[bytes], bytes], valid: bytes, tail: bytes, cut: int) -> None:
    """A valid begin with another end is refused or understood."""
    accepted(again, valid[: len(valid) - cut] + tail)


@each_object
def test_every_prefix(again: Callable[[bytes], bytes], valid: bytes) -> None:
    """No truncated object passes, except entries that were cut between two or inside their padding."""
    passed = [size for size in range(len(valid)) if accepted(again, valid[:size])]
    assert passed == ([0, 15, 27, *range(41, len(valid))] if again is again_entries else [])


@each_object
def test_every_single_bit(again: Callable[[bytes], bytes], valid: bytes) -> None:
    """A flipped bit is found wherever it changes the structure; in a manifest it always is."""
    unseen = sorted({offset for offset, spoilt in builders.flips(valid) if accepted(again, spoilt)})
    if again is again_manifest:
        assert unseen == []
    elif again is again_v2_block:
        assert unseen == [*range(28, 36), *range(140, 143), 158, 167, 168]  # ledger id, payloads, and 158: see below
    elif again is again_v1_block:
        assert unseen == [*range(140, 143), *range(155, 157), *range(169, 179)]
    elif again is again_entries:
        assert unseen == [*range(12, 15), 30, 39, 40]  # payloads, and 30: the last entry takes one whole pad word
    else:  # without its manifest an index can hide changes in ids, offsets and metadata, never in its header
        assert unseen
        assert not set(unseen) & {*range(8), *range(16, 24)}


HOSTILE = {
    "entry length": (again_entries, struct.pack(">iq", 2**31 - 1, 0)),
    "v1 block length": (again_v1_block, v1.encode_header(v1.BlockHeader(2**62, 0))),
    "v2 block length": (again_v2_block, v2.encode_header(v2.BlockHeader(2**62, 0, 0))),
    "v1 index entries": (again_v1_index, struct.pack(">Iiqqii", 0xDE47DE47, 132, 2**62, 128, 2**31 - 1, 2**31 - 1)),
    "v1 index metadata": (again_v1_index, struct.pack(">Iiqqii", 0xDE47DE47, 132, 2**62, 128, 1, 2**31 - 1)),
    "v2 index entries": (again_v2_index, struct.pack(">Iiqqqii", 0x3D1FB0BC, 140, 2**62, 128, 1, 2**31 - 1, 2**31 - 1)),
    "v2 index metadata": (again_v2_index, struct.pack(">Iiqqqii", 0x3D1FB0BC, 140, 2**62, 128, 1, 1, 2**31 - 1)),
    "manifest body": (again_manifest, struct.pack(">IIQQ", 0x8F4F464D, 1, 2**63, 0) + bytes(100)),
    "manifest field": (again_manifest, sealed(b"\x62\xff\xff\xff\x7f" + bytes(100))),
}


@pytest.mark.parametrize(("again", "head"), HOSTILE.values(), ids=HOSTILE)
def test_no_memory_on_the_word_of_a_length(again: Callable[[bytes], bytes], head: bytes) -> None:
    """Lengths and counts of gigabytes in an object of some bytes cost some kilobytes at most."""
    data = head if again is again_manifest else head + bytes(100)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData):
            again(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


def test_memory_follows_the_input() -> None:
    """Nothing but empty entries, which make the most objects a byte, takes a small multiple of the input."""
    data = b"".join(entries.frame(0, [b""] * 20_000))
    tracemalloc.start()
    try:
        assert len(entries.decode_entries(data, start=0, first_entry_id=0, key=KEY, at=0)) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(data)
