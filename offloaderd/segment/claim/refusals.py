"""Refusals of a topic: its metadata, bucket or source may belong to another history.

A check calls `refuse` for a finding, and `clear` once it finds none. A standing refusal stops deletions and grants of
the topic in every process (`metadata/identity.py`); most kinds also stop the offloading, by `stop`. Offloaded entries
stay readable, a refused source is not read.
"""

from collections.abc import Callable

import structlog

from offloaderd.core.aio import Event
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, Fenced, IdentityRefused, NotFound
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import RefusalKind
from offloaderd.core.retry import until_answered
from offloaderd.metadata import identity, paths
from offloaderd.metadata.port import Create, Replace
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.identity import Refusal, TopicIdentityRecord
from offloaderd.segment.claim.fence import Fence
from offloaderd.segment.failures import FailureTracker

log = structlog.get_logger(__name__)


class TopicIdentity:
    """The refusals of one topic under one claim; `refusals` is for status, checks read the record."""

    __slots__ = ("_clock", "_fence", "_metrics", "_topic", "checked", "failure_tracker", "refusals", "topic")

    def __init__(self, fence: Fence, *, clock: Clock, metrics: Metrics, before: "TopicIdentity | None" = None) -> None:
        """`before` is that of an earlier claim, whose refusals stand until the record is read."""
        self.refusals: tuple[Refusal, ...] = before.refusals if before is not None else ()
        """The standing refusals at the last read of the record."""
        self.topic = fence.claim.topic
        self.checked = Event()
        """Set once the head was checked under this claim: nothing is deleted or granted before."""
        self.failure_tracker: FailureTracker | None = None
        """Records the failures of a retried check."""
        self._fence = fence
        self._topic = fence.claim.topic
        self._clock = clock
        self._metrics = metrics

    async def load(self) -> tuple[Refusal, ...]:
        """Read the standing refusals. Raises CorruptData."""
        return self._show((await self._load()).record)

    async def accepted(self, kind: RefusalKind, evidence: str) -> bool:
        """Whether an operator has accepted this piece of evidence. Raises CorruptData."""
        return (await self._load()).record.accepts(kind, evidence)

    async def refuse(self, kind: RefusalKind, found: str, evidence: str) -> bool:
        """Record a finding; False when an operator has accepted it. Idempotent.

        `found` is for people; `evidence` stays the same as long as the finding does, and is what an operator accepts.
        Raises Fenced, CorruptData.
        """
        refusal = Refusal(
            kind=kind, found=found, evidence=evidence, since_ms=self._clock.wall_ms(), epoch=self._fence.claim.epoch
        )

        def change(record: TopicIdentityRecord) -> TopicIdentityRecord:
            stands = any((one.kind, one.evidence) == (kind, evidence) for one in record.refusals)
            if record.accepts(kind, evidence):
                return record.without(kind)
            return record if stands else record.refusing(refusal)

        before = self.refusals
        after = await self._change(change)
        if after.accepts(kind, evidence):
            return False
        if not any((one.kind, one.evidence) == (kind, evidence) for one in before):
            log.error(
                "identity.refused",
                topic=str(self._topic),
                kind=str(kind),
                found=found,
                evidence=evidence,
                hint=identity_record.hint(kind),
            )
        return True

    async def stop(self, kind: RefusalKind, found: str, evidence: str) -> None:
        """Refuse and raise IdentityRefused, unless an operator has accepted it. Raises Fenced, CorruptData."""
        if await self.refuse(kind, found, evidence):
            raise IdentityRefused(f"{kind}: {found}", hint=identity_record.hint(kind))

    async def clear(self, kind: RefusalKind, *, about: str = "") -> None:
        """Delete the refusals of a kind whose evidence begins with `about`. Idempotent.

        Raises Fenced, CorruptData.
        """
        if not any(one.kind == kind and one.evidence.startswith(about) for one in self.refusals):
            return
        stood = any(one.kind == kind and one.evidence.startswith(about) for one in await self.load())
        if stood:
            await self._change(lambda record: record.without(kind))
            log.info("identity.cleared", topic=str(self._topic), kind=str(kind))

    async def _load(self) -> identity.Stored:
        store = self._fence.store
        return await until_answered(self._clock, lambda: identity.load(store, self._topic))

    async def _change(self, change: Callable[[TopicIdentityRecord], TopicIdentityRecord]) -> TopicIdentityRecord:
        """Change the record under the epoch, again if an operator changes it at the same time. Raises Fenced."""
        path = paths.identity(self._topic)
        while True:
            found, version = await self._load()
            wanted = change(found)
            if wanted == found:
                break
            value = identity_record.encode(wanted)

            async def recorded(wanted: TopicIdentityRecord = wanted) -> bool:
                return (await self._load()).record == wanted

            step = Create(path, value) if version is None else Replace(path, value, version)
            try:
                await self._fence.settle([step], recorded)
            except Fenced:
                raise
            except (Conflict, NotFound):
                continue
            break
        self._show(wanted)
        return wanted

    def _show(self, record: TopicIdentityRecord) -> tuple[Refusal, ...]:
        """Set the standing refusals for status and the metric."""
        topic = str(self._topic)
        for one in self.refusals:
            self._metrics.identity_refusals.remove(topic, one.kind)
        for one in record.refusals:
            self._metrics.identity_refusals.labels(topic=topic, kind=one.kind).set(1)
        self.refusals = record.refusals
        return self.refusals
