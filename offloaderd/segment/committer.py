"""The ports of the segment writer: assignment, facts for the seal, verified segment, committer."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import LedgerEnd, LedgerInfo, Loss, Position
from offloaderd.core.traces import SegmentTrace
from offloaderd.format.manifest import LedgerPart, Past, SegmentManifest
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.feed import Gap

FindManifest = Callable[[str, str], Awaitable[bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One attempt to write; its first entry directly follows the position `after`.

    `resumed`: an earlier owner began it. `opened_s` is when it was opened (monotonic); `notes` are facts for its trace.
    `claimed_s` is the time of the claim while a recovery is measured, which ends with the first progress. `chain` has
    the source's ledgers, for their creation times in the record; None: they are not recorded.
    """

    attempt: Attempt
    after: Position
    resumed: bool
    opened_s: float
    claimed_s: float | None = None
    chain: LedgerChain | None = None
    notes: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedSegment:
    """A segment with complete and verified objects, which may be committed."""

    attempt: Attempt
    described: SegmentManifest
    committed: CommittedSegment
    reason: str
    opened_s: float
    trace: SegmentTrace
    """The trace, for the step of its commit."""

    @property
    def ends(self) -> dict[int, LedgerEnd]:
        """The ends of ledgers in its manifest."""
        return dict(self.described.ends)

    @property
    def payload_bytes(self) -> int:
        """Payload of all its entries."""
        return sum(part.payload_bytes for part in self.described.ledgers)

    @property
    def entries(self) -> int:
        """Number of its entries."""
        return sum(part.last_entry_id - part.first_entry_id + 1 for part in self.described.ledgers)

    def count(self, metrics: Metrics) -> None:
        """Count it as committed."""
        metrics.segments.labels(state="offloaded").inc()
        metrics.segment_bytes.observe(self.described.data_bytes)
        metrics.segment_entries.observe(self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The facts in a manifest about the topic around its segment; see the manifest."""

    losses: tuple[Loss, ...] = ()
    ends: tuple[tuple[int, LedgerEnd], ...] = ()
    past: Past | None = None
    replaces: tuple[UUID, ...] = ()


class SealFacts(Protocol):
    """The facts of the topic around a segment."""

    async def infos(self) -> Mapping[int, LedgerInfo]:
        """Return the known ledgers of the topic, with those of the segment."""
        ...

    async def around(
        self, begin: Position, parts: Sequence[LedgerPart], infos: Mapping[int, LedgerInfo], find: FindManifest
    ) -> Surroundings:
        """Return the surroundings of a segment from `begin` with `parts`; `find` reads small objects."""
        ...


class Committer(Protocol):
    """Records the begin, the commit or the failure of a segment. Every method may raise Fenced."""

    @property
    def manifest(self) -> ObjectKind:
        """The kind of manifest that is put: a draft if another process commits."""
        ...

    async def begin(self, attempt: Attempt) -> None:
        """Record a new attempt, before its first byte."""
        ...

    async def record_loss(self, gap: Gap) -> None:
        """Record a loss; the feed continues behind it."""
        ...

    async def before_complete(self, attempt: Attempt) -> None:
        """Raise if the objects may not be completed: the head in the bucket is ahead of the map."""
        ...

    async def before_manifest(self, described: SegmentManifest) -> None:
        """Raise SegmentFailed unless the objects are right: a rebuild trusts every manifest."""
        ...

    async def commit(self, segment: VerifiedSegment) -> None:
        """Commit the segment."""
        ...

    async def give_up(self, attempt: Attempt, why: str) -> None:
        """Give up an attempt that cannot become a segment; its entries begin the next one."""
        ...
