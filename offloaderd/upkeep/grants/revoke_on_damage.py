"""Revocation of grants for damaged segments, so that the source keeps their ledgers.

Damage is found by the scrub, a verification, a broker's check, a read or a job. A revocation needs no claim, since it
compares the grant's version; so a daemon that only reads revokes as well, and so does a job without any daemon.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

import structlog

from offloaderd.core.aio import race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, NotFound, OffloaderError, Transient
from offloaderd.core.limits import Bounded
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.retry import Backoff
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.port import ObjectReader, find
from offloaderd.upkeep.grants import records as grant_records

log = structlog.get_logger(__name__)

AGAIN_S = 60.0
"""How often a segment that is found damaged repeatedly is inspected: a grant that was allowed again too early has to be
revoked before the owner deletes by it."""
KNOWN_MAX = 10_000
"""Segments that are remembered as inspected, and that may wait for it."""


class GrantRevoker:
    """Revokes or forbids grants of damaged ledgers; an operator allows them again."""

    def __init__(self, store: MetadataStore, objects: ObjectReader, clock: Clock, metrics: Metrics) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock
        self._metrics = metrics
        self._inspected: Bounded[tuple[TopicName, UUID], float] = Bounded(KNOWN_MAX)
        self._waiting: dict[tuple[TopicName, UUID], tuple[CommittedSegment, OffloaderError | str]] = {}
        self._queued = asyncio.Event()

    async def keep(self, topic: TopicName, ledger_ids: Sequence[int], reason: str) -> None:
        """Revoke the grants of ledgers that are not being deleted already. Raises Transient."""
        now_ms = self._clock.wall_ms()
        for ledger_id in ledger_ids:
            try:
                await grant_records.revoke(self._store, topic, ledger_id, reason=reason, now_ms=now_ms, damaged=True)
            except Conflict as error:
                log.warning("grant.not_revoked", topic=str(topic), ledger_id=ledger_id, error=str(error))
            else:
                self._metrics.damaged_copies.inc()
                log.error("grant.revoked_for_damage", topic=str(topic), ledger_id=ledger_id, reason=reason)

    def found(self, topic: TopicName, segment: CommittedSegment, error: OffloaderError | str) -> None:
        """Queue for `run` a segment that seems damaged, or to lack an object; does not wait."""
        key, now_s = (topic, segment.segment_id), self._clock.monotonic()
        known_s = self._inspected.get(key)
        if segment.foreign or len(self._waiting) >= KNOWN_MAX or (known_s is not None and now_s - known_s < AGAIN_S):
            return
        self._inspected[key] = now_s
        self._waiting[key] = segment, error
        self._queued.set()

    async def run(self) -> None:
        """Revoke grants for the queued segments until cancelled; one whose stores do not answer delays no other."""
        backoff, unanswered = Backoff(self._clock), None
        while True:
            if unanswered is None:
                backoff.reset()
                await self._queued.wait()
            else:
                await race(self._queued.wait(), backoff.wait(unanswered))
            self._queued.clear()
            found, self._waiting, unanswered = self._waiting, {}, None
            for key, (segment, error) in found.items():
                try:
                    await self._inspect(key[0], segment, error)
                except Transient as failed:
                    self._waiting[key], unanswered = (segment, error), failed
                except OffloaderError as failed:
                    self._inspected.pop(key, None)  # the next report of it is inspected again
                    log.warning("damage.not_inspected", topic=str(key[0]), error=str(failed))

    async def _inspect(self, topic: TopicName, segment: CommittedSegment, error: OffloaderError | str) -> None:
        """Revoke the grants of a segment in the map, if a missing object is missing. Raises as the stores."""
        topic_map = await catalog.load(self._store, topic)
        current = next((one for one in topic_map.segments if one.segment_id == segment.segment_id), None)
        if current is None:
            return  # it was deleted or rewritten while it was read
        if isinstance(error, NotFound):
            store = self._objects.at(current.bucket)
            if None not in [await find(store, key) for key in current.keys.all]:
                return
        await self.keep(topic, [part.ledger_id for part in current.slices], f"its copy was found damaged: {error}")


class Fate(StrEnum):
    """Outcomes for a ledger whose copy a job found damaged."""

    KEPT = "kept"
    """Its grant is revoked, by this job or before: the source keeps it."""
    GONE = "gone"
    """Its source is deleting it, or has deleted it."""
    NOT_KEPT = "not-kept"
    """The job may not revoke its grant, or could not: an operator has to."""
    DRY_RUN = "dry-run"
    """The job changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedLedger:
    """A ledger with a damaged copy; `text` has the outcome, and `what_to_do` the next step."""

    topic: TopicName
    ledger_id: int
    fate: Fate
    text: str
    what_to_do: str


class JobKeeper:
    """Revokes grants of ledgers that a job found damaged, by metadata alone; `store` None: the job has none."""

    def __init__(self, store: MetadataStore | None, clock: Clock, *, job: str, dry_run: bool = False) -> None:
        self._store = store
        self._clock = clock
        self._job = job
        self._dry_run = dry_run

    async def keep(self, topic_map: TopicMap, damage: Mapping[UUID, str]) -> list[DamagedLedger]:
        """Revoke the grants of the ledgers of damaged segments in the map; return the outcome of each.

        Raises no OffloaderError: without the rights or the metadata store the outcome says what is left to do.
        """
        ledgers = {
            part.ledger_id: damage[one.segment_id]
            for one in topic_map.segments
            if one.segment_id in damage and not one.foreign  # a broker's ledger has no grant
            for part in one.slices
        }
        topic, kept = topic_map.topic, []
        for ledger_id, what in sorted(ledgers.items()):
            reason = f"its copy was found damaged by {self._job}: {what}"
            fate, text, advice = await self._revoked(topic, ledger_id, reason)
            kept.append(DamagedLedger(topic=topic, ledger_id=ledger_id, fate=fate, text=text, what_to_do=advice))
        return kept

    async def _revoked(self, topic: TopicName, ledger_id: int, reason: str) -> tuple[Fate, str, str]:
        by_hand = f"offloadctl grants revoke {topic} {ledger_id} --reason damaged"
        if self._dry_run:
            text, advice = "its grant was not revoked: this is a dry run", f"without --dry-run it is, or {by_hand}"
            return Fate.DRY_RUN, text, advice
        if self._store is None:
            return Fate.NOT_KEPT, "its grant was not revoked: the job works without metadata", by_hand
        now_ms = self._clock.wall_ms()
        try:
            await grant_records.revoke(self._store, topic, ledger_id, reason=reason, now_ms=now_ms, damaged=True)
        except Conflict as error:
            return Fate.GONE, error.message, "restore the copy: it may be the last one"
        except OffloaderError as error:
            return Fate.NOT_KEPT, f"its grant could not be revoked: {error.message}", by_hand
        advice = f"restore the copy, then offloadctl grants allow {topic} {ledger_id}"
        return Fate.KEPT, "its grant is revoked, so its source keeps it", advice
