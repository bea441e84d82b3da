"""Into what a job splits a history: segments of about a size, or whole ledgers."""

from collections.abc import Sequence

from offloaderd.core.model import LedgerInfo, OffloadMethod, Position, TopicName
from offloaderd.history.boundaries import GUESSED_BYTES, Split, Splitter
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.records.history import HistoryRange
from offloaderd.segment.context import OffloadContext
from offloaderd.spark.jobs.job import Aim


async def split_history(
    context: OffloadContext,
    source: LedgerSource,
    topic: TopicName,
    infos: Sequence[LedgerInfo],
    begin: Position,
    last: Position,
    aim: Aim,
) -> Split:
    """Split all entries from `begin` to `last`; `infos` has the ledgers between. Raises Transient.

    What is left of a ledger that was offloaded in part goes by streaming whatever the method is: no object of PIP-17
    can hold it.
    """
    clock, metrics = context.upload_context.clock, context.upload_context.metrics
    splitter = Splitter(source, topic, segment_bytes=aim.segment_bytes, clock=clock, metrics=metrics)
    if aim.method is not OffloadMethod.LEDGER_BASED:
        return await splitter.split(infos, begin, last)
    head, whole = Split(ranges=()), [info for info in infos if begin.ledger_id <= info.ledger_id and info.entries]
    if begin.entry_id and whole and whole[0].ledger_id == begin.ledger_id:
        rest, whole = whole[:1], whole[1:]
        head = await splitter.split(rest, begin, Position(begin.ledger_id, rest[0].entries - 1))
    ranges = [_range(info) for info in whole if info.ledger_id <= last.ledger_id]
    return Split(
        ranges=(*head.ranges, *ranges),
        probes=head.probes,
        boundaries=head.boundaries,
        seconds=head.seconds,
        doubts=head.doubts,
    )


def _range(info: LedgerInfo) -> HistoryRange:
    return HistoryRange(
        begin=Position(info.ledger_id, 0),
        end=Position(info.ledger_id, info.entries - 1),
        entries=info.entries,
        payload_bytes=max(info.size_bytes, 0) or info.entries * GUESSED_BYTES,
    )
