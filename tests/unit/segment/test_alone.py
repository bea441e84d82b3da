"""A segment of one part: its object is put by one request, and the part is recorded with the end before that."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Conflict, OutcomeUnknown, Transient
from offloaderd.core.model import EntryBatch, LedgerInfo, Position
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.port import find, pieces_of
from offloaderd.segment.feed import End
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.rigs.lives import CountingStore, committed, life, recorded, until_recorded
from tests.unit.rigs.owned import Owned, offloaded_topic
from tests.unit.rigs.rig import (
    TOPIC,
    UNTIL_S,
    Rig,
    beside,
    enabled,
    memory_ledgers,
    offloader_of,
    payloads,
    turn,
    until_offloaded,
)
from tests.unit.segment.test_continue import Killer, rewritten
from tests.unit.segment.test_writer import Desk, Facts, ScriptedFeed, entries

if TYPE_CHECKING:
    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.objects.port import Bytes, ObjectInfo, Pieces

ENTRIES = 60
WRITES = 17
"""More than a claim, one segment and a release make."""


def is_data(key: str) -> bool:
    """Whether a key is that of a data object."""
    return not beside(key) and not key.endswith(("-index", "-manifest"))


async def made_rig(*, push_only: bool = False) -> Rig:
    """Return a rig with the entries of one part in two ledgers, in several blocks."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=50)
    async with rig.engine("setup", push_only=push_only) as engine:
        await enabled(engine)
    if not push_only:
        await rig.ledgers.append(TOPIC, payloads(ENTRIES))
    return rig


async def finish(rig: Rig, *, failed: int = 0) -> None:
    """Have an owner commit everything, after so many failures; checks it, and that nothing else is left."""
    await committed(rig, ENTRIES)
    assert rig.metrics.segments.labels(state="failed")._value.get() == failed


async def died(rig: Rig, operation: str, when: str, *, push_only: bool = False) -> Attempt:
    """Let an owner die before or after a request about the data object; returns the record."""
    killer = Killer()

    def plan(asked: str, key: str, moment: str) -> Exception | None:
        if (asked, moment) == (operation, when) and is_data(key):
            killer.dead.set()
        return killer(asked, key, moment)

    async with life(rig, "one", plan, push_only=push_only) as one:
        topic = await offloader_of(one.engine)
        if push_only:
            topic.offer(EntryBatch(7, 0, payloads(ENTRIES)))
        await topic.request_roll()
        await killer.dead.wait()
    left = recorded(rig)
    assert left is not None
    return left


async def test_it_takes_no_upload() -> None:
    """One request for the data object, one for its size."""
    rig, asked = await made_rig(), Faults()
    rig.objects = FaultyStore(rig.store, asked)
    await finish(rig)
    (segment,) = (await catalog.load(rig.tree.connect(), TOPIC)).segments
    data = [line.split()[0] for line in asked.asked if line.endswith(str(segment.segment_id))]
    found = Counter(data[: data.index("get")])  # what reads it back, here, comes afterwards
    assert found == {"put": 1, "head": 1}
    assert not any(line.startswith(("create_upload", "upload_part", "complete_upload")) for line in asked.asked)


@pytest.mark.parametrize("lives", [1, 2])
@pytest.mark.parametrize("at", range(WRITES))
async def test_a_death_at_any_write_loses_nothing(at: int, lives: int) -> None:
    """Whatever the owner was doing, and its successor as well: the segment is committed once, under its first id."""
    rig = await made_rig()
    ids = set()
    for number in range(lives):
        killer = Killer(at=at)
        async with life(rig, f"life-{number}", killer) as one:
            while not killer.dead.is_set() and (await catalog.load(rig.tree.connect(), TOPIC)).standing is None:
                await turn()
                topic = one.engine.find(TOPIC)
                if topic is not None and topic.tailer is not None and topic.tailer.refreshed_s is not None:
                    await topic.request_roll()
        if (left := recorded(rig)) is not None:
            ids.add(left.segment_id)
    await finish(rig)
    (segment,) = (await catalog.load(rig.tree.connect(), TOPIC)).segments
    assert ids <= {segment.segment_id}


async def test_the_end_and_the_part_are_recorded_before_the_object_is_sent() -> None:
    """So its bytes follow from the record: what an owner that was fenced still sends is what its successor sends."""
    left = await died(await made_rig(), "put", "before")
    assert left.seal is not None
    assert (left.whole, left.upload_id, len(left.parts), left.alone_bytes) == (True, "", 1, left.seal.data_bytes)


async def test_an_object_that_was_stored_needs_no_entries() -> None:
    """The source has deleted them since: the object is read back against the record, and committed."""
    rig = await made_rig()
    await died(rig, "put", "after")
    await rig.ledgers.roll(TOPIC)  # type: ignore[union-attr]
    for ledger_id in (0, 1):
        await rig.ledgers.delete(TOPIC, ledger_id)  # type: ignore[union-attr]
    async with rig.engine("last") as engine:
        await until_offloaded(await offloader_of(engine), Position(1, 9))
    assert [payload for _, payload in await rig.committed()] == payloads(ENTRIES)
    assert (await catalog.load(rig.tree.connect(), TOPIC)).losses == ()
    assert await rig.leftovers() == []
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0


async def test_entries_of_an_object_that_was_stored_are_no_loss_while_it_is_proven() -> None:
    """The store is slow, and the source is read meanwhile: from behind the object."""
    rig, asked = await made_rig(), 0
    await finish(rig)
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, payloads(ENTRIES))
    left = await died(rig, "put", "after")
    await rig.ledgers.roll(TOPIC)
    for ledger_id in (1, 2):
        await rig.ledgers.delete(TOPIC, ledger_id)
    await rig.ledgers.append(TOPIC, payloads(5))

    def slow(operation: str, key: str, when: str) -> Exception | None:
        """Answer once, and then not for a while."""
        nonlocal asked
        asked += is_data(key) and (operation, when) == ("head", "before")
        return Transient("slow") if (operation, when) == ("head", "before") and 1 < asked < 20 else None

    rig.objects = FaultyStore(rig.store, slow)
    async with rig.engine("last", within_s=UNTIL_S) as engine:
        topic = await offloader_of(engine)
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
    known = await catalog.load(rig.tree.connect(), TOPIC)
    assert left.segment_id in {one.segment_id for one in known.segments}
    assert sum(one.entries for one in known.losses) == 0
    assert [payload for _, payload in await rig.committed()] == [*payloads(ENTRIES), *payloads(ENTRIES), *payloads(5)]


async def test_an_object_that_was_stored_needs_no_pusher() -> None:
    """Of a topic without a source nobody but the pusher has the entries."""
    rig = await made_rig(push_only=True)
    await died(rig, "put", "after", push_only=True)
    async with rig.engine("last", push_only=True) as engine:
        await until_offloaded(await offloader_of(engine), Position(7, ENTRIES - 1))
    assert [payload for _, payload in await rig.committed()] == payloads(ENTRIES)


async def test_an_object_that_was_not_stored_is_pushed_again() -> None:
    """The record alone does not stand for the object."""
    rig = await made_rig(push_only=True)
    left = await died(rig, "put", "before", push_only=True)
    async with rig.engine("last", push_only=True) as engine:
        topic = await offloader_of(engine)
        await topic.identity.checked.wait()
        assert topic.offloaded is None
        topic.offer(EntryBatch(7, 0, payloads(ENTRIES)))
        await until_offloaded(topic, Position(7, ENTRIES - 1))
    (segment,) = (await catalog.load(rig.tree.connect(), TOPIC)).segments
    assert segment.segment_id == left.segment_id
    assert [payload for _, payload in await rig.committed()] == payloads(ENTRIES)


async def test_an_object_that_is_not_what_is_recorded_is_given_up() -> None:
    """As many bytes, and others: it is not committed, and its entries begin another segment."""
    rig = await made_rig()
    left = await died(rig, "put", "after")
    data = await rig.store.get(left.keys.data)
    await rig.store.put(left.keys.data, bytes([*data[:-200], data[-200] ^ 1, *data[-199:]]))
    await finish(rig, failed=1)
    (segment,) = (await catalog.load(rig.tree.connect(), TOPIC)).segments
    assert segment.segment_id != left.segment_id


async def test_an_object_of_another_size_is_given_up() -> None:
    """A request may have been cut, by a store that does not notice."""
    rig = await made_rig()
    left = await died(rig, "put", "after")
    await rig.store.put(left.keys.data, b"short")
    await finish(rig, failed=1)


async def test_what_was_sealed_with_entries_that_are_gone_is_not_stored_with_less() -> None:
    """An owner that was fenced may store it with them: one key holds one content."""
    rig = await made_rig()
    assert isinstance(rig.ledgers, MemoryLedgers)
    rig.objects = store = CountingStore(rig)
    left = await died(rig, "put", "before")
    await rig.ledgers.roll(TOPIC)
    await rig.ledgers.delete(TOPIC, 1)
    await rig.ledgers.append(TOPIC, payloads(1))
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
    segments = (await catalog.load(rig.tree.connect(), TOPIC)).segments
    assert left.segment_id not in {one.segment_id for one in segments}
    assert left.keys.data not in store.puts
    assert [payload for _, payload in await rig.committed()] == [*payloads(ENTRIES)[:50], *payloads(1)]


class Late(MemoryStore):
    """Stores something under the key of the data object before it is put, as a request of a fenced owner may."""

    def __init__(self, rig: Rig, *, same: bool) -> None:
        super().__init__(rig.clock, part_bytes_min=1)
        self.same = same
        self.came = False

    async def put(self, key: str, data: Bytes | Pieces, **options: object) -> ObjectInfo:
        """See ObjectStore."""
        if is_data(key) and not self.came:
            self.came, sent = True, b"".join(pieces_of(data))
            await super().put(key, sent if self.same else bytes(len(sent)))
        return await super().put(key, data, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("same", [True, False], ids=["same bytes", "other bytes"])
async def test_an_object_that_is_there_is_not_overwritten_but_read_back(same: bool) -> None:
    """The same bytes are committed, others are given up."""
    rig = await made_rig()
    rig.objects = store = Late(rig, same=same)
    await finish(rig, failed=0 if same else 1)
    assert store.came


@pytest.mark.parametrize("error", [Transient("gone"), OutcomeUnknown("lost")], ids=["refused", "lost"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_request_without_an_answer_is_repeated_and_proven(when: str, error: Exception) -> None:
    """Whether it arrived or not: one object, committed once."""
    rig, left = await made_rig(), 2 if when == "before" else 1

    def plan(operation: str, key: str, moment: str) -> Exception | None:
        nonlocal left
        if (operation, moment) != ("put", when) or not is_data(key) or not left:
            return None
        left -= 1
        return error

    rig.objects = FaultyStore(rig.store, plan)
    await finish(rig)
    assert left == 0


async def test_a_conflict_without_an_object_is_tried_again() -> None:
    """Another request for the same key is in progress, and may fail."""
    rig, faults = await made_rig(), Faults()
    faults.fail("put", Conflict("409 ConditionalRequestConflict"), times=2)
    rig.objects = FaultyStore(rig.store, faults)
    await finish(rig)
    assert faults.fired == 2


async def test_a_record_with_a_part_that_does_not_fit_its_object_is_given_up() -> None:
    """The blocks of the record decide what is committed: they are compared with the object."""
    rig = await made_rig()
    left = await died(rig, "put", "after")
    (part,) = left.parts
    first, *rest = part.blocks
    blocks = (replace(first, crc32c=first.crc32c ^ 1), *rest)
    await rewritten(rig, left, parts=(attempt_record.stored_part("", part.size_bytes, blocks),))
    await finish(rig, failed=1)


async def made_desk() -> Desk:
    """Return a desk whose segments fit one part."""
    rig = await offloaded_topic(10)
    return Desk(rig, await Owned.claim(rig))


async def test_no_memory_is_held_until_the_end_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes the source's answer: while it is away, other topics send their parts."""
    desk, held = await made_desk(), []

    async def infos(_: Facts) -> dict[int, LedgerInfo]:
        held.append(desk.owned.context.upload_context.budget.used)
        return {}

    monkeypatch.setattr(Facts, "infos", infos)
    assert await desk.write(ScriptedFeed([entries(5, 0, 4), End()])) is not None
    assert held == [0]


@pytest.mark.parametrize("at", ["seal", "head", "put"])
async def test_a_cancelled_owner_holds_nothing(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it waits: memory and slot of the part are released, the feed is closed."""
    desk, reached = await made_desk(), asyncio.Event()
    context, attempts = desk.owned.context.upload_context, desk.owned.offloader.record._attempts

    async def stuck(*_: object, **__: object) -> None:
        assert context.budget.used > 0
        reached.set()
        await asyncio.Event().wait()

    where = {"seal": (attempts, "update"), "head": (desk, "before_complete"), "put": (desk.rig.store, "put")}
    monkeypatch.setattr(*where[at], stuck)
    feed = ScriptedFeed([entries(5, 0, 4), End()])
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(desk.write(feed))
        await reached.wait()
        writing.cancel()
    assert (context.budget.used, feed.closed) == (0, 1)
    assert desk.writer.progress is not None
    assert desk.writer.progress._upload._slots._value == context.limits.parts_in_flight_max
    assert context.pace.idle


class LookingDesk(Desk):
    """One that looks for the data object whenever it is asked something."""

    async def before_complete(self, attempt: Attempt) -> None:
        """See Committer."""
        await super().before_complete(attempt)
        assert attempt.seal is not None
        assert await find(self.rig.store, attempt.keys.data) is None


async def test_the_head_is_compared_once_and_before_the_object_is_put() -> None:
    """By what forgot the end of its topic nothing is completed."""
    rig = await offloaded_topic(10)
    desk = LookingDesk(rig, await Owned.claim(rig))
    assert await desk.write(ScriptedFeed([entries(5, 0, 4), End()])) is not None
    assert desk.asked == ["begin", "before_complete", "before_manifest", "commit"]


async def test_an_upload_that_an_earlier_owner_created_and_did_not_record_is_aborted() -> None:
    """It had enough for a part, or was of a version that created the upload first."""
    rig = await made_rig()
    async with life(rig, "one"):
        left = await until_recorded(rig, lambda attempt: attempt.seal is None)
    await rig.store.create_upload(left.keys.data)
    await finish(rig)


class Unconditional(MemoryStore):
    """A store that ignores conditions."""

    async def put(self, key: str, data: Bytes | Pieces, **options: object) -> ObjectInfo:
        """See ObjectStore."""
        options.pop("if_etag", None)
        return await super().put(key, data, **options)  # type: ignore[arg-type]


async def test_a_store_without_conditions_replaces_an_object_of_another_size() -> None:
    """It is not what was recorded, so it is not counted as stored."""
    rig = await made_rig()
    rig.objects = Unconditional(rig.clock, part_bytes_min=1)
    left = await died(rig, "put", "after")
    await rig.store.put(left.keys.data, b"short")
    await finish(rig)


async def test_the_object_is_labelled_and_stored_as_the_record_says() -> None:
    """As one of an upload: its labels say what it is, its class and tags are those of the attempt."""
    desk, asked = await made_desk(), []
    store, attempt = desk.rig.store, replace(desk.attempt(), storage_class="COLD", tags={"team": "a"})
    await desk.owned.offloader.record.begin(attempt)
    put = store.put

    async def noted(key: str, data: Bytes | Pieces, **options: object) -> ObjectInfo:
        if is_data(key):
            asked.append(options["stored_as"])
        return await put(key, data, **options)  # type: ignore[arg-type]

    store.put = noted  # type: ignore[method-assign]
    assert await desk.write(ScriptedFeed([entries(5, 0, 4), End()]), resumed=attempt) is not None
    assert asked == [attempt.stored_as]
    labels = desk.owned.context.labels(attempt.keys, TOPIC)(ObjectKind.DATA)
    assert labels
    assert (await store.head(attempt.keys.data)).metadata == labels
