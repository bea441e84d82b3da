"""The outage of a topic: what happens to its entries while the store cannot take them, and which are unprotected.

An outage begins when a request to the store keeps failing (see segment/failures.py). It ends when all entries that had
arrived before the store recovered are committed. Under `block` no entries are taken meanwhile. Under `source`, the
default, entries beyond the memory stay in the ledger source, and pushers to a topic without one wait once memory is
full. Under `spill` entries pushed to a topic without a source overflow to disk.

`block` refuses entries only while a failed request is retried, since other failures do not end by themselves.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from offloaderd.core.aio import Signal
from offloaderd.core.model import EntryBatch, OfferResult, OutagePolicy, Position, TopicName
from offloaderd.core.quotas import Accounts
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker, error_class
from offloaderd.topic.buffer import BufferPool, TailingBuffer
from offloaderd.topic.chooser import Requests
from offloaderd.topic.spill import Spill, SpillArea


@dataclass(frozen=True, slots=True)
class OutageRules:
    """The outage policy of topics without their own, and the spill area of push-only ones (None: no spill)."""

    policy: OutagePolicy = OutagePolicy.SOURCE
    area: SpillArea | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicContext(OffloadContext):
    """The context of segments, with memory, outage rules and the accounts of namespaces."""

    pool: BufferPool
    accounts: Accounts
    outage: OutageRules = field(default_factory=OutageRules)


WAIT_S = 2.0
"""Pause between calls of `meanwhile` during an outage."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Unprotected:
    """Entries that are not durable because of an outage; `since_ms` 0: none."""

    entries: int = 0
    payload_bytes: int = 0
    since_ms: int = 0
    lasts_s: float = 0.0


@dataclass(slots=True)
class _Begun:
    since_ms: int
    since_s: float
    entries_max: int = 0
    payload_bytes_max: int = 0
    until: Position | None = None  # newest entry at the store's recovery; None before it


class Outage:
    """The outage policy of one topic, carried out."""

    def __init__(
        self,
        context: TopicContext,
        topic: TopicName,
        *,
        buffer: TailingBuffer,
        requests: Requests,
        failure_tracker: FailureTracker,
        changed: Signal,
    ) -> None:
        """`changed` is notified of changes of the topic."""
        self._topic = topic
        self._buffer = buffer
        self._requests = requests
        self._failure_tracker = failure_tracker
        self._changed = changed
        self._push_only = context.source is None
        self._default = context.outage.policy
        self._wanted: OutagePolicy | None = None
        self._begun: _Begun | None = None
        self._clock, self._metrics = context.upload_context.clock, context.upload_context.metrics
        self.spill: Spill | None = None
        """Overflow of a topic that may need one; works while its `run` runs."""
        if context.outage.area is not None and self._push_only:
            area = context.outage.area
            self.spill = Spill(area, buffer, context.pool, clock=self._clock, metrics=self._metrics)

    @property
    def overflow_is_empty(self) -> bool:
        """Whether all that was accepted is in memory or committed."""
        return self.spill is None or self.spill.empty

    @property
    def policy(self) -> OutagePolicy:
        """The policy in force; `source` instead of `spill` where there is no spill."""
        wanted = self._wanted or self._default
        return OutagePolicy.SOURCE if wanted is OutagePolicy.SPILL and self.spill is None else wanted

    def follow(self, wanted: OutagePolicy | None) -> None:
        """Take the topic's own policy, None for the daemon's."""
        self._wanted = wanted
        self._changed.notify()

    @property
    def blocked(self) -> bool:
        """Whether no entries may be taken: in an outage, or while a topic without a source is paused."""
        if self._push_only and self._requests.policy.paused is not None:
            return True
        return self.policy is OutagePolicy.BLOCK and self._failure_tracker.outage is not None

    async def may_take(self, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """Return when entries may be taken; until then `meanwhile` is called at intervals."""
        while self.blocked and not self._buffer.closed:
            await self._changed.wait_at_most(self._clock, WAIT_S)
            if meanwhile is not None:
                await meanwhile()

    async def overflow(self, batch: EntryBatch) -> OfferResult | None:
        """Write a batch without room in memory to disk; None without a spill."""
        if self.spill is None or self.policy is not OutagePolicy.SPILL:
            return None
        result = await self.spill.accept(batch)
        if result is OfferResult.ACCEPTED:
            self._metrics.source_entries.inc(len(batch.payloads))
            self._metrics.source_bytes.inc(batch.payload_bytes())
        return result

    def unprotected(
        self, entries: int, payload_bytes: int, *, newest: Position | None, offloaded: Position | None
    ) -> Unprotected:
        """Return the unprotected part of the entries not committed; logs the begin and the end of an outage."""
        failure = self._failure_tracker.outage
        if self._begun is None:
            if failure is None:
                return Unprotected()
            self._begun = _Begun(failure.since_ms, failure.since_s)
            log.warning(
                "topic.unprotected",
                topic=str(self._topic),
                policy=str(self.policy),
                error_class=error_class(failure.error),
                since_ms=failure.since_ms,
                entries=entries,
                bytes=payload_bytes,
                hint=_HINTS[self.policy, self._push_only],
            )
        begun, lasts_s = self._begun, self._clock.monotonic() - self._begun.since_s
        begun.entries_max = max(begun.entries_max, entries)
        begun.payload_bytes_max = max(begun.payload_bytes_max, payload_bytes)
        begun.until = None if failure is not None else begun.until or newest
        stored = begun.until is None or (offloaded is not None and offloaded >= begun.until)
        if failure is None and stored:
            return self._ended(begun, lasts_s)
        return Unprotected(entries, payload_bytes, begun.since_ms, lasts_s)

    def _ended(self, begun: _Begun, lasted_s: float) -> Unprotected:
        log.info(
            "topic.protected",
            topic=str(self._topic),
            unprotected_s=round(lasted_s, 3),
            entries_max=begun.entries_max,
            bytes_max=begun.payload_bytes_max,
        )
        self._begun = None
        return Unprotected()


_HINTS = {
    (OutagePolicy.BLOCK, False): "nothing more is taken; what was is in the source",
    (OutagePolicy.BLOCK, True): "nothing more is taken; what was is in memory here and with who pushed it",
    (OutagePolicy.SOURCE, False): "the source alone holds these entries; its retention must outlast the outage",
    (OutagePolicy.SOURCE, True): "memory here and who pushed hold these entries; pushers wait once memory is full",
    (OutagePolicy.SPILL, True): "memory and disk here and who pushed hold these entries; a full disk has pushers wait",
}
