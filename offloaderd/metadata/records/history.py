"""`history/plan` and `history/ranges/<n>`: what lay before a topic's live edge, and how far it is offloaded (PIP-76).

The plan is written by the owner that finds closed ledgers and nothing offloaded; it fixes the boundary for good. The
ranges come when whoever is to offload it has split it. What is offloaded follows from the map alone: ranges tell who
works on what, so that several may and an operator sees it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from uuid import UUID

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import HistoryOrder, LedgerEnd, OffloadMethod, Position
from offloaderd.format.parsing import filled, halves
from offloaderd.format.pb.storage import history_pb2
from offloaderd.metadata.records import codec

ERROR_CHARS_MAX = 300
RANGES_PER_NODE = 200
"""A range takes up to 500 bytes with an error, so a node has 100 kB at most, and is rewritten with each step."""


class Worker(StrEnum):
    """Who offloads a topic's history."""

    DAEMON = "daemon"
    JOB = "job"


class RangeState(StrEnum):
    """How far a range is."""

    PLANNED = "planned"
    CLAIMED = "claimed"
    DONE = "done"


_TO_WIRE = {
    RangeState.PLANNED: history_pb2.HISTORY_RANGE_STATE_PLANNED,
    RangeState.CLAIMED: history_pb2.HISTORY_RANGE_STATE_CLAIMED,
    RangeState.DONE: history_pb2.HISTORY_RANGE_STATE_DONE,
}
_FROM_WIRE = {number: state for state, number in _TO_WIRE.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPlan:
    """What is history: from entry 0 of ledger `first` to `last`. Live segments begin with entry 0 of `boundary`.

    No ledger is split between the two. `ranges` is 0 until it has been split; `holder` is the job's driver that may
    commit, until `holder_until_ms`. By `method` it is split: into segments, or into whole ledgers.
    """

    boundary: int
    first: int
    last: Position
    order: HistoryOrder
    worker: Worker
    planned_ms: int
    epoch: int
    daemon_id: str
    entries: int
    payload_bytes: int
    segment_bytes: int = 0
    ranges: int = 0
    probes: int = 0
    split_ms: int = 0
    doubtful_ledgers: int = 0
    done_ms: int = 0
    holder: str = ""
    holder_until_ms: int = 0
    method: OffloadMethod = OffloadMethod.STREAMING
    unknown: bytes = field(default=b"", repr=False, compare=False)

    @property
    def live_begin(self) -> Position:
        """Where live segments begin."""
        return Position(self.boundary, 0)

    @property
    def end(self) -> LedgerEnd:
        """How the last ledger of history ended."""
        return LedgerEnd(self.last.entry_id + 1, self.boundary)

    def goes_whole(self, begin: Position) -> bool:
        """Say whether what begins there is a ledger that is to be an object of its own, not what is left of one."""
        return self.method is OffloadMethod.LEDGER_BASED and not begin.entry_id


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRange:
    """What one segment of history is to hold: from `begin` to `end`, both inclusive."""

    begin: Position
    end: Position
    entries: int
    payload_bytes: int
    state: RangeState = RangeState.PLANNED
    holder: str = ""
    epoch: int = 0
    lease_until_ms: int = 0
    segment_id: UUID | None = None
    tries: int = 0
    last_error: str = ""
    unknown: bytes = field(default=b"", repr=False, compare=False)


def encode(value: HistoryPlan) -> bytes:
    """Return the plan's node's content."""
    return codec.content(
        history_pb2.HistoryPlanRecord,
        value,
        boundary_ledger_id=value.boundary,
        first_ledger_id=value.first,
        **halves("last", value.last),
        method="" if value.method is OffloadMethod.STREAMING else value.method,
    )


def decode(data: bytes, *, path: str) -> HistoryPlan:
    """Read the plan's node's content; raises CorruptData."""
    record = codec.parse(history_pb2.HistoryPlanRecord, data, path)
    first = codec.position(path, record.first_ledger_id, 0)
    last = codec.position(path, record.last_ledger_id, record.last_entry_id)
    boundary = codec.position(path, record.boundary_ledger_id, 0)
    if not first <= last < boundary or last.ledger_id == boundary.ledger_id:
        codec.corrupt(path, f"a history that begins with {first} and ends before {boundary}", last)
    try:
        order, worker = HistoryOrder.parse(record.order), Worker(record.worker)
        method = OffloadMethod.parse(record.method or OffloadMethod.STREAMING.value)
    except (InvalidInput, ValueError):
        known = f"{record.order!r}, {record.worker!r} and {record.method!r}"
        codec.corrupt(path, "a known order, worker and method", known)
    return codec.read(
        HistoryPlan,
        record,
        boundary=boundary.ledger_id,
        first=first.ledger_id,
        last=last,
        order=order,
        worker=worker,
        method=method,
    )


def encode_ranges(values: Sequence[HistoryRange]) -> bytes:
    """Return the content of a node with so many ranges."""
    return history_pb2.HistoryRangesRecord(ranges=map(_to_message, values)).SerializeToString(deterministic=True)


def decode_ranges(data: bytes, *, path: str) -> tuple[HistoryRange, ...]:
    """Read the content of a node with ranges, which ascend; raises CorruptData."""
    record = codec.parse(history_pb2.HistoryRangesRecord, data, path)
    found = tuple(_from_message(one, path) for one in record.ranges)
    for before, after in pairwise(found):
        if before.end >= after.begin:
            codec.corrupt(path, f"a range behind {before.end}", after.begin)
    return found


def _to_message(value: HistoryRange) -> history_pb2.HistoryRangeRecord:
    message = filled(
        history_pb2.HistoryRangeRecord,
        value,
        **halves("begin", value.begin),
        **halves("end", value.end),
        state=_TO_WIRE[value.state],
        last_error=value.last_error[:ERROR_CHARS_MAX],
    )
    message.MergeFromString(value.unknown)
    return message


def _from_message(message: history_pb2.HistoryRangeRecord, path: str) -> HistoryRange:
    begin = codec.position(path, message.begin_ledger_id, message.begin_entry_id)
    end = codec.position(path, message.end_ledger_id, message.end_entry_id)
    state = _FROM_WIRE.get(message.state)
    if end < begin or state is None:
        codec.corrupt(path, "a range in a known state", f"{begin}..{end} in state {message.state}")
    segment_id = codec.segment_id(path, message.segment_id) if message.segment_id else None
    return codec.read(HistoryRange, message, begin=begin, end=end, state=state, segment_id=segment_id)
