"""The end of an open ledger: how far it may be read, by whose word, what is hidden, and what asking for it costs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.bookkeeper import ledger_tail
from offloaderd.bookkeeper.metadata import LedgerState
from offloaderd.core.errors import CorruptData, Denied, Transient
from offloaderd.core.model import Confirmed, Edge, Position
from offloaderd.testing import payloads
from tests.unit.bookkeeper.bench import Bench, benched
from tests.unit.bookkeeper.clockwork import in_time
from tests.unit.bookkeeper.fake_cluster import TOPIC, Shape

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.bookkeeper.ports import LastKnown

STRIPED = Shape(ensemble=3)
SPREAD = pytest.mark.parametrize(
    "shape", [Shape(), Shape(ensemble=3, write_quorum=3), STRIPED], ids=["2/2", "3/3", "3/2"]
)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A source on an empty cluster, with a broker to ask."""
    async with benched() as bench:
        yield bench


@SPREAD
async def test_the_greatest_lac_counts_and_never_falls(bench: Bench, shape: Shape) -> None:
    """Whichever bookie knows it, and whatever others say afterwards."""
    ledger = await bench.cluster.ledger(shape)
    assert await bench.confirmed() == Confirmed(-1, closed=False, edge=Edge.NEXT_WRITE)
    await ledger.write(payloads(10))
    assert (await bench.confirmed()).last_entry_id == 8
    for bookie_id in shape.bookies[: shape.ensemble]:
        bench.bookies.stored[bookie_id][7].clear()
    assert (await bench.confirmed()).last_entry_id == 8


@SPREAD
async def test_a_burst_hides_all_that_was_in_flight(bench: Bench, shape: Shape) -> None:
    """Entries that carry an old LAC are counted and not shown."""
    ledger = await bench.cluster.ledger(shape)
    await ledger.write(payloads(50), lac=-1)
    for _ in range(3):
        await bench.confirmed()
    known = await bench.confirmed()
    assert known == Confirmed(-1, closed=False, edge=Edge.NEXT_WRITE, hidden=50)


async def test_the_size_of_an_open_ledger_is_what_its_confirmed_entries_have(bench: Bench) -> None:
    """Exact for a writer of one entry at a time and for entries that are alike; it never falls."""
    ledger = await bench.cluster.ledger()

    async def size() -> int:
        await bench.confirmed()
        return (await bench.source.ledgers(TOPIC))[-1].size_bytes

    assert await size() == 0
    await ledger.write(payloads(3, 10))
    assert await size() == 20
    await ledger.write(payloads(1, 500, first_entry_id=3))
    assert await size() == 30
    await ledger.write(payloads(5, 100, first_entry_id=4), lac=4)
    assert await size() == 630
    await ledger.write(payloads(1, 10_000, first_entry_id=9), lac=5)
    assert await size() == 630
    await ledger.close()
    assert await size() == 11_030


async def test_one_bookie_is_asked_where_all_have_everything(bench: Bench) -> None:
    """While entries come the same one is asked; when they cease, all of them are, once."""
    ledger = await bench.cluster.ledger(Shape(ensemble=3, write_quorum=3))
    for _ in range(20):
        await ledger.write(payloads(2))
        await bench.confirmed()
    assert bench.polls() == {"b1": 20}
    for _ in range(4):
        await bench.confirmed()
    assert bench.polls() == {"b1": 24, "b0": 1, "b2": 1}


async def test_where_entries_are_spread_all_bookies_are_asked(bench: Bench) -> None:
    """The newest LAC is on some of them only."""
    ledger = await bench.cluster.ledger(STRIPED)
    for count in range(1, 7):
        await ledger.write(payloads(1))
        assert (await bench.confirmed()).last_entry_id == count - 2


async def test_a_bookie_that_lacks_the_newest_entries_is_not_the_last_word(bench: Bench) -> None:
    """With fewer acknowledgements than replicas the one that is asked may be behind: the others are asked too."""
    ledger = await bench.cluster.ledger(Shape(ensemble=3, write_quorum=3, ack_quorum=2))
    await ledger.write(payloads(5))
    await ledger.write(payloads(5), on=["b0", "b2"])
    for _ in range(3):
        await bench.confirmed()
    known = await bench.confirmed()
    assert known.last_entry_id == 8


@SPREAD
async def test_any_bookie_may_be_down(bench: Bench, shape: Shape) -> None:
    """The others answer in its place, at once."""
    ledger = await bench.cluster.ledger(shape)
    await ledger.write(payloads(10))
    bench.bookies.down = {"b1"}
    assert (await bench.confirmed()).last_entry_id >= 7
    assert bench.clock.monotonic() < 1


@SPREAD
async def test_a_frozen_bookie_costs_time_once(bench: Bench, shape: Shape) -> None:
    """It is waited for as long as for a hedged read, and then left out for a while."""
    ledger = await bench.cluster.ledger(shape)
    await ledger.write(payloads(10))
    bench.bookies.frozen = {"b1"}
    await bench.confirmed()
    assert bench.clock.monotonic() == pytest.approx(2.1)
    await bench.confirmed()
    assert bench.clock.monotonic() == pytest.approx(2.2)
    assert bench.bookies.in_flight == 0


async def test_polls_of_many_topics_wait_for_their_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long they wait, the bookie is not slow and others are not asked; one that is frozen holds up its own."""
    monkeypatch.setattr(ledger_tail, "POLLS_MAX", 1)
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(10))
    asker, metadata = bench.source._asker, await bench.source._topic(TOPIC).metadata(ledger.ledger_id)
    first, other = (metadata.ensembles[-1].bookies[number % 2] for number in (8, 7))

    answer = bench.bookies.last_known

    async def late(bookie_id: str, ledger_id: int) -> LastKnown:
        await bench.clock.sleep(0.1)
        return await answer(bookie_id, ledger_id)

    async def poll(ledger_id: int) -> tuple[str, float]:
        (found,) = await asker.ask(ledger_id, metadata, every=False)
        return found.bookie_id, round(bench.clock.monotonic(), 1)

    async def polls(*ledger_ids: int) -> list[tuple[str, float]]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(poll(ledger_id)) for ledger_id in ledger_ids]
        return [task.result() for task in tasks]

    monkeypatch.setattr(bench.bookies, "last_known", late)
    assert {bookie for bookie, _ in await in_time(bench.clock, polls(*[8] * 30))} == {first}
    assert bench.clock.monotonic() == pytest.approx(3.0)
    bench.bookies.frozen = {first}
    found = await in_time(bench.clock, polls(8, 8, 7))
    assert found == [(other, 5.1), (other, 5.2), (other, 3.1)]


@SPREAD
async def test_no_bookie_answers(bench: Bench, shape: Shape) -> None:
    """That is Transient, and says who was asked; credentials that are refused are Denied."""
    await bench.cluster.ledger(shape)
    bench.bookies.down = set(shape.bookies)
    with pytest.raises(Transient, match=r"no bookie answered with the end of ledger 7 .*b0 is down"):
        await bench.confirmed()
    bench.bookies.locked, bench.bookies.down = set(shape.bookies), set()
    with pytest.raises(Denied):
        await bench.confirmed()


@SPREAD
async def test_what_a_bookie_says_is_checked(bench: Bench, shape: Shape) -> None:
    """An entry with a bad digest is no word of the writer's, and a bare number counts as far as something is stored."""
    ledger = await bench.cluster.ledger(shape)
    await ledger.write(payloads(10))
    for bookie_id in shape.bookies[: shape.ensemble]:
        bench.bookies.explicit[bookie_id] = {7: 1000}
    assert (await bench.confirmed()).last_entry_id == 9
    for bookie_id in shape.bookies[: shape.ensemble]:
        stored = bench.bookies.stored[bookie_id][7]
        ledger.spoil(bookie_id, max(stored))
    with pytest.raises(Transient, match="corrupt data"):
        await bench.confirmed()
    assert (bench.metrics.registry.get_sample_value("offloaderd_bookie_bad_entries_total") or 0) >= shape.ensemble


@SPREAD
async def test_an_explicit_lac_is_recognised(bench: Bench, shape: Shape) -> None:
    """A number above all headers that stays while the last entry stays; it is carried on to the next ledger."""
    ledger = await bench.cluster.ledger(shape)
    await ledger.write(payloads(10))
    for bookie_id in shape.bookies[: shape.ensemble]:
        bench.bookies.explicit[bookie_id] = {7: 9}
    assert await bench.confirmed() == Confirmed(9, closed=False, edge=Edge.NEXT_WRITE)
    assert await bench.confirmed() == Confirmed(9, closed=False, edge=Edge.EXPLICIT_LAC)
    await ledger.close()
    assert await bench.confirmed() == Confirmed(9, closed=True)
    await bench.cluster.ledger(shape)
    assert (await bench.confirmed(10)).edge is Edge.EXPLICIT_LAC


async def test_an_entry_between_two_looks_of_a_bookie_is_no_explicit_lac(bench: Bench) -> None:
    """A bookie reads its last entry first and its LAC then: while entries come the LAC may be that of a newer one."""
    ledger = await bench.cluster.ledger()
    for count in range(1, 20):
        await ledger.write(payloads(1))
        bench.bookies.explicit["b1"] = {7: count - 1}
        assert (await bench.confirmed()).edge is Edge.NEXT_WRITE


async def test_the_broker_is_asked_when_a_topic_went_quiet(bench: Bench) -> None:
    """Only then, and what it says shows what was hidden."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(50), lac=-1)
    bench.broker.position = Position(7, 49)
    assert (await bench.confirmed()).hidden == 50
    assert bench.broker.asked_s == []
    await bench.clock.advance(1.5)
    assert await bench.confirmed() == Confirmed(49, closed=False, edge=Edge.ADMIN)
    await bench.clock.advance(60)
    await bench.confirmed()
    assert len(bench.broker.asked_s) == 1, "nothing is hidden any more"


@pytest.mark.parametrize(
    ("position", "last_entry_id"),
    [(Position(8, 49), -1), (Position(6, 49), -1), (None, -1), (Position(7, 20), 20), (Position(7, 99), 49)],
)
async def test_the_broker_is_believed_about_this_ledger_and_what_is_stored(
    bench: Bench, position: Position | None, last_entry_id: int
) -> None:
    """Another ledger's position says nothing, and nothing is read that no bookie has shown."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(50), lac=-1)
    bench.broker.position = position
    await bench.confirmed()
    await bench.clock.advance(1.5)
    assert (await bench.confirmed()).last_entry_id == last_entry_id


async def test_the_broker_is_asked_ever_more_rarely_while_it_does_not_help(bench: Bench) -> None:
    """After 1, 2, 4 .. 30 seconds, whether it fails or knows no more; a move begins anew."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(5), lac=-1)
    bench.broker.error = Transient("no broker")
    for _ in range(250):
        await bench.clock.advance(0.4)
        assert (await in_time(bench.clock, bench.source.confirmed(TOPIC, 7))).last_entry_id == -1
    gaps = [
        round(after - before) for before, after in zip(bench.broker.asked_s, bench.broker.asked_s[1:], strict=False)
    ]
    assert gaps == [1, 2, 4, 8, 16, 30, 30]
    await ledger.write(payloads(1), lac=3)
    assert (await bench.confirmed()).last_entry_id == 3
    asked = len(bench.broker.asked_s)
    for _ in range(12):
        await bench.confirmed()
    assert len(bench.broker.asked_s) == asked + 1


async def test_an_explicit_lac_that_ceased_is_not_claimed(bench: Bench) -> None:
    """Entries that stay hidden speak against it."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(10))
    for bookie_id in ("b0", "b1"):
        bench.bookies.explicit[bookie_id] = {7: 9}
    await bench.confirmed()
    assert (await bench.confirmed()).edge is Edge.EXPLICIT_LAC
    await ledger.write(payloads(10))
    assert (await bench.confirmed()).hidden == 1
    await bench.clock.advance(2)
    assert (await bench.confirmed()).edge is Edge.NEXT_WRITE


async def test_a_new_ensemble_confirms_what_is_before_it(bench: Bench) -> None:
    """Its bookies know nothing yet."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(10), lac=-1)
    await ledger.next_ensemble(["b3", "b4"])
    assert (await bench.confirmed()).last_entry_id == 9


async def test_recovery_is_waited_for(bench: Bench) -> None:
    """Somebody else closes the ledger: until then what was known stays, then all that was saved shows."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(50), lac=-1)
    assert (await bench.confirmed()).last_entry_id == -1
    await ledger.change(state=LedgerState.IN_RECOVERY)
    assert await bench.confirmed() == Confirmed(-1, closed=False, edge=Edge.NEXT_WRITE, hidden=50)
    await ledger.close()
    assert await bench.confirmed() == Confirmed(49, closed=True)
    assert [info.entries for info in await bench.source.ledgers(TOPIC)] == [50]


async def test_what_a_recovery_under_way_says_is_not_confirmed(bench: Bench) -> None:
    """It writes entries anew with greater LACs and may die half-way: the next one may end lower."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(50), lac=20)
    known = await bench.confirmed()
    assert known.last_entry_id == 20
    await ledger.change(state=LedgerState.IN_RECOVERY)
    for entry_id in range(21, 40):
        for bookie_id in ledger.metadata.replicas(entry_id):
            ledger.store(bookie_id, entry_id, lac=entry_id - 1)
    polls = sum(bench.polls().values())
    for _ in range(30):
        assert await bench.confirmed() == known
    assert sum(bench.polls().values()) == polls
    await ledger.close(last_entry_id=30)
    assert await bench.confirmed() == Confirmed(30, closed=True)


@pytest.mark.parametrize("last_entry_id", [40, 47])
async def test_a_ledger_that_was_closed_below_what_was_confirmed_is_corrupt(bench: Bench, last_entry_id: int) -> None:
    """Confirmed entries were lost by whoever closed it: loudly, and each time."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(50))
    assert (await bench.confirmed()).last_entry_id == 48
    await ledger.close(last_entry_id=last_entry_id)
    for _ in range(2):
        with pytest.raises(CorruptData, match="expected a last entry of 48 or more"):
            await bench.confirmed()
        with pytest.raises(CorruptData):
            await bench.source.ledgers(TOPIC)


async def test_questions_at_one_time_are_one_request(bench: Bench) -> None:
    """Ten who ask for the end of a ledger share an answer."""
    ledger = await bench.cluster.ledger()
    await ledger.write(payloads(50))
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(bench.source.confirmed(TOPIC, 7)) for _ in range(10)]
    assert {task.result().last_entry_id for task in asked} == {48}
    assert sum(bench.polls().values()) == 1
