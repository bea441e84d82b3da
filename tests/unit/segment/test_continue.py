"""An owner that goes away, and the next one that goes on with its open segment."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import NotFound
from offloaderd.core.model import EntryBatch, Position
from offloaderd.metadata import paths
from offloaderd.metadata.port import Check
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects import keys
from offloaderd.segment.builder import SegmentLayout
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.testing.memory.ledgers import MemoryLedgers
from tests.unit.rigs.lives import CountingStore, EncryptingStore, committed, life, recorded, until_recorded
from tests.unit.rigs.rig import (
    TOPIC,
    Rig,
    enabled,
    memory_ledgers,
    offloader_of,
    payloads,
    until,
    until_offloaded,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.objects.port import PartInfo

DAY_S = 86_400
ENTRIES = 700
LAST = Position(2, 199)


async def made_rig(*, push_only: bool = False, kind: type[CountingStore] = CountingStore) -> tuple[Rig, CountingStore]:
    """A rig whose segments end when asked to, with entries in three ledgers, and its bucket."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    rig.objects = store = kind(rig)
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=250)
    async with rig.engine("setup", push_only=push_only) as engine:
        await enabled(engine)
    if not push_only:
        await rig.ledgers.append(TOPIC, payloads(ENTRIES))
    return rig, store


async def left_behind(rig: Rig, parts: int = 3) -> Attempt:
    """Let an owner die with some parts recorded; returns the record."""
    async with life(rig, "one"):
        return await until_recorded(rig, lambda attempt: len(attempt.parts) >= parts)


async def rewritten(rig: Rig, left: Attempt, **changes: object) -> Attempt:
    """Change what is recorded of the attempt; returns it as it is then."""
    metadata, path = rig.tree.connect(), paths.attempt(TOPIC)
    changed = replace(left, **changes)  # type: ignore[arg-type]
    await metadata.replace(path, attempt_record.encode(changed), (await metadata.get(path)).version)
    return changed


async def finish(rig: Rig, store: CountingStore, *, entries: int = ENTRIES) -> None:
    """Have the next owner commit everything; whoever put something under a key has put the same."""
    await committed(rig, entries)
    assert store.told_alike


class Killer:
    """Kills a daemon at the nth of those calls that change something, before or after it was carried out."""

    WRITES = frozenset({"create_upload", "upload_part", "complete_upload", "put", "abort_upload", "delete", "transact"})

    def __init__(self, *, at: int | None = None, on: str = "") -> None:
        """Kill at the nth call, or before the first of one operation while `armed`."""
        self._left = at
        self._on = on
        self.armed = True
        self.dead = asyncio.Event()

    def __call__(self, operation: str, key: str, when: str) -> Exception | None:
        """Look at a call."""
        if operation in self.WRITES and self._left is not None:
            self._left -= 1
        if (self._left is not None and self._left < 0) or (self.armed and (operation, when) == (self._on, "before")):
            self.dead.set()
        return asyncio.CancelledError() if self.dead.is_set() else None  # type: ignore[return-value]


async def sealed(rig: Rig, *, on: str, push_only: bool = False) -> Attempt:
    """Let an owner die at a call of its store that comes after the seal; returns the record."""
    killer = Killer(on=on)
    killer.armed = push_only
    async with life(rig, "one", killer, push_only=push_only) as one:
        topic = await offloader_of(one.engine)
        if push_only:
            topic.offer(EntryBatch(7, 0, payloads(300)))
        else:
            await until_recorded(rig, lambda attempt: len(attempt.parts) == 4)
            killer.armed = True
        await topic.request_roll()
        await killer.dead.wait()
    left = recorded(rig)
    assert left is not None
    assert left.seal is not None
    return left


@pytest.mark.parametrize("lives", [1, 2])
@pytest.mark.parametrize("at", range(40))
async def test_a_death_at_any_write_costs_no_part_twice(at: int, lives: int) -> None:
    """Whatever the owner was doing, and its successor as well: the segment is committed once, no part is sent again."""
    rig, store = await made_rig()
    for number in range(lives):
        killer = Killer(at=at)
        async with life(rig, f"life-{number}", killer) as one:
            while not killer.dead.is_set():
                await asyncio.sleep(0)  # noqa: TID251 - gives up the turn, measures no time
                topic = one.engine.find(TOPIC)
                if topic is not None and topic.tailer is not None and topic.tailer.refreshed_s is not None:
                    await topic.request_roll()
                    if topic.offloaded == LAST:
                        break
    await finish(rig, store)
    assert store.sent_again == 0
    assert len((await catalog.load(rig.tree.connect(), TOPIC)).segments) == 1


async def test_parts_that_were_stored_and_not_recorded_are_not_sent_again() -> None:
    """The record lags: what it does not say is read again, compared by its MD5 and kept."""
    rig, store = await made_rig()
    left = await left_behind(rig, parts=4)
    await rewritten(rig, left, parts=left.parts[:1])
    await finish(rig, store)
    assert store.sent_again == 0
    assert rig.metrics.upload_parts.labels(outcome="kept")._value.get() >= 3
    assert rig.metrics.segments_resumed._value.get() == 1


async def test_etags_that_are_no_md5_have_unrecorded_parts_sent_again() -> None:
    """A store that encrypts with its own keys tells nothing by its ETags: such parts are sent again, and counted."""
    rig, store = await made_rig()
    left = await left_behind(rig, parts=4)
    for upload in store._uploads.values():
        upload.parts = {
            number: (replace(info, etag=info.etag.upper()), data) for number, (info, data) in upload.parts.items()
        }
    first = attempt_record.stored_part(left.parts[0].etag.upper(), left.parts[0].size_bytes, left.parts[0].blocks)
    await rewritten(rig, left, parts=(first,))
    stored = len(store.sent)
    await finish(rig, store)
    assert store.sent_again == stored - 1
    assert rig.metrics.upload_parts.labels(outcome="replaced")._value.get() == stored - 1


async def test_a_completed_object_that_is_encrypted_with_a_key_is_read_back_and_not_sent_again() -> None:
    """The ETags look like MD5s and the object's does not follow from them: the store says that it encrypts."""
    rig, store = await made_rig(kind=EncryptingStore)
    await sealed(rig, on="put")
    await finish(rig, store)
    assert (store.sent_again, len({key for key, _ in store.sent})) == (0, 1)


async def test_a_lost_answer_to_complete_costs_an_encrypted_object_nothing() -> None:
    """In one life: the upload is gone, the object is there, and is read to the end."""
    rig, store = await made_rig(kind=EncryptingStore)
    faults = Faults()
    faults.lose_answer("complete_upload")
    rig.objects = FaultyStore(store, faults)
    await finish(rig, store)
    assert (faults.fired, store.sent_again, len({key for key, _ in store.sent})) == (1, 0, 1)


async def test_an_encrypted_object_that_was_completed_is_not_compared_with_what_is_pushed_again() -> None:
    """Part by part, that is: its ETags are no MD5s. As a whole it is."""
    rig, store = await made_rig(push_only=True, kind=EncryptingStore)
    left = await sealed(rig, on="put", push_only=True)
    await rewritten(rig, left, parts=left.parts[:1])
    async with rig.engine("two", push_only=True) as engine:
        topic = await offloader_of(engine)
        topic.offer(EntryBatch(7, 0, payloads(300)))
        await until_offloaded(topic, Position(7, 299))
    assert [payload for _, payload in await rig.committed()] == payloads(300)
    assert (store.sent_again, len({key for key, _ in store.sent})) == (0, 1)


async def test_a_push_only_topic_is_pushed_again_and_its_parts_are_kept() -> None:
    """Nobody else has the entries: the pusher starts at the committed position, equal parts are not sent."""
    rig, store = await made_rig(push_only=True)
    entries = payloads(ENTRIES)

    async def push(engine: object) -> object:
        topic = await offloader_of(engine)  # type: ignore[arg-type]
        for first in range(0, ENTRIES, 50):
            topic.offer(EntryBatch(7, first, entries[first : first + 50]))
        return topic

    async with life(rig, "one", push_only=True) as one:
        await push(one.engine)
        await until_recorded(rig, lambda attempt: len(attempt.parts) >= 3)
    async with rig.engine("two", push_only=True) as engine:
        await push(engine)
    assert [payload for _, payload in await rig.committed()] == entries
    assert await rig.leftovers() == []
    assert store.sent_again == 0


async def test_a_push_only_segment_that_is_whole_needs_no_pusher() -> None:
    """Sealed and recorded to its last part: the next owner completes it although nobody pushes."""
    rig, store = await made_rig(push_only=True)
    await sealed(rig, on="complete_upload", push_only=True)
    async with rig.engine("two", push_only=True) as engine:
        topic = await offloader_of(engine)
        await until(lambda: topic.offloaded == Position(7, 299))
        assert topic.handle.last_offered() == Position(7, 299)
    assert [payload for _, payload in await rig.committed()] == payloads(300)
    assert store.sent_again == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layout": None}, "earlier version"),
        ({"driver_properties": {"driver": "memory", "bucket": "other", "prefix": "seg/"}}, "bucket 'other'"),
        ({"driver_properties": {"driver": "memory", "bucket": "b", "prefix": "x/"}}, "prefix 'x/'"),
        ({"driver_properties": {"driver": "s3", "bucket": "b", "prefix": "seg/"}}, "driver 's3'"),
        ({"upload_id": "gone"}, "does not exist any more"),
        ({"begin": Position(0, 5)}, "was to begin at 0:5"),
        ({"parts": "other etag"}, "the store has"),
        ({"parts": "swapped"}, "the store has"),
        ({"parts": "moved blocks"}, "contradict"),
    ],
    ids=str,
)
async def test_an_attempt_that_cannot_be_trusted_is_given_up(change: dict[str, object], reason: str) -> None:
    """Another bucket, a vanished upload, a part that is not what the record says: new id, same position, all there."""
    rig, _ = await made_rig()
    left = await left_behind(rig)
    if (wanted := change.get("parts")) is not None:
        first, second, *rest = left.parts
        blocks = tuple(replace(block, offset=block.offset + 1) for block in second.blocks)
        parts = {
            "other etag": [first, attempt_record.stored_part("0" * 32, second.size_bytes, second.blocks), *rest],
            "swapped": [second, first, *rest],
            "moved blocks": [first, attempt_record.stored_part(second.etag, second.size_bytes, blocks), *rest],
        }
        change = {"parts": tuple(parts[str(wanted)])}
    await rewritten(rig, left, **change)
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        await until(lambda: topic.attempt is not None and topic.attempt.segment_id != left.segment_id)
        attempt = topic.attempt
        assert attempt is not None
        assert reason in attempt.last_error
        assert (attempt.tries, attempt.begin) == (1, Position(0, 0))
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
    assert [payload for _, payload in await rig.committed()] == payloads(ENTRIES)


class LaggingStore(CountingStore):
    """Lists stored parts late: the first two lists have none."""

    lists = 0

    async def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """See ObjectStore."""
        self.lists += 1
        listed = await super().list_parts(key, upload_id)
        return listed if self.lists > 2 else listed[:1]


async def test_a_list_of_parts_that_lags_is_asked_for_again() -> None:
    """A recorded part that is not listed yet is no reason to give the segment up, or to send it again."""
    rig, store = await made_rig(kind=LaggingStore)
    left = await left_behind(rig)
    await finish(rig, store)
    assert (store.sent_again, {key for key, _ in store.sent}) == (0, {keys.SegmentKeys("seg/", left.segment_id).data})


async def test_a_seal_is_kept_by_the_next_owner() -> None:
    """Killed between the seal and the last part: the segment ends where it was sealed, though more has come since."""
    rig, store = await made_rig()
    left = await sealed(rig, on="upload_part")
    assert left.seal is not None
    assert not left.whole
    assert left.seal.end == LAST
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, payloads(ENTRIES + 200)[ENTRIES:])
    await finish(rig, store, entries=ENTRIES + 200)
    segments = (await catalog.load(rig.tree.connect(), TOPIC)).segments
    assert [segment.end for segment in segments] == [LAST, Position(3, 149)]
    assert segments[0].offloaded_ms == left.seal.sealed_ms
    assert store.sent_again == 0


async def test_nothing_that_depends_on_the_end_is_sent_before_the_end_is_recorded() -> None:
    """A deposed owner cannot seal, so it never sends a part that its successor would cut otherwise."""
    rig, store = await made_rig()
    sent_before: list[set[tuple[str, int]]] = []

    def plan(operation: str, key: str, when: str) -> Exception | None:
        if operation == "transact" and when == "after" and not sent_before:
            with suppress(NotFound):
                found = attempt_record.decode(rig.tree.node(paths.attempt(TOPIC)).value, path=key)
                if found.seal is not None:
                    sent_before.append(set(store.sent))
        return None

    async with life(rig, "one", plan) as one:
        topic = await offloader_of(one.engine)
        await until(lambda: topic.taken == LAST)
        await topic.request_roll()
        await until_offloaded(topic, LAST)
        (segment,) = topic.map.segments
    assert len(sent_before) == 1
    key = keys.SegmentKeys("seg/", segment.segment_id).data
    unsent = set(store.sent) - sent_before[0]
    assert (key, max(number for _, number in store.sent)) in unsent


async def test_two_owners_with_the_same_upload_write_the_same_bytes() -> None:
    """The deposed one does not notice and goes on to its end: its parts, index and manifest are those of the other."""
    rig, store = await made_rig()
    held: list[bool] = [True]

    def deaf(operation: str, key: str, when: str) -> Exception | None:
        return None

    async with life(rig, "old", deaf) as old:
        old_topic = await offloader_of(old.engine)
        await until_recorded(rig, lambda attempt: len(attempt.parts) >= 2)
        other = rig.tree.connect()
        owner = await other.get(paths.owner(TOPIC))
        await other.transact([Check(paths.owner(TOPIC), owner.version)])
        await other.delete(paths.owner(TOPIC))
        async with rig.engine("new") as engine:
            topic = await offloader_of(engine)
            assert topic.claim.epoch > old_topic.claim.epoch
            await old_topic.request_roll()
            target = await topic.request_roll()
            assert target is not None
            await until_offloaded(topic, target)
            await until(lambda: rig.metrics.fenced_writes._value.get() >= 1)
            held.clear()
    assert [payload for _, payload in await rig.committed()] == payloads(ENTRIES)
    assert store.told_alike
    assert await rig.leftovers() == []


@pytest.mark.parametrize(
    ("assigned_s_ago", "rolls"), [(-DAY_S, False), (0, False), (1800, False), (3600, True), (DAY_S, True)]
)
async def test_the_age_of_a_segment_goes_on(assigned_s_ago: int, rolls: bool) -> None:
    """It counts from when the first owner began it; a clock that is a day off ends it now or leaves it all its time."""
    rig, _ = await made_rig()
    left = await left_behind(rig)
    await rewritten(rig, left, assigned_ms=rig.clock.wall_ms() - 1000 * assigned_s_ago)
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        await until(lambda: topic.taken == LAST or topic.offloaded is not None)
        if rolls:
            await until(lambda: topic.offloaded is not None)
        else:
            assert topic.offloaded is None
            assert topic.status().open_segment_continued
            assert 0 <= topic.status().open_segment_age_s - max(0, assigned_s_ago) < 20
        parts = topic.map.segments[0].object_bytes if rolls else 0
    assert not rolls or parts >= sum(part.size_bytes for part in left.parts)


async def test_a_continued_segment_that_is_large_enough_ends() -> None:
    """Its recorded parts reach a limit that was lowered since, with a minimum age: it is sealed, not waited for."""
    rig, _ = await made_rig()
    left = await left_behind(rig)
    await rewritten(rig, left, parts=left.parts[:2], assigned_ms=rig.clock.wall_ms() - 10_000)
    rig.policy = RollPolicy(segment_bytes_max=20_000, segment_age_max_s=3600, segment_age_min_s=5)
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        await until(lambda: topic.offloaded is not None)
        assert topic.map.segments[0].segment_id == left.segment_id
    assert await rig.leftovers() == []


@pytest.mark.parametrize("known", [0, 1, 3])
async def test_a_completed_segment_is_finished_from_any_record(known: int) -> None:
    """Killed after the completion, with a record that lacks parts: they are cut again and compared, nothing is sent."""
    rig, store = await made_rig()
    left = await sealed(rig, on="put")
    assert left.whole
    assert [upload async for upload in store.list_uploads()] == []
    await rewritten(rig, left, parts=left.parts[:known])
    await finish(rig, store)
    assert store.sent_again == 0
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0


@pytest.mark.parametrize("what", ["gone", "longer", "other parts"])
async def test_an_object_that_is_not_what_was_sealed_is_given_up(what: str) -> None:
    """The upload is gone, and what is stored under the segment's key is not its object: a new attempt, all there."""
    rig, store = await made_rig()
    left = await sealed(rig, on="put")
    key = keys.SegmentKeys("seg/", left.segment_id).data
    info, data = store._objects[key]
    if what == "gone":
        await store.delete([key])
    elif what == "longer":
        store._objects[key] = (replace(info, size_bytes=len(data) + 1), data + b"x")
    else:
        store._objects[key] = (replace(info, etag=f"{'0' * 32}-{len(left.parts)}"), data)
    await finish(rig, store)
    assert rig.metrics.segments.labels(state="failed")._value.get() == 1
    (segment,) = (await catalog.load(rig.tree.connect(), TOPIC)).segments
    assert segment.segment_id != left.segment_id


@pytest.mark.parametrize("behind", [0, 100])
async def test_a_segment_whose_last_entries_are_gone_is_sealed_at_what_is_stored(behind: int) -> None:
    """Retention took entries that were sealed and not stored: what is stored is committed, the rest is a loss."""
    rig, _ = await made_rig()
    left = await sealed(rig, on="upload_part")
    assert isinstance(rig.ledgers, MemoryLedgers)
    await rig.ledgers.append(TOPIC, payloads(max(50, behind), seed=1))
    await rig.ledgers.roll(TOPIC)
    for ledger_id in range(3 if behind else 4):
        with suppress(NotFound):
            await rig.ledgers.delete(TOPIC, ledger_id)
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        await until(lambda: topic.offloaded is not None)
        assert topic.map.segments[0].segment_id == left.segment_id
        assert topic.map.segments[0].end == left.parts[-1].end
        if behind:
            target = await topic.request_roll()
            assert target is not None
            await until_offloaded(topic, target)
            assert [(loss.after, loss.before.ledger_id) for loss in topic.map.losses] == [(left.parts[-1].end, 3)]
    stored = [payload for _, payload in await rig.committed()]
    assert stored[: len(stored) - behind // 2] == payloads(len(stored) - behind // 2)
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0


async def test_a_segment_whose_middle_is_gone_keeps_what_is_stored_of_its_begin() -> None:
    """Retention took what follows the stored parts, and left the ledger in which the segment was sealed."""
    rig, _ = await made_rig()
    left = await sealed(rig, on="upload_part")
    assert left.seal is not None
    left = await rewritten(rig, left, parts=left.parts[:1])
    assert isinstance(rig.ledgers, MemoryLedgers)
    await rig.ledgers.roll(TOPIC)
    for ledger_id in range(left.parts[0].end.ledger_id, LAST.ledger_id):
        await rig.ledgers.delete(TOPIC, ledger_id)
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        await until(lambda: bool(topic.map.segments))
        (segment,) = topic.map.segments
        assert (segment.segment_id, segment.end) == (left.segment_id, LAST)
        assert [(loss.after, loss.before) for loss in topic.map.losses] == [
            (left.parts[0].end, Position(LAST.ledger_id, 0))
        ]
    stored, first = payloads(ENTRIES), left.parts[0].end.entry_id + 1
    kept = stored[:first] + stored[-LAST.entry_id - 1 :]
    assert [payload for _, payload in await rig.committed()] == kept
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0


async def test_a_sealed_segment_of_which_nothing_is_left_is_given_up() -> None:
    """Neither stored nor in the source: the attempt ends, and the topic goes on with what there is."""
    rig, _ = await made_rig()
    left = await sealed(rig, on="upload_part")
    await rewritten(rig, left, parts=())
    assert isinstance(rig.ledgers, MemoryLedgers)
    await rig.ledgers.append(TOPIC, payloads(100, seed=1))
    await rig.ledgers.roll(TOPIC)
    for ledger_id in range(3):
        await rig.ledgers.delete(TOPIC, ledger_id)
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)
        assert [segment.begin.ledger_id for segment in topic.map.segments] == [3]


async def test_an_attempt_whose_entries_are_all_gone_ends_without_a_successor() -> None:
    """The topic was deleted at its source before anything was stored: nothing is left open for good."""
    rig, _ = await made_rig()
    left = await left_behind(rig)
    await rewritten(rig, left, parts=())
    assert isinstance(rig.ledgers, MemoryLedgers)
    await rig.ledgers.roll(TOPIC)
    for ledger_id in range(4):
        with suppress(NotFound):
            await rig.ledgers.delete(TOPIC, ledger_id)
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        await until(lambda: topic.attempt is None)
    assert recorded(rig) is None
    assert await rig.leftovers() == []


async def test_an_old_segment_waits_for_the_entries_of_its_stored_parts() -> None:
    """It is past its age, and the record lags: it is sealed behind what is stored, not before."""
    rig, store = await made_rig()
    left = await left_behind(rig, parts=4)
    await rewritten(rig, left, parts=left.parts[:1], assigned_ms=1)
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        await until(lambda: topic.offloaded is not None)
        segment = topic.map.segments[0]
    assert segment.object_bytes >= sum(part.size_bytes for part in left.parts)
    assert store.sent_again == 0


async def test_parts_behind_one_that_is_missing_delay_no_old_segment() -> None:
    """The second part never arrived, those after it did: the segment, past its age, is sealed behind the first one."""
    rig, store = await made_rig()
    left = await left_behind(rig, parts=4)
    for upload in store._uploads.values():
        del upload.parts[2]
    await rewritten(rig, left, parts=left.parts[:1], assigned_ms=1)
    async with rig.engine("last") as engine:
        topic = await offloader_of(engine)
        await until(lambda: topic.offloaded is not None)
        segment = topic.map.segments[0]
    last = left.parts[0].blocks[-1]
    assert segment.end == Position(last.ledger_id, last.last_entry_id)
    await finish(rig, store)


async def test_a_segment_keeps_the_layout_that_it_was_begun_with() -> None:
    """The settings were changed in between: they count from the next segment on."""
    rig, store = await made_rig()
    left = await left_behind(rig, parts=4)
    await rewritten(rig, left, parts=left.parts[:2])
    rig.layout = SegmentLayout(block_bytes=2048, part_bytes=5000, preamble=True)
    await finish(rig, store)
    assert store.sent_again == 0
    assert rig.metrics.upload_parts.labels(outcome="replaced")._value.get() == 0
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0


async def test_a_seal_that_does_not_fit_the_entries_is_given_up() -> None:
    """Whatever wrote it: an object is completed only if it is what was sealed, to the byte."""
    rig, store = await made_rig()
    left = await sealed(rig, on="upload_part")
    assert left.seal is not None
    await rewritten(rig, left, seal=replace(left.seal, data_bytes=left.seal.data_bytes + 1))
    await finish(rig, store)
    assert rig.metrics.segments.labels(state="failed")._value.get() == 1


async def test_uploads_that_were_created_and_not_recorded_are_taken_up_or_ended() -> None:
    """Two requests to create the upload were carried out and none was answered: one is used, none is left."""
    rig, store = await made_rig()
    left = await left_behind(rig)
    key = keys.SegmentKeys("seg/", left.segment_id).data
    await store.abort_upload(key, left.upload_id)
    for _ in range(2):
        await store.create_upload(key)
    await rewritten(rig, left, upload_id="", parts=())
    await finish(rig, store)
    assert rig.metrics.segments.labels(state="failed")._value.get() == 0
    (segment,) = (await catalog.load(rig.tree.connect(), TOPIC)).segments
    assert segment.segment_id == left.segment_id


async def test_an_object_whose_etag_proves_nothing_is_read_back() -> None:
    """Completed by an owner that died, in a store whose ETags are no MD5: its bytes are compared before the commit."""
    rig, store = await made_rig()
    left = await sealed(rig, on="put")
    key = keys.SegmentKeys("seg/", left.segment_id).data
    info, data = store._objects[key]
    store._objects[key] = (replace(info, etag="opaque"), bytes([data[0], data[1] ^ 1, *data[2:]]))
    await finish(rig, store)
    assert rig.metrics.segments.labels(state="failed")._value.get() == 1
