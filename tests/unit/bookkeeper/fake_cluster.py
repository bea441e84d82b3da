"""A Pulsar cluster without servers: nodes in a MemoryTree, bookies as dictionaries that fail on command.

    cluster = FakeCluster()
    ledger = await cluster.ledger(Shape(ensemble=3, write_quorum=2))     # a new one, last in the topic's list
    await ledger.write(payloads(10))                                     # LACs as a writer puts them
    cluster.bookies.down.add("b0")

A frozen bookie answers once it is thawed, or when a test lets its deadline pass by its clock. Long polls are kept as
DbLedgerStorage keeps them: who waits is woken, and forgotten, whenever what is remembered of a ledger's LAC changes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offloaderd.bookkeeper.metadata import Ensemble, Layout, LedgerMetadata, LedgerState
from offloaderd.bookkeeper.ports import LastKnown
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.bookkeeper.wire.protocol import NotHere, Unsupported
from offloaderd.core.errors import Conflict, Denied, NotFound, Throttled, Transient
from offloaderd.core.model import TopicName
from offloaderd.core.names.managed_ledgers import topic_path
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import LedgerInfo, ManagedLedgerInfo
from offloaderd.testing.memory.metadata import MemoryTree
from tests.real.ledger_nodes import encode
from tests.unit.bookkeeper.entries import package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from offloaderd.core.clock import Clock

TOPIC = TopicName.parse("persistent://public/default/flights")
ALL = tuple(f"b{number}" for number in range(5))
ENTRY_OVERHEAD_BYTES = 4


class FakeBookies:
    """Bookies by id; every request takes one turn of the loop."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[int, dict[int, bytes]]] = {}
        self.explicit: dict[str, dict[int, int]] = {}
        self.down: set[str] = set()
        self.frozen: set[str] = set()
        self.old: set[str] = set()
        self.busy: set[str] = set()
        self.locked: set[str] = set()
        self.avoided: set[str] = set()
        self.forgotten: set[str] = set()
        self.without_long_polls: set[str] = set()
        self.long_polls_max = 1000
        self.fenced: set[int] = set()
        self.waits_for_fenced = True
        self.remembered: dict[tuple[str, int], int] = {}
        self.waiting: dict[tuple[str, int], list[tuple[int, asyncio.Future[None]]]] = {}
        self.waits_s: list[float] = []
        self.clock: Clock | None = None
        self.instant = False
        self.requests: Counter[tuple[str, str]] = Counter()
        self.in_flight = 0
        self.in_flight_max = 0
        self.on_request: Callable[[str, str, int], None] = lambda _operation, _bookie, _entry: None
        self._thawed = asyncio.Event()

    def ordered(self, bookie_ids: Sequence[str]) -> list[str]:
        """Return them in order, those in `avoided` last."""
        return sorted(bookie_ids, key=lambda bookie_id: bookie_id in self.avoided)

    def batches(self, bookie_id: str) -> bool:
        """Whether it was not seen to be old."""
        return bookie_id not in self.forgotten

    async def read(self, bookie_id: str, ledger_id: int, entry_id: int) -> bytes:
        """Return one stored entry."""
        await self._turn("read", bookie_id, entry_id)
        return self._entry(bookie_id, ledger_id, entry_id)

    async def read_batch(
        self, bookie_id: str, ledger_id: int, first_entry_id: int, *, count_max: int, bytes_max: int
    ) -> list[bytes]:
        """Return what follows on this bookie, confirmed or not."""
        await self._turn("batch", bookie_id, first_entry_id)
        if bookie_id in self.old:
            self.forgotten.add(bookie_id)
            raise Unsupported(f"{bookie_id} is too old")
        found = [self._entry(bookie_id, ledger_id, first_entry_id)]
        size = 36 + len(found[0]) + ENTRY_OVERHEAD_BYTES
        ledger = self.stored[bookie_id][ledger_id]
        while len(found) < count_max and (entry := ledger.get(first_entry_id + len(found))) is not None:
            size += len(entry) + ENTRY_OVERHEAD_BYTES
            if size > bytes_max:
                break
            found.append(entry)
        return found

    async def last_known(self, bookie_id: str, ledger_id: int) -> LastKnown:
        """Return the last stored entry and the greatest LAC of all."""
        await self._turn("last", bookie_id, -1)
        ledger = self.stored.get(bookie_id, {}).get(ledger_id, {})
        max_lac = self._max_lac(bookie_id, ledger_id)
        if ledger:
            self.remember(bookie_id, ledger_id, max_lac)
        return LastKnown(ledger[max(ledger)] if ledger else None, max_lac)

    def long_polls(self, bookie_id: str) -> int:
        """Return how many more it may take; 0 if it does not know them."""
        waiting = (
            woken for (place, _), all_of_one in self.waiting.items() if place == bookie_id for _, woken in all_of_one
        )
        out = sum(not one.done() for one in waiting)
        return max(0, self.long_polls_max - out) if bookie_id not in self.without_long_polls else 0

    async def newer(self, bookie_id: str, ledger_id: int, previous_lac: int, *, seconds: float) -> asyncio.Future[int]:
        """Ask for the stored LAC: at once if it is remembered as above, when that changes, or at the end."""
        self.requests["wait", bookie_id] += 1
        self.waits_s.append(seconds)
        if bookie_id in self.down:
            raise Transient(f"{bookie_id} is down")
        waiting = self._newer(bookie_id, ledger_id, previous_lac, seconds)
        return asyncio.ensure_future(waiting)  # noqa: TID251 - a fake has no owner of tasks

    async def _newer(self, bookie_id: str, ledger_id: int, previous_lac: int, seconds: float) -> int:
        assert self.clock is not None
        if not self.stored.get(bookie_id, {}).get(ledger_id):
            return -1
        waits = self.waits_for_fenced or ledger_id not in self.fenced
        if waits and self.remembered.get((bookie_id, ledger_id), -1) <= previous_lac:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.setdefault((bookie_id, ledger_id), []).append((previous_lac, woken))
            sleep = asyncio.ensure_future(self.clock.sleep(seconds))  # noqa: TID251 - a fake has no owner of tasks
            try:
                await asyncio.wait((woken, sleep), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleep.cancel()
                if not woken.done():
                    woken.cancel()
            if not woken.cancelled():
                woken.result()
        lac = self._max_lac(bookie_id, ledger_id)
        self.remember(bookie_id, ledger_id, lac)
        return lac

    def remember(self, bookie_id: str, ledger_id: int, lac: int) -> None:
        """Note a LAC; if that is news to the bookie, all who wait are forgotten, and those woken who waited for it."""
        if self.remembered.get((bookie_id, ledger_id), -2) < lac:
            self.remembered[bookie_id, ledger_id] = lac
            for previous_lac, woken in self.waiting.pop((bookie_id, ledger_id), []):
                if lac > previous_lac and not woken.done():
                    woken.set_result(None)

    def hear(self, bookie_id: str, ledger_id: int, lac: int) -> None:
        """Get a LAC: it wakes those who wait for it."""
        known = self.remembered.get((bookie_id, ledger_id))
        if (bookie_id, ledger_id) in self.waiting:
            self.remember(bookie_id, ledger_id, lac)
        elif known is not None:
            self.remembered[bookie_id, ledger_id] = max(known, lac)

    def tell_lac(self, bookie_id: str, ledger_id: int, lac: int) -> None:
        """Get a LAC from a writer that has nothing to add."""
        told = self.explicit.setdefault(bookie_id, {})
        told[ledger_id] = max(lac, told.get(ledger_id, -1))
        self.hear(bookie_id, ledger_id, lac)

    def fence(self, ledger_id: int) -> None:
        """Keep a ledger's writer out; real bookies let wait all the same who waits for news of it."""
        self.fenced.add(ledger_id)

    def restart(self, bookie_id: str) -> None:
        """Break the bookie's connections, and have it remember nothing."""
        self.break_long_polls(bookie_id, Transient(f"{bookie_id} ended the connection"))
        self.remembered = {key: lac for key, lac in self.remembered.items() if key[0] != bookie_id}

    def break_long_polls(self, bookie_id: str, error: Transient) -> None:
        """End the waiting of all who wait at a bookie."""
        for key in [key for key in self.waiting if key[0] == bookie_id]:
            for _, woken in self.waiting.pop(key):
                if not woken.done():
                    woken.set_exception(error)

    def thaw(self) -> None:
        """Let every frozen bookie answer."""
        self.frozen.clear()
        event, self._thawed = self._thawed, asyncio.Event()
        event.set()

    def _max_lac(self, bookie_id: str, ledger_id: int) -> int:
        stored = self.stored.get(bookie_id, {}).get(ledger_id, {})
        lacs = [int.from_bytes(entry[16:24], "big", signed=True) for entry in stored.values()]
        return max([-1, self.explicit.get(bookie_id, {}).get(ledger_id, -1), *lacs])

    def _entry(self, bookie_id: str, ledger_id: int, entry_id: int) -> bytes:
        found = self.stored.get(bookie_id, {}).get(ledger_id, {}).get(entry_id)
        if found is None:
            raise NotHere(f"{bookie_id} does not hold {ledger_id}:{entry_id}")
        return found

    async def _turn(self, operation: str, bookie_id: str, entry_id: int) -> None:
        self.requests[operation, bookie_id] += 1
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        try:
            if not self.instant:
                await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, as a request takes
            while bookie_id in self.frozen:
                await self._thawed.wait()
            self.on_request(operation, bookie_id, entry_id)
            if bookie_id in self.down:
                raise Transient(f"{bookie_id} is down")
            if bookie_id in self.busy:
                raise Throttled(f"{bookie_id} is busy")
            if bookie_id in self.locked:
                raise Denied(f"{bookie_id} wants credentials")
        finally:
            self.in_flight -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a ledger is made."""

    ensemble: int = 2
    write_quorum: int = 2
    ack_quorum: int = 2
    digest: DigestType = DigestType.CRC32C
    bookies: tuple[str, ...] = ALL
    password: bytes = b""
    version: int = 3


class FakeLedger:
    """One ledger and the entries that were written to it."""

    def __init__(self, cluster: FakeCluster, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.cluster = cluster
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.payloads: list[bytes] = []
        self.length = 0
        self.path = Layout.HIERARCHICAL.path("/ledgers", ledger_id)

    async def write(
        self, payloads: Iterable[bytes], *, lac: int | None = None, on: Sequence[str] | None = None
    ) -> None:
        """Append entries, each with the LAC before it or a given one, to their write set or to some of it."""
        for payload in payloads:
            entry_id = len(self.payloads)
            self.payloads.append(payload)
            self.length += len(payload)
            for bookie_id in self.metadata.replicas(entry_id) if on is None else on:
                self.store(bookie_id, entry_id, lac=lac)

    def store(self, bookie_id: str, entry_id: int, *, lac: int | None = None, length: int | None = None) -> None:
        """Put a sound copy of an entry on a bookie, or one with a wrong length."""
        end = sum(map(len, self.payloads[: entry_id + 1])) if entry_id + 1 < len(self.payloads) else self.length
        stored = package(
            self.metadata.digest_type or DigestType.CRC32C,
            self.ledger_id,
            entry_id,
            self.payloads[entry_id],
            lac=lac,
            length=end if length is None else length,
            password=self.metadata.password,
        )
        self._of(bookie_id)[entry_id] = stored
        self.cluster.bookies.hear(bookie_id, self.ledger_id, int.from_bytes(stored[16:24], "big", signed=True))

    def lose(self, bookie_id: str, entry_id: int) -> None:
        """Take an entry off a bookie."""
        self._of(bookie_id).pop(entry_id, None)

    def spoil(self, bookie_id: str, entry_id: int, at: int = -1) -> None:
        """Change one byte of a bookie's copy."""
        copy = bytearray(self._of(bookie_id)[entry_id])
        copy[at] ^= 0x40
        self._of(bookie_id)[entry_id] = bytes(copy)

    async def change(self, **changes: object) -> None:
        """Rewrite the ledger's node."""
        self.metadata = replace(self.metadata, **changes)  # type: ignore[arg-type]
        node = await self.cluster.znodes.get(self.path)
        await self.cluster.znodes.replace(self.path, encode(self.metadata), node.version)

    async def close(self, last_entry_id: int | None = None) -> None:
        """Close it in BookKeeper's metadata."""
        last = len(self.payloads) - 1 if last_entry_id is None else last_entry_id
        length = sum(map(len, self.payloads[: last + 1]))
        await self.change(state=LedgerState.CLOSED, last_entry_id=last, length_bytes=length)

    async def delete(self) -> None:
        """Delete node and entries."""
        await self.cluster.znodes.delete(self.path)
        for ledgers in self.cluster.bookies.stored.values():
            ledgers.pop(self.ledger_id, None)

    async def next_ensemble(self, bookies: Sequence[str]) -> None:
        """Go on writing on other bookies."""
        first = len(self.payloads)
        await self.change(ensembles=(*self.metadata.ensembles, Ensemble(first, tuple(bookies))))

    def _of(self, bookie_id: str) -> dict[int, bytes]:
        return self.cluster.bookies.stored.setdefault(bookie_id, {}).setdefault(self.ledger_id, {})


class FakeCluster:
    """Nodes, bookies and the ledgers of one topic."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.znodes = self.tree.connect()
        self.bookies = FakeBookies()
        self.ledgers: list[FakeLedger] = []
        self.listed: list[LedgerInfo] = []

    async def ledger(self, shape: Shape | None = None, *, ledger_id: int | None = None) -> FakeLedger:
        """Open a new ledger; what the list says of the one before it is what a roll-over tells."""
        shape = shape or Shape()
        number = ledger_id if ledger_id is not None else (self.ledgers[-1].ledger_id + 3 if self.ledgers else 7)
        metadata = LedgerMetadata(
            format_version=shape.version,
            state=LedgerState.OPEN,
            ensemble_size=shape.ensemble,
            write_quorum=shape.write_quorum,
            ack_quorum=shape.ack_quorum,
            ensembles=(Ensemble(0, shape.bookies[: shape.ensemble]),),
            digest_type=shape.digest,
            password=shape.password,
        )
        ledger = FakeLedger(self, number, metadata)
        await self.znodes.create(ledger.path, encode(metadata))
        if self.ledgers and self.ledgers[-1].metadata.closed:
            self.say_closed(self.ledgers[-1])
        self.ledgers.append(ledger)
        self.listed.append(LedgerInfo(ledgerId=number))
        await self.publish()
        return ledger

    def say_closed(self, ledger: FakeLedger) -> None:
        """Have the list say what a closed ledger holds, at the next `publish`."""
        info = next(info for info in self.listed if info.ledgerId == ledger.ledger_id)
        info.entries, info.size, info.timestamp = len(ledger.payloads), ledger.length, 1_700_000_000_123

    async def publish(self, topic: TopicName = TOPIC) -> None:
        """Write the topic's list of ledgers."""
        value = ManagedLedgerInfo(ledgerInfo=self.listed).SerializeToString()
        path = topic_path(topic)
        try:
            await self.znodes.create(path, value)
        except Conflict:
            await self.znodes.replace(path, value, (await self.znodes.get(path)).version)

    async def trim(self) -> None:
        """Delete the oldest ledger as a broker's retention does: off the list, then out of BookKeeper."""
        ledger = self.ledgers.pop(0)
        self.listed = [info for info in self.listed if info.ledgerId != ledger.ledger_id]
        await self.publish()
        await ledger.delete()

    async def exists(self, path: str) -> bool:
        """Whether there is a node."""
        try:
            await self.znodes.get(path)
        except NotFound:
            return False
        return True
