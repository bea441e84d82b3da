"""`history/plan`, `history/ranges/<n>`: a topic's entries before its live edge, and their offloading (PIP-76).

The owner writes the plan when it finds closed ledgers and nothing offloaded; the boundary never changes afterwards. The
ranges are written by the worker that splits the history. The map alone decides which entries are offloaded; ranges
record which worker writes which entries, for several workers at once and for operators.
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
"""A range takes up to 500 bytes with an error, so a node has at most 100 kB; it is rewritten at each step."""


class Worker(StrEnum):
    """The process that offloads a topic's history."""

    DAEMON = "daemon"
    JOB = "job"


class RangeState(StrEnum):
    """Progress of a range."""

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
    """The range of history: from entry 0 of ledger `first` to `last`. Live segments begin with entry 0 of `boundary`.

    No ledger is in both. `ranges` is 0 until the history is split; `holder` is the job's driver that may commit until
    `holder_until_ms`. `method` decides whether it is split into segments or into whole ledgers.
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
        """First position of live segments."""
        return Position(self.boundary, 0)

    @property
    def end(self) -> LedgerEnd:
        """End of the last ledger of history."""
        return LedgerEnd(self.last.entry_id + 1, self.boundary)

    def goes_whole(self, begin: Position) -> bool:
        """Whether the ledger at `begin` is to be an object of its own; the rest of a ledger is not."""
        return self.method is OffloadMethod.LEDGER_BASED and not begin.entry_id


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRange:
    """The entries of one segment of history: from `begin` to `end`, both inclusive."""

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
    """Return the content of the plan's node."""
    return codec.content(
        history_pb2.HistoryPlanRecord,
        value,
        boundary_ledger_id=value.boundary,
        first_ledger_id=value.first,
        **halves("last", value.last),
        method="" if value.method is OffloadMethod.STREAMING else value.method,
    )


def decode(data: bytes, *, path: str) -> HistoryPlan:
    """Read the content of the plan's node. Raises CorruptData."""
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
    """Return the content of a node with these ranges."""
    return history_pb2.HistoryRangesRecord(ranges=map(_to_message, values)).SerializeToString(deterministic=True)


def decode_ranges(data: bytes, *, path: str) -> tuple[HistoryRange, ...]:
    """Read a node's ranges, which ascend. Raises CorruptData."""
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
