"""The ledgers of a topic that another cluster can be given, by the topic's map. Pure.

Pulsar's list names whole ledgers, each from entry 0 to its last entry. So a ledger comes up to the first of its entries
that no segment holds; what the bucket has behind such a gap is left out, and so is a ledger that begins behind entry 0.
Gaps and entries that are left out keep a topic from being mounted until an operator has decided about them. A ledger
that was open when the cluster was lost comes up to the last entry that was offloaded.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from offloaderd.core.model import START, Gap, Loss, Position, TopicName
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.topic_map.map import TopicMap


class AtGap(StrEnum):
    """What becomes of a topic with gaps."""

    REFUSE = "refuse"
    SKIP = "skip"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedLedger:
    """A ledger as the list shows it: entries 0 to `entries` - 1, `size_bytes` of payload.

    `last` is the segment that holds its last entry. It was sealed at the close of the ledger or before, and stands for
    the time of the close, which the map does not have.
    """

    ledger_id: int
    entries: int
    size_bytes: int
    last: CommittedSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlan:
    """The ledgers that come up, and what does not. `undecided`: an operator has to decide about that first.

    `left_out` are ranges of entries that the bucket has and a list cannot name, with the reason of each.
    """

    topic: TopicName
    ledgers: tuple[MountedLedger, ...]
    left_out: tuple[tuple[LedgerSlice, str], ...]
    gaps: tuple[Gap, ...]
    losses: tuple[Loss, ...]
    undecided: bool

    @property
    def entries(self) -> int:
        """Number of entries that come up."""
        return sum(one.entries for one in self.ledgers)

    @property
    def size_bytes(self) -> int:
        """Payload bytes that come up."""
        return sum(one.size_bytes for one in self.ledgers)

    @property
    def entries_left_out(self) -> int:
        """Number of entries that the bucket has and that do not come up."""
        return sum(part.entries for part, _ in self.left_out)

    @property
    def begin(self) -> Position | None:
        """Position of the first entry; None without a ledger."""
        return Position(self.ledgers[0].ledger_id, 0) if self.ledgers else None

    @property
    def end(self) -> Position | None:
        """Position of the last entry; None without a ledger."""
        return Position(self.ledgers[-1].ledger_id, self.ledgers[-1].entries - 1) if self.ledgers else None


def plan_mount(found: TopicMap, at_gap: AtGap) -> MountPlan:
    """Plan the list of a topic's ledgers; with STOP, up to the first gap that has entries before it."""
    stop = next((gap.after for gap in found.gaps if gap.after != START), None) if at_gap is AtGap.STOP else None
    ledgers: list[MountedLedger] = []
    left_out: list[tuple[LedgerSlice, str]] = []
    for ledger_id, parts in groupby(_parts(found.segments), key=lambda one: one[1].ledger_id):
        slices = list(parts)
        if stop is not None and Position(ledger_id, slices[0][1].first_entry_id) > stop:
            left_out += [(part, f"it is behind the gap after {stop}") for _, part in slices]
            continue
        joined = _joined(slices)
        entries = joined[-1][1].last_entry_id + 1 if joined else 0
        left_out += [
            (part, f"entries {entries} to {slices[len(joined)][1].first_entry_id - 1} of its ledger are not there")
            for _, part in slices[len(joined) :]
        ]
        if joined:
            size_bytes = sum(part.payload_bytes for _, part in joined)
            last, _ = joined[-1]
            ledgers.append(MountedLedger(ledger_id=ledger_id, entries=entries, size_bytes=size_bytes, last=last))
    return MountPlan(
        topic=found.topic,
        ledgers=tuple(ledgers),
        left_out=tuple(left_out),
        gaps=found.gaps,
        losses=found.losses,
        undecided=bool(found.gaps or left_out) and at_gap is AtGap.REFUSE,
    )


def _parts(segments: Iterable[CommittedSegment]) -> Iterator[tuple[CommittedSegment, LedgerSlice]]:
    for segment in segments:
        for part in segment.slices:
            yield segment, part


def _joined(slices: Sequence[tuple[CommittedSegment, LedgerSlice]]) -> list[tuple[CommittedSegment, LedgerSlice]]:
    """Return the first slices of a ledger, from entry 0 on without a gap."""
    joined: list[tuple[CommittedSegment, LedgerSlice]] = []
    for segment, part in slices:
        if part.first_entry_id != (joined[-1][1].last_entry_id + 1 if joined else 0):
            break
        joined.append((segment, part))
    return joined
