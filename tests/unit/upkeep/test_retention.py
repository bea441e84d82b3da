"""How long the tier keeps a topic: what the source deleted, what is marked, age and size; crashes in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.errors import Conflict, Fenced, NotFound, Transient
from offloaderd.core.model import LedgerEnd, Position, TierRetention
from offloaderd.metadata import paths
from offloaderd.metadata.records import deletion
from offloaderd.metadata.records import grant as grant_record
from offloaderd.metadata.records.grant import Grant
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.keys import SegmentKeys
from offloaderd.policy.policies import Level, OffloadPolicies, Origin, effective
from offloaderd.policy.records import TopicPolicy, encode_policy
from offloaderd.testing.faults import FaultyMetadata, FaultyStore
from offloaderd.upkeep.deletion import empty_trash, keep_trash_empty
from offloaderd.upkeep.retention import (
    Limits,
    Retention,
    checked_marks,
    limits_of,
    missing_ledgers,
    over_limit,
)
from offloaderd.upkeep.settings import RetentionSettings
from tests.patience import PATIENCE_S
from tests.unit.metadata.segments import made
from tests.unit.metadata.test_catalog import PLAN
from tests.unit.metadata.test_removal import TOPIC as OTHER
from tests.unit.rigs.owned import Owned, offload_more, offloaded_topic
from tests.unit.rigs.rig import TOPIC, Rig, turn

if TYPE_CHECKING:
    from collections.abc import Collection

    from offloaderd.core.model import TopicName
    from offloaderd.policy.resolver import PolicyResolver

FOLLOW = RetentionSettings(follow_lag_s=0.0)


def _following(owned: Owned) -> PolicyResolver:
    """Return what holds where the daemon's settings follow the source."""
    return owned.book(retention=TierRetention.FOLLOW)


class Register:
    """What a source says of its ledgers: a list, or an error."""

    def __init__(self, answer: Collection[int] | Exception) -> None:
        self.answer = answer

    async def listed(self, topic: TopicName) -> Collection[int]:
        """Answer."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def _map() -> TopicMap:
    current = TopicMap(OTHER)
    for number, ledger in enumerate((3, 5, 8), start=1):
        _, current = current.with_commit(made(number, (ledger, 0, 9)), {3: LedgerEnd(10, 5), 5: LedgerEnd(10, 8)})
    return current


@pytest.mark.parametrize(
    ("listed", "missing"),
    [
        ([8], {3, 5}),
        ([5, 8], {3}),
        ([5, 9], {3, 8}),
        ([3, 5, 8], set()),
        ([3, 5], set()),
        ([3], set()),
        ([1], set()),
        ([], set()),
        (None, {3, 5, 8}),
    ],
)
def test_only_a_list_that_goes_on_behind_a_ledger_says_that_it_is_deleted(
    listed: list[int] | None, missing: set[int]
) -> None:
    """A list that ends before ours, as of another cluster or an older backup, deletes nothing."""
    assert missing_ledgers(_map(), listed) == missing


def test_a_policy_brings_its_limits_along() -> None:
    """What the policy says counts whole; else the daemon's default does, with its limits."""
    default = Level(
        Origin.SETTINGS,
        OffloadPolicies(retention=TierRetention.LIMITED, retention_age_s=5.0, retention_bytes=7),
    )

    def limits(**said: Any) -> Limits:  # noqa: ANN401 - each value its own type
        return limits_of(effective([Level(Origin.TOPIC, OffloadPolicies(**said)), default]))

    assert limits() == Limits(TierRetention.LIMITED, 5.0, 7)
    assert limits(retention=TierRetention.KEEP) == Limits()
    assert limits(retention=TierRetention.LIMITED, retention_age_s=9.0) == Limits(TierRetention.LIMITED, 9.0, None)


@pytest.mark.parametrize(
    ("limits", "kept", "now_ms", "why"),
    [
        (Limits(TierRetention.LIMITED, 1.0), set(), 1003, "age"),
        (Limits(TierRetention.LIMITED, 1.0), set(), 1002, None),
        (Limits(TierRetention.LIMITED, None, 3005), set(), 0, "size"),
        (Limits(TierRetention.LIMITED, None, 3006), set(), 0, None),
        (Limits(TierRetention.LIMITED, 1.0, 1), {3}, 9999, None),
        (Limits(TierRetention.LIMITED, 1.0, 1), {5}, 9999, "age"),
        (Limits(TierRetention.KEEP, 1.0, 1), set(), 9999, None),
        (Limits(TierRetention.FOLLOW, 1.0, 1), set(), 9999, None),
    ],
)
def test_the_oldest_goes_by_age_or_size_unless_the_source_has_it(
    limits: Limits, kept: set[int], now_ms: int, why: str | None
) -> None:
    """Just beyond a limit it goes; what the source still has is never less in the tier."""
    assert over_limit(_map(), limits, kept, now_ms=now_ms) == why
    newest = replace(_map(), segments=_map().segments[-1:])
    assert over_limit(newest, limits, kept, now_ms=now_ms) is None


def test_an_operator_marks_what_the_source_has_not_got() -> None:
    """Ledgers that the source has, or that may still be written, or were never here, are refused by name."""
    current = _map()
    assert checked_marks(current, [5, 3, 3], {8}) == [3, 5]
    with pytest.raises(Conflict, match="still has ledger 8"):
        checked_marks(current, [3, 8], {8})
    with pytest.raises(NotFound, match="ledger 4"):
        checked_marks(current, [4], set())
    with pytest.raises(Conflict, match="may still be written"):
        checked_marks(current, [8], None)
    assert checked_marks(replace(current, deleted={3: 1}), [3], set()) == []


async def test_a_segment_goes_when_the_source_has_trimmed_all_its_ledgers() -> None:
    """Followed from the source: marks, floor, trash, objects; what spans a kept ledger stays; nothing falls back."""
    rig = await offloaded_topic(10, 15, 15, 10)
    owned = await Owned.claim(rig)
    before = owned.offloader.map
    retention = Retention(owned.context, owned.ledgers, FOLLOW, _following(owned))
    await retention.run_once(owned.offloader, {})
    assert owned.offloader.map == before
    for ledger_id in (0, 1):
        await owned.ledgers.delete(TOPIC, ledger_id)
    await retention.run_once(owned.offloader, {})
    after = owned.offloader.map
    assert after.segments == before.segments[1:]
    assert (after.floor, after.offloaded) == (Position(0, 9), before.offloaded)
    assert after.deleted.keys() == {1}
    assert await owned.empty_trash() == 0
    assert await owned.keys() == 9
    await owned.ledgers.delete(TOPIC, 2)
    await retention.run_once(owned.offloader, {})
    assert owned.offloader.map.floor == Position(2, 4)
    assert await catalog.load(rig.tree.connect(), TOPIC) == owned.offloader.map


async def test_what_left_the_map_stays_for_readers() -> None:
    """Its objects go once nobody reads them any more who was sent to them before, by any clock; others go at once."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    owned.context = replace(owned.context, reader_grace_s=3600.0)
    before = owned.offloader.map.segments[0]
    assert await owned.offloader.record.remove_oldest(before, reason="test")

    async def emptied(age_s: float, *, readable: bool | None) -> tuple[int, float | None, int]:
        path = paths.trash_record(TOPIC, before.segment_id)
        store = rig.tree.connect()
        node = await store.get(path)
        decided_ms = rig.clock.wall_ms() - round(age_s * 1000)
        record = replace(deletion.decode_trash(node.value, path=path), decided_ms=decided_ms, readable=readable)
        await store.replace(path, deletion.encode_trash(record), node.version)
        found = await empty_trash(owned.context, lambda: owned.offloader.map)
        return found.gone, found.due_s, await owned.keys()

    for readable in (True, None):
        gone, due_s, keys = await emptied(3000, readable=readable)
        assert (gone, round(due_s or 0, -2), keys) == (0, 600, 6)
    gone, due_s, keys = await emptied(-9000, readable=True)
    assert (gone, round(due_s or 0), keys) == (0, 3600, 6), "a clock that runs ahead"
    owned.context = replace(owned.context, reader_grace_s=0.0)
    assert await emptied(0, readable=True) == (1, None, 3), "an operator who cannot wait: what was decided before goes"


async def test_what_never_was_in_the_map_goes_at_once() -> None:
    """Nobody was sent to it."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    owned.context = replace(owned.context, reader_grace_s=3600.0)
    before = owned.offloader.map.segments[0]
    assert await owned.offloader.record.remove_oldest(before, reason="test")
    path, store = paths.trash_record(TOPIC, before.segment_id), rig.tree.connect()
    node = await store.get(path)
    record = replace(deletion.decode_trash(node.value, path=path), readable=False)
    await store.replace(path, deletion.encode_trash(record), node.version)
    assert (await empty_trash(owned.context, lambda: owned.offloader.map)).gone == 1


async def test_what_stays_for_readers_is_deleted_in_time() -> None:
    """The duty deletes it when it is due, and hears of what a job does meanwhile."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    owned.context = replace(owned.context, reader_grace_s=0.05)
    segments = owned.offloader.map.segments
    assert await owned.offloader.record.remove_oldest(segments[0], reason="test")
    duty = asyncio.get_running_loop().create_task(keep_trash_empty(owned.context, owned.offloader))
    await turn()
    assert await owned.offloader.record.remove_oldest(segments[1], reason="test")
    async with asyncio.timeout(PATIENCE_S):
        while await owned.keys() > 3:
            await turn()
    duty.cancel()
    await asyncio.wait([duty])


async def test_a_ledger_must_be_missing_for_the_lag() -> None:
    """One look is no proof of anything; a ledger that is back starts anew, and so does whoever claims the topic."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    register = Register([1, 2])
    retention = Retention(
        owned.context, register, FOLLOW.model_copy(update={"follow_lag_s": 3600.0}), _following(owned)
    )
    absent: dict[int, float] = {}
    await retention.run_once(owned.offloader, absent)
    assert absent.keys() == {0}
    register.answer = [0, 1, 2]
    await retention.run_once(owned.offloader, absent)
    assert absent == {}
    register.answer = [1, 2]
    await retention.run_once(owned.offloader, absent)
    absent[0] -= 3600.0
    under_a_new_claim: dict[int, float] = {}
    await retention.run_once(owned.offloader, under_a_new_claim)
    assert under_a_new_claim.keys() == {0}
    assert owned.offloader.map.floor is None
    await retention.run_once(owned.offloader, absent)
    assert owned.offloader.map.floor == Position(0, 9)


@pytest.mark.parametrize("kind", [TierRetention.KEEP, TierRetention.LIMITED, TierRetention.FOLLOW])
async def test_a_compacted_ledger_goes_once_a_later_one_has_replaced_it(
    kind: TierRetention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the tier keeps else, also if its broker could not delete it; not while the list has it, as both count.

    A list that goes back names an older one, and deletes nothing; with a deleted topic its last one goes by `follow`.
    """
    monkeypatch.setattr("offloaderd.upkeep.retention.compacted_of", lambda topic: topic)
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    register = Register([0, 1])
    retention = Retention(
        owned.context, register, FOLLOW.model_copy(update={"follow_lag_s": 3600.0}), owned.book(retention=kind)
    )
    absent: dict[int, float] = {}

    async def looked_after_the_lag() -> set[int]:
        await retention.run_once(owned.offloader, absent)
        absent.update((one, since_s - 3600.0) for one, since_s in absent.items())
        await retention.run_once(owned.offloader, absent)
        return {one.end.ledger_id for one in owned.offloader.map.segments}

    assert await looked_after_the_lag() == {0, 1, 2}
    register.answer = [0]
    assert await looked_after_the_lag() == {0, 1, 2}
    register.answer = [1, 2]
    assert await looked_after_the_lag() == {1, 2}
    register.answer = [2]
    assert await looked_after_the_lag() == {2}
    register.answer = NotFound("no such topic")
    assert await looked_after_the_lag() == (set() if kind is TierRetention.FOLLOW else {2})


async def test_what_cannot_be_read_deletes_nothing() -> None:
    """A source that does not answer, and one whose ledgers cannot be read although it lists them, delete nothing."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    await owned.ledgers.delete(TOPIC, 0)
    with pytest.raises(Transient):
        await Retention(owned.context, Register(Transient("away")), FOLLOW, _following(owned)).run_once(
            owned.offloader, {}
        )
    await Retention(owned.context, Register([0, 1, 2]), FOLLOW, _following(owned)).run_once(owned.offloader, {})
    await Retention(owned.context, None, FOLLOW, _following(owned)).run_once(owned.offloader, {})
    assert owned.offloader.map.floor is None
    assert not owned.offloader.map.deleted


async def test_what_offloaderd_deleted_at_the_source_is_kept_here() -> None:
    """The copy of a ledger that went by grant is the only one: following the source must not delete it."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    grant = Grant(ledger_id=0, revoked_ms=0, source_deleted_ms=5)
    await rig.tree.connect().create(paths.grant(TOPIC, 0), grant_record.encode(grant))
    await owned.ledgers.delete(TOPIC, 0)
    await Retention(owned.context, owned.ledgers, FOLLOW, _following(owned)).run_once(owned.offloader, {})
    assert owned.offloader.map.floor is None
    assert len(owned.offloader.map.segments) == 3


async def test_a_topic_that_is_deleted_and_made_again_is_one_history() -> None:
    """All its ledgers vanish together; what comes later follows the floor, as one map under one name."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    gone = Retention(owned.context, Register(NotFound("no such topic")), FOLLOW, _following(owned))
    await gone.run_once(owned.offloader, {})
    await owned.empty_trash()
    assert owned.offloader.map.segments == ()
    assert owned.offloader.map.offloaded == Position(1, 9)
    assert await owned.keys() == 0
    for ledger_id in (0, 1):
        await owned.ledgers.delete(TOPIC, ledger_id)
    last = await offload_more(rig, [12], seed=7)
    current = await catalog.load(rig.tree.connect(), TOPIC)
    assert (current.offloaded, last) == (last, Position(3, 1))
    assert current.floor == Position(1, 9)
    assert len(await rig.committed()) == 12


async def test_a_topic_of_its_own_policy_is_limited_by_age_and_by_size() -> None:
    """The policy wins over the default; the newest segment stays; ages are told by the store's clock as well."""
    rig = await offloaded_topic(10, 10, 10, 10)
    owned = await Owned.claim(rig)
    for ledger_id in (0, 1, 2):
        await owned.ledgers.delete(TOPIC, ledger_id)
    store, path = rig.tree.connect(), paths.policy(TOPIC)
    retention = Retention(owned.context, owned.ledgers, FOLLOW, owned.book())
    await retention.run_once(owned.offloader, {})
    assert owned.offloader.map.floor is None

    async def limit(policy: TopicPolicy) -> None:
        await store.replace(path, encode_policy(policy), (await store.get(path)).version)
        await retention.run_once(owned.offloader, {})

    total = sum(segment.object_bytes for segment in owned.offloader.map.segments)
    await limit(TopicPolicy(retention=TierRetention.LIMITED, retention_bytes=total - 1))
    assert owned.offloader.map.floor == Position(0, 9)
    await limit(TopicPolicy(retention=TierRetention.LIMITED, retention_age_s=3600.0))
    assert owned.offloader.map.floor == Position(0, 9)
    await limit(TopicPolicy(retention=TierRetention.LIMITED, retention_age_s=0.0))
    assert owned.offloader.map.floor == Position(2, 9)
    assert len(owned.offloader.map.segments) == 1
    await owned.empty_trash()
    assert await owned.keys() == 3


async def test_limits_that_were_written_into_the_store_delete_nothing_before_the_lag() -> None:
    """Whoever reaches the store cannot have all but the newest segment deleted before anybody has noticed."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    for ledger_id in (0, 1):
        await owned.ledgers.delete(TOPIC, ledger_id)
    store, path = rig.tree.connect(), paths.policy(TOPIC)
    retention = Retention(owned.context, owned.ledgers, RetentionSettings(), owned.book())
    hostile = encode_policy(TopicPolicy(retention=TierRetention.LIMITED, retention_bytes=1))
    await store.replace(path, hostile, (await store.get(path)).version)
    await retention.run_once(owned.offloader, {})
    assert len(owned.offloader.map.segments) == 3
    retention.options = FOLLOW
    await retention.run_once(owned.offloader, {})
    assert len(owned.offloader.map.segments) == 1


async def test_a_clock_that_runs_ahead_deletes_nothing() -> None:
    """This machine believes in a later year than the store: the younger age counts."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    await owned.ledgers.delete(TOPIC, 0)
    segment = owned.offloader.map.segments[0]
    book = owned.book(retention=TierRetention.LIMITED, retention_age_s=3600.0)
    aged = Retention(owned.context, owned.ledgers, RetentionSettings(), book)
    wrong = replace(owned.offloader.map, segments=(replace(segment, offloaded_ms=1), *owned.offloader.map.segments[1:]))
    owned.offloader.record.map = wrong
    await aged.run_once(owned.offloader, {})
    assert owned.offloader.map == wrong


async def test_marking_is_idempotent_and_a_deposed_owner_marks_nothing() -> None:
    """A second word changes nothing; a word to a daemon that lost the topic changes nothing at all."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    await owned.ledgers.delete(TOPIC, 0)
    retention = Retention(owned.context, owned.ledgers, RetentionSettings(), owned.book())
    assert await retention.mark(owned.offloader, [0], dry_run=True) == [0]
    assert not owned.offloader.map.deleted
    assert await retention.mark_now(owned.offloader, [0]) == [0]
    assert await retention.mark_now(owned.offloader, [0]) == []
    assert owned.offloader.map.floor == Position(0, 9)
    await owned.ledgers.delete(TOPIC, 1)
    other = await Owned.claim(rig)
    with pytest.raises(Fenced):
        await retention.mark_now(owned.offloader, [1])
    assert await catalog.load(rig.tree.connect(), TOPIC) == other.offloader.map


async def test_what_the_map_holds_and_what_is_elsewhere_is_never_deleted() -> None:
    """A trash record that names a committed segment, or another bucket, stays with all its objects."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    store = rig.tree.connect()
    first, second = owned.offloader.map.segments
    for segment, bucket in ((first, "b"), (replace(second, segment_id=rig.clock.uuid()), "another")):
        trash = deletion.Trash(
            segment_id=segment.segment_id, upload_id="", reason="r", decided_ms=1, bucket=bucket, prefix="seg/"
        )
        await store.create(paths.trash_record(TOPIC, segment.segment_id), deletion.encode_trash(trash))
    assert await owned.empty_trash() == 2
    assert await owned.keys() == 6
    assert len(await store.children(paths.trash(TOPIC))) == 2
    assert rig.metrics.registry.get_sample_value("offloaderd_trash_waiting", {"topic": str(TOPIC)}) == 2


async def test_an_upload_of_another_writer_under_a_longer_key_is_not_aborted() -> None:
    """Uploads are listed by the begin of their key: those of other keys are another writer's work."""
    rig = await offloaded_topic(10)
    owned = await Owned.claim(rig)
    keys = SegmentKeys("seg/", rig.clock.uuid())
    trash = deletion.Trash(
        segment_id=keys.segment_id, upload_id="", reason="r", decided_ms=1, bucket="b", prefix="seg/"
    )
    await rig.tree.connect().create(paths.trash_record(TOPIC, keys.segment_id), deletion.encode_trash(trash))
    await rig.store.create_upload(keys.data, metadata={})
    theirs = await rig.store.create_upload(f"{keys.data}-copy", metadata={})
    assert await owned.empty_trash() == 0
    assert [one.upload_id async for one in rig.store.list_uploads()] == [theirs]


@pytest.mark.parametrize("listed", [[1, 2], [0, 1, 2]])
async def test_limits_take_nothing_that_the_source_or_the_brokers_list_has(listed: list[int]) -> None:
    """One of the two may be behind: a ledger that either has is kept here."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    if 0 in listed:
        await owned.ledgers.delete(TOPIC, 0)
    book = owned.book(retention=TierRetention.LIMITED, retention_bytes=1)
    await Retention(owned.context, Register(listed), FOLLOW, book).run_once(owned.offloader, {})
    assert len(owned.offloader.map.segments) == 3


async def test_what_is_marked_stays_until_history_is_offloaded() -> None:
    """The floor ends what was deleted: history that is committed later would be below it."""
    rig = await offloaded_topic(10, 10)
    owned = await Owned.claim(rig)
    await owned.offloader.record.mark_deleted([0])
    done = owned.offloader.map
    retention = Retention(owned.context, owned.ledgers, FOLLOW, owned.book())
    owned.offloader.record.map = unfinished = replace(done, history=PLAN)
    await retention.remove_marked(owned.offloader)
    assert owned.offloader.map == unfinished
    owned.offloader.record.map = done
    await retention.remove_marked(owned.offloader)
    assert len(owned.offloader.map.segments) == 1


class Crash(Exception):
    """The daemon is gone in the middle of a request."""


class Mortal:
    """A plan that kills the daemon before or after its n-th request; every later request of it fails too."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, operation: str, key: str, when: str) -> Exception | None:
        """Count."""
        self.left -= 1
        return Crash(f"{when} {operation} {key}") if self.left < 0 else None


async def test_a_crash_between_any_two_steps_leaves_nothing_half_deleted() -> None:
    """Killed before and after each request of a removal: the next owner ends where one without a crash would."""
    crashes = 0
    for number in range(200):
        rig = await offloaded_topic(10, 10, 5)
        real, plan = rig.store, Mortal(number)
        ledgers = rig.ledgers
        assert ledgers is not None
        await ledgers.delete(TOPIC, 0)
        await ledgers.delete(TOPIC, 1)
        died = False
        rig.objects = FaultyStore(real, plan)
        doomed = await Owned.claim(rig, FaultyMetadata(rig.tree.connect(), plan))
        try:
            await _delete_once(doomed)
        except Crash:
            died = True
        rig.objects = real
        survivor = await Owned.claim(rig)
        await _no_object_missing(rig)
        await _delete_once(survivor)
        assert survivor.offloader.map.floor == Position(1, 9)
        assert survivor.offloader.map.base is not None
        assert survivor.offloader.map.base.segments == 2
        assert await survivor.keys() == 3
        assert await rig.tree.connect().children(paths.trash(TOPIC)) == []
        crashes += died
        if not died:
            break
    assert crashes > 20


async def _delete_once(owned: Owned) -> None:
    await Retention(owned.context, owned.ledgers, FOLLOW, _following(owned)).run_once(owned.offloader, {})
    await owned.empty_trash()


async def _no_object_missing(rig: Rig) -> None:
    """Every segment of the map has its three objects, whatever has happened."""
    stored = {info.key async for info in rig.store.list()}
    for segment in (await catalog.load(rig.tree.connect(), TOPIC)).segments:
        assert {f"seg/{segment.segment_id}{end}" for end in ("", "-index", "-manifest")} <= stored


async def test_an_order_is_carried_out_by_the_duty_whoever_leaves() -> None:
    """A caller that goes away in the middle cuts nothing in two; one whose order cannot be is told why."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    await owned.ledgers.delete(TOPIC, 0)
    retention = Retention(owned.context, None, RetentionSettings(interval_s=3600.0), owned.book())
    with pytest.raises(Transient, match="taken over"):
        await retention.mark(owned.offloader, [0], dry_run=False)
    async with asyncio.TaskGroup() as group:
        duty = group.create_task(retention.run(owned.offloader))
        await turn()
        impatient = group.create_task(retention.mark(owned.offloader, [0], dry_run=False))
        await turn()
        impatient.cancel()
        while owned.offloader.map.floor is None:
            await turn()
        assert await retention.mark(owned.offloader, [0], dry_run=False) == []
        with pytest.raises(Conflict, match="still has"):
            await retention.mark(owned.offloader, [1], dry_run=False)

        async def too_late() -> None:
            with pytest.raises(Transient, match="released"):
                await retention.mark(owned.offloader, [0], dry_run=False)

        late = group.create_task(too_late())
        await turn()
        duty.cancel()
        await asyncio.wait([late])
        assert await catalog.load(rig.tree.connect(), TOPIC) == owned.offloader.map


async def test_the_duty_goes_on_after_errors_and_ends_when_deposed() -> None:
    """A source that stumbles is asked again; a lost epoch ends the topic's work."""
    rig = await offloaded_topic(10, 10, 10)
    owned = await Owned.claim(rig)
    register = Register(Transient("away"))
    retention = Retention(owned.context, register, FOLLOW.model_copy(update={"interval_s": 0.01}), _following(owned))

    async def depose() -> None:
        await turn()
        register.answer = [1, 2]
        while owned.offloader.map.floor is None:
            await owned.offloader.changed.wait()
        await Owned.claim(rig)
        register.answer = [2]

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        deposing = group.create_task(depose())
        with pytest.raises(Fenced):
            await retention.run(owned.offloader)
        await deposing
