"""Ledgers written by us on real bookies: sound ones quickly, and every odd one that BookKeeper's client would not make.

    async with ledger_writer(cluster.zookeeper, SystemClock()) as writer:
        ledger = await writer.create(Plan(ensemble=3, write_quorum=3, ack_quorum=2, digest=DigestType.HMAC))
        await ledger.add(payloads, window=64)                                    # pipelined, as a broker does
        await ledger.put(b"odd", to=ledger.metadata.replicas(7)[:1], spoil=flipped)
        await ledger.close()

Rules: what is asked for is written, sound or not, and nothing is retried. All that adds, fences and writes nodes is
test code: here, in `written_ledger`, `bookie_link` and `ledger_nodes`. The reader's own code decodes what others have
written; of what the writer encodes nothing is shared with it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offloaderd.bookkeeper.metadata import (
    READONLY,
    ROOT_DEFAULT,
    Ensemble,
    Layout,
    LedgerMetadata,
    LedgerState,
    decode_layout,
    layout_path,
)
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.core.errors import Conflict, NotFound
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from tests.real.bookie_link import BookieLinks
from tests.real.ledger_nodes import LedgerNodes
from tests.real.written_ledger import WrittenLedger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from offloaderd.core.clock import Clock
    from offloaderd.metadata.port import MetadataStore


REGISTER_S = 60.0
"""How long a bookie may take to register again after its session has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a ledger is to be made; anything goes that its metadata can say.

    `bookies` are its first ensemble, None for any that are registered. Version 1 of the metadata keeps neither digest
    type nor password: the entries have them all the same.
    """

    ensemble: int = 3
    write_quorum: int = 2
    ack_quorum: int = 2
    digest: DigestType = DigestType.CRC32C
    password: bytes = b""
    bookies: Sequence[str] | None = None
    ledger_id: int | None = None
    metadata_version: int = 3
    custom: Mapping[str, bytes] = field(default_factory=dict)
    ctime_ms: int | None = None


class LedgerWriter:
    """Makes ledgers on one cluster. Its own ids ascend, far above those that a young cluster gives to other clients."""

    def __init__(self, store: MetadataStore, layout: Layout, clock: Clock, root: str = ROOT_DEFAULT) -> None:
        self.store = store
        self.clock = clock
        self._root = root
        self._nodes = LedgerNodes(store, layout, root)
        self._links = BookieLinks(store, root)
        self._next_id = 10_000_000 + clock.uuid().int % 900_000 * 1000

    async def bookies(self) -> list[str]:
        """Return the ids of the bookies that are registered as writable, in order."""
        return [name for name in await self.store.children(f"{self._root}/available") if name != READONLY]

    async def _members(self, count: int) -> tuple[str, ...]:
        """Return registered bookies; one whose former session has just ended may need a moment to come back."""
        until = self.clock.monotonic() + REGISTER_S
        while len(found := await self.bookies()) < count and self.clock.monotonic() < until:
            await self.clock.sleep(0.2)
        return tuple(found[:count])

    async def create(self, plan: Plan | None = None) -> WrittenLedger:
        """Make a ledger. Raises Conflict when the id of the plan is taken, NotFound when there are too few bookies."""
        how = plan or Plan()
        bookies = tuple(how.bookies) if how.bookies is not None else await self._members(how.ensemble)
        if len(bookies) != how.ensemble:
            raise NotFound(f"{how.ensemble} bookies for an ensemble: there are {bookies}")
        metadata = LedgerMetadata(
            format_version=how.metadata_version,
            state=LedgerState.OPEN,
            ensemble_size=how.ensemble,
            write_quorum=how.write_quorum,
            ack_quorum=how.ack_quorum,
            ensembles=(Ensemble(0, bookies),),
            digest_type=how.digest,
            password=how.password,
            ctime_ms=how.ctime_ms,
            custom=how.custom,
        )
        if how.ledger_id is not None:
            return WrittenLedger(await self._nodes.create(how.ledger_id, metadata), self._links)
        while True:
            with suppress(Conflict):  # another writer began near the same number
                return WrittenLedger(await self._nodes.create(self._new_id(), metadata), self._links)

    async def open(self, ledger_id: int) -> WrittenLedger:
        """Return a ledger that anybody has made, to recover, change or delete it. Raises NotFound."""
        return WrittenLedger(await self._nodes.read(ledger_id), self._links)

    def close(self) -> None:
        """End all connections; ledgers that are open stay open, as when a writer crashes."""
        self._links.close()

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id


@asynccontextmanager
async def ledger_writer(zookeeper: str, clock: Clock, root: str = ROOT_DEFAULT) -> AsyncIterator[LedgerWriter]:
    """Give a writer on the cluster of a ZooKeeper, `host:port`, and end its connections after the body."""
    async with ZooKeeperStore(zookeeper, "/") as store:
        path = layout_path(root)
        try:
            layout = decode_layout((await store.get(path)).value, path=path)
        except NotFound:
            layout = Layout.HIERARCHICAL
        writer = LedgerWriter(store, layout, clock, root)
        try:
            yield writer
        finally:
            writer.close()
