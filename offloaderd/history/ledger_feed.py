"""The batches of a topic's ledgers for a ReadAheadFeed: the feed of history in a daemon or an executor.

Entries are read as fast as they can be stored, without the tailing buffer. Transient errors are retried here. A loss is
yielded as a Gap; reading continues behind it once the chain has accepted it.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from offloaderd.core.clock import Clock
from offloaderd.core.errors import NotFound, OffloaderError, Transient
from offloaderd.core.limits import ByteBudget
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Loss, Position, TopicName
from offloaderd.core.retry import Backoff, Turn
from offloaderd.format.v2 import SegmentLayout
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.segment.feed import Empty, Gap, ReadAheadFeed, Reading

READ_BYTES = 1 << 20
"""Bytes of one read of the source; less if a part is smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReading:
    """The way to read one topic's ledgers: `chain` has the known ones, `refresh` reads the source's list again.

    `failing` gets each failure, and None when it ends; `pace` times the pauses before a retry.
    """

    source: LedgerSource
    topic: TopicName
    chain: LedgerChain
    refresh: Callable[[], Awaitable[object]]
    failing: Callable[[OffloaderError | None], None]
    pace: Clock | Turn
    metrics: Metrics


def ledger_feed(
    reading: LedgerReading, attempt: Attempt, planned: Position, *, layout: SegmentLayout, budget: ByteBudget
) -> ReadAheadFeed:
    """Return the feed of an attempt's entries: up to its end if that is decided, else to the `planned` one."""
    end = planned if attempt.end is None else attempt.end
    part_bytes = (attempt.layout or layout).part_bytes
    batches = partial(ledger_batches, reading, end=end, batch_bytes=min(READ_BYTES, part_bytes))
    return ReadAheadFeed(batches, budget, reserve_bytes=part_bytes, holder=attempt.segment_id)


async def ledger_batches(reading: LedgerReading, after: Position, *, end: Position, batch_bytes: int) -> Reading:
    """Yield the entries behind `after` up to `end`. Raises what `refresh` raises, and errors that do not pass."""
    backoff, failure = Backoff(reading.pace), None
    while after < end:
        if failure is not None:
            reading.failing(failure)
            yield Empty()
            await backoff.wait(failure)
            failure = None
        step = reading.chain.next_after(after)
        if isinstance(step, Loss):
            yield Gap(step)
            if reading.chain.next_after(after) == step:
                return
            continue
        if step is None or step.first > end:
            return
        last = min(step.last_entry_id, end.entry_id) if step.ledger_id == end.ledger_id else step.last_entry_id
        entries = reading.source.read(reading.topic, step.ledger_id, step.first_entry_id, last, batch_bytes=batch_bytes)
        try:
            async with aclosing(entries) as batches:
                async for batch in batches:
                    reading.metrics.source_entries.inc(len(batch.payloads))
                    reading.metrics.source_bytes.inc(batch.payload_bytes())
                    yield batch
                    after = batch.last
        except NotFound:
            await reading.refresh()
            if step.ledger_id in reading.chain.ledgers:
                failure = Transient(f"ledger {step.ledger_id} is listed, and not there")
        except Transient as error:
            failure = error
        else:
            reading.failing(None)
            backoff.reset()
