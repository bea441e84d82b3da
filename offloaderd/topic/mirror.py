"""How far a topic's mirror is: the segments without a copy, and the present error of copying."""

from collections.abc import Sequence
from dataclasses import dataclass

from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map.mirroring import Place, target
from offloaderd.objects.places import Places
from offloaderd.segment.failures import Failure
from offloaderd.segment.roll import RollPolicy

WAITING_MAX = 100
"""Ledgers in a status that wait for copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorStatus:
    """The mirror of a topic, and its lag: the segments without a copy that can have one.

    `lag_bytes` are of data objects, `lag_seconds` since the oldest of them was offloaded; `segments` have a copy.
    `failure` is the present error, empty while it works. `required`: grants wait for the copies, at present those of
    `waiting_ledgers`. `place` is as policies write it, empty if the policy demands a mirror and names none.
    """

    place: str
    bucket: str
    prefix: str
    lag_segments: int
    lag_entries: int
    lag_bytes: int
    lag_seconds: float
    segments: int
    failure: str
    failing_since_ms: int
    required: bool
    waiting_ledgers: tuple[int, ...]


class MirrorProgress:
    """The copies of one topic, as its owner knows them."""

    def __init__(self, places: Places, clock: Clock) -> None:
        self._home = (places.home.bucket, places.home.prefix)
        self._clock = clock
        self.waiting: tuple[int, ...] = ()
        """Ledgers that wait for copies to be granted, as the grants last found them."""
        self.copying_to: Place | None = None
        """Where a copy is being made, which is recorded even if the policy changes meanwhile."""
        self._failure: Failure | None = None
        self._seen: tuple[Sequence[CommittedSegment], Place, Place] | None = None
        self._due: tuple[CommittedSegment, ...] = ()

    def due(self, segments: Sequence[CommittedSegment], policy: RollPolicy) -> tuple[CommittedSegment, ...]:
        """Return the segments that lack a copy, the oldest first; it is computed again only after a change."""
        if policy.mirror is None:
            return ()
        own = policy.place or self._home
        seen = self._seen
        if seen is None or seen[0] is not segments or seen[1:] != (own, policy.mirror):
            self._seen = segments, own, policy.mirror
            self._due = tuple(one for one in segments if target(one, own, policy.mirror) is not None)
        return self._due

    def target(self, segment: CommittedSegment, policy: RollPolicy) -> Place | None:
        """Return where a segment lacks its copy, None for nowhere."""
        return target(segment, policy.place or self._home, policy.mirror) if policy.mirror is not None else None

    def failed(self, error: OffloaderError) -> None:
        """Note that a copy failed and is tried again."""
        if self._failure is None:
            self._failure = Failure(error, self._clock.wall_ms(), self._clock.monotonic())
        else:
            self._failure.error = error
            self._failure.tries += 1

    def worked(self) -> Failure | None:
        """Note that a copy was made, or none is wanted any more; return the failure that this ended."""
        ended, self._failure = self._failure, None
        return ended

    def status(self, segments: Sequence[CommittedSegment], policy: RollPolicy, *, wall_ms: int) -> MirrorStatus | None:
        """Return the status at a wall time; None while the policy names no mirror and demands none."""
        if policy.mirror is None and not policy.mirror_required:
            return None
        due, failure = self.due(segments, policy), self._failure
        bucket, prefix = policy.mirror or ("", "")
        said = str(failure.error) if failure is not None else ""
        if policy.mirror == (policy.place or self._home):  # by levels that do not know of each other
            due = tuple(one for one in segments if one.mirror is None and not one.foreign)
            said = "the mirror is the place of the segments themselves, so no copy is made: name another place"
        return MirrorStatus(
            place="/".join(policy.mirror or ()),
            bucket=bucket,
            prefix=prefix,
            lag_segments=len(due),
            lag_entries=sum(one.entries for one in due),
            lag_bytes=sum(one.object_bytes for one in due),
            lag_seconds=max(0.0, wall_ms - min(one.offloaded_ms for one in due)) / 1000 if due else 0.0,
            segments=sum(one.mirror is not None for one in segments),
            failure=said,
            failing_since_ms=failure.since_ms if failure is not None else 0,
            required=policy.mirror_required,
            waiting_ledgers=self.waiting[:WAITING_MAX] if policy.mirror_required else (),
        )
