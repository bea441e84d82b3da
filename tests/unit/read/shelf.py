"""A ledger source with faults: ledgers with ids of the test's choice, that can vanish, stumble or rot."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from offloaderd.core.errors import CorruptData, NotFound, OffloaderError, Transient
from offloaderd.core.model import Confirmed, EntryBatch, LedgerInfo, TopicName

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence


class Shelf:
    """A LedgerSource; what it holds is changed directly. `stumbles` many calls fail with Transient first."""

    def __init__(self, *, known: bool = True) -> None:
        self.known = known
        self.ledgers_by_id: dict[int, list[bytes]] = {}
        self.closed: set[int] = set()
        self.rotten: set[tuple[int, int]] = set()
        self.unreadable: set[int] | None = None
        """Ledgers of Pulsar's list that BookKeeper does not have; None: the source does not say which it lists."""
        self.stumbles = 0
        self.reads: list[tuple[int, int, int]] = []
        self._changed = asyncio.Event()

    def put(self, ledger_id: int, payloads: Sequence[bytes], *, closed: bool = True) -> None:
        """Hold a ledger."""
        self.ledgers_by_id[ledger_id] = list(payloads)
        if closed:
            self.closed.add(ledger_id)
        self.tell()

    def tell(self) -> None:
        """Wake the watchers."""
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    async def _turn(self) -> None:
        await asyncio.sleep(0)  # noqa: TID251 - a real source takes a turn
        if self.stumbles:
            self.stumbles -= 1
            raise Transient("the source stumbles")

    async def topics(self, *, tenant: str | None = None, namespace: str | None = None) -> Sequence[TopicName]:
        """See LedgerSource."""
        assert (tenant, namespace) == (None, None)
        return []

    async def reserved(self, topic: TopicName) -> str | None:
        """See LedgerSource."""
        del topic
        return None

    async def ledgers(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """See LedgerSource."""
        await self._turn()
        if not self.known:
            raise NotFound(f"no topic {topic}")
        listed = sorted(self.ledgers_by_id.keys() | (self.unreadable or set()))
        before = {} if self.unreadable is None else dict(zip(listed[1:], listed, strict=False))
        return [
            LedgerInfo(
                previous=before.get(ledger_id),
                ledger_id=ledger_id,
                closed=ledger_id in self.closed,
                entries=len(found) if ledger_id in self.closed else 0,
                size_bytes=sum(map(len, found)),
            )
            for ledger_id, found in sorted(self.ledgers_by_id.items())
        ]

    async def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """See LedgerSource."""
        while True:
            yield None
            await self._changed.wait()

    async def confirmed(self, topic: TopicName, ledger_id: int) -> Confirmed:
        """See LedgerSource."""
        await self._turn()
        return Confirmed(len(self._ledger(ledger_id)) - 1, ledger_id in self.closed)

    async def read(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, *, batch_bytes: int
    ) -> AsyncGenerator[EntryBatch, None]:
        """See LedgerSource; two entries a batch, fewer before one that is rotten."""
        self.reads.append((ledger_id, first_entry_id, last_entry_id))
        at = first_entry_id
        while at <= last_entry_id:
            await self._turn()
            if (ledger_id, at) in self.rotten:
                raise CorruptData(key=f"ledger {ledger_id}", offset=0, expected="a digest", found="another")
            end = at if (ledger_id, at + 1) in self.rotten else min(at + 1, last_entry_id)
            yield EntryBatch(ledger_id, at, self._ledger(ledger_id)[at : end + 1])
            at = end + 1

    async def length_at(self, topic: TopicName, ledger_id: int, entry_id: int) -> int:
        """See LedgerSource."""
        return sum(map(len, self._ledger(ledger_id)[: entry_id + 1]))

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """See LedgerSource."""
        self.ledgers_by_id.pop(ledger_id, None)

    def _ledger(self, ledger_id: int) -> list[bytes]:
        if ledger_id not in self.ledgers_by_id:
            raise NotFound(f"no ledger {ledger_id}")
        return self.ledgers_by_id[ledger_id]


class Broken:
    """An ObjectReader whose every call fails with the same error; counts them."""

    def __init__(self, error: OffloaderError) -> None:
        self.error = error
        self.calls = 0

    def at(self, bucket: str) -> Broken:
        """See ObjectReader."""
        return self

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """Fail."""
        self.calls += 1
        raise self.error

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """Fail."""
        self.calls += 1
        raise self.error

    async def head(self, key: str) -> object:
        """Fail."""
        raise self.error

    async def list(self, prefix: str = "") -> AsyncGenerator[object, None]:
        """Fail."""
        raise self.error
        yield
