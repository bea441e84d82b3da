"""Follows a topic in its ledger source and keeps the tailing buffer filled up to the last confirmed entry.

It also reads what the buffer declined or evicted and the open segment still needs. It never reads above what the
source confirms, and while a broker pushes it leaves the live edge to the broker for a moment.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from offloaderd.errors import NotFound, OffloaderError, Transient
from offloaderd.model import LedgerInfo, Position
from offloaderd.offload.budget import Backoff
from offloaderd.offload.buffer import START, Gap
from offloaderd.offload.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.clock import Clock
    from offloaderd.ledgers.port import LedgerSource
    from offloaderd.metrics import Metrics
    from offloaderd.model import TopicName
    from offloaderd.offload.buffer import BufferPool, TailingBuffer
    from offloaderd.offload.lag import LagTracker
    from offloaderd.offload.uploader import Troubles

log = structlog.get_logger(__name__)

READ_BYTES = 1 << 20
"""Most that is read at once; less under a small budget, so that reads fit in beside each other."""

PUSH_PATIENCE_S = 1.0
"""How long confirmed entries may be missing before they are read although a broker is pushing."""


class EntriesLost(OffloaderError):
    """Entries that were never offloaded are gone from the source: the topic stops, loudly, where they would follow."""


class Tailer:
    """One topic's reader of its ledger source."""

    def __init__(  # noqa: PLR0913 - the tailer joins the source, the buffer and what watches both
        self,
        source: LedgerSource,
        topic: TopicName,
        buffer: TailingBuffer,
        pool: BufferPool,
        *,
        needed: Callable[[], Position],
        pushing: Callable[[], bool],
        lag: LagTracker,
        troubles: Troubles,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._source = source
        self._topic = topic
        self._buffer = buffer
        self._pool = pool
        self._needed = needed
        self._pushing = pushing
        self._lag = lag
        self._troubles = troubles
        self._ends: dict[int, int] = {}  # last entry of ledgers that were seen closed
        self._clock = clock
        self._metrics = metrics
        self._read_bytes = min(READ_BYTES, pool.limit_bytes // 8)
        self._wake = Signal()
        self._dirty = False
        self._waiting_at: tuple[Position, float] | None = None
        self.ledgers: dict[int, LedgerInfo] = {}

    def nudge(self) -> None:
        """The segment may need something that only the source has: look again."""
        self._dirty = True
        self._wake.notify()

    async def run(self) -> None:
        """Keep the buffer filled until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(), name=f"watch {self._topic}")
            backoff = Backoff(self._clock)
            while True:
                self._dirty = False
                try:
                    await self._catch_up()
                except Transient as error:
                    self._troubles.met(error)
                    await backoff.wait(error)
                    continue
                backoff.reset()
                if self._dirty:
                    continue
                if self._waiting_at is None:
                    await self._wake.wait()
                else:
                    await self._wake.wait_at_most(self._clock, PUSH_PATIENCE_S)

    async def _watch(self) -> None:
        async with aclosing(self._source.watch(self._topic)) as changes:
            async for _ in changes:
                self.nudge()

    async def refresh(self) -> Position | None:
        """Read the list of ledgers; returns the newest confirmed position, None when there is no entry."""
        try:
            infos = await self._source.ledgers(self._topic)
        except NotFound:
            infos = []
        self.ledgers = {info.ledger_id: info for info in infos}
        self._ends.update((info.ledger_id, info.entries - 1) for info in infos if info.closed)
        for info in reversed(infos):
            if not info.closed:
                confirmed = await self._source.confirmed(self._topic, info.ledger_id)
                info = replace(info, entries=confirmed.last_entry_id + 1)  # noqa: PLW2901 - the same ledger, fresher
                self.ledgers[info.ledger_id] = info
            if info.entries:
                newest = Position(info.ledger_id, info.entries - 1)
                self._lag.saw(newest, self._clock.monotonic())
                return newest
        return None

    async def _catch_up(self) -> None:
        await self.refresh()
        while True:
            gap = self._buffer.gap(self._needed())
            if gap.before is None and self._leave_to_pusher(gap.after):
                return
            run = await self._readable(gap)
            if run is None:
                self._waiting_at = None
                return
            if gap.before == run[:2]:
                self._buffer.connect(gap)
            else:
                await self._fill(*run, gap=gap)

    def _leave_to_pusher(self, edge: Position) -> bool:
        """Say whether a pushing broker should still get the chance to deliver what follows `edge`."""
        now = self._clock.monotonic()
        if not self._pushing():
            self._waiting_at = None
            return False
        if self._waiting_at is None or self._waiting_at[0] != edge:
            self._waiting_at = (edge, now)
        return now - self._waiting_at[1] < PUSH_PATIENCE_S

    async def _readable(self, gap: Gap) -> tuple[int, int, int] | None:
        """Return (ledger, first, last) of confirmed entries directly behind `gap.after`, None at the edge."""
        ledger_id, first = gap.after.ledger_id, gap.after.entry_id + 1
        if gap.after != START:
            if ledger_id not in self.ledgers:
                self._require_complete(gap.after)
            else:
                confirmed = await self._source.confirmed(self._topic, ledger_id)
                if first <= confirmed.last_entry_id:
                    return ledger_id, first, self._limit(ledger_id, confirmed.last_entry_id, gap)
                if not confirmed.closed:
                    return None
        for following in sorted(self.ledgers):
            if following <= ledger_id:
                continue
            confirmed = await self._source.confirmed(self._topic, following)
            if confirmed.last_entry_id >= 0:
                return following, 0, self._limit(following, confirmed.last_entry_id, gap)
            if not confirmed.closed:
                return None
        return None

    @staticmethod
    def _limit(ledger_id: int, last: int, gap: Gap) -> int:
        if gap.before is not None and gap.before.ledger_id == ledger_id:
            return min(last, gap.before.entry_id - 1)
        return last

    def _require_complete(self, after: Position) -> None:
        """A ledger that vanished is no loss only if it is known to have ended where we are."""
        if not any(ledger_id > after.ledger_id for ledger_id in self.ledgers):
            return
        if self._ends.get(after.ledger_id) == after.entry_id:
            return
        self._metrics.source_gaps.inc()
        raise EntriesLost(
            f"ledger {after.ledger_id} of {self._topic} is gone from the source; offloaded only to {after}",
            hint="entries behind that position may have been deleted before they were offloaded; check the retention",
        )

    async def _fill(self, ledger_id: int, first: int, last: int, *, gap: Gap) -> None:
        """Read a range into the buffer; stops early when the buffer's need has changed meanwhile."""
        need, follows = self._buffer.need, gap.after
        if gap.before is not None:
            self._metrics.source_fallback_reads.inc()
        entries = self._source.read(self._topic, ledger_id, first, last, batch_bytes=self._read_bytes)
        async with aclosing(entries) as batches:
            async for batch in batches:
                while self._buffer.need == need and not self._buffer.fill(batch, follows):
                    self._metrics.buffer_rejected_entries.labels(reason="full").inc(len(batch.payloads))
                    await self._pool.freed.wait()
                if self._buffer.need != need:
                    return
                self._metrics.source_entries.inc(len(batch.payloads))
                self._metrics.source_bytes.inc(batch.payload_bytes())
                if gap.before is not None:
                    self._metrics.source_fallback_bytes.inc(batch.payload_bytes())
                follows = batch.last
