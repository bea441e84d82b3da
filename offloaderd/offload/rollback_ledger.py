"""One ledger on its way out of streaming segments into an object of its own, by the topic's owner.

Written and proven as anything that is rewritten (`rewriting.py`); then the two are exchanged in one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.errors import Conflict, Fenced, NotFound, OffloaderError
from offloaderd.metadata import conversion
from offloaderd.metadata.merging import goal_of
from offloaderd.offload.rewriting import Phase, Rewriting
from offloaderd.offload.troubles import Troubles
from offloaderd.offload.uploader import SegmentFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.metadata.conversion import LedgerOutlook
    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.offload.commit import AttemptLog
    from offloaderd.offload.topic import TopicOffloader
    from offloaderd.offload.workshop import Workshop

EXCHANGES_MAX = 5
"""How often the exchange is tried while somebody else changes the map (a job that commits history)."""


class Stopped(OffloaderError):
    """The order was taken back while the ledger was being rewritten."""


class LedgerConversion:
    """The work on one ledger; `stopped` says whether it is not wanted any more."""

    def __init__(
        self,
        offloader: TopicOffloader,
        shop: Workshop,
        attempts: AttemptLog,
        row: LedgerOutlook,
        stopped: Callable[[], bool],
    ) -> None:
        self.row = row
        self.attempt: Attempt | None = None
        """As it was recorded last, None while none is."""
        self.troubles = Troubles(offloader.topic, shop.uplink.clock, offloader.changed.notify)
        self._offloader = offloader
        self._attempts = attempts
        self._stopped = stopped
        self._work = Rewriting(
            shop,
            attempts,
            lambda: offloader.map,
            goal_of(conversion.holders_of(offloader.map, row.ledger_id), ledger_id=row.ledger_id),
            troubles=self.troubles,
            ready=self._ready,
            closed_ms=self._closed_ms,
        )

    @property
    def phase(self) -> Phase:
        """What is being done."""
        return self._work.phase

    @property
    def done_bytes(self) -> int:
        """Payload bytes that were read of it in this phase."""
        return self._work.done_bytes

    async def run(self, left: Attempt | None) -> CommittedSegment:
        """Rewrite the ledger, going on with what an earlier owner left; returns what was committed.

        Raises Unreadable, SegmentFailed, Stopped (`attempt` is to be given up then), Fenced, Conflict.
        """
        self.attempt = left
        await self._work.open()
        attempt = left or await self._work.attempt()
        segment = self._work.segment(attempt, continued=left is not None)
        if left is None:
            await self._attempts.begin(attempt)
        try:
            with segment.trace as trace:
                trace.say(rollback=True)
                whole = await self._work.store(segment)
                with trace.step("commit"):
                    await self._exchange(whole)
        finally:
            self.attempt = segment.attempt
        self.attempt = None
        return whole

    def _ready(self) -> None:
        """Raise Stopped when the ledger is not wanted any more."""
        if self._stopped():
            raise Stopped(f"ledger {self.row.ledger_id} is not to be rewritten any more")

    def _closed_ms(self, ledger_id: int) -> int | None:
        known = self._offloader.record.chain.ledgers.get(ledger_id)
        return known.closed_at_ms if known is not None and known.closed else None

    async def _exchange(self, whole: CommittedSegment) -> None:
        """Put the object in the place of the slices. Raises Fenced, SegmentFailed when the map has no such slices."""
        self._work.phase = Phase.COMMITTING
        record = self._offloader.record
        for tries in range(1, EXCHANGES_MAX + 1):
            try:
                await record.exchange(self._attempts, whole)
            except Fenced:
                raise
            except (Conflict, NotFound) as error:
                await record.reload()
                if any(one.segment_id == whole.segment_id for one in record.map.segments):
                    return
                if tries == EXCHANGES_MAX:
                    raise SegmentFailed(f"the map has changed: {error.message}") from error
            else:
                return
