"""While the store is away: block or go on from the source, tell what is not protected, and leave the others running."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from offloaderd.core.errors import Conflict, Denied, Expired, NoSpace, NotFound, OffloaderError, Throttled, Transient
from offloaderd.core.limits import Pace
from offloaderd.core.model import EntryBatch, OfferResult, OffloadMethod, OutagePolicy, Position, TopicName
from offloaderd.core.names.patterns import of_topic
from offloaderd.metadata import paths
from offloaderd.policy.records import Paused, TopicPolicy
from offloaderd.segment import failures as reach_module
from offloaderd.segment.builder import SegmentLayout
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.topic.outage import OutageRules
from offloaderd.topic.status import Reporter
from tests.unit.rigs.rig import SHORT_PARTS, TOPIC, Rig, enabled, memory_ledgers, payloads, until, until_offloaded
from tests.unit.segment.test_faults import QuickClock

if TYPE_CHECKING:
    from offloaderd.fleet.engine import Engine
    from offloaderd.objects.port import PartInfo, Pieces
    from offloaderd.topic.status import TopicStatus

OTHER = TopicName.parse("public/default/other")
BLOCK = TopicPolicy(outage=OutagePolicy.BLOCK)


def faulty_rig(*, buffer_bytes: int = 4 << 20, **made: object) -> tuple[Rig, Faults]:
    """A rig with a ledger source, short pauses, and a bucket that fails on demand."""
    rig = Rig(
        policy=RollPolicy(segment_bytes_max=10_000, segment_age_max_s=0.3),
        buffer_bytes=buffer_bytes,
        layout=SegmentLayout(block_bytes=2048, part_bytes=4096),
        **made,  # type: ignore[arg-type]
    )
    faults = Faults()
    rig.objects = FaultyStore(MemoryStore(rig.clock, part_bytes_min=1), faults)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=200)
    rig.clock = QuickClock(rig)  # type: ignore[assignment]
    return rig, faults


async def appended(rig: Rig, count: int, *, seed: int = 0, topic: TopicName = TOPIC) -> list[bytes]:
    """Append entries to the source."""
    entries = payloads(count, seed=seed)
    assert rig.ledgers is not None
    await rig.ledgers.append(topic, entries)
    return entries


async def newest(rig: Rig, topic: TopicName = TOPIC) -> Position:
    """The source's last entry."""
    assert rig.ledgers is not None
    last = [info for info in await rig.ledgers.ledgers(topic) if info.entries][-1]
    return Position(last.ledger_id, last.entries - 1)


async def test_the_source_keeps_what_comes_while_the_store_is_away() -> None:
    """The default: entries are taken up to the budget and left in the source beyond; afterwards all are stored."""
    rig, faults = faulty_rig(buffer_bytes=64 << 10)
    faults.fail("upload_part", Transient("away"), times=-1)
    entries = await appended(rig, 500)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.status().state == "stalled")
        entries += await appended(rig, 1500, seed=1)
        await until(lambda: topic.buffer.used_bytes > 48 << 10)
        await until(lambda: topic.status().unprotected_entries == 2000)
        assert not topic.outage.blocked
        assert topic.buffer.used_bytes <= 64 << 10
        faults.heal()
        await until_offloaded(topic, await newest(rig))
    assert [payload for _, payload in await rig.committed()] == entries


async def test_block_takes_nothing_more_from_the_source() -> None:
    """From the beginning of the outage the source is not read; once the store is back it is, and nothing is lost."""
    rig, faults = faulty_rig()
    faults.fail("upload_part", Denied("no"), times=-1)
    entries = await appended(rig, 100)
    async with rig.engine() as engine:
        topic = await enabled(engine, BLOCK)
        await until(lambda: topic.outage.blocked)
        before = topic.buffer.last_offered
        entries += await appended(rig, 700, seed=1)
        await until(lambda: topic.status().unprotected_entries == 800)  # what comes is seen, and not taken
        assert topic.buffer.last_offered == before
        assert topic.status().outage == "block"
        faults.heal()
        await until_offloaded(topic, await newest(rig))
        assert not topic.outage.blocked
    assert [payload for _, payload in await rig.committed()] == entries


async def test_block_holds_back_who_pushes() -> None:
    """Permission to go on reading a pusher's stream comes when the store is back, or the topic's policy changes."""
    rig, faults = faulty_rig()
    faults.fail("upload_part", NoSpace("full"), times=-1)
    async with rig.engine(push_only=True) as engine:
        topic = await enabled(engine, BLOCK)
        await topic.outage.may_take()
        assert await topic.accept(EntryBatch(1, 0, payloads(300))) is OfferResult.ACCEPTED
        await until(lambda: topic.outage.blocked)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(topic.outage.may_take())
            await asyncio.sleep(0.1)  # noqa: TID251 - to see that it waits
            assert not waiting.done()
            faults.heal()
        faults.fail("put", NoSpace("full"), times=-1)
        assert await topic.accept(EntryBatch(1, 300, payloads(300))) is OfferResult.ACCEPTED
        await until(lambda: topic.outage.blocked)
        await engine.select(of_topic(TOPIC), TopicPolicy(outage=OutagePolicy.SOURCE))
        await topic.outage.may_take()
        faults.heal()
        await until_offloaded(topic, Position(1, 599))


async def test_a_store_that_answers_and_takes_nothing_is_told() -> None:
    """As one that is full, of which no read tells. One that asks for fewer requests is no such store."""
    rig, faults = faulty_rig()
    async with rig.engine(push_only=True) as engine:
        topic = await enabled(engine)
        assert engine.store_refuses() == ""
        faults.fail("upload_part", NoSpace("full"), times=-1)
        assert await topic.accept(EntryBatch(1, 0, payloads(300))) is OfferResult.ACCEPTED
        await until(lambda: topic.failure_tracker.outage is not None)
        assert engine.store_refuses() == "requests of 1 topic fail, though it answers: full"
        faults.heal()
        await until(lambda: topic.failure_tracker.outage is None)
        assert engine.store_refuses() == ""
        faults.fail("upload_part", Throttled("slow down"), times=-1)
        assert await topic.accept(EntryBatch(1, 300, payloads(300))) is OfferResult.ACCEPTED
        await until(lambda: topic.failure_tracker.outage is not None)
        assert engine.store_refuses() == ""
        faults.heal()


async def test_block_does_not_wait_for_what_only_it_could_bring_about() -> None:
    """A segment that failed is no gate: its entries may have to be read from the source for the next attempt."""
    rig, faults = faulty_rig(buffer_bytes=32 << 10)
    entries = await appended(rig, 600)
    faults.fail("upload_part", NotFound("no such upload"), times=3)
    async with rig.engine() as engine:
        topic = await enabled(engine, BLOCK)
        await until_offloaded(topic, await newest(rig))
        topic.failure_tracker.record(OffloaderError("a segment failed"))
        assert topic.status().state == "stalled"
        assert not topic.outage.blocked
        topic.failure_tracker.clear()
    assert [payload for _, payload in await rig.committed()] == entries


async def test_a_failure_of_the_source_is_no_outage_of_the_store() -> None:
    """It stalls the topic, and neither closes a gate nor calls anything unprotected that the store could take."""
    rig, _ = faulty_rig()
    async with rig.engine() as engine:
        topic = await enabled(engine, BLOCK)
        for _ in range(10):
            topic.failure_tracker.record(Transient("no bookie"), "source")
        assert topic.status().state == "stalled"
        assert not topic.outage.blocked
        assert topic.status().unprotected_since_ms == 0
        topic.failure_tracker.clear("source")


async def test_what_is_not_protected_is_told_from_begin_to_end() -> None:
    """Status, metrics and one event at either end: entries, bytes, since when; until what came meanwhile is stored."""
    rig, faults = faulty_rig()
    faults.fail("upload_part", Transient("away"), times=-1)
    await appended(rig, 100)
    with capture_logs() as events:
        async with rig.engine() as engine:
            topic = await enabled(engine)
            reporter = Reporter(rig.context(rig.tree.connect(), source=rig.ledgers), engine.statuses)
            await until(lambda: topic.status().state == "stalled")
            began_ms = topic.failure_tracker.outage.since_ms if topic.failure_tracker.outage else 0
            await appended(rig, 150, seed=1)
            await until(lambda: topic.status().unprotected_entries == 250)
            status = topic.status()
            assert status.unprotected_since_ms == status.stalled_since_ms == began_ms
            assert status.unprotected_bytes == 250 * 100
            assert 0 < status.unprotected_s < 20
            assert (status.stalled_class, status.outage) == ("transient", "source")
            await reporter.report()
            assert sample(rig, "offloaderd_unprotected_entries") == 250
            assert sample(rig, "offloaderd_unprotected_bytes") == 25_000
            assert 0 < (sample(rig, "offloaderd_unprotected_seconds") or 0) < 20
            assert 0 < (sample(rig, "offloaderd_stalled_seconds") or 0) < 20
            assert sample(rig, "offloaderd_stalled", reason="transient") == 1
            faults.heal()
            faults.fail("put", Transient("not yet"), times=3)
            await until(lambda: topic.failure_tracker.outage is None)
            if topic.offloaded is None:
                assert topic.status().unprotected_entries == 250, "the store works, and nothing is stored yet"
            await until_offloaded(topic, await newest(rig))
            await reporter.report()
            assert topic.status().unprotected_since_ms == 0
            assert sample(rig, "offloaderd_unprotected_entries") == 0
            assert sample(rig, "offloaderd_unprotected_seconds") == 0
            assert sample(rig, "offloaderd_remote_segments") == len(topic.map.segments) > 0
            assert sample(rig, "offloaderd_remote_bytes") == sum(one.object_bytes for one in topic.map.segments)
            assert sample(rig, "offloaderd_segment_age_max_seconds") == topic.policy.segment_age_max_s
            topic.follow(replace(topic.policy, method=OffloadMethod.NONE))
            await reporter.report()
            assert sample(rig, "offloaderd_segment_age_max_seconds") is None, "nothing bounds its lag"
            assert sample(rig, "offloaderd_stalled", reason="transient") is None
    told = [event for event in events if event["event"] in {"topic.unprotected", "topic.protected"}]
    assert [event["event"] for event in told] == ["topic.unprotected", "topic.protected"]
    assert (told[0]["policy"], told[0]["error_class"], told[0]["since_ms"]) == ("source", "transient", began_ms)
    assert "retention must outlast" in told[0]["hint"]
    assert (told[1]["entries_max"], told[1]["bytes_max"]) == (250, 25_000)


async def test_an_outage_ends_though_entries_keep_coming() -> None:
    """It is over once what had come when the store was back the last time is stored, however much came since."""
    rig, _ = faulty_rig()
    await appended(rig, 1)
    async with rig.engine() as engine:
        topic = await enabled(engine, TopicPolicy(method=OffloadMethod.NONE))
        outage, tracker = topic.outage, topic.failure_tracker

        def unprotected(newest: int, offloaded: int) -> int:
            return outage.unprotected(
                newest - offloaded, 100, newest=Position(1, newest), offloaded=Position(1, offloaded)
            ).entries

        tracker.record(Denied("no"), "put")
        assert unprotected(9, 3) == 6
        tracker.clear("put")
        assert unprotected(12, 4) == 8
        assert unprotected(30, 11) == 19, "one entry of the outage is not stored"
        assert unprotected(50, 12) == 0
        tracker.record(Denied("no"), "put")
        assert unprotected(59, 50) == 9
        tracker.clear("put")
        assert unprotected(60, 50) == 10
        tracker.record(Denied("no"), "put")
        assert unprotected(80, 55) == 25
        tracker.clear("put")
        assert unprotected(90, 60) == 30, "what had come when the store was back the last time"
        assert unprotected(95, 90) == 0


def sample(rig: Rig, name: str, **labels: str) -> float | None:
    """A gauge of the topic."""
    return rig.metrics.registry.get_sample_value(name, {"topic": str(TOPIC), **labels})


@pytest.mark.parametrize("error", [Expired("token"), Denied("no"), NoSpace("full")], ids=lambda e: type(e).__name__)
async def test_a_topic_that_stalls_leaves_the_others_running(error: OffloaderError) -> None:
    """One topic's objects fail for ever: it takes neither all places nor all memory, and the other is stored."""
    rig, _ = faulty_rig(upload_bytes=512 << 10, pace=Pace(2))
    rig.policy = RollPolicy(segment_bytes_max=200_000, segment_age_max_s=0.5)
    ours, failing = set[str](), [True]

    def plan(operation: str, key: str, when: str) -> Exception | None:
        return error if failing and operation == "upload_part" and when == "before" and key in ours else None

    store = MemoryStore(rig.clock, part_bytes_min=1)
    rig.objects = FaultyStore(store, plan)
    await appended(rig, 3000)
    others = await appended(rig, 3000, topic=OTHER)
    async with rig.engine() as engine:
        create = store.create_upload

        async def create_upload(key: str, **rest: object) -> str:
            topic = engine.find(TOPIC)
            if topic is not None and topic.attempt is not None and str(topic.attempt.segment_id) in key:
                ours.add(key)
            return await create(key, **rest)  # type: ignore[arg-type]

        store.create_upload = create_upload  # type: ignore[method-assign]
        stalled = await enabled(engine)
        await until(lambda: stalled.status().state == "stalled")
        await asyncio.sleep(0.1)  # noqa: TID251 - it takes all that it can get
        other = await enabled(engine, topic=OTHER)
        await until_offloaded(other, await newest(rig, OTHER))
        assert other.status().state == "offloading"
        assert (stalled.status().state, stalled.offloaded) == ("stalled", None)
        failing.clear()
        await until_offloaded(stalled, await newest(rig))
    assert [payload for _, payload in await rig.committed(OTHER)] == others


class Busy(MemoryStore):
    """Takes a few parts at a time and asks for fewer when there are more."""

    def __init__(self, rig: Rig, takes: int) -> None:
        super().__init__(rig.clock, part_bytes_min=1)
        self.takes = takes
        self.now = 0
        self.most: list[int] = []
        self.refused = 0

    async def upload_part(self, key: str, upload_id: str, part_number: int, pieces: Pieces) -> PartInfo:
        """See MultipartStore."""
        self.now += 1
        try:
            self.most.append(self.now)
            await asyncio.sleep(0.003)  # noqa: TID251 - a transfer takes time
            if self.now > self.takes:
                self.refused += 1
                raise Throttled("SlowDown")
            return await super().upload_part(key, upload_id, part_number, pieces)
        finally:
            self.now -= 1


async def test_a_store_that_throttles_gets_fewer_requests_and_later_more_again() -> None:
    """503 SlowDown lowers the parts on their way of all topics together; when it ends they rise to the setting."""
    last_answer: list[int] = []
    rig, _ = faulty_rig(upload_bytes=2 << 20, pace=Pace(8, changed=last_answer.append))
    rig.policy = RollPolicy(segment_bytes_max=400_000, segment_age_max_s=0.5)
    busy = rig.objects = Busy(rig, takes=3)
    topics = [TopicName.parse(f"public/default/t{number}") for number in range(6)]
    for topic in topics:
        await appended(rig, 4000, topic=topic)

    async def all_stored(engine: Engine) -> None:
        for topic in topics:
            found = engine.find(topic) or await enabled(engine, topic=topic)
            await until_offloaded(found, await newest(rig, topic))

    async with rig.engine() as engine:
        for topic in topics:
            await enabled(engine, topic=topic)
        await all_stored(engine)
        assert busy.refused > 0
        assert min(last_answer) <= 4
        later = busy.most[len(busy.most) // 2 :]
        assert sum(later) / len(later) <= 4, "after the first refusals about as many as the store takes"
        assert rig.metrics.upload_retries.labels(**{"class": "throttled"})._value.get() == busy.refused
        busy.takes = 100
        for number in range(40):
            for topic in topics:
                await appended(rig, 500, seed=number, topic=topic)
            await all_stored(engine)
            if rig.pace.limit == 8:
                break
        assert rig.pace.limit == last_answer[-1] == 8


@pytest.mark.parametrize("operation", ["create_upload", "upload_part", "complete_upload", "put", "head", "get"])
async def test_expired_credentials_delay_and_change_nothing_else(operation: str) -> None:
    """The next try may have fresh ones; the topic says why it stands still meanwhile."""
    rig, faults = faulty_rig()
    entries = await appended(rig, 300)
    faults.fail(operation, Expired("ExpiredToken"), times=3)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.status().stalled_class == "expired")
        await until_offloaded(topic, await newest(rig))
        assert topic.status().state == "offloading"
    assert rig.metrics.upload_retries.labels(**{"class": "expired"})._value.get() == 3
    assert [payload for _, payload in await rig.committed()] == entries
    assert await rig.leftovers() == []


async def test_a_topic_that_cannot_even_be_taken_up_says_since_when() -> None:
    """A damaged node ends every claim: status keeps the time of the first failure over all of them."""
    rig, _ = faulty_rig()
    store = rig.tree.connect()
    for path in (paths.TOPICS, paths.topic(TOPIC), paths.attempt(TOPIC)):
        with suppress(Conflict):
            await store.create(path, b"no record")
    async with rig.engine() as engine:
        await engine.select(of_topic(TOPIC), TopicPolicy())

        def status() -> TopicStatus | None:
            return next((one for one in engine.statuses() if one.state == "stalled"), None)

        await until(lambda: status() is not None)
        first = status()
        await asyncio.sleep(0.3)  # noqa: TID251 - several claims fail in it
        again = status()
        assert first is not None
        assert again is not None
        assert again.stalled_class == "other"
        assert "corrupt" in again.stalled_reason
        assert 0 < first.stalled_since_ms == again.stalled_since_ms
        assert again.stalled_s > first.stalled_s
        await store.delete(paths.attempt(TOPIC))
        await enabled(engine)


async def test_what_is_spilled_elsewhere_stays_in_the_source() -> None:
    """With a ledger source, or without a directory, `spill` is `source`: status says what holds."""
    rig, _ = faulty_rig(outage=OutageRules(policy=OutagePolicy.SPILL))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        assert topic.outage.spill is None
        assert topic.status().outage == "source"
    async with rig.engine("two", push_only=True) as engine:
        topic = await enabled(engine, TopicPolicy(outage=OutagePolicy.SPILL))
        assert topic.outage.policy is OutagePolicy.SOURCE


class SilentStore(MemoryStore):
    """A bucket that takes parts and never answers."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.clock, part_bytes_min=1)
        self.back = asyncio.Event()

    async def upload_part(self, key: str, upload_id: str, part_number: int, data: Pieces) -> PartInfo:
        """Wait until the test brings it back."""
        await self.back.wait()
        return await super().upload_part(key, upload_id, part_number, data)


async def test_a_store_that_is_silent_stalls_what_has_something_to_be_stored_before_any_request_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The probes know within seconds; what is committed, paused, or stored lately does not stall by their word."""
    monkeypatch.setattr(reach_module, "LATELY_S", 0.0)
    rig = Rig(policy=RollPolicy(segment_bytes_max=1000, segment_age_max_s=0.3), layout=SHORT_PARTS)
    store = rig.objects = SilentStore(rig)
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine() as engine:
        topic, reach = await enabled(engine), engine.context.upload_context.reach
        reach.probed(Transient("no answer within 5 s"), rig.clock)
        assert topic.status().state == "offloading"
        await appended(rig, 40)
        await until(lambda: rig.metrics.inflight_parts._value.get() > 0)
        reach.probed(Transient("no answer within 5 s"), rig.clock)
        now, reporter = topic.status(), Reporter(engine.context, engine.statuses)
        assert (now.state, now.stalled_class) == ("stalled", "transient")
        assert now.stalled_reason == "the bucket does not answer: no answer within 5 s"
        assert now.stalled_since_ms
        await reporter.report()
        stalled = {"topic": str(TOPIC), "reason": "transient"}
        assert rig.metrics.registry.get_sample_value("offloaderd_stalled", stalled) == 1
        for answer in (Denied("no rights to list"), Throttled("slow down")):
            reach.probed(answer, rig.clock)
            assert topic.status().state == "offloading", "it has answered"
            reach.probed(Transient("no answer within 5 s"), rig.clock)
            assert topic.status().state == "stalled"
        now = topic.status()
        reach.probed(Transient("refused"), rig.clock)
        again = topic.status()
        assert (again.stalled_reason, again.stalled_since_ms) == (
            "the bucket does not answer: refused",
            now.stalled_since_ms,
        )
        policy, paused = topic.policy, Paused(since_ms=1, by="ann")
        topic.requests.policy = policy.held(paused, push_only=False)
        assert topic.status().state == "paused"
        topic.requests.policy = policy.held(paused, push_only=True)
        assert topic.status().state == "stalled", "what was pushed exists nowhere else, so it is still to be stored"
        topic.requests.policy = policy
        reach.probed(None, rig.clock)
        assert topic.status().state == "offloading"
        store.back.set()
        await until_offloaded(topic, await newest(rig))
        monkeypatch.setattr(reach_module, "LATELY_S", 60.0)
        reach.probed(Transient("no answer within 5 s"), rig.clock)
        assert reach.failure is None
