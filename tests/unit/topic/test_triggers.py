"""What sets a ledger's offloading off: its close, its age, the size of what follows it, somebody's request."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Conflict, InvalidInput
from offloaderd.core.model import EntryBatch, OfferResult, OffloadMethod, Position, TopicName
from offloaderd.core.names.patterns import of_topic
from offloaderd.objects.stored_as import PLAIN, StoredAs
from offloaderd.policy.records import TopicPolicy
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.topic import requests as asked
from offloaderd.topic.requests import Outcome, Wanted, Why
from tests.unit.fleet.test_engine import appended
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, until, until_offloaded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offloaderd.metadata.records.orders import Asked
    from offloaderd.objects.port import PartInfo, Pieces
    from offloaderd.topic.offloader import TopicOffloader

OTHER = TopicName.parse("public/default/other")
BY_HAND = RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600.0, method=OffloadMethod.LEDGER_BASED)
ON_CLOSE = replace(BY_HAND, threshold_bytes=0)
AGED_S = 200.0
LEDGER_BYTES = 1000
"""Ten entries of 100 bytes."""


def ledger_rig(policy: RollPolicy, *, clock: FakeClock | None = None) -> Rig:
    """Return a rig with ledgers of ten entries, and a clock that stands still if one is given."""
    rig = Rig(policy=policy) if clock is None else Rig(policy=policy, clock=clock)  # type: ignore[arg-type]
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=10)
    return rig


async def settled(clock: FakeClock) -> None:
    """Let everything happen that needs no time."""
    for _ in range(40):
        await clock.settle()


async def ready(rig: Rig, clock: FakeClock, topic: TopicOffloader) -> None:
    """Wait until a topic has seen its source."""
    while topic.tailer is None or topic.tailer.refreshed_s is None:
        await settled(clock)
    await settled(clock)


async def fate(rig: Rig, topic: TopicOffloader) -> asked.Fate:
    """Return what became of the request that is on record."""
    return asked.fate_of(await on_record(rig), topic.map, none=topic.policy.method is OffloadMethod.NONE)


async def on_record(rig: Rig) -> Asked:
    """Return that request."""
    found = await asked.read(rig.tree.connect(), TOPIC)
    assert found is not None
    return found


async def test_a_ledger_is_taken_when_it_is_closed() -> None:
    """It takes no time at all: the close wakes the topic, whatever else it waits for."""
    clock = FakeClock()
    rig = ledger_rig(ON_CLOSE, clock=clock)
    everything = await appended(rig, payloads(9))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await ready(rig, clock, topic)
        assert topic.offloaded is None
        before = clock.monotonic()
        everything = await appended(rig, payloads(1, seed=1))  # it fills the ledger
        await settled(clock)
        assert topic.offloaded == everything[9][0]
        assert clock.monotonic() == before


async def test_age_makes_a_ledger_due_without_any_event() -> None:
    """As old as the threshold is not due, a millisecond older is, and nothing else has to happen."""
    clock = FakeClock()
    rig = ledger_rig(replace(BY_HAND, threshold_s=AGED_S), clock=clock)
    everything = await appended(rig, payloads(11))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await ready(rig, clock, topic)
        await clock.advance(AGED_S)
        await settled(clock)
        assert topic.offloaded is None
        await clock.advance(0.001)
        await settled(clock)
        assert topic.offloaded == everything[9][0]


@pytest.mark.parametrize(("threshold", "gone"), [(2001, 0), (2000, 0), (1999, 1), (1000, 1), (999, 2), (1, 2), (0, 2)])
async def test_size_counts_a_ledger_with_all_that_are_newer(threshold: int, gone: int) -> None:
    """Of two closed ledgers of 1,000 bytes the older one goes when both are more than the threshold, exactly."""
    clock = FakeClock()
    rig = ledger_rig(replace(BY_HAND, threshold_bytes=threshold), clock=clock)
    everything = await appended(rig, payloads(21))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await ready(rig, clock, topic)
        assert topic.offloaded == (everything[10 * gone - 1][0] if gone else None)
        everything = await appended(rig, payloads(10, seed=1))  # a third one is closed, a fourth begins
        await settled(clock)
        closed = [LEDGER_BYTES] * 3
        gone = sum(sum(closed[index:]) > threshold for index in range(3))
        assert topic.offloaded == (everything[10 * gone - 1][0] if gone else None)


async def test_thresholds_that_change_count_at_once() -> None:
    """Lower ones take more, higher ones leave what is not begun, and neither needs an event or the time to pass."""
    clock = FakeClock()
    rig = ledger_rig(replace(BY_HAND, threshold_bytes=1 << 20), clock=clock)
    everything = await appended(rig, payloads(41))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await ready(rig, clock, topic)
        assert topic.offloaded is None
        topic.follow(replace(BY_HAND, threshold_bytes=2 * LEDGER_BYTES))
        await settled(clock)
        assert topic.offloaded == everything[19][0]
        topic.follow(replace(BY_HAND, threshold_bytes=1 << 20))
        everything = await appended(rig, payloads(20, seed=1))
        await settled(clock)
        assert topic.offloaded == everything[19][0]
        topic.follow(ON_CLOSE)
        await settled(clock)
        assert topic.offloaded == everything[59][0]


class Gate(MemoryStore):
    """A bucket that keeps parts waiting, and knows which uploads were begun."""

    def __init__(self, rig: Rig) -> None:
        """Take the place of a rig's bucket."""
        super().__init__(rig.clock, part_bytes_min=1)
        self.open = asyncio.Event()
        self.begun: list[str] = []
        rig.objects = self

    async def create_upload(
        self,
        key: str,
        *,
        metadata: Mapping[str, str] | None = None,
        stored_as: StoredAs = PLAIN,
    ) -> str:
        """Note it."""
        self.begun.append(key)
        return await super().create_upload(key, metadata=metadata, stored_as=stored_as)

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """Wait for the gate."""
        await self.open.wait()
        return await super().upload_part(key, upload_id, part_number, pieces)


async def test_topics_go_side_by_side_and_each_one_ledger_after_the_other() -> None:
    """While nothing can be stored each topic has begun one ledger; then all follow in order."""
    rig = ledger_rig(ON_CLOSE)
    gate = Gate(rig)
    assert rig.ledgers is not None
    everything = await appended(rig, payloads(31))
    last = await rig.ledgers.append(OTHER, payloads(31, seed=1))
    async with rig.engine() as engine:
        first, second = await enabled(engine), await enabled(engine, topic=OTHER)
        await until(lambda: len(gate.begun) == 2)
        assert [one.attempt is not None and one.attempt.begin.entry_id for one in (first, second)] == [0, 0]
        await asyncio.sleep(0.05)  # noqa: TID251 - time in which a second ledger of a topic could begin
        assert len(gate.begun) == 2
        gate.open.set()
        await until_offloaded(first, everything[29][0])
        await until_offloaded(second, Position(last.ledger_id - 1, 9))
    assert [len(one.map.segments) for one in (first, second)] == [3, 3]


async def test_a_request_goes_with_the_topic_to_its_next_owner() -> None:
    """The owner that was asked is gone in the middle; the next one finds the request and brings it to its end."""
    rig = ledger_rig(BY_HAND)
    gate = Gate(rig)
    everything = await appended(rig, payloads(45))
    store = rig.tree.connect()

    async def first_life() -> None:
        async with rig.engine("one", metadata=store) as engine:
            topic = await enabled(engine)
            _, plan = await topic.by_hand.ask(Wanted(to=everything[33][0]), "somewhere")
            assert (plan.target, plan.why) == (everything[29][0], Why.WHOLE)
            assert topic.by_hand.remaining(everything[29][0]) == (30, 3000)
            assert await fate(rig, topic) == (Outcome.RUNNING, str(Why.WHOLE), 0)
            await until(lambda: bool(gate.begun))
            raise ConnectionError

    with pytest.raises(ExceptionGroup):
        await first_life()
    store.close()
    gate.open.set()
    async with rig.engine("two") as engine:
        topic = await offloader_of(engine)
        await until_offloaded(topic, everything[29][0])
        outcome, _, done_ms = await fate(rig, topic)
        assert (outcome, done_ms > 0) == (Outcome.DONE, True)
        request = await on_record(rig)
        assert (request.wanted, request.asked_by) == (f"everything up to {everything[33][0]}", "somewhere")
        assert topic.offloaded == everything[29][0]
    assert await rig.committed() == everything[:30]


async def test_a_segment_that_fails_is_begun_again_for_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a request a ledger's first try is given up; the second one and what follows are offloaded."""
    rig = ledger_rig(BY_HAND)
    everything = await appended(rig, payloads(45))
    assert rig.ledgers is not None
    right, wrong_ids = rig.ledgers.length_at, [everything[15][0].ledger_id]

    async def length_at(topic: TopicName, ledger_id: int, entry_id: int) -> int:
        wrong = 1 if ledger_id in wrong_ids else 0
        return await right(topic, ledger_id, entry_id) + wrong

    monkeypatch.setattr(rig.ledgers, "length_at", length_at)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        asked_, _ = await topic.by_hand.ask(Wanted(), "")
        assert asked_.target == everything[39][0]
        await until_offloaded(topic, everything[39][0])
        assert (await fate(rig, topic)).outcome is Outcome.DONE
    assert rig.metrics.segments.labels(state="failed")._value.get() == 1
    assert await rig.committed() == everything[:40]


async def test_a_request_waits_for_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under none it has failed for now and a new one is refused; under another method it goes on by itself."""
    rig = ledger_rig(BY_HAND)
    gate = Gate(rig)
    everything = await appended(rig, payloads(25))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await topic.by_hand.ask(Wanted(), "")
        await until(lambda: bool(gate.begun))
        await engine.select(of_topic(TOPIC), TopicPolicy(enabled=True, method=OffloadMethod.NONE))
        await until(lambda: topic.policy.method is OffloadMethod.NONE)
        assert await fate(rig, topic) == (Outcome.FAILED, f"{Why.NONE}; it continues under another method", 0)
        gate.open.set()
        await until_offloaded(topic, everything[9][0])
        with pytest.raises(Conflict, match="method none"):
            await topic.by_hand.ask(Wanted(), "")
        await engine.select(of_topic(TOPIC), TopicPolicy(enabled=True, method=OffloadMethod.LEDGER_BASED))
        await until_offloaded(topic, everything[19][0])
        assert (await fate(rig, topic)).outcome is Outcome.DONE


async def test_why_there_is_nothing_to_do() -> None:
    """Each reason is told apart, and a later request that is included in a running one does not hide it."""
    rig = ledger_rig(BY_HAND)
    assert rig.ledgers is not None
    await rig.ledgers.create(TOPIC)
    async with rig.engine() as engine:
        topic = await enabled(engine)

        async def why(wanted: Wanted) -> tuple[Position | None, Why | None]:
            plan = await topic.by_hand.plan(wanted)
            return plan.target, plan.why

        assert await why(Wanted()) == (None, Why.EMPTY)
        everything = await appended(rig, payloads(5))
        assert await why(Wanted()) == (None, Why.OPEN)
        assert await why(Wanted(keep_bytes=500)) == (None, Why.THRESHOLD)
        assert await why(Wanted(keep_bytes=0)) == (None, Why.THRESHOLD)
        everything = await appended(rig, payloads(10, seed=1))
        assert await why(Wanted(to=everything[3][0])) == (None, Why.WHOLE)
        assert await why(Wanted(keep_bytes=1500)) == (None, Why.THRESHOLD)
        assert await why(Wanted(keep_bytes=1499)) == (everything[9][0], None)
        await topic.by_hand.ask(Wanted(keep_bytes=1499), "")
        await until_offloaded(topic, everything[9][0])
        assert await why(Wanted(to=everything[3][0])) == (None, Why.OFFLOADED)
        assert await why(Wanted()) == (None, Why.OPEN)
        topic.follow(replace(BY_HAND, method=OffloadMethod.NONE))
        assert await why(Wanted()) == (None, Why.NONE)
        assert await why(Wanted(to=everything[9][0])) == (None, Why.OFFLOADED)


async def test_a_plan_says_what_goes_by_which_method() -> None:
    """Streaming takes a part of a ledger, and what is left of it goes by streaming under the other method too."""
    rig = ledger_rig(replace(BY_HAND, method=OffloadMethod.STREAMING))
    gate = Gate(rig)
    gate.open.set()
    everything = await appended(rig, payloads(15))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        plan = await topic.by_hand.plan(Wanted(to=everything[11][0]))
        ids = [everything[index][0].ledger_id for index in (0, 10)]
        takes = [(one.ledger_id, one.first_entry_id, one.entries, one.payload_bytes) for one in plan.takes]
        assert takes == [(ids[0], 0, 10, 1000), (ids[1], 0, 2, 200)]
        assert {one.method for one in plan.takes} == {OffloadMethod.STREAMING}
        assert topic.offloaded is None
        await topic.by_hand.ask(Wanted(), "")
        await until_offloaded(topic, everything[14][0])
        gate.open.clear()
        topic.follow(BY_HAND)
        everything = await appended(rig, payloads(20, seed=1))
        plan = await topic.by_hand.plan(Wanted())
        third = everything[20][0].ledger_id
        kinds = [(one.ledger_id, one.first_entry_id, one.payload_bytes, str(one.method), one.due) for one in plan.takes]
        assert kinds == [(ids[1], 5, 500, "streaming", True), (third, 0, 1000, "ledger-based", False)]
        assert (plan.target, plan.why) == (everything[29][0], Why.OPEN)
        gate.open.set()


@pytest.mark.parametrize("method", [OffloadMethod.STREAMING, OffloadMethod.LEDGER_BASED])
async def test_what_cannot_be_meant(method: OffloadMethod) -> None:
    """Positions that no entry of the topic has, and wishes that contradict themselves."""
    rig = ledger_rig(replace(BY_HAND, method=method))
    assert rig.ledgers is not None
    await rig.ledgers.append(OTHER, [b"x"])
    everything = await appended(rig, payloads(5))
    await rig.ledgers.append(OTHER, [b"x"] * 20)
    everything = await appended(rig, payloads(20, seed=1))
    foreign = next(one.ledger_id for one in await rig.ledgers.ledgers(OTHER) if one.ledger_id > everything[0][0][0])
    last = everything[-1][0]
    async with rig.engine() as engine:
        topic = await enabled(engine)
        for wanted, says in (
            (Wanted(to=Position(last.ledger_id, last.entry_id + 1)), "beyond the end"),
            (Wanted(to=Position(last.ledger_id + 1000, 0)), "beyond the end"),
            (Wanted(to=Position(foreign, 0)), "is not one of"),
            (Wanted(to=Position(everything[0][0].ledger_id, 10)), "has no entry 10: it has 10"),
            (Wanted(to=Position(-1, 0)), "out of range"),
            (Wanted(keep_bytes=-1), "threshold of -1 bytes"),
            (Wanted(to=last, keep_bytes=1), "exclude each other"),
        ):
            with pytest.raises(InvalidInput, match=says):
                await topic.by_hand.ask(wanted, "")
        assert await asked.read(rig.tree.connect(), TOPIC) is None


async def test_a_topic_that_is_only_pushed_has_no_sizes() -> None:
    """A size threshold is refused there; everything that was pushed can be asked for."""
    rig = Rig(policy=replace(BY_HAND, method=OffloadMethod.STREAMING))
    async with rig.engine(push_only=True) as engine:
        topic = await enabled(engine)
        assert (await topic.by_hand.plan(Wanted())).why is Why.EMPTY
        with pytest.raises(InvalidInput, match="sizes of its ledgers are unknown"):
            await topic.by_hand.plan(Wanted(keep_bytes=0))


async def test_the_last_entries_of_each_pushed_ledger_are_committed_when_it_is_closed() -> None:
    """No more come: nobody asks for a roll, and a small ledger would wait for the age of its segment."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600.0))
    async with rig.engine(push_only=True) as engine:
        topic = await enabled(engine)
        topic.pushers += 1
        for ledger_id in (1, 2, 3):
            batch = EntryBatch(ledger_id, 0, (b"x" * 10,))
            assert topic.offer(batch) is OfferResult.ACCEPTED
            topic.handle.ledger_closed(ledger_id, 0, 1)
            await until_offloaded(topic, batch.last)
