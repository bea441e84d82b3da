"""What goes wrong between the engine and its stores: retries, lost answers, lost uploads, fencing, crashes."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloaderd.core.errors import (
    BucketMissing,
    Conflict,
    Denied,
    NoSpace,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    Transient,
)
from offloaderd.core.model import Position, TopicName
from offloaderd.core.retry import Backoff
from offloaderd.metadata import paths
from offloaderd.metadata.port import Create, Delete, Replace
from offloaderd.metadata.records import ownership
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.whole import READS_MAX
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.topic import offloader
from tests.unit.rigs.crashing import crash
from tests.unit.rigs.rig import (
    SHORT_PARTS,
    TOPIC,
    Rig,
    enabled,
    memory_ledgers,
    offloader_of,
    payloads,
    until,
    until_offloaded,
)
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.objects.port import Bytes, ObjectInfo, PartInfo, Pieces


class QuickClock:
    """The rig's clock with short pauses, so that tests of many retries end soon."""

    def __init__(self, rig: Rig) -> None:
        self._clock = rig.clock
        self.wall_ms = rig.clock.wall_ms
        self.monotonic = rig.clock.monotonic
        self.uuid = rig.clock.uuid
        self.call_later = rig.clock.call_later

    async def sleep(self, seconds: float) -> None:
        """Sleep a hundredth of the time."""
        await self._clock.sleep(seconds / 100)

    def jitter(self, seconds: float) -> float:
        """No jitter."""
        return seconds


def faulty_rig() -> tuple[Rig, Faults]:
    """A rig whose bucket fails on demand."""
    policy = RollPolicy(segment_bytes_max=10_000, segment_age_max_s=3600)
    rig, faults = Rig(policy=policy, layout=SHORT_PARTS), Faults()
    rig.objects = FaultyStore(MemoryStore(rig.clock, part_bytes_min=1), faults)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=70)
    rig.clock = QuickClock(rig)  # type: ignore[assignment]
    return rig, faults


async def offload_all(rig: Rig, entries: Sequence[bytes], *, metadata: FaultyMetadata | None = None) -> None:
    """Append entries, offload them and check that exactly they are committed, with nothing left over."""
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, entries)
    async with rig.engine(metadata=metadata) as engine:
        topic = await enabled(engine)
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
        assert topic.failure_tracker.error is None
    assert [payload for _, payload in await rig.committed()] == list(entries)


@pytest.mark.parametrize("operation", ["create_upload", "upload_part", "complete_upload", "put", "head"])
@pytest.mark.parametrize(
    "error",
    [Transient("gone"), Denied("no"), NoSpace("full"), BucketMissing("no such bucket")],
    ids=lambda error: type(error).__name__,
)
async def test_requests_that_fail_for_a_while_are_tried_again(operation: str, error: OffloaderError) -> None:
    """Failing three times each, whatever the class of error, delays the segment and changes nothing else."""
    rig, faults = faulty_rig()
    faults.fail(operation, error, times=3)
    await offload_all(rig, payloads(300))
    assert faults.fired == 3
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0
    assert await rig.leftovers() == []


@pytest.mark.parametrize("operation", ["create_upload", "upload_part", "complete_upload", "put", "abort_upload"])
async def test_lost_answers_of_the_store_are_read_back(operation: str) -> None:
    """Done but not answered: the segment is committed once, and no second upload stays behind."""
    rig, faults = faulty_rig()
    faults.lose_answer(operation, times=2)
    await offload_all(rig, payloads(300))
    assert faults.fired == (0 if operation == "abort_upload" else 2)
    assert await rig.leftovers() == []


class CompletingOnce(MemoryStore):
    """Loses the answer to each completion, and answers the repeated one with a conflict."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.clock, part_bytes_min=1)
        self.completed: list[str] = []

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """See ObjectStore."""
        if upload_id in self.completed:
            raise Conflict("412 PreconditionFailed: the object exists")
        await super().complete_upload(key, upload_id, parts)
        self.completed.append(upload_id)
        raise OutcomeUnknown("the answer was lost")


async def test_a_conflict_at_a_repeated_completion_is_read_back() -> None:
    """Some stores answer it with 409 or 412: the object is there and is compared, by the same owner, once."""
    rig, _ = faulty_rig()
    store = CompletingOnce(rig)
    rig.objects = store
    await offload_all(rig, payloads(300))
    epoch = await rig.tree.connect().get(paths.epoch(TOPIC))
    assert (len(store.completed), ownership.decode_epoch(epoch.value, path="epoch").epoch) == (3, 1)
    assert await rig.leftovers() == []


async def test_a_conflict_at_a_completion_that_did_not_happen_is_tried_again() -> None:
    """Another request for the same object is in progress: nothing is given up, and no new claim is needed."""
    rig, faults = faulty_rig()
    faults.fail("complete_upload", Conflict("409 OperationAborted"), times=3)
    await offload_all(rig, payloads(300))
    epoch = await rig.tree.connect().get(paths.epoch(TOPIC))
    assert (faults.fired, ownership.decode_epoch(epoch.value, path="epoch").epoch) == (3, 1)
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0


class Emptied(MemoryStore):
    """Loses the first data object to somebody else, while its index is put."""

    completed = ""

    async def complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """See ObjectStore."""
        found = await super().complete_upload(key, upload_id, parts)
        self.completed = self.completed or key
        return found

    async def put(self, key: str, data: Bytes | Pieces, **options: Any) -> ObjectInfo:  # noqa: ANN401 - of ObjectStore
        """See ObjectStore."""
        if key == f"{self.completed}-index":
            await self.delete([self.completed])
        return await super().put(key, data, **options)


async def test_a_data_object_that_goes_while_its_index_is_put_is_not_committed() -> None:
    """A request of the index may be repeated for days: the data object is asked for afterwards."""
    rig, _ = faulty_rig()
    store = Emptied(rig.clock, part_bytes_min=1)
    rig.objects = store
    await offload_all(rig, payloads(300))
    assert rig.metrics.segments.labels(state="failed")._value.get() == 1
    assert store.completed not in [info.key async for info in store.list()]
    assert await rig.leftovers() == []


@pytest.mark.parametrize("skip", range(8))
async def test_lost_answers_of_the_metadata_store_are_read_back(skip: int) -> None:
    """Each transaction in turn is carried out without an answer; all entries are committed once."""
    rig, _ = faulty_rig()
    faults, count = Faults(), 0

    def plan(operation: str, key: str, when: str) -> Exception | None:
        nonlocal count
        if operation == "transact" and when == "after":
            count += 1
            if count == skip + 1:
                faults.lose_answer("transact")
                return faults(operation, key, "after")
        return None

    await offload_all(rig, payloads(300), metadata=FaultyMetadata(rig.tree.connect(), plan))
    assert faults.fired == 1
    assert await rig.leftovers() == []


async def test_an_upload_that_vanished_begins_a_new_attempt_at_the_same_position() -> None:
    """The store forgot the upload: the attempt is given up, its leftovers go, the entries are committed once."""
    rig, faults = faulty_rig()
    faults.fail("upload_part", NotFound("no such upload"), times=1)
    await offload_all(rig, payloads(300))
    assert rig.metrics.segments.labels(state="failed")._value.get() == 1
    assert list(await rig.tree.connect().children(paths.trash(TOPIC))) == []
    assert await rig.leftovers() == []


async def test_the_pause_after_a_failed_attempt_is_short_again_after_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It doubles with each failure in a row; a topic that fails once a week does not wait as if it never worked."""
    pauses: list[float] = []

    class Noted(Backoff):
        """Notes its pauses."""

        def pause_s(self, error: Exception) -> float:
            pauses.append(super().pause_s(error))
            return pauses[-1]

    monkeypatch.setattr(offloader, "Backoff", Noted)
    rig, faults = faulty_rig()
    assert rig.ledgers is not None
    async with rig.engine() as engine:
        topic = await enabled(engine)
        for failures in (3, 1):
            faults.fail("create_upload", NotFound("no such bucket"), times=failures)
            last = await rig.ledgers.append(TOPIC, payloads(10))
            await topic.request_roll()
            await until_offloaded(topic, last)
    assert pauses == [0.1, 0.2, 0.4, 0.1]


async def test_a_part_that_cannot_be_completed_begins_a_new_attempt() -> None:
    """The size that HEAD reports is not what was sent: the segment is not committed as it is."""
    rig, _ = faulty_rig()
    store = rig.store
    real, wrong = store.head, [True]

    async def head(key: str) -> object:
        info = await real(key)
        if wrong and not key.endswith(("-index", "-manifest")):
            wrong.clear()
            return type(info)(key=info.key, size_bytes=info.size_bytes - 1, etag=info.etag, modified_ms=0)
        return info

    store.head = head  # type: ignore[method-assign,assignment]
    await offload_all(rig, payloads(300))
    assert rig.metrics.segments.labels(state="failed")._value.get() == 1
    assert await rig.leftovers() == []


async def test_read_back_refuses_what_reads_differently() -> None:
    """With verify = readback a block that reads back with another checksum is never committed."""
    rig, _ = faulty_rig()
    rig.readback = True
    store = rig.store
    real, damaged = store.get, set[str]()

    async def get(key: str, first: int = 0, length: int | None = None) -> bytes:
        data = await real(key, first, length)
        if length is not None and (not damaged or key in damaged):
            damaged.add(key)
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    store.get = get  # type: ignore[method-assign]
    await offload_all(rig, payloads(300))
    assert rig.metrics.segments.labels(state="failed")._value.get() == 1


@pytest.mark.parametrize(("what", "times"), [("get", 1), ("put", 1), ("put", 20)])
@pytest.mark.parametrize("kind", ["", "-index", "-manifest"])
async def test_damaged_answers_give_up_no_segment(what: str, times: int, kind: str) -> None:
    """What reads back differently is read, or put, again: a finished segment is not thrown away for it."""
    rig, _ = faulty_rig()
    rig.readback = True
    store = rig.store
    get, put, damaged = store.get, store.put, list[str]()

    def hit(key: str) -> bool:
        if len(damaged) == times or not (key.endswith(kind) if kind else len(key.rsplit("/", 1)[-1]) == 36):
            return False
        damaged.append(key)
        return True

    async def garbled(key: str, first: int = 0, length: int | None = None) -> bytes:
        data = await get(key, first, length)
        return data[:-1] + bytes([data[-1] ^ 1]) if hit(key) else data

    async def rotten(key: str, data: bytes, **more: object) -> object:
        return await put(key, data[:-1] + bytes([data[-1] ^ 1]) if hit(key) else data, **more)  # type: ignore[arg-type]

    if what == "get":
        store.get = garbled  # type: ignore[method-assign]
    else:
        store.put = rotten  # type: ignore[method-assign,assignment]
    await offload_all(rig, payloads(300))
    assert len(damaged) == (times if what == "get" or kind else 0)
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0
    assert await rig.leftovers() == []


@pytest.mark.parametrize("kind", ["", "-index", "-manifest"])
async def test_reads_that_are_damaged_each_time_give_up_no_segment(kind: str) -> None:
    """Bytes that differ from read to read say nothing of what is stored: the source may have its entries no more."""
    rig, _ = faulty_rig()
    rig.readback = True
    get, reads = rig.store.get, 0

    async def garbled(key: str, first: int = 0, length: int | None = None) -> bytes:
        nonlocal reads
        data = await get(key, first, length)
        if reads > READS_MAX or not (key.endswith(kind) if kind else len(key.rsplit("/", 1)[-1]) == 36):
            return data
        reads += 1
        return data[:-1] + bytes([data[-1] ^ reads])

    rig.store.get = garbled  # type: ignore[method-assign]
    await offload_all(rig, payloads(300))
    assert reads > READS_MAX
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0


async def test_a_stalled_topic_says_why_and_leaves_the_others_running() -> None:
    """Rights are missing: the status names the class and the message; it goes on when they are back."""
    rig, faults = faulty_rig()
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, payloads(50))
    faults.fail("create_upload", Denied("no rights on the bucket", hint="ask for them"), times=-1)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: engine.statuses()[0].state == "stalled")
        status = engine.statuses()[0]
        assert status.stalled_class == "denied"
        assert "no rights on the bucket (ask for them)" in status.stalled_reason
        assert status.lag_entries == 50
        faults.heal()
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
        assert engine.statuses()[0].state == "offloading"


async def test_damaged_nodes_cost_their_topic_alone() -> None:
    """A policy or trash node that cannot be read is reported; the other topics are offloaded all the same."""
    rig, _ = faulty_rig()
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, payloads(20))
    store = rig.tree.connect()
    for path in (paths.trash(TOPIC), paths.ledgers(TOPIC)):
        await store.create(path, b"")
    await store.create(f"{paths.trash(TOPIC)}/no-uuid", b"")
    await store.create(f"{paths.trash(TOPIC)}/11223344-5566-7788-99aa-bbccddeeff00", b"\xff\xff\xff")
    async with rig.engine() as engine:
        topic = await enabled(engine)
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
        await store.create(paths.policy(TopicName.parse("public/default/damaged")), b"\xff\xff\xff")
        other = await enabled(engine, topic=TopicName.parse("public/default/other"))
        assert other.offloaded is None
        await rig.ledgers.append(TOPIC, payloads(20, seed=1))
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
    assert len(await rig.committed()) == 40


async def test_a_deposed_owner_commits_nothing() -> None:
    """Another daemon raised the epoch while this one held its segment ready: its commit is refused, it stops."""
    rig, faults = faulty_rig()
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, payloads(50))
    faults.fail("complete_upload", Transient("slow"), times=-1)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await topic.request_roll()
        await until(lambda: faults.fired > 0)
        other = rig.tree.connect()
        node = await other.get(paths.epoch(TOPIC))
        taken = ownership.Epoch(epoch=99, daemon_id="other", claimed_ms=1)
        theirs = ownership.Owner(daemon_id="other", address="elsewhere:1", session_id="another", epoch=99)
        await other.transact(
            [
                Replace(paths.epoch(TOPIC), ownership.encode_epoch(taken), node.version),
                Delete(paths.owner(TOPIC)),
                Create(paths.owner(TOPIC), ownership.encode_owner(theirs), ephemeral=True),
            ]
        )
        faults.heal()
        await until(lambda: rig.metrics.fenced_writes._value.get() == 1)
        assert (await catalog.load(other, TOPIC)).segments == ()
        await other.delete(paths.owner(TOPIC))
        await until(lambda: engine.find(TOPIC) not in {topic, None})  # the deposed one has let go
        again = await offloader_of(engine)
        target = await again.request_roll()
        assert target is not None
        await until_offloaded(again, target)
        assert again.claim.epoch == 100
    assert [payload for _, payload in await rig.committed()] == payloads(50)
    assert await rig.leftovers() == []


async def test_a_lost_session_stops_the_owner_at_once() -> None:
    """The session expires: the topic is given up and claimed again under a new one, nothing lost or doubled."""
    rig, _ = faulty_rig()
    assert rig.ledgers is not None
    store = rig.tree.connect()
    async with rig.engine(metadata=store) as engine:
        first = await enabled(engine)
        await rig.ledgers.append(TOPIC, payloads(130))
        await until(lambda: first.taken.entry_id > 0)
        store.expire()
        await until(lambda: engine.find(TOPIC) not in {None, first})
        again = await offloader_of(engine)
        target = await again.request_roll()
        assert target is not None
        await until_offloaded(again, target)
    assert [payload for _, payload in await rig.committed()] == payloads(130)
    assert await rig.leftovers() == []


async def test_an_upload_that_was_never_recorded_is_found_and_dropped() -> None:
    """Killed after the store made the upload and before its id was written down: the next owner leaves none behind."""
    rig, _ = faulty_rig()
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, payloads(30))
    real, session = rig.store, rig.tree.connect()
    crashed = asyncio.Event()

    def plan(operation: str, key: str, when: str) -> Exception | None:
        if crashed.is_set() or (operation, when) == ("create_upload", "after"):
            crashed.set()
            return asyncio.CancelledError()  # type: ignore[return-value]
        return None

    rig.objects = FaultyStore(real, plan)
    died = asyncio.ensure_future(_run_until_done(rig, "one", FaultyMetadata(session, plan)))  # noqa: TID251
    await crashed.wait()
    died.cancel()
    await asyncio.wait([died])
    session.expire()
    assert len([upload async for upload in real.list_uploads()]) == 1
    rig.objects = real
    await _run_until_done(rig, "two", None)
    assert [payload for _, payload in await rig.committed()] == payloads(30)
    assert await rig.leftovers() == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crashes=st.lists(st.integers(1, 400), max_size=4), size=st.integers(50, 300))
def test_crashes_at_any_moment_lose_and_double_nothing(crashes: list[int], size: int) -> None:
    """Cancelled after any number of store calls and started again, the engine commits every entry once."""
    virtually(_crash_and_restart(crashes, size))


async def _crash_and_restart(crashes: list[int], size: int) -> None:
    rig, _ = faulty_rig()
    assert rig.ledgers is not None
    entries = payloads(size)
    await rig.ledgers.append(TOPIC, entries)
    for number, calls in enumerate(crashes):
        await crash(rig, calls, partial(_run_until_done, rig, f"run-{number}"))
    await _run_until_done(rig, "last", None)
    assert [payload for _, payload in await rig.committed()] == entries
    assert await rig.leftovers() == []


async def _run_until_done(rig: Rig, name: str, metadata: FaultyMetadata | None) -> None:
    async with rig.engine(name, metadata=metadata) as engine:
        topic = await enabled(engine)
        target = await topic.request_roll()
        await until_offloaded(topic, target or Position(0, 0))
