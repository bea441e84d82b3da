"""Entries inside a block, and the padding after them: the same in V1 and V2 (FORMAT.md, section 1).

An entry is a head of 12 bytes (payload length, entry id) and the payload as in BookKeeper. Padding marks the end of the
entries, as its first byte makes the length field negative. This code is performance-critical: it creates one `bytes`
object per entry and no other.
"""

import struct
from collections.abc import Sequence

from offloaderd.core.errors import CorruptData, InvalidInput

ENTRY_HEAD = struct.Struct(">iq")
ENTRY_OVERHEAD_BYTES = ENTRY_HEAD.size
PAD = b"\xfe\xdc\xde\xad"


def padding(n: int) -> bytes:
    """Return `n` bytes of padding: the pad word, repeated and truncated."""
    return (PAD * (n // len(PAD) + 1))[:n]


def framed_bytes(payload_bytes: int, count: int) -> int:
    """Return the bytes in a block of `count` entries with `payload_bytes` in all."""
    return payload_bytes + count * ENTRY_OVERHEAD_BYTES


def frame(first_entry_id: int, payloads: Sequence[bytes]) -> list[bytes]:
    """Return heads and payloads in turn; the caller joins them once, and payloads are not copied.

    Raises InvalidInput for an entry id outside 0 to 2^63-1 or a payload of 2 GiB or more.
    """
    count = len(payloads)
    chunks = [b""] * (2 * count)
    try:
        chunks[::2] = map(ENTRY_HEAD.pack, map(len, payloads), range(first_entry_id, first_entry_id + count))
    except struct.error as error:
        raise InvalidInput(f"entries from {first_entry_id} on cannot be stored: {error}") from None
    if first_entry_id < 0:
        raise InvalidInput(f"entry id {first_entry_id} is negative")
    chunks[1::2] = payloads
    return chunks


def decode_entries(
    data: bytes | memoryview,
    *,
    start: int,
    end: int | None = None,
    first_entry_id: int,
    count: int | None = None,
    key: str,
    at: int,
) -> list[bytes]:
    """Return the payloads of the entries from `data[start]` on; the first has the id `first_entry_id`.

    With a `count`, exactly that many are read. Bytes after them are not checked, unless `end` gives the end of the last
    one. Without a `count`, entries are read up to the padding or the end of `data`; all other bytes must be padding.
    `key` and `at`, the offset of `data[0]` in the object, are for the error. Raises CorruptData.
    """
    data = bytes(data)  # no copy if it is bytes already; slicing bytes is twice as fast as slicing a view
    exact = end is not None
    end = len(data) if end is None else end
    if not 0 <= start <= end <= len(data):
        raise CorruptData(key=key, offset=at + end, expected=f"entries from byte {at + start} on", found="the end")
    unpack = ENTRY_HEAD.unpack_from
    payloads: list[bytes] = []
    append = payloads.append
    head_last = end - ENTRY_OVERHEAD_BYTES
    position = start
    wanted = first_entry_id
    stop = -1 if count is None else first_entry_id + count
    while wanted != stop and position <= head_last:
        length, entry_id = unpack(data, position)
        if length < 0:
            break
        if entry_id != wanted:
            raise CorruptData(key=key, offset=at + position + 4, expected=f"entry id {wanted}", found=entry_id)
        body = position + ENTRY_OVERHEAD_BYTES
        if length > end - body:
            raise CorruptData(
                key=key, offset=at + position, expected=f"an entry of at most {end - body} bytes", found=length
            )
        position = body + length
        append(data[body:position])
        wanted += 1
    if count is None:
        check_padding(data, position, key=key, at=at)
    elif wanted != stop:
        raise CorruptData(
            key=key, offset=at + position, expected=f"{count} entries from {first_entry_id} on", found=len(payloads)
        )
    elif exact and position != end:
        raise CorruptData(key=key, offset=at + position, expected=f"the end of {count} entries", found="more")
    return payloads


def check_padding(data: bytes, start: int, *, key: str, at: int) -> None:
    """Check that `data` from `start` on is only padding. Raises CorruptData at the first other byte."""
    found = data[start:]
    expected = padding(len(found))
    if found != expected:
        wrong = next(index for index, byte in enumerate(found) if byte != expected[index])
        raise CorruptData(
            key=key,
            offset=at + start + wrong,
            expected=f"an entry, or padding {expected[wrong : wrong + 4].hex(' ')}",
            found=found[wrong : wrong + 4].hex(" "),
        )
