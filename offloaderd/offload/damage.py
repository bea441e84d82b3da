"""What follows when stored segments are found damaged: their ledgers are not to be deleted at the source.

Whoever finds damage says so: the scrub, a verification, a broker's check, a read. A revocation needs no claim, since it
compares the grant's version; so a daemon that only reads revokes as well.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from offloaderd.errors import Conflict, NotFound, OffloaderError, Transient
from offloaderd.metadata import catalog
from offloaderd.objects import look
from offloaderd.offload import grant_records
from offloaderd.offload.budget import Backoff
from offloaderd.offload.signal import race

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from offloaderd.clock import Clock
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metrics import Metrics
    from offloaderd.model import TopicName
    from offloaderd.objects.port import ObjectReader

log = structlog.get_logger(__name__)

AGAIN_S = 60.0
"""A segment that is found damaged again and again is looked into once in so long: a grant that was allowed again too
early has to be revoked before the owner's next look, which deletes by it."""
KNOWN_MAX = 10_000
"""Segments of which that is known, and that may wait to be looked into."""


class SourceKeeper:
    """Takes back, or forbids beforehand, the permission to delete ledgers; an operator allows it again."""

    def __init__(self, store: MetadataStore, objects: ObjectReader, clock: Clock, metrics: Metrics) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock
        self._metrics = metrics
        self._told: dict[tuple[TopicName, UUID], float] = {}
        self._waiting: dict[tuple[TopicName, UUID], tuple[CommittedSegment, OffloaderError | str]] = {}
        self._news = asyncio.Event()

    async def keep(self, topic: TopicName, ledger_ids: Sequence[int], reason: str) -> None:
        """Revoke the grants of ledgers, as far as they are not being deleted already. Raises Transient."""
        now_ms = self._clock.wall_ms()
        for ledger_id in ledger_ids:
            try:
                await grant_records.revoke(self._store, topic, ledger_id, reason=reason, now_ms=now_ms, damaged=True)
            except Conflict as error:
                log.warning("ledger.not_kept", topic=str(topic), ledger_id=ledger_id, error=str(error))
            else:
                self._metrics.damaged_copies.inc()
                log.error("ledger.kept_for_damage", topic=str(topic), ledger_id=ledger_id, reason=reason)

    def found(self, topic: TopicName, segment: CommittedSegment, error: OffloaderError | str) -> None:
        """Have `run` keep the ledgers of a segment that seems damaged, or to lack an object; waits for nothing."""
        key, now_s = (topic, segment.segment_id), self._clock.monotonic()
        known_s = self._told.get(key)
        if segment.foreign or len(self._waiting) >= KNOWN_MAX or (known_s is not None and now_s - known_s < AGAIN_S):
            return
        self._told.pop(key, None)
        self._told[key] = now_s
        while len(self._told) > KNOWN_MAX:
            del self._told[next(iter(self._told))]
        self._waiting[key] = segment, error
        self._news.set()

    async def run(self) -> None:
        """Keep what was found damaged until cancelled; one that nobody answers for now holds up no other."""
        backoff, unanswered = Backoff(self._clock), None
        while True:
            if unanswered is None:
                backoff.reset()
                await self._news.wait()
            else:
                await race(self._news.wait(), backoff.wait(unanswered))
            self._news.clear()
            found, self._waiting, unanswered = self._waiting, {}, None
            for key, (segment, error) in found.items():
                try:
                    await self._look_into(key[0], segment, error)
                except Transient as failed:
                    self._waiting[key], unanswered = (segment, error), failed
                except OffloaderError as failed:
                    self._told.pop(key, None)  # whoever finds it again has it looked into again
                    log.warning("damage.not_looked_into", topic=str(key[0]), error=str(failed))

    async def _look_into(self, topic: TopicName, segment: CommittedSegment, error: OffloaderError | str) -> None:
        """Keep a segment's ledgers if the map still has it, and what is said to be missing is. Raises as the stores."""
        topic_map = await catalog.load(self._store, topic)
        current = next((one for one in topic_map.segments if one.segment_id == segment.segment_id), None)
        if current is None:
            return  # it was deleted or rewritten while somebody read it
        if isinstance(error, NotFound):
            store = self._objects.at(current.bucket)
            if None not in [await look.head(store, key) for key in current.keys.all]:
                return
        await self.keep(topic, [part.ledger_id for part in current.slices], f"its copy was found damaged: {error}")
