"""PIP-76's OffloadHandle: what a feeder may do with a topic, and nothing else."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from offloaderd.core.errors import InvalidInput
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import (
    ENTRY_BYTES_MAX,
    LEDGER_ID_MAX,
    EntryBatch,
    LedgerInfo,
    OfferResult,
    Position,
    SegmentRange,
)
from offloaderd.topic.memory.buffer import TailingBuffer


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """A committed segment (PIP-76, OffloadResult)."""

    segment_id: UUID
    range: SegmentRange


class OffloadHandle:
    """Offers entries of one topic to its tailing buffer."""

    def __init__(
        self,
        buffer: TailingBuffer,
        *,
        push_only: bool,
        closed_ledgers: dict[int, LedgerInfo],
        result: Callable[[], Awaitable[SegmentResult]],
        ended: Callable[[Position], None],
        metrics: Metrics,
    ) -> None:
        self._buffer = buffer
        self._closed_ledgers = closed_ledgers
        self._result = result
        self._ended = ended
        self._metrics = metrics
        self.push_only = push_only

    def can_offer(self, size_bytes: int) -> bool:
        """Say whether an offer of that many payload bytes would be taken now."""
        return self._buffer.can_offer(size_bytes)

    def last_offered(self) -> Position | None:
        """Newest position taken, or offloaded before; None when nothing is known yet."""
        return self._buffer.last_offered

    def offer(self, batch: EntryBatch) -> OfferResult:
        """Offer entries; never waits. Raises InvalidInput for what could not be an entry of any ledger."""
        batch.first.checked()
        if not batch.payloads:
            raise InvalidInput("an offer without entries", hint="send at least one payload")
        if batch.last_entry_id > LEDGER_ID_MAX:
            raise InvalidInput(f"entry id {batch.last_entry_id} is out of range")
        largest = max(map(len, batch.payloads))
        if largest > ENTRY_BYTES_MAX:
            raise InvalidInput(
                f"an entry of {largest} bytes; the largest allowed is {ENTRY_BYTES_MAX}",
                hint="Pulsar's maxMessageSize is 5 MiB",
            )
        result = self._buffer.offer(batch)
        if result is OfferResult.ACCEPTED:
            self._metrics.source_entries.inc(len(batch.payloads))
            self._metrics.source_bytes.inc(batch.payload_bytes())
        else:
            self._metrics.buffer_rejected_entries.labels(reason=result.value).inc(len(batch.payloads))
        return result

    async def room(self) -> None:
        """Return when memory was freed since the call; for a pusher that was told FULL."""
        await self._buffer.wait_for_room()

    def ledger_closed(self, ledger_id: int, last_entry_id: int, closed_ms: int) -> None:
        """Note that a pushed ledger gets no more entries (its size is known only from what was pushed)."""
        last = Position(ledger_id, max(last_entry_id, 0)).checked()
        self._closed_ledgers[ledger_id] = LedgerInfo(
            ledger_id=ledger_id, closed=True, entries=last_entry_id + 1, size_bytes=0, closed_at_ms=closed_ms
        )
        if self.push_only and last_entry_id >= 0:
            self._ended(last)

    async def result(self) -> SegmentResult:
        """Wait for the next segment to be committed (PIP-76, getOffloadResultAsync)."""
        return await self._result()
