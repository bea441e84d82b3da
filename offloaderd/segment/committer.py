"""What stands on either side of a segment's writer: what it is given to write, and who takes what it has verified."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import LedgerEnd, LedgerInfo, Loss, Position
from offloaderd.core.traces import SegmentTrace
from offloaderd.format.values import LedgerPart, Past, SegmentManifest
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.feed import Gap

FindManifest = Callable[[str, str], Awaitable[bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One attempt to bring to its end. `after` is the position that its first entry directly follows.

    `resumed`: an earlier owner began it. `opened_s` is since when it counts as open, by the monotonic clock; `notes`
    are facts for its trace. `claimed_s` is since when its owner has the topic, if that counts as a recovery that lasts
    until the first progress.
    """

    attempt: Attempt
    after: Position
    resumed: bool
    opened_s: float
    claimed_s: float | None = None
    notes: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedSegment:
    """A segment whose objects are in the bucket, complete and checked: what may be committed."""

    attempt: Attempt
    described: SegmentManifest
    committed: CommittedSegment
    reason: str
    opened_s: float
    trace: SegmentTrace
    """For the step of its commit."""

    @property
    def ends(self) -> dict[int, LedgerEnd]:
        """How ledgers ended, as its manifest says."""
        return dict(self.described.ends)

    @property
    def payload_bytes(self) -> int:
        """Payload of all its entries."""
        return sum(part.payload_bytes for part in self.described.ledgers)

    @property
    def entries(self) -> int:
        """How many entries it holds."""
        return sum(part.last_entry_id - part.first_entry_id + 1 for part in self.described.ledgers)

    def count(self, metrics: Metrics) -> None:
        """Count it as a part of its topic."""
        metrics.segments.labels(state="offloaded").inc()
        metrics.segment_bytes.observe(self.described.data_bytes)
        metrics.segment_entries.observe(self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a manifest says of the topic around its segment; see the manifest for each."""

    losses: tuple[Loss, ...] = ()
    ends: tuple[tuple[int, LedgerEnd], ...] = ()
    past: Past | None = None
    replaces: tuple[UUID, ...] = ()


class SealFacts(Protocol):
    """Who knows the topic around a segment."""

    async def infos(self) -> Mapping[int, LedgerInfo]:
        """Return what is known of the topic's ledgers, those of the segment among them."""
        ...

    async def around(
        self, begin: Position, parts: Sequence[LedgerPart], infos: Mapping[int, LedgerInfo], find: FindManifest
    ) -> Surroundings:
        """Return what lies around a segment that begins at `begin` and holds `parts`; `find` reads small objects."""
        ...


class Committer(Protocol):
    """Who records a segment's begin, and makes it part of the topic. All of it may raise Fenced."""

    @property
    def manifest(self) -> ObjectKind:
        """What is put as its manifest: the draft of one, where somebody else has the last word."""
        ...

    async def begin(self, attempt: Attempt) -> None:
        """Record a new attempt, before its first byte."""
        ...

    async def record_loss(self, gap: Gap) -> None:
        """Record that the source has lost entries; the feed goes on behind them."""
        ...

    async def before_complete(self, attempt: Attempt) -> None:
        """Raise what forbids to complete the objects: a head in the bucket that is ahead of the map."""
        ...

    async def before_manifest(self, described: SegmentManifest) -> None:
        """Raise SegmentFailed unless the objects may be believed: a rebuild believes every manifest."""
        ...

    async def commit(self, segment: VerifiedSegment) -> None:
        """Make the segment part of the topic, which is offloaded up to its end then."""
        ...

    async def give_up(self, attempt: Attempt, why: str) -> None:
        """End an attempt that cannot become a segment; its entries begin the next one."""
        ...
