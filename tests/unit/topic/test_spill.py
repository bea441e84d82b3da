"""A push-only topic that overflows to disk while the store is away: order, limits, crashes, damage."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import Transient
from offloaderd.core.model import EntryBatch, OfferResult, OutagePolicy, Position
from offloaderd.core.names.patterns import of_topic
from offloaderd.policy.records import TopicPolicy
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.topic.outage import OutageRules
from offloaderd.topic.spill import SpillArea
from tests.unit.rigs.rig import Rig, enabled, offloader_of, payloads, turn, until, until_offloaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from offloaderd.topic.offloader import TopicOffloader

BUFFER_BYTES = 64 << 10
SPILL = TopicPolicy(outage=OutagePolicy.SPILL)


class Away:
    """A store that is away until it is let back, and the rig round it."""

    def __init__(self, area: SpillArea) -> None:
        self.faults = Faults()
        self.area = area
        self.rig = Rig(
            policy=RollPolicy(segment_bytes_max=40_000, segment_age_max_s=0.2),
            buffer_bytes=BUFFER_BYTES,
            outage=OutageRules(area=area),
        )
        self.rig.objects = FaultyStore(MemoryStore(self.rig.clock, part_bytes_min=1), self.faults)
        self.go_away()

    def go_away(self) -> None:
        """Fail every upload of a part from now on."""
        self.faults.fail("upload_part", Transient("away"), times=-1)

    async def committed(self) -> list[bytes]:
        """Payloads of all committed entries, in order."""
        return [payload for _, payload in await self.rig.committed()]

    def files(self) -> list[Path]:
        """The spill files that there are."""
        return sorted(self.area.directory.glob("*.spill"))


@asynccontextmanager
async def away(tmp_path: Path, *, bytes_max: int = 64 << 20) -> AsyncIterator[Away]:
    """A rig whose store is away and whose topics may spill."""
    async with SpillArea(tmp_path, bytes_max, file_bytes=100_000) as area:
        yield Away(area)


async def push(topic: TopicOffloader, entries: Sequence[bytes], *, first: int = 0, step: int = 25) -> None:
    """Push entries of ledger 1, batch by batch, each accepted."""
    for at in range(0, len(entries), step):
        some = entries[at : at + step]
        assert await topic.accept(EntryBatch(1, first + at, some)) is OfferResult.ACCEPTED


def slow_to_come_back(topic: TopicOffloader) -> None:
    """Let memory run empty before each read from disk."""
    assert topic.outage.spill is not None
    queue = topic.outage.spill._queue
    take = queue.take

    async def slow(bytes_max: int) -> Sequence[EntryBatch]:
        await until(lambda: topic.buffer.used_bytes == 0)
        return await take(bytes_max)

    queue.take = slow  # type: ignore[method-assign]


async def test_what_finds_no_room_in_memory_waits_on_disk_and_is_committed_in_order(tmp_path: Path) -> None:
    """Ten times the buffer is accepted while the store is away; then all of it is stored, and the disk is empty."""
    entries = payloads(4000, 160)
    async with away(tmp_path) as outage:
        rig = outage.rig
        async with rig.engine(push_only=True) as engine:
            topic = await enabled(engine, SPILL)
            await push(topic, entries)
            assert topic.buffer.used_bytes <= BUFFER_BYTES
            assert topic.handle.last_offered() == Position(1, 3999)
            spill, status = topic.outage.spill, topic.status()
            assert spill is not None
            assert len(outage.files()) > 4
            assert rig.metrics.spill_bytes._value.get() == sum(one.stat().st_size for one in outage.files())
            assert (status.lag_entries, status.lag_bytes) == (4000, 4000 * 160)
            assert 0 < status.spilled_entries == spill.entries < 4000
            assert status.confirmed == Position(1, 3999)
            assert await outage.committed() == []
            outage.faults.heal()
            await until_offloaded(topic, Position(1, 3999))
            assert spill.empty
            assert (spill.entries, spill.payload_bytes, outage.area.used_bytes, outage.files()) == (0, 0, 0, [])
            assert not topic.buffer.diverted
            await push(topic, payloads(5, 100, seed=1), first=4000)
            assert spill.empty, "with room in memory nothing goes to disk"
        assert await outage.committed() == [*entries, *payloads(5, 100, seed=1)]
        assert await rig.leftovers() == []


async def test_nothing_overtakes_what_is_on_disk(tmp_path: Path) -> None:
    """A batch that would fit into memory goes behind those that wait: an offer without patience is told FULL."""
    async with away(tmp_path) as outage, outage.rig.engine(push_only=True) as engine:
        topic = await enabled(engine, SPILL)
        await push(topic, payloads(1000, 160))
        assert topic.outage.spill is not None
        assert not topic.outage.spill.empty
        small = EntryBatch(1, 1000, [b"small"])
        assert topic.offer(small) is OfferResult.FULL
        assert not topic.handle.can_offer(1)
        assert await topic.accept(EntryBatch(1, 1001, [b"early"])) is OfferResult.NOT_CONSECUTIVE
        assert await topic.accept(EntryBatch(1, 999, [b"late"])) is OfferResult.NOT_CONSECUTIVE
        assert await topic.accept(small) is OfferResult.ACCEPTED
        outage.faults.heal()
        await until_offloaded(topic, small.last)
        assert (await outage.committed())[-2:] == [payloads(1000, 160)[-1], b"small"]


async def test_of_two_who_push_the_same_one_is_taken(tmp_path: Path) -> None:
    """A broker that reconnected and its former self: each entry goes to disk once."""
    entries = payloads(1500, 160)
    async with away(tmp_path) as outage, outage.rig.engine(push_only=True) as engine:
        topic = await enabled(engine, SPILL)
        await push(topic, entries[:1000])
        for first in range(1000, 1500, 100):
            again = EntryBatch(1, first, entries[first : first + 100])
            async with asyncio.TaskGroup() as group:
                offers = [group.create_task(topic.accept(again)) for _ in range(2)]
            assert {one.result() for one in offers} == {OfferResult.ACCEPTED, OfferResult.NOT_CONSECUTIVE}
        outage.faults.heal()
        await until_offloaded(topic, Position(1, 1499))
        assert await outage.committed() == entries


async def test_a_full_disk_blocks_until_commits_make_room(tmp_path: Path) -> None:
    """Beyond spill.bytes_max the pusher waits; when the store is back, the rest is taken and stored."""
    entries = payloads(3000, 160)
    async with away(tmp_path, bytes_max=100_000) as outage, outage.rig.engine(push_only=True) as engine:
        topic = await enabled(engine, SPILL)
        async with asyncio.TaskGroup() as group:
            pushing = group.create_task(push(topic, entries))
            await until(lambda: outage.area.used_bytes > 90_000)
            await asyncio.sleep(0.2)  # noqa: TID251 - to see that it stays so
            assert not pushing.done()
            assert outage.area.used_bytes <= 100_000
            (alarm,) = engine.alarms()
            assert alarm.startswith(f"spill.directory {tmp_path} takes nothing: spill.bytes_max (97.7 KiB) is used up")
            outage.faults.heal()
        await until_offloaded(topic, Position(1, 2999))
        assert not engine.alarms()
        assert await outage.committed() == entries


async def test_without_a_policy_to_spill_the_pusher_waits(tmp_path: Path) -> None:
    """`source` is the default: without a source, pushers are held back once memory is full, and no file is made."""
    async with away(tmp_path) as outage, outage.rig.engine(push_only=True) as engine:
        topic = await enabled(engine)
        assert topic.outage.policy is OutagePolicy.SOURCE
        async with asyncio.TaskGroup() as group:
            pushing = group.create_task(push(topic, payloads(1000, 160)))
            await until(lambda: topic.buffer.used_bytes > BUFFER_BYTES - 8000)
            await asyncio.sleep(0.1)  # noqa: TID251 - to see that it stays so
            assert not pushing.done()
            assert outage.files() == []
            await engine.select(of_topic(topic.topic), SPILL)
            await until(lambda: topic.outage.policy is OutagePolicy.SPILL)
            outage.faults.heal()
        await until_offloaded(topic, Position(1, 999))


async def test_a_policy_that_ends_lets_the_disk_run_empty(tmp_path: Path) -> None:
    """What is on disk when the policy changes is stored in its turn; what comes after it waits for room in memory."""
    entries = payloads(2000, 160)
    async with away(tmp_path) as outage, outage.rig.engine(push_only=True) as engine:
        topic = await enabled(engine, SPILL)
        await push(topic, entries[:1000])
        await engine.select(of_topic(topic.topic), TopicPolicy(outage=OutagePolicy.SOURCE))
        await until(lambda: topic.outage.policy is OutagePolicy.SOURCE)
        async with asyncio.TaskGroup() as group:
            pushing = group.create_task(push(topic, entries[1000:], first=1000))
            await asyncio.sleep(0.1)  # noqa: TID251 - to see that nothing is taken
            assert topic.handle.last_offered() == Position(1, 999)
            assert not pushing.done()
            outage.faults.heal()
        await until_offloaded(topic, Position(1, 1999))
        assert await outage.committed() == entries


async def test_stopping_commits_what_was_accepted_and_refuses_the_rest(tmp_path: Path) -> None:
    """A drain that has the time takes the disk along; who offers meanwhile is told that the topic goes."""
    entries = payloads(2000, 160)
    async with away(tmp_path) as outage:
        async with outage.rig.engine(push_only=True) as engine:
            topic = await enabled(engine, SPILL)
            await push(topic, entries)
            slow_to_come_back(topic)
            outage.faults.heal()
            topic.stop()
            assert await topic.accept(EntryBatch(1, 2000, [b"late"])) is OfferResult.CLOSED
        assert await outage.committed() == entries
        assert outage.files() == []
        assert await outage.rig.leftovers() == []


async def test_stopping_ends_once_the_last_offer_that_waited_for_the_disk_is_refused(tmp_path: Path) -> None:
    """Neither memory nor disk had room for it, and it was all that the topic had."""
    async with away(tmp_path, bytes_max=10) as outage, outage.rig.engine(push_only=True) as engine:
        topic, pool = await enabled(engine, SPILL), engine.context.pool
        pool.take(BUFFER_BYTES, topic.buffer)  # as others have all of it
        async with asyncio.TaskGroup() as group:
            pushing = group.create_task(topic.accept(EntryBatch(1, 0, [b"late"])))
            await until(lambda: bool(outage.area.refused))
            topic.stop()
            await turn()
            assert not topic.buffer.closed
            pool.free(BUFFER_BYTES, topic.buffer)
        assert pushing.result() is OfferResult.CLOSED
        await until(lambda: topic.buffer.closed)


async def test_after_a_crash_the_disk_is_forgotten_and_pushed_again(tmp_path: Path) -> None:
    """What was on disk was never told to be durable: the next owner asks for it from the offloaded position on."""
    entries = payloads(2000, 160)
    async with away(tmp_path) as outage:
        rig = outage.rig
        with suppress(asyncio.CancelledError):
            async with rig.engine(push_only=True) as engine:
                topic = await enabled(engine, SPILL)
                await push(topic, entries)
                assert len(outage.files()) > 1
                raise asyncio.CancelledError
        assert outage.files() == []
        assert outage.area.used_bytes == 0
        outage.faults.heal()
        async with rig.engine("two", push_only=True) as engine:
            topic = await offloader_of(engine)
            assert topic.handle.last_offered() is None
            await push(topic, entries, step=7)
            await until_offloaded(topic, Position(1, 1999))
        assert await outage.committed() == entries
        assert await rig.leftovers() == []


async def test_damage_on_disk_ends_the_claim_and_nothing_wrong_is_stored(tmp_path: Path) -> None:
    """A flipped bit: the topic is given up and claimed again, waiting pushers are told, and all comes from them."""
    entries = payloads(2000, 160)
    async with away(tmp_path) as outage, outage.rig.engine(push_only=True) as engine:
        topic = await enabled(engine, SPILL)
        await push(topic, entries)
        damaged = bytearray(outage.files()[2].read_bytes())
        damaged[5000] ^= 1
        outage.files()[2].write_bytes(damaged)
        outage.faults.heal()
        while engine.find(topic.topic) is topic:
            await engine.changed.wait()
        assert await topic.accept(EntryBatch(1, 2000, [b"late"])) is OfferResult.CLOSED
        again = await offloader_of(engine)
        assert again is not topic
        held = again.handle.last_offered()
        first = held.entry_id + 1 if held is not None else 0
        assert first < 2000
        await push(again, entries[first:], first=first)
        await until_offloaded(again, Position(1, 1999))
        assert await outage.committed() == entries


async def test_a_pusher_that_goes_leaves_a_state_that_the_next_can_follow(tmp_path: Path) -> None:
    """Cancelled while its batch was on its way to disk: `last_offered` says whether it was taken; none is doubled."""
    entries = payloads(1500, 160)
    async with away(tmp_path) as outage, outage.rig.engine(push_only=True) as engine:
        topic = await enabled(engine, SPILL)
        at = 0
        while at < len(entries):
            pushing = asyncio.ensure_future(push(topic, entries[at:], first=at))  # noqa: TID251 - to cancel it
            for _ in range(37):
                await turn()
            pushing.cancel()
            await asyncio.wait([pushing])
            for _ in range(at % 5):
                await turn()
            last = topic.handle.last_offered()
            at = last.entry_id + 1 if last is not None else 0
        outage.faults.heal()
        await until_offloaded(topic, Position(1, 1499))
        assert await outage.committed() == entries


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=1, max_size=12),
    ledger_entries=st.integers(50, 1000),
)
async def test_any_run_of_outages_stores_all_in_order(
    tmp_path: Path, steps: list[tuple[int, bool]], ledger_entries: int
) -> None:
    """The store comes and goes while entries of several ledgers are pushed: nothing is lost, doubled or reordered."""
    total = sum(count for count, _ in steps)
    entries = payloads(total, 120)
    async with away(tmp_path, bytes_max=200_000) as outage, outage.rig.engine(push_only=True) as engine:
        topic = await enabled(engine, SPILL)

        async def push_all() -> None:
            at = 0
            for count, there in steps:
                outage.faults.heal()
                if not there and outage.area.used_bytes < 50_000:
                    outage.go_away()
                for number in range(at, at + count):
                    ledger, entry = divmod(number, ledger_entries)
                    one = EntryBatch(ledger, entry, [entries[number]])
                    assert await topic.accept(one) is OfferResult.ACCEPTED
                at += count
            outage.faults.heal()

        await push_all()
        await until_offloaded(topic, Position(*divmod(total - 1, ledger_entries)))
        assert await outage.committed() == entries
        assert outage.files() == []
