"""What bookies do wrong, and that a reader gets every entry once and in order all the same, or a typed error."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.bookkeeper.metadata import Ensemble
from offloaderd.bookkeeper.replicas import PAUSE_MIN_S, ROUNDS, MissingEntry, UnsoundEntry
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.entry import BadLength
from offloaderd.core.errors import Closed, CorruptData, Denied, NotFound, Throttled, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.metadata.port import Versioned
from offloaderd.testing import FakeClock, payloads
from tests.real.ledger_nodes import encode
from tests.unit.bookkeeper.clockwork import in_time
from tests.unit.bookkeeper.fake_cluster import TOPIC, FakeCluster, FakeLedger, Shape

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SHAPES = {"2/2": Shape(), "3/3": Shape(ensemble=3, write_quorum=3), "3/2": Shape(ensemble=3)}
COUNT = 60


class Bench:
    """A source, the cluster it reads and the time it does so in."""

    def __init__(self, source: BookKeeperLedgers, cluster: FakeCluster, clock: FakeClock, metrics: Metrics) -> None:
        self.source = source
        self.cluster = cluster
        self.bookies = cluster.bookies
        self.clock = clock
        self.metrics = metrics

    async def ledger(self, shape: Shape | None = None, count: int = COUNT) -> FakeLedger:
        """Write and close a ledger."""
        ledger = await self.cluster.ledger(shape)
        await ledger.write(payloads(count))
        await ledger.close()
        return ledger

    async def read(self, first: int = 0, last: int = COUNT - 1, *, batch_bytes: int = 1000) -> list[bytes]:
        """Read a range of ledger 7, moving the clock as needed, and check that what comes is consecutive."""
        found: list[bytes] = []

        async def collect() -> None:
            async for batch in self.source.read(TOPIC, 7, first, last, batch_bytes=batch_bytes):
                assert batch.first_entry_id == first + len(found)
                found.extend(batch.payloads)

        await in_time(self.clock, collect())
        return found

    def asked(self, bookie_id: str) -> int:
        """Return how many entry reads a bookie has had."""
        return self.bookies.requests["read", bookie_id] + self.bookies.requests["batch", bookie_id]

    def counted(self, name: str) -> float:
        """Return a counter's value."""
        return self.metrics.registry.get_sample_value(f"offloaderd_{name}_total") or 0.0


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A source on an empty cluster."""
    cluster, clock, metrics = FakeCluster(), FakeClock(), Metrics()
    async with BookKeeperLedgers(
        cluster.znodes, cluster.bookies, clock=clock, metrics=metrics, options=BookkeeperSettings()
    ) as source:
        yield Bench(source, cluster, clock, metrics)


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> Shape:
    """Each way of spreading entries."""
    return SHAPES[request.param]


async def test_a_bookie_that_is_down_is_made_up_for(bench: Bench, shape: Shape) -> None:
    """Any one of them may be missing, and no time is lost."""
    ledger = await bench.ledger(shape)
    for bookie_id in shape.bookies[: shape.ensemble]:
        bench.bookies.down = {bookie_id}
        assert await bench.read() == ledger.payloads
    assert bench.clock.monotonic() == 0


@pytest.mark.parametrize("fault", ["busy", "old"])
async def test_a_bookie_that_refuses_is_made_up_for(bench: Bench, shape: Shape, fault: str) -> None:
    """One that has too many requests leaves the read to another; one without batches is read entry by entry."""
    ledger = await bench.ledger(shape)
    getattr(bench.bookies, fault).update({"b0", "b1"} if fault == "old" else {"b1"})
    assert await bench.read() == ledger.payloads
    assert await bench.read() == ledger.payloads
    assert bench.clock.monotonic() == 0


async def test_old_bookies_are_read_by_a_window(bench: Bench) -> None:
    """Without batches several single reads are under way at a time."""
    ledger = await bench.ledger()
    bench.bookies.old = {"b0", "b1"}
    assert await bench.read(batch_bytes=1 << 20) == ledger.payloads
    bench.bookies.in_flight_max = 0
    assert await bench.read(batch_bytes=1 << 20) == ledger.payloads
    assert bench.bookies.in_flight_max > 4


async def test_reading_stays_with_one_bookie(bench: Bench) -> None:
    """Where all have every entry only one is asked, the same one the next time."""
    ledger = await bench.ledger()
    assert await bench.read() == ledger.payloads
    assert await bench.read() == ledger.payloads
    assert [bench.asked(bookie_id) > 0 for bookie_id in ("b0", "b1")] == [False, True]


async def test_bookies_that_failed_lately_are_asked_last(bench: Bench) -> None:
    """The order of the pool is kept to."""
    ledger = await bench.ledger()
    bench.bookies.avoided = {"b1"}
    assert await bench.read() == ledger.payloads
    assert bench.asked("b1") == 0


async def test_a_frozen_bookie_is_hedged_once_and_then_avoided(bench: Bench, shape: Shape) -> None:
    """After two seconds another one is asked as well; what follows does not wait again."""
    ledger = await bench.ledger(shape)
    bench.bookies.frozen = {"b1"}
    assert await bench.read() == ledger.payloads
    assert bench.bookies.in_flight == 0
    assert 2 <= bench.clock.monotonic() < 3
    asked = bench.asked("b1")
    assert await bench.read() == ledger.payloads
    assert bench.clock.monotonic() < 3
    assert bench.asked("b1") == asked
    assert bench.counted("bookie_hedged_reads") >= 1
    bench.bookies.thaw()
    await bench.clock.advance(30)
    assert await bench.read() == ledger.payloads
    assert bench.asked("b1") > asked


async def test_a_bookie_that_answers_before_the_one_asked_beside_it_is_not_avoided(bench: Bench) -> None:
    """It was no slower than the other, and has read ahead."""
    ledger = await bench.ledger()
    bench.bookies.frozen = {"b0", "b1"}

    async def thaw() -> None:
        await bench.clock.sleep(2.5)
        bench.bookies.thaw()

    async with asyncio.TaskGroup() as group:
        group.create_task(thaw())
        assert await bench.read() == ledger.payloads
    assert bench.counted("bookie_hedged_reads") == 1
    assert bench.asked("b0") == 1


async def test_all_replicas_down_and_back(bench: Bench, shape: Shape) -> None:
    """The read waits for a while, and goes on where it was."""
    ledger = await bench.ledger(shape)
    bench.bookies.down = set(shape.bookies)
    seen: list[str] = []

    def recover(_operation: str, bookie_id: str, _entry_id: int) -> None:
        seen.append(bookie_id)
        if bench.clock.monotonic() > 2:
            bench.bookies.down.clear()

    bench.bookies.on_request = recover
    assert await bench.read() == ledger.payloads
    assert set(seen) >= set(shape.bookies[: shape.ensemble])


async def test_all_replicas_down_for_good_is_transient(bench: Bench, shape: Shape) -> None:
    """After a bounded number of rounds, and never a conclusion about the data."""
    await bench.ledger(shape)
    bench.bookies.down = set(shape.bookies)
    with pytest.raises(Transient, match=r"no bookie gave ledger 7, entry 0 .* is down"):
        await bench.read()
    assert 5 < bench.clock.monotonic() < 20
    bench.bookies.down, bench.bookies.busy = set(), set(shape.bookies)
    with pytest.raises(Throttled):
        await bench.read()


async def test_an_entry_that_one_replica_lacks_is_read_from_another(bench: Bench, shape: Shape) -> None:
    """As is normal for writers that wait for fewer acknowledgements than replicas."""
    ledger = await bench.ledger(shape)
    for entry_id in (0, 20, 21, COUNT - 1):
        ledger.lose(ledger.metadata.replicas(entry_id)[entry_id % 2], entry_id)
    assert await bench.read() == ledger.payloads
    assert bench.clock.monotonic() == 0


async def test_an_entry_that_is_nowhere_is_missing(bench: Bench, shape: Shape) -> None:
    """Everything before it comes, it is named, and nothing behind it is handed out."""
    ledger = await bench.ledger(shape)
    for bookie_id in ledger.metadata.replicas(30):
        ledger.lose(bookie_id, 30)
    assert await bench.read(0, 29) == ledger.payloads[:30]
    with pytest.raises(MissingEntry, match="ledger 7, entry 30"):
        await bench.read()
    assert await bench.read(31) == ledger.payloads[31:]


async def test_an_entry_is_not_missing_while_one_bookie_cannot_tell(bench: Bench, shape: Shape) -> None:
    """Not held by those that answer, and one is down: that proves nothing."""
    ledger = await bench.ledger(shape)
    for bookie_id in ledger.metadata.replicas(30):
        ledger.lose(bookie_id, 30)
    bench.bookies.down = {ledger.metadata.replicas(30)[1]}
    with pytest.raises(Transient):
        await bench.read(30, 30)


@pytest.mark.parametrize("at", [0, 12, 26, -1], ids=["ledger", "entry", "length", "payload"])
async def test_a_bad_copy_is_counted_and_read_elsewhere(bench: Bench, shape: Shape, at: int) -> None:
    """Whichever byte of it is wrong, and on whichever replica."""
    ledger = await bench.ledger(shape)
    for entry_id in (0, 17, 18, COUNT - 1):
        ledger.spoil(ledger.metadata.replicas(entry_id)[entry_id % 2], entry_id, at)
    bookies = set(shape.bookies[: shape.ensemble])
    for bookie_id in bookies:
        bench.bookies.avoided = bookies - {bookie_id}
        assert await bench.read() == ledger.payloads
    assert bench.counted("bookie_bad_entries") >= 2
    assert bench.clock.monotonic() == 0


@pytest.mark.parametrize("at", [11, 14, 20], ids=["second", "middle", "last"])
async def test_a_read_in_place_of_a_bad_copy_ends_where_the_range_ends(bench: Bench, at: int) -> None:
    """The entries behind the range are on the other bookie as well, and may not be confirmed."""
    ledger = await bench.ledger()
    ledger.spoil("b0", at)
    bench.bookies.avoided = {"b1"}
    assert await bench.read(10, 20, batch_bytes=1 << 20) == ledger.payloads[10:21]
    assert bench.counted("bookie_bad_entries") == 1


async def test_a_bookie_that_lacks_one_entry_is_asked_at_once_for_another(bench: Bench) -> None:
    """It counts against an entry that a bookie lacks it or has a bad copy of it, never against those behind it."""
    ledger = await bench.ledger()
    ledger.lose("b0", 0)
    ledger.spoil("b1", 5)
    for avoided in ("b0", "b1"):
        bench.bookies.avoided = {avoided}
        assert await bench.read() == ledger.payloads
    assert bench.clock.monotonic() == 0


@pytest.mark.parametrize("agree", [True, False])
async def test_an_entry_whose_copies_are_all_bad_stops_the_read(bench: Bench, shape: Shape, agree: bool) -> None:
    """It is named, with whether it was written so; it is neither skipped nor handed out."""
    ledger = await bench.ledger(shape)
    for place, bookie_id in enumerate(ledger.metadata.replicas(30)):
        ledger.store(bookie_id, 30, lac=place)  # another LAC is no difference
        ledger.spoil(bookie_id, 30, -1 if agree else -1 - place)
        ledger.spoil(bookie_id, 30, 33)  # and the digest is bad on all
    found = "all copies agree" if agree else "the copies differ"
    with pytest.raises(UnsoundEntry, match=f"ledger 7, entry 30.*{found}"):
        await bench.read()
    assert await bench.read(0, 29) == ledger.payloads[:30]


async def test_a_copy_that_is_bad_and_none_on_the_others_stops_the_read(bench: Bench) -> None:
    """Both say for certain that there is no sound copy."""
    ledger = await bench.ledger()
    ledger.spoil("b0", 30)
    ledger.lose("b1", 30)
    with pytest.raises(UnsoundEntry, match="1 of 2 bookies hold one"):
        await bench.read()


async def test_credentials_that_are_refused_stop_the_read(bench: Bench, shape: Shape) -> None:
    """No other bookie is tried: an operator has to mend it."""
    await bench.ledger(shape)
    bench.bookies.locked = set(shape.bookies)
    with pytest.raises(Denied):
        await bench.read()
    assert bench.clock.monotonic() == 0


async def test_members_swapped_in_place_are_found(bench: Bench, shape: Shape) -> None:
    """Re-replication moved the entries of a closed ledger while we remembered the old bookies."""
    ledger = await bench.ledger(shape)
    assert await bench.read() == ledger.payloads
    old = shape.bookies[: shape.ensemble]
    new = tuple(f"n{number}" for number in range(shape.ensemble))
    for old_id, new_id in zip(old, new, strict=True):
        bench.bookies.stored[new_id] = {7: bench.bookies.stored[old_id].pop(7)}
    await ledger.change(ensembles=(Ensemble(0, new),))
    assert await bench.read() == ledger.payloads
    assert bench.clock.monotonic() == 0


async def test_members_that_are_swapped_each_time_are_not_followed_without_a_pause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New bookies are asked at once the first time; a second time ZooKeeper gets a moment."""
    ledger = await bench.ledger()
    get, homes = bench.cluster.znodes.get, [("n0", "n1"), ("m0", "m1")]
    bench.bookies.down = {"b0", "b1", "n0", "n1"}
    for old_id, new_id in (("b0", "m0"), ("b1", "m1")):
        bench.bookies.stored[new_id] = bench.bookies.stored[old_id]

    async def moving(path: str) -> Versioned:
        if path == ledger.path and homes and all(map(bench.asked, ledger.metadata.ensembles[0].bookies)):
            ledger.metadata = replace(ledger.metadata, ensembles=(Ensemble(0, homes.pop(0)),))
            await bench.cluster.znodes.replace(path, encode(ledger.metadata), (await get(path)).version)
        return await get(path)

    monkeypatch.setattr(bench.cluster.znodes, "get", moving)
    assert await bench.read() == ledger.payloads
    assert homes == []
    assert bench.clock.monotonic() >= PAUSE_MIN_S / 2


async def test_members_that_are_swapped_before_the_last_round_ends_are_asked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That no bookie gave the entry is a conclusion about the bookies that it is on now."""
    ledger = await bench.ledger()
    bench.bookies.down = {"b0", "b1"}
    for old_id, new_id in (("b0", "m0"), ("b1", "m1")):
        bench.bookies.stored[new_id] = bench.bookies.stored[old_id]
    get = bench.cluster.znodes.get

    async def moving(path: str) -> Versioned:
        if path == ledger.path and bench.asked("b0") > ROUNDS:
            moved = replace(ledger.metadata, ensembles=(Ensemble(0, ("m0", "m1")),))
            return Versioned(encode(moved), 9)
        return await get(path)

    monkeypatch.setattr(bench.cluster.znodes, "get", moving)
    assert await bench.read() == ledger.payloads
    assert bench.asked("b0") == ROUNDS + 1


async def test_ensembles_are_read_each_from_its_own_bookies(bench: Bench, shape: Shape) -> None:
    """A batch never crosses from one to the next."""
    ledger = await bench.cluster.ledger(shape)
    written = payloads(COUNT)
    await ledger.write(written[:20])
    await ledger.next_ensemble(shape.bookies[1 : 1 + shape.ensemble])
    await ledger.write(written[20:40])
    await ledger.next_ensemble(shape.bookies[2 : 2 + shape.ensemble])
    await ledger.write(written[40:])
    await ledger.close()
    for bookie_id, entry_id in (("b0", 20), ("b1", 20 + shape.ensemble), ("b1", 40), ("b2", 40 + shape.ensemble)):
        if bookie_id not in ledger.metadata.replicas(entry_id):
            ledger.store(bookie_id, entry_id)  # left over from before the change
            ledger.spoil(bookie_id, entry_id)
    assert await bench.read(batch_bytes=1 << 20) == written
    assert bench.counted("bookie_bad_entries") == 0
    assert bench.clock.monotonic() == 0


@pytest.mark.parametrize("listed", ["last", "closed"])
async def test_a_ledger_deleted_while_it_is_read_is_not_found(bench: Bench, shape: Shape, listed: str) -> None:
    """What came before is right; from then on the ledger is left out, also where the list still calls it closed."""
    ledger = await bench.ledger(shape)
    if listed == "closed":
        await bench.cluster.ledger(shape)
    found: list[bytes] = []

    async def collect() -> None:
        async for batch in bench.source.read(TOPIC, 7, 0, COUNT - 1, batch_bytes=500):
            found.extend(batch.payloads)
            if len(found) == len(batch.payloads):
                await ledger.delete()

    with pytest.raises(NotFound, match="ledger 7 is not in BookKeeper"):
        await in_time(bench.clock, collect())
    assert found == ledger.payloads[: len(found)]
    assert [info.ledger_id for info in await bench.source.ledgers(TOPIC)] == [10] * (listed == "closed")
    with pytest.raises(NotFound):
        await bench.source.confirmed(TOPIC, 7)
    assert bench.clock.monotonic() == 0


@pytest.mark.parametrize("first", [0, 10])
async def test_a_wrong_length_stops_the_read(bench: Bench, shape: Shape, first: int) -> None:
    """A gap or a duplicate is in what was written: no replica helps, and it is not handed out."""
    ledger = await bench.ledger(shape)
    for bookie_id in ledger.metadata.replicas(30):
        ledger.store(bookie_id, 30, length=31 * 100 + 1)
    with pytest.raises(BadLength, match="entry 30"):
        await bench.read(first)


async def test_lengths_are_checked_from_one_read_to_the_next(bench: Bench, shape: Shape) -> None:
    """What a tailer reads bit by bit is checked as if it were read at once."""
    ledger = await bench.ledger(shape)
    for entry_id in range(30, COUNT):
        for bookie_id in ledger.metadata.replicas(entry_id):
            ledger.store(bookie_id, entry_id, length=(entry_id + 1) * 100 + 7)
    await bench.read(30)
    await bench.read(0, 29)
    with pytest.raises(BadLength, match="entry 30"):
        await bench.read(30)


async def test_a_ledger_closed_below_the_range_while_it_is_read(bench: Bench) -> None:
    """Entries that had been confirmed are gone: that is said, and what was there before comes."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(COUNT + 1))
    assert (await bench.source.confirmed(TOPIC, 7)).last_entry_id == COUNT - 1
    watch = bench.source.watch(TOPIC)
    await anext(watch)
    await bench.clock.advance(1)
    for bookie_id in ("b0", "b1"):
        for entry_id in range(40, COUNT + 1):
            ledger.lose(bookie_id, entry_id)
    seen: list[bytes] = []

    async def collect() -> None:
        async for batch in bench.source.read(TOPIC, 7, 0, COUNT - 1, batch_bytes=1000):
            if not seen:
                await ledger.close(last_entry_id=39)
            seen.extend(batch.payloads)

    with pytest.raises(CorruptData):
        await in_time(bench.clock, collect())
    assert seen == ledger.payloads[:40]
    await watch.aclose()


async def test_a_read_that_is_abandoned_leaves_nothing_behind(bench: Bench, shape: Shape) -> None:
    """Requests under way are given up."""
    await bench.ledger(shape)
    entries = bench.source.read(TOPIC, 7, 0, COUNT - 1, batch_bytes=500)
    await anext(entries)
    bench.bookies.frozen = set(shape.bookies)
    await bench.clock.settle()
    await entries.aclose()
    await bench.clock.settle()
    assert bench.bookies.in_flight == 0


async def test_closing_the_source_ends_what_waits(bench: Bench) -> None:
    """A read that waits for bookies gets Closed."""
    await bench.ledger()
    bench.bookies.frozen = {"b0", "b1"}

    source = BookKeeperLedgers(bench.cluster.znodes, bench.bookies, clock=bench.clock, metrics=Metrics())
    await source.__aenter__()

    async def close_soon() -> None:
        await bench.clock.settle()
        await source.__aexit__(None, None, None)

    async with asyncio.TaskGroup() as group:
        group.create_task(close_soon())
        with pytest.raises(Closed):
            await anext(source.read(TOPIC, 7, 0, 1, batch_bytes=500))


@pytest.mark.parametrize("spoil", ["metadata", "list"])
async def test_nodes_that_are_corrupt_are_said_to_be(bench: Bench, spoil: str) -> None:
    """The error names the node."""
    ledger = await bench.ledger()
    path = ledger.path if spoil == "metadata" else "/managed-ledgers/public/default/persistent/flights"
    await bench.cluster.znodes.replace(path, b"\xff\xff", (await bench.cluster.znodes.get(path)).version)
    with pytest.raises(CorruptData, match=path):
        await bench.read()
