"""How a closed ledger is cut that is to lie in an object of its own (PIP-17), whoever writes it."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from offloaderd.errors import NotFound

if TYPE_CHECKING:
    from offloaderd.format.layout import LedgerLayout, SegmentLayout
    from offloaderd.metadata.records.history import HistoryPlan
    from offloaderd.model import LedgerInfo, Position, TopicName
    from offloaderd.offload.workshop import Workshop

COUNT_BYTES = 1 << 20


async def ledger_layout(shop: Workshop, topic: TopicName, info: LedgerInfo, *, count: bool = False) -> LedgerLayout:
    """Look a closed ledger up at the source. Raises NotFound, Transient, InvalidInput.

    Its length is that of its last entry; where that once proved wrong (`count`) all entries are read.
    """
    ledgers, source = shop.ledgers, shop.source
    assert ledgers is not None  # noqa: S101 - else no ledger is written as a whole
    assert source is not None  # noqa: S101 - as above
    if count:
        payload_bytes = 0
        entries = source.read(topic, info.ledger_id, 0, info.entries - 1, batch_bytes=COUNT_BYTES)
        async with aclosing(entries) as batches:
            async for batch in batches:
                payload_bytes += batch.payload_bytes()
    else:
        payload_bytes = await source.length_at(topic, info.ledger_id, info.entries - 1)
    metadata = await ledgers.describer.described(topic, info.ledger_id)
    return ledgers.layout(entries=info.entries, payload_bytes=payload_bytes, metadata=metadata)


async def layout_in_history(
    shop: Workshop, topic: TopicName, plan: HistoryPlan, begin: Position, info: LedgerInfo | None, *, count: bool
) -> LedgerLayout | SegmentLayout:
    """Say how what begins there is cut, by the method of the plan; `info` is what the source has of its ledger.

    A ledger that is being deleted goes as it comes, if at all. Raises Transient, InvalidInput.
    """
    if shop.ledgers is None or info is None or not plan.goes_whole(begin):
        return shop.layout
    try:
        return await ledger_layout(shop, topic, info, count=count)
    except NotFound:
        return shop.layout
