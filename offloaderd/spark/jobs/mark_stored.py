"""The last step of an executor: it commits nothing, and says in the attempt's record that all objects are stored.

Whoever drives the job, now or after a crash, commits what is marked, in its turn. The driver has recorded the attempt,
and gives it up if need be.
"""

from dataclasses import replace

from offloaderd.format.values import SegmentManifest
from offloaderd.history.rewriting.rewrite import SameEntries
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.objects.keys import ObjectKind
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.committer import VerifiedSegment
from offloaderd.segment.feed import Gap


class MarkStored:
    """Marks attempts as offloaded; see Committer."""

    def __init__(self, attempts: AttemptLog, *, manifest: ObjectKind, proof: SameEntries | None = None) -> None:
        """`proof` is of what is to replace other objects."""
        self.manifest = manifest
        self._attempts = attempts
        self._proof = proof

    async def begin(self, attempt: Attempt) -> None:
        """Leave it as the driver has recorded it."""

    async def record_loss(self, gap: Gap) -> None:
        """Record none: a segment of a job ends before a loss."""

    async def before_complete(self, attempt: Attempt) -> None:
        """Let it pass: the driver compares the head when it commits."""

    async def before_manifest(self, described: SegmentManifest) -> None:
        """See Committer."""
        if self._proof is not None:
            await self._proof.check(described)

    async def commit(self, segment: VerifiedSegment) -> None:
        """Mark the attempt; of a successor's nothing is changed. Raises Conflict then."""
        await self._attempts.update(replace(segment.attempt, status=AttemptStatus.OFFLOADED, parts=()))

    async def give_up(self, attempt: Attempt, why: str) -> None:
        """Leave that to the driver, which hears why."""
