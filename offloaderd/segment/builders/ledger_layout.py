"""How a closed ledger is cut that is to lie in an object of its own (PIP-17), whoever writes it."""

from contextlib import aclosing
from dataclasses import dataclass

from offloaderd.core.model import LedgerInfo, TopicName
from offloaderd.format.layout import LedgerLayout
from offloaderd.ledgers.port import LedgerDescriber, LedgerSource
from offloaderd.segment.builders.builder import PART_COUNT_MAX

COUNT_BYTES = 1 << 20

PARTS_MAX = PART_COUNT_MAX - 1000
"""Into how many parts a ledger is cut at most; the rest is for parts that are longer than was planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCut:
    """How ledgers are written as a whole: settings in bytes."""

    block_bytes: int
    part_bytes: int
    run_bytes: int
    dense_index: bool = False

    def layout(self, *, entries: int, payload_bytes: int, metadata: bytes) -> LedgerLayout:
        """Say how a ledger is cut; a long one into longer parts."""
        return LedgerLayout(
            block_bytes=self.block_bytes,
            part_bytes=max(self.part_bytes, -(-2 * payload_bytes // PARTS_MAX)),
            run_bytes=self.run_bytes,
            dense_index=self.dense_index,
            entries=entries,
            payload_bytes=payload_bytes,
            metadata=metadata,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeLedgers(LedgerCut):
    """How ledgers of the source are written as a whole, and who knows what BookKeeper says of them."""

    describer: LedgerDescriber


async def ledger_layout(
    ledgers: WholeLedgers | None, source: LedgerSource | None, topic: TopicName, info: LedgerInfo, *, count: bool
) -> LedgerLayout:
    """Look a closed ledger up at the source. Raises NotFound, Transient, InvalidInput.

    Its length is that of its last entry; where that once proved wrong (`count`) all entries are read.
    """
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
