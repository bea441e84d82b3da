"""Pushes to a topic: PIP-76's OffloadHandle, and the check that the ledger source knows a pushed ledger.

The source decides: entries that it lacks cannot be read again after a loss of memory, may be a mistake of the pusher,
and would stay in memory for ever. A broker may push a ledger while it creates it, so the source is queried again, at
once and at each of its changes, for a moment before a push is refused.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidInput, LedgerUnknown
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import (
    ENTRY_BYTES_MAX,
    LEDGER_ID_MAX,
    Edge,
    EntryBatch,
    LedgerInfo,
    OfferResult,
    Position,
    SegmentRange,
)
from offloaderd.topic.buffer import TailingBuffer
from offloaderd.topic.tailer import Tailer


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
        """Return whether an offer of that many payload bytes would be accepted now."""
        return self._buffer.can_offer(size_bytes)

    def last_offered(self) -> Position | None:
        """Return the newest position that was accepted or offloaded before; None if there is none."""
        return self._buffer.last_offered

    def offer(self, batch: EntryBatch) -> OfferResult:
        """Offer entries; never waits. Raises InvalidInput for what cannot be an entry of any ledger."""
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
        """Return when memory was freed since the call, for a pusher after FULL."""
        await self._buffer.wait_for_room()

    def ledger_closed(self, ledger_id: int, last_entry_id: int, closed_ms: int) -> None:
        """Note that a pushed ledger is closed; its size is not known."""
        last = Position(ledger_id, max(last_entry_id, 0)).checked()
        self._closed_ledgers[ledger_id] = LedgerInfo(
            ledger_id=ledger_id, closed=True, entries=last_entry_id + 1, size_bytes=0, closed_at_ms=closed_ms
        )
        if self.push_only and last_entry_id >= 0:
            self._ended(last)

    async def result(self) -> SegmentResult:
        """Wait for the next segment to be committed (PIP-76, getOffloadResultAsync)."""
        return await self._result()


APPEARS_S = 5.0
"""Longest wait for a pushed ledger to appear in the source, whose list is watched."""


async def check_ledger(tailer: Tailer | None, buffer: TailingBuffer, batch: EntryBatch, clock: Clock) -> None:
    """Return once the source knows the ledger of a batch that is the next one. Raises LedgerUnknown, Transient."""
    if tailer is None or buffer.refusing or not buffer.expects(batch) or _has(tailer, batch):
        return
    until_s = clock.monotonic() + APPEARS_S
    await tailer.refresh()
    while not _has(tailer, batch):
        left_s = until_s - clock.monotonic()
        if left_s <= 0:
            raise _unknown(tailer, batch)
        await tailer.woken(left_s)
        await tailer.refresh()


def _has(tailer: Tailer, batch: EntryBatch) -> bool:
    """Return whether the source has these entries, or may get them since their ledger is open."""
    info = tailer.chain.ledgers.get(batch.ledger_id)
    if info is None:
        return False
    grows = not info.closed and (tailer.edge is None or tailer.edge.edge is not Edge.EXACT)
    return grows or batch.last_entry_id < info.entries


def _unknown(tailer: Tailer, batch: EntryBatch) -> LedgerUnknown:
    if batch.ledger_id in tailer.chain.ledgers:
        said = f"the ledger source of {tailer.topic} has no entry {batch.last}"
    else:
        said = f"the ledger source of {tailer.topic} knows no ledger {batch.ledger_id}"
    return LedgerUnknown(
        f"{said}: entries of it are not taken",
        hint="append to a daemon with a ledger store of its own (`offloadctl produce`, `append`); push entries that no "
        "source has to a daemon with ledgers.kind = none",
    )
