"""What the ledger source says of one topic and has of it, with what of it only brokers' copies have."""

from collections.abc import AsyncGenerator, Sequence

from offloaderd.core.model import Confirmed, EntryBatch, LedgerInfo, TopicName
from offloaderd.history.adoption import Adoption
from offloaderd.ledgers.port import LedgerSource
from offloaderd.segment.source_check import SourceCheck


class SourceReader:
    """One topic's source; see LedgerSource. Without `check` its list is believed, without `adoption` it is all."""

    def __init__(
        self,
        source: LedgerSource,
        topic: TopicName,
        *,
        check: SourceCheck | None = None,
        adoption: Adoption | None = None,
    ) -> None:
        self._source = source
        self._topic = topic
        self._check = check
        self._adoption = adoption

    async def ledgers(self) -> Sequence[LedgerInfo]:
        """Return the source's ledgers. Raises IdentityRefused for those of another history."""
        if self._check is not None:
            return await self._check.ledgers(self._source)
        return await self._source.ledgers(self._topic)

    async def with_copies(self, infos: Sequence[LedgerInfo]) -> list[LedgerInfo]:
        """Return the source's ledgers, which are given, with those that only brokers' copies have."""
        return await self._adoption.look(infos) if self._adoption is not None else list(infos)

    async def confirmed(self, ledger_id: int) -> Confirmed:
        """Return how the end of a ledger is known."""
        return await self._source.confirmed(self._topic, ledger_id)

    def read(self, ledger_id: int, first: int, last: int, *, batch_bytes: int) -> AsyncGenerator[EntryBatch, None]:
        """Read entries from whoever has them."""
        if self._adoption is not None:
            return self._adoption.read(ledger_id, first, last, batch_bytes=batch_bytes)
        return self._source.read(self._topic, ledger_id, first, last, batch_bytes=batch_bytes)

    def watch(self) -> AsyncGenerator[None, None]:
        """Yield whenever the source may have changed."""
        return self._source.watch(self._topic)
