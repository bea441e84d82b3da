"""Going back to a stock broker: streaming segments become whole ledgers, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import Denied, NotFound, OffloaderError, Transient
from offloaderd.core.limits import ByteBudget
from offloaderd.core.model import OffloadMethod, Position
from offloaderd.format import manifest_bytes, v1
from offloaderd.history.rewrite import BucketReader
from offloaderd.metadata import paths
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.segment.builder import SegmentBuilder
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.upkeep.gc import references
from tests.unit.rigs.crashing import crash
from tests.unit.rigs.rig import TOPIC, Rig, enabled, payloads, turn, until, until_offloaded
from tests.unit.rigs.rolling import map_of, read_all, rolling, shape, streamed
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.history.rewrite import Volume
    from offloaderd.metadata.committed import LedgerSlice
    from offloaderd.segment.feed import EntryHash
    from tests.unit.rigs.rolling import Rolling

WHOLE = ["V1 0:0-9", "V1 1:0-9", "V1 2:0-9", "V1 3:0-9", "4:0-4"]


async def all_is_well(rig: Rig, written: Sequence[bytes]) -> None:
    """Every entry is there once and in order, and nothing else is in the bucket, nor recorded."""
    assert await read_all(rig) == written
    assert await rig.leftovers() == []
    store = rig.tree.connect()
    assert await store.children(paths.trash(TOPIC)) == []
    assert await store.children(paths.rollback(TOPIC)) == ["order"]
    seen = await references.read(store)
    assert set(seen.committed) == {one.segment_id for one in (await map_of(rig)).segments}
    assert not seen.attempts


async def test_closed_ledgers_become_objects_and_the_open_one_stays() -> None:
    """Ledger by ledger; segments that have lost all of their slices are deleted."""
    rig, written = await streamed(15, 20, 10)
    assert shape(await map_of(rig)) == ["0:0-9 1:0-4", "1:5-9 2:0-9 3:0-4", "3:5-9 4:0-4"]
    before = await map_of(rig)
    async with rolling(rig) as work:
        await work.order()
        done = await work.ended()
        assert (await work.offloader()).map == await map_of(rig)
    after = await map_of(rig)
    assert shape(after) == WHOLE
    assert (done.done, done.left, done.done_bytes) == (4, 0, 4000)
    assert (after.ends, after.offloaded, after.losses) == (before.ends, before.offloaded, before.losses)
    assert rig.metrics.rollback_ledgers._value.get() == 4
    assert rig.metrics.rollback_bytes._value.get() == 4000
    assert work.rollback.speed.measured
    await all_is_well(rig, written)


async def test_a_ledger_is_byte_for_byte_what_the_ledger_based_method_writes() -> None:
    """Data and index of the same ledgers, written by either way, are equal; so is what the manifest says of blocks."""
    rig, _ = await streamed(150, 170, 33, ledger_entries=100)
    policy = RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600.0)
    other = Rig(policy=replace(policy, method=OffloadMethod.LEDGER_BASED, threshold_bytes=0))
    other.ledgers = rig.ledgers
    async with other.engine() as engine:
        await until_offloaded(await enabled(engine), Position(2, 99))
    async with rolling(rig) as work:
        await work.order()
        await work.ended()
    for ours, theirs in zip((await map_of(rig)).segments, (await map_of(other)).segments, strict=False):
        assert ours.method is OffloadMethod.LEDGER_BASED
        assert await rig.store.get(ours.keys.data) == await other.store.get(theirs.keys.data)
        assert await rig.store.get(ours.keys.index) == await other.store.get(theirs.keys.index)
        described = [
            manifest_bytes.decode(await one.store.get(keys.manifest), key="m")
            for one, keys in ((rig, ours.keys), (other, theirs.keys))
        ]
        assert described[0].blocks == described[1].blocks
        assert described[0].ledgers == described[1].ledgers
        assert described[0].past == described[1].past
        assert described[0].ends[-1][1].entries == described[1].ends[-1][1].entries
    assert len((await map_of(other)).segments) == 3


async def test_a_ledger_that_its_source_has_deleted_has_plain_metadata() -> None:
    """What the segments know is enough: entries, bytes and the time of its close."""
    rig, written = await streamed(25)
    ledgers = source_of(rig)
    closed_ms = (await ledgers.ledgers(TOPIC))[0].closed_at_ms
    await ledgers.delete(TOPIC, 0)
    async with rolling(rig) as work:
        await work.order()
        await work.ended()
    first = (await map_of(rig)).segments[0]
    index = v1.decode_index(await rig.store.get(first.keys.index), key="index")
    found = index.ledger()
    assert (found.lastEntryId, found.length, found.ctime, found.ensembleSize) == (9, 1000, closed_ms, 1)
    await all_is_well(rig, written)


def source_of(rig: Rig) -> MemoryLedgers:
    """Return the rig's source."""
    assert isinstance(rig.ledgers, MemoryLedgers)
    return rig.ledgers


async def test_a_push_only_topic_is_rewritten_without_a_source() -> None:
    """A daemon that has no source describes ledgers by itself, and cuts them as its settings for segments say."""
    rig, written = await streamed(25)
    async with rolling(rig, push_only=True) as work:
        await work.order()
        await work.ended()
    assert shape(await map_of(rig)) == ["V1 0:0-9", "V1 1:0-9", "2:0-4"]
    await all_is_well(rig, written)


async def test_up_to_a_ledger_and_then_on() -> None:
    """An order ends where it was told to; another goes on; the same one again finds nothing to do."""
    rig, written = await streamed(15, 20, 10)
    async with rolling(rig) as work:
        await work.order(1)
        await work.ended()
        assert shape(await map_of(rig)) == ["V1 0:0-9", "V1 1:0-9", "2:0-9 3:0-4", "3:5-9 4:0-4"]
        assert await work.rollback.order(await work.offloader(), 1) is None
        with pytest.raises(NotFound, match="no ledger 77"):
            await work.rollback.order(await work.offloader(), 77)
        order = await work.rollback.order(await work.offloader(), None)
        assert order is not None
        assert order.to_ledger_id == 3
        wider = await work.rollback.order(await work.offloader(), 2)
        assert wider is None or wider.to_ledger_id == 3
        await work.ended()
    assert shape(await map_of(rig)) == WHOLE
    await all_is_well(rig, written)


async def test_the_topic_streams_on_meanwhile() -> None:
    """What comes while ledgers are rewritten is streamed behind them, and rewritten by the next order."""
    rig, written = await streamed(200, 30, ledger_entries=20)
    async with rolling(rig) as work:
        await work.order()
        topic = await work.offloader()
        assert rig.ledgers is not None
        for seed in range(5):
            more = payloads(30, seed=50 + seed)
            written += more
            last = await rig.ledgers.append(TOPIC, more)
            await topic.request_roll()
            await until_offloaded(topic, last)
        await work.ended()
        assert topic.map == await map_of(rig)
        assert await read_all(rig) == written
        await work.order()
        await work.ended()
    assert sum(one.method is OffloadMethod.STREAMING for one in (await map_of(rig)).segments) <= 1
    await all_is_well(rig, written)


@pytest.mark.parametrize("flip", [0, 1])
async def test_damage_stops_its_ledger_and_no_other(flip: int) -> None:
    """A flipped bit in a block, or a missing object: nothing of that ledger is replaced, and it is said which."""
    rig, _ = await streamed(10, 10, 10, 5)
    victim = (await map_of(rig)).segments[1]
    data = await rig.store.get(victim.keys.data)
    if flip:
        await rig.store.put(victim.keys.data, data[:500] + bytes([data[500] ^ 4]) + data[501:])
    else:
        await rig.store.delete([victim.keys.data])
    async with rolling(rig) as work:
        await work.order()
        done = await work.ended()
        assert shape(await map_of(rig)) == ["V1 0:0-9", "1:0-9", "V1 2:0-9", "3:0-4"]
        assert done.order is not None
        assert list(done.order.failures) == [1]
        assert str(victim.segment_id) in done.order.failures[1]
        assert rig.metrics.rollback_failures.labels(reason="unreadable")._value.get() == 1
        await rig.store.put(victim.keys.data, data)
        await work.order()
        assert (await work.ended()).left == 0
    assert shape(await map_of(rig)) == ["V1 0:0-9", "V1 1:0-9", "V1 2:0-9", "3:0-4"]


async def test_an_object_that_reads_back_differently_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder that swaps two entries makes an object that is sound in itself: only the hash of all entries tells."""
    rig, written = await streamed(15)
    real = SegmentBuilder.add

    def swapped(self: SegmentBuilder, batch: object, limit: int | None = None) -> object:
        entries = list(batch.payloads)  # type: ignore[attr-defined]
        entries[0], entries[-1] = entries[-1], entries[0]
        return real(self, replace(batch, payloads=entries), limit)  # type: ignore[type-var,arg-type]

    monkeypatch.setattr(SegmentBuilder, "add", swapped)
    async with rolling(rig) as work:
        await work.order()
        done = await work.ended()
        assert done.order is not None
        assert "does not hold the entries of 0:0..0:9" in done.order.failures[0]
        assert rig.metrics.rollback_failures.labels(reason="upload")._value.get() == 1
    assert shape(await map_of(rig)) == ["0:0-9 1:0-4"]
    await all_is_well(rig, written)


async def test_old_objects_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what was stored is read back to be compared: the old entries were hashed on their way."""
    rig, written = await streamed(15)
    real, read_back = BucketReader.hashed, []

    async def counted(self: BucketReader, volumes: Sequence[Volume], slices: Sequence[LedgerSlice]) -> EntryHash:
        read_back.append([one.manifest.method for one in volumes])
        return await real(self, volumes, slices)

    monkeypatch.setattr(BucketReader, "hashed", counted)
    async with rolling(rig) as work:
        await work.order()
        await work.ended()
    assert shape(await map_of(rig)) == ["V1 0:0-9", "1:0-4"]
    assert read_back == [[OffloadMethod.LEDGER_BASED]]
    await all_is_well(rig, written)


async def test_a_ledger_that_is_deleted_meanwhile_is_no_failure() -> None:
    """Retention takes a segment away while its ledger is being rewritten: the object is given up, the rest goes on."""
    rig, written = await streamed(10, 10, 5)
    taken = asyncio.Event()

    async def take(work: Rolling) -> None:
        topic = await work.offloader()
        await topic.record.mark_deleted([0])
        await topic.record.remove_oldest(topic.map.segments[0], "ledgers_deleted")
        taken.set()

    async with rolling(rig) as work:
        await work.progress()
        real, topic = rig.store.complete_upload, await work.offloader()

        async def complete(*given: object) -> object:
            if not taken.is_set():
                await take(work)
            return await real(*given)  # type: ignore[arg-type]

        rig.store.complete_upload = complete  # type: ignore[method-assign,assignment]
        await work.order()
        done = await work.ended()
        assert done.order is not None
        assert not done.order.failures
        assert topic.map.floor == Position(0, 9)
    assert shape(await map_of(rig)) == ["V1 1:0-9", "2:0-4"]
    await all_is_well(rig, written[10:])


async def test_stopping_gives_up_what_is_being_written() -> None:
    """The order is taken back: the object goes to the trash, what was rewritten stays; it can be ordered again."""
    rig, written = await streamed(200, ledger_entries=90)
    async with rolling(rig) as work:
        progress = await work.progress()
        topic = await work.offloader()
        with pytest.raises(NotFound):
            await work.rollback.stop(topic)
        await work.order()
        while not progress.phase:
            await turn()
            progress = await work.progress()
        order = await work.rollback.stop(await work.offloader())
        assert order.stopped
        assert (await work.rollback.stop(await work.offloader())) == order
        await until(lambda: work.rollback.progress(topic).ledger_id is None)
        await work.order()
        done = await work.ended()
        assert done.order is not None
        assert not done.order.stopped
    assert shape(await map_of(rig)) == ["V1 0:0-89", "V1 1:0-89", "2:0-19"]
    await all_is_well(rig, written)


async def test_draining_leaves_the_ledger_to_the_next_owner() -> None:
    """The order and the attempt are recorded: the next owner goes on with both, and sends no stored part again."""
    rig, written = await streamed(2100, ledger_entries=2000)
    rig.upload_bytes = 5000
    async with rolling(rig, "one") as work:
        await work.order()
        store = rig.tree.connect()
        while True:
            try:
                node = await store.get(paths.rollback_attempt(TOPIC))
            except NotFound:
                await turn()
                continue
            attempt = attempt_record.decode(node.value, path="p")
            if len(attempt.parts) > 5:
                break
            await turn()
    left = attempt_record.decode((await store.get(paths.rollback_attempt(TOPIC))).value, path="p")
    assert set((await references.read(store)).attempts) == {left.segment_id}
    async with rolling(rig, "two") as work:
        await work.ended()
    assert (await map_of(rig)).segments[0].segment_id == left.segment_id
    await all_is_well(rig, written)


async def test_an_attempt_that_is_not_wanted_any_more_is_given_up() -> None:
    """Left behind by an owner whose daemon worked with another prefix, or for a ledger that is whole by now."""
    rig, written = await streamed(15)
    async with rolling(rig) as work:
        await work.order()
        await work.ended()
    store = rig.tree.connect()
    stale = attempt_record.Attempt(
        segment_id=rig.clock.uuid(),
        begin=Position(0, 0),
        assigned_ms=1,
        epoch=1,
        status=attempt_record.AttemptStatus.ASSIGNED,
        driver="offloaderd",
        driver_properties={"driver": "memory", "bucket": "b", "prefix": "seg/"},
        layout=rig.context(store, source=rig.ledgers).ledgers.layout(entries=10, payload_bytes=1000, metadata=b""),  # type: ignore[union-attr]
    )
    await store.create(paths.rollback_attempt(TOPIC), attempt_record.encode(stale))
    async with rolling(rig, "two") as work:
        await work.progress()
        while "attempt" in await store.children(paths.rollback(TOPIC)):
            await turn()
        while await store.children(paths.trash(TOPIC)):
            await turn()
    await all_is_well(rig, written)


@pytest.mark.parametrize("operation", ["get", "create_upload", "upload_part", "complete_upload", "put", "head"])
@pytest.mark.parametrize("error", [Transient("gone"), Denied("no")], ids=lambda error: type(error).__name__)
async def test_requests_that_fail_for_a_while_are_tried_again(operation: str, error: OffloaderError) -> None:
    """Whatever the class of error, the ledger is delayed and nothing else."""
    rig, written = await streamed(15)
    faults = Faults()
    real, rig.objects = rig.store, FaultyStore(rig.store, faults)
    faults.fail(operation, error, times=3)
    async with rolling(rig) as work:
        await work.order()
        await work.ended()
    assert faults.fired == 3
    rig.objects = real
    assert shape(await map_of(rig)) == ["V1 0:0-9", "1:0-4"]
    await all_is_well(rig, written)


@pytest.mark.parametrize("operation", ["create_upload", "upload_part", "complete_upload", "put"])
async def test_lost_answers_of_the_store_are_read_back(operation: str) -> None:
    """Done but not answered: the ledger is exchanged once, and no second upload stays behind."""
    rig, written = await streamed(15)
    faults = Faults()
    real, rig.objects = rig.store, FaultyStore(rig.store, faults)
    faults.lose_answer(operation, times=2)
    async with rolling(rig) as work:
        await work.order()
        await work.ended()
    rig.objects = real
    assert shape(await map_of(rig)) == ["V1 0:0-9", "1:0-4"]
    await all_is_well(rig, written)


@pytest.mark.parametrize("skip", range(12))
async def test_lost_answers_of_the_metadata_store_are_read_back(skip: int) -> None:
    """Each transaction in turn is carried out without an answer; the ledgers are exchanged once."""
    rig, written = await streamed(15, 10)
    faults, count = Faults(), 0

    def plan(operation: str, key: str, when: str) -> Exception | None:
        nonlocal count
        if operation == "transact" and when == "after":
            count += 1
            if count == skip + 1:
                faults.lose_answer("transact")
                return faults(operation, key, "after")
        return None

    async with rolling(rig, metadata=FaultyMetadata(rig.tree.connect(), plan)) as work:
        await work.order()
        await work.ended()
    assert shape(await map_of(rig)) == ["V1 0:0-9", "V1 1:0-9", "2:0-4"]
    await all_is_well(rig, written)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crashes=st.lists(st.integers(1, 260), max_size=4))
@example(crashes=[70, 60, 50])
def test_crashes_at_any_moment_lose_and_leave_nothing(crashes: list[int]) -> None:
    """Killed after any number of store calls and started again, every ledger is whole in the end."""
    virtually(crash_and_restart(crashes))


async def crash_and_restart(crashes: list[int]) -> None:
    """Let owners die after so many calls each; the last one ends what they began."""
    rig, written = await streamed(15, 20, 10)
    for number, calls in enumerate(crashes):
        await crash(rig, calls, partial(carry_out, rig, f"run-{number}"))
        assert await read_all(rig) == written
    await carry_out(rig, "last", None)
    assert shape(await map_of(rig)) == WHOLE
    await all_is_well(rig, written)


async def carry_out(rig: Rig, name: str, metadata: FaultyMetadata | None) -> None:
    """Order a conversion and wait for its end."""
    async with rolling(rig, name, metadata=metadata) as work:
        await work.order()
        await work.ended()


async def test_a_deposed_owner_exchanges_nothing() -> None:
    """Another daemon takes the topic over while the object is complete: the exchange is refused."""
    rig, written = await streamed(15)
    store = rig.tree.connect()
    real, done = rig.store.complete_upload, asyncio.Event()

    async def complete(*given: object) -> object:
        found = await real(*given)  # type: ignore[arg-type]
        if not done.is_set():
            done.set()
            node = await store.get(paths.epoch(TOPIC))
            await store.replace(paths.epoch(TOPIC), node.value, node.version)
        return found

    rig.store.complete_upload = complete  # type: ignore[method-assign,assignment]
    async with rolling(rig) as work:
        await work.order()
        await work.ended()
    assert rig.metrics.fenced_writes._value.get() >= 1
    assert shape(await map_of(rig)) == ["V1 0:0-9", "1:0-4"]
    await all_is_well(rig, written)


async def test_memory_stays_within_the_budget_of_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger far larger than the budget is read, written and read back in pieces."""
    rig, written = await streamed(3000, size=200, ledger_entries=2900)
    rig.upload_bytes = 40_000
    peaks: list[int] = []
    grant = ByteBudget._grant  # every change of what is held passes here

    def granted(self: ByteBudget) -> None:
        grant(self)
        peaks.append(self.used)

    monkeypatch.setattr(ByteBudget, "_grant", granted)
    async with rolling(rig) as work:
        await work.order()
        await work.ended()
    assert 1000 < max(peaks) <= 40_000
    assert peaks[-1] == 0
    assert shape(await map_of(rig)) == ["V1 0:0-2899", "1:0-99"]
    await all_is_well(rig, written)
