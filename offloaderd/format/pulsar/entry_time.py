"""Time and message index of entries, which seeks by time and by index need. Pure.

An entry's time is the broker's timestamp if the broker has added one (PIP-70), else the publish time in the producer's
metadata, in milliseconds, as in Pulsar's own seek (Commands.getEntryTimestamp). As there, the producer's checksum is
not verified. An entry without either is not from a Pulsar producer and has no time.

`survey` reads every entry on its way to the bucket, so it does not parse each by itself: concatenated protobuf messages
are one message, so all heads of a block are parsed as one. That takes a third of the time, with the same result.
Entries that differ from those of brokers and Pulsar's producers are read by `time_of`.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from google.protobuf.message import DecodeError

from offloaderd.format.pb.pulsar.broker_entry_metadata_pb2 import BrokerEntryMetadataRun
from offloaderd.format.pb.pulsar.messages_pb2 import MessageMetadataRun
from offloaderd.format.pulsar import broker_entry

CHECKSUM = b"\x0e\x01"
_CHECKSUM_BYTES = 6
_BODY = _CHECKSUM_BYTES + 4
"""Offset of a producer's metadata, behind checksum and length."""
_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_HEAD = re.compile(rb"\x0e\x02\x00\x00\x00[\x00-\x7f](?:\x08(%b))?(?:\x10(%b))?" % (_VARINT, _VARINT))
_HEADS = re.compile(rb"(?:\x0e\x02\x00\x00\x00[\x00-\x7f](?:\x08%b)?(?:\x10%b)?)*+" % (_VARINT, _VARINT))
"""Heads as brokers write them, concatenated. A number that reached into the next head would change its magic."""
_ORDERED_BYTES = 9
"""A longer number may have more than 64 bits, and protobuf drops the highest."""
_TOGETHER = 512
"""Number of heads that are compared at once; the masks for it take some 30 KB."""


class EntryTime(NamedTuple):
    """Time in milliseconds and message index (that of the last message) of an entry; None if it has none."""

    time_ms: int | None
    message_index: int | None


class Survey(NamedTuple):
    """Least and greatest time of some entries, the number of entries without a time, and the greatest message index."""

    time_min: int | None = None
    time_max: int | None = None
    untimed: int = 0
    index_max: int | None = None


class BlockTimes(NamedTuple):
    """A block's times and indexes for the manifest, under the names that `BlockInfo` uses."""

    first_broker_timestamp: int | None
    last_broker_timestamp: int | None
    first_index: int | None
    last_index: int | None
    survey: Survey | None
    first_publish_time: int | None


def block_times(payloads: Sequence[bytes]) -> BlockTimes:
    """Return times and indexes of a block with these entries, at least one, for the manifest."""
    first, last = broker_entry.read_head(payloads[0]), broker_entry.read_head(payloads[-1])
    by_broker = first is not None and first.broker_timestamp is not None
    return BlockTimes(
        first_broker_timestamp=first.broker_timestamp if first else None,
        last_broker_timestamp=last.broker_timestamp if last else None,
        first_index=first.index if first else None,
        last_index=last.index if last else None,
        survey=survey(payloads),
        first_publish_time=None if by_broker else time_of(payloads[0]).time_ms,
    )


def time_of(payload: bytes) -> EntryTime:
    """Return an entry's time and index; never raises."""
    head = broker_entry.read_head(payload)
    if head is None:
        return EntryTime(_publish_time(payload), None)
    if head.broker_timestamp is not None:
        return EntryTime(head.broker_timestamp, head.index)
    return EntryTime(_publish_time(broker_entry.without_head(payload)), head.index)


def _publish_time(payload: bytes) -> int | None:
    """Return the publish time in a producer's bytes, None if they are no message."""
    begin = _BODY if payload.startswith(CHECKSUM) else 4
    size = int.from_bytes(payload[begin - 4 : begin], "big")
    if not 0 < size <= len(payload) - begin:
        return None
    try:
        found = MessageMetadataRun.FromString(payload[begin : begin + size])
    except DecodeError:
        return None
    return found.publish_time[-1] if found.producer_name and found.sequence_id and found.publish_time else None


def survey(payloads: Sequence[bytes]) -> Survey:
    """Return the combined result of `time_of` for all these entries."""
    if payloads and payloads[0][:2] == broker_entry.MAGIC and (found := _survey_heads(payloads)):
        return found
    headed = [payload for payload in payloads if payload[:2] == broker_entry.MAGIC]
    if not headed:
        return _survey_messages(payloads)
    found = _survey_heads(headed) or _survey_each(headed)
    if len(headed) == len(payloads):
        return found
    return _joined(found, _survey_messages([payload for payload in payloads if payload[:2] != broker_entry.MAGIC]))


def _survey_heads(payloads: Sequence[bytes]) -> Survey | None:
    """Read all heads at once; None unless they are as brokers write them, and all or none have a time."""
    try:
        even = _even_heads(payloads)
        if even is not None and even.ascending:
            first, last = map(broker_entry.read_head, (payloads[0], payloads[-1]))
            if first and last and first.broker_timestamp is not None:
                return Survey(first.broker_timestamp, last.broker_timestamp, 0, last.index)
        heads = _read_heads(payloads, even)
    except (IndexError, DecodeError):
        return None
    if heads is None:
        return None
    if len(heads.times) == len(payloads):
        return Survey(min(heads.times), max(heads.times), 0, max(heads.indexes, default=None))
    if heads.times or len(heads.indexes) != len(payloads):
        return None
    messages = [payload[end:] for payload, end in zip(payloads, heads.ends, strict=True)]
    return _survey_messages(messages)._replace(index_max=max(heads.indexes))


class Heads(NamedTuple):
    """The heads of many entries: times and indexes of those that have one, in order, and the end of each head."""

    times: Sequence[int]
    indexes: Sequence[int]
    ends: Sequence[int]


def read_heads(payloads: Sequence[bytes]) -> Heads | None:
    """Read the heads of entries as one message; None unless each entry has a head as brokers write it."""
    try:
        return _read_heads(payloads, _even_heads(payloads))
    except (IndexError, DecodeError):
        return None


def _read_heads(payloads: Sequence[bytes], even: "_Even | None") -> Heads | None:
    """Read the heads of entries; `even` is from `_even_heads`. Raises IndexError, DecodeError if they are no heads."""
    bodies: Iterable[bytes]
    if even is not None:
        ends = [even.size] * len(payloads)
        bodies = map(itemgetter(slice(broker_entry.HEAD.size, even.size)), payloads)
    else:
        ends = [broker_entry.HEAD.size + payload[5] for payload in payloads]
        heads = b"".join([payload[:end] for payload, end in zip(payloads, ends, strict=True)])
        if len(heads) != sum(ends) or not _HEADS.fullmatch(heads):
            return None
        bodies = [payload[broker_entry.HEAD.size : end] for payload, end in zip(payloads, ends, strict=True)]
    run = BrokerEntryMetadataRun.FromString(b"".join(bodies))
    return Heads(list(run.broker_timestamp), list(run.index), ends)


class _Even(NamedTuple):
    """Heads of equal length that differ only in the values of their numbers."""

    size: int
    """Bytes of one head."""
    ascending: bool
    """Whether no number is less than in the head before."""


def _even_heads(payloads: Sequence[bytes]) -> _Even | None:
    """Compare the heads of entries with each other; None unless they are even, as nearly all neighbours are.

    Many heads are compared at once, as one large number minus the same number shifted by one head. All numbers have the
    same length, so the highest bit of each is 0. It is set in the later number before the subtraction, and still set
    after it if that number is not less; so no number borrows from its neighbour. Raises IndexError for a truncated
    first head.
    """
    size = broker_entry.HEAD.size + payloads[0][5]
    heads = b"".join(map(itemgetter(slice(size)), payloads))
    first = _HEAD.fullmatch(heads, 0, size)
    if len(heads) != len(payloads) * size or first is None:
        return None
    spans = tuple(first.span(group) for group in (1, 2) if first[group])
    masks = _masks(size, spans)
    ascending = all(end - start <= _ORDERED_BYTES for start, end in spans)
    for at in range(0, len(heads) - size, _TOGETHER * size):
        earlier = int.from_bytes(heads[at : at + (_TOGETHER + 1) * size], "little")
        later = earlier >> 8 * size
        unused = 8 * max(0, at + (_TOGETHER + 1) * size - len(heads))
        fixed, numbers, highest = (mask >> unused for mask in masks)
        if (earlier ^ later) & fixed:
            return None
        ascending = ascending and ((later & numbers | highest) - (earlier & numbers)) & highest == highest
    return _Even(size, ascending)


@lru_cache(maxsize=16)
def _masks(size: int, spans: tuple[tuple[int, int], ...]) -> tuple[int, int, int]:
    """Return masks for `_TOGETHER` heads with numbers in `spans`: bits that must be equal, other bits, highest bits."""
    fixed, highest = bytearray(b"\xff" * size), bytearray(size)
    for start, end in spans:
        fixed[start:end] = b"\x80" * (end - start)
        highest[end - 1] = 0x80
    numbers = bytes(byte ^ 0xFF for byte in fixed)
    whole, bits, marks = [int.from_bytes(bytes(mask) * _TOGETHER, "little") for mask in (fixed, numbers, highest)]
    return whole, bits, marks


def _survey_messages(payloads: Sequence[bytes]) -> Survey:
    checked = [payload for payload in payloads if payload[:2] == CHECKSUM]
    found = _survey_checked(checked) if checked else Survey()
    if len(checked) == len(payloads):
        return found
    return _joined(found, _survey_each(payload for payload in payloads if payload[:2] != CHECKSUM))


def _survey_checked(payloads: Sequence[bytes]) -> Survey:
    """Survey entries that begin with a checksum, as from Pulsar's clients; their metadata are parsed as one message."""
    ends = [_BODY + int.from_bytes(payload[_CHECKSUM_BYTES:_BODY], "big") for payload in payloads]
    bodies = b"".join([payload[_BODY:end] for payload, end in zip(payloads, ends, strict=True)])
    try:
        run = MessageMetadataRun.FromString(bodies)
    except DecodeError:
        return _survey_each(payloads)
    counts = {len(run.producer_name), len(run.sequence_id), len(run.publish_time), len(payloads)}
    if len(counts) > 1 or len(bodies) != sum(ends) - _BODY * len(payloads):
        return _survey_each(payloads)
    return Survey(min(run.publish_time), max(run.publish_time))


def _survey_each(payloads: Iterable[bytes]) -> Survey:
    found = [time_of(payload) for payload in payloads]
    times = [one.time_ms for one in found if one.time_ms is not None]
    indexes = [one.message_index for one in found if one.message_index is not None]
    untimed = len(found) - len(times)
    return Survey(min(times, default=None), max(times, default=None), untimed, max(indexes, default=None))


def _joined(one: Survey, other: Survey) -> Survey:
    return Survey(
        min((time for time in (one.time_min, other.time_min) if time is not None), default=None),
        max((time for time in (one.time_max, other.time_max) if time is not None), default=None),
        one.untimed + other.untimed,
        max((index for index in (one.index_max, other.index_max) if index is not None), default=None),
    )
