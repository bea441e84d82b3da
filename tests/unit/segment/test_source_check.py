"""A list of ledgers that is of another history is believed by nobody: nothing is skipped, granted or deleted."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from offloaderd.core.errors import IdentityRefused, NotFound, Transient
from offloaderd.core.model import LedgerInfo, Position, RefusalKind, TierRetention
from offloaderd.metadata import identity, paths
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.identity import Acceptance
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.segment.source_check import NAMED_MAX, SETTLE_S, differing
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.retention import Retention
from offloaderd.upkeep.settings import GrantSettings, RetentionSettings
from tests.unit.rigs.lives import life, until_recorded
from tests.unit.rigs.owned import Owned, identified, offloaded_topic
from tests.unit.rigs.rig import TOPIC, Rig, memory_ledgers, offloader_of, payloads, until, until_offloaded

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.format.manifest import BlockInfo
    from offloaderd.metadata.records.attempt import Attempt

FOLLOW = RetentionSettings(follow_lag_s=0.0)
GRANTS = GrantSettings(readback=False, interval_s=60.0)


class Listed(MemoryLedgers):
    """A store whose list may say what its ledgers do not, and whose cluster may move its metadata."""

    def __init__(self, rig: Rig, *, ledger_entries_max: int = 10) -> None:
        super().__init__(clock=rig.clock, ledger_entries_max=ledger_entries_max)
        self.more: list[int] = []
        """Ledgers that are listed and cannot be read."""
        self.moving: str | None = None
        self.unknown = False

    async def listed(self, topic: TopicName) -> Collection[int]:
        """Return what is there, and what is only listed."""
        if self.unknown:
            raise NotFound(f"no topic {topic}")
        return [*await super().listed(topic), *self.more]

    async def ledgers(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """Return what is there."""
        if self.unknown:
            raise NotFound(f"no topic {topic}")
        return await super().ledgers(topic)

    async def moved(self, topic: TopicName) -> str | None:
        """Say what the flag says."""
        return self.moving


async def offloaded(*segments: int) -> Rig:
    """Return a rig with a topic over ledgers of 10 entries, of which it is on record where they came from."""
    rig = await offloaded_topic(*segments)
    await identified(rig)
    return rig


async def other_source(rig: Rig, ledgers: int, *, store_id: str | None = "memory", first: int = 0) -> Listed:
    """Put another source in place, whose first ledgers are deleted; ids begin again."""
    await rig.clock.sleep(0.002)  # no ledger of it is made in the same millisecond
    other = Listed(rig)
    other.store_id = store_id
    await other.append(TOPIC, payloads(10 * ledgers, seed=99))
    for ledger_id in range(first):
        await other.delete(TOPIC, ledger_id)
    rig.ledgers = rig.origin = rig.register = other
    return other


async def forget_source(rig: Rig) -> None:
    """Leave the metadata as a release left it that knew no identities."""
    store = rig.tree.connect()
    await store.delete(paths.IDENTITY, (await store.get(paths.IDENTITY)).version)


async def refused(rig: Rig) -> dict[str, str]:
    """Return what stands refused: words by kind."""
    record = (await identity.load(rig.tree.connect(), TOPIC)).record
    return {one.kind: one.found for one in record.refusals}


async def accept(rig: Rig) -> None:
    """Do what the operator's command does with all that is refused."""
    store = rig.tree.connect()
    record, version = await identity.load(store, TOPIC)
    for one in record.refusals:
        record = record.accepting(Acceptance(kind=one.kind, evidence=one.evidence, by="ann", at_ms=1))
    assert version is not None
    await store.replace(paths.identity(TOPIC), identity_record.encode(record), version)


async def assert_stalls(rig: Rig, kind: RefusalKind, words: str) -> None:
    """See that a daemon stalls the topic with a reason, and that neither it nor its duties change anything."""
    before = await rig.committed()
    async with rig.engine() as engine:
        await until(lambda: [one.state for one in engine.statuses()] == ["stalled"])
        (status,) = engine.statuses()
        assert status.stalled_class == "identity"
        assert f"{kind}: " in status.stalled_reason
        assert words in status.stalled_reason
        assert "offloadctl identity accept" in status.stalled_reason
    if before:
        await assert_nothing_is_deleted(rig)
    assert kind in await refused(rig)
    assert await rig.committed() == before
    assert (await catalog.load(rig.tree.connect(), TOPIC)).losses == ()


async def assert_nothing_is_deleted(rig: Rig) -> None:
    """Let retention of each kind, an operator and grants do what they can: nothing."""
    owned = await Owned.claim(rig)
    before = owned.offloader.map
    for book in (
        owned.book(retention=TierRetention.FOLLOW),
        owned.book(retention=TierRetention.LIMITED, retention_bytes=1),
    ):
        retention = Retention(owned.context, rig.register, FOLLOW, book)
        for _ in range(2):
            with suppress(IdentityRefused, Transient):
                await retention.run_once(owned.offloader, {0: -1.0})
        with pytest.raises((IdentityRefused, Transient)):
            await retention.mark_now(owned.offloader, [0])
    assert rig.ledgers is not None
    there = [info.ledger_id for info in await MemoryLedgers.ledgers(owned.ledgers, TOPIC)]
    grants = Grants(owned.context, rig.ledgers, GRANTS, owned.book(deletion_lag_s=0.0), daemon_id="one")
    for _ in range(2):
        with suppress(IdentityRefused, Transient):
            await grants.run_once(owned.offloader, {})
    assert await rig.tree.connect().children(paths.grants(TOPIC)) == []
    assert [info.ledger_id for info in await MemoryLedgers.ledgers(owned.ledgers, TOPIC)] == there
    assert owned.offloader.map == before == await catalog.load(rig.tree.connect(), TOPIC)


async def test_ids_that_begin_again_below_stall_the_topic() -> None:
    """A list that ends before what is offloaded is of another history: a topic always lists its newest ledger."""
    rig = await offloaded(10, 10, 10, 10)
    await other_source(rig, 2)
    await assert_stalls(rig, RefusalKind.LIST_BEHIND, "the list ends with ledger 1")


async def test_a_number_that_was_given_twice_stalls_the_topic() -> None:
    """The ledger in which the offloading stands was made at another time."""
    rig = await offloaded(10, 10)
    await other_source(rig, 2)
    await assert_stalls(rig, RefusalKind.LEDGER_REPLACED, "ledger 1 was created at")


async def test_numbers_that_go_on_above_what_was_given_twice_stall_the_topic() -> None:
    """Also where the list goes on behind what is offloaded."""
    rig = await offloaded(10, 10)
    await other_source(rig, 5)
    await assert_stalls(rig, RefusalKind.LEDGER_REPLACED, "ledger 0 was created at")


async def opened(*segments: int) -> tuple[Rig, list[bytes]]:
    """Return a rig whose owner died with an open segment behind the committed ones, and all entries behind these."""
    rig = await offloaded(*segments)
    assert rig.ledgers is not None
    entries = payloads(100, size=900, seed=7)
    for first in range(0, 100, 10):
        await rig.ledgers.append(TOPIC, entries[first : first + 10])
    async with life(rig, "one"):
        left = await until_recorded(rig, lambda attempt: len({block.ledger_id for block in blocks_of(attempt)}) >= 2)
    covered = {left.begin.ledger_id, *(block.ledger_id for block in blocks_of(left))}
    infos = await rig.ledgers.ledgers(TOPIC)
    assert left.created == {info.ledger_id: info.created_ms for info in infos if info.ledger_id in covered}
    assert left.seal is None
    return rig, entries


def blocks_of(attempt: Attempt) -> list[BlockInfo]:
    """Return the blocks that are recorded."""
    return [block for part in attempt.parts for block in part.blocks]


@pytest.mark.parametrize("segments", [(10,), ()])
async def test_an_open_segment_is_not_resumed_from_another_history(segments: tuple[int, ...]) -> None:
    """Its record has the creation times of its ledgers; the only committed one may be deleted at the source."""
    rig, entries = await opened(*segments)
    right, first = rig.ledgers, len(segments)
    await other_source(rig, first + 20, first=first)
    await assert_stalls(rig, RefusalKind.LEDGER_REPLACED, f"ledger {first} was created at")
    rig.ledgers = rig.origin = rig.register = cast("MemoryLedgers", right)
    await offload_rest(rig)
    assert [payload for _, payload in await rig.committed()][10 * first :] == entries
    assert await refused(rig) == {}


async def test_an_open_segment_is_resumed_from_ledgers_that_an_operator_has_accepted() -> None:
    """Also while nothing is committed, and the first of them stay as they were recorded."""
    rig, _ = await opened()
    await other_source(rig, 20)
    await assert_stalls(rig, RefusalKind.LEDGER_REPLACED, "ledger 0 was created at")
    await accept(rig)
    await offload_rest(rig)
    assert len(await rig.committed()) == 200
    assert await refused(rig) == {}


async def offload_rest(rig: Rig) -> None:
    """Have the next owner commit all entries."""
    async with rig.engine() as engine:
        topic = await offloader_of(engine)
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)


async def test_more_ledgers_than_a_refusal_names_are_accepted_with_it() -> None:
    """A finding names a few of many: each of them that is met alone later is one that an operator has accepted."""
    rig = await offloaded(10)
    owned = await identified(rig)
    count = NAMED_MAX + 2
    await owned.ledgers.append(TOPIC, payloads(10 * count))
    check, context = owned.offloader.source_check, owned.context
    attempt = context.attempt(Position(1, 0), context.layout, context.places.home, epoch=2)
    check._attempt = lambda: replace(attempt, created=dict.fromkeys(range(1, count + 1), 5))
    with pytest.raises(IdentityRefused, match="and 2 more"):
        await check.ledgers(owned.ledgers)
    await accept(rig)
    await check.ledgers(owned.ledgers)
    for ledger_id in range(1, count + 1):
        await check.ledger(ledger_id)
    assert await refused(rig) == {}


@pytest.mark.parametrize("ledgers", [2, 9], ids=["the same numbers", "greater ones"])
async def test_another_cluster_is_known_by_its_id(ledgers: int) -> None:
    """Whatever numbers its list has: not the source that the deployment has offloaded."""
    rig = await offloaded(10, 10)
    await other_source(rig, ledgers, store_id="staging", first=ledgers - 2)
    await assert_stalls(rig, RefusalKind.OTHER_SOURCE, "the ledger source is staging")


@pytest.mark.parametrize("store_id", ["staging", None])
async def test_a_list_that_shares_nothing_is_not_believed_where_the_source_is_not_on_record(
    store_id: str | None,
) -> None:
    """A deployment of older releases: nobody can say that the list is of the cluster that was offloaded."""
    rig = await offloaded(10, 10)
    await forget_source(rig)
    await other_source(rig, 9, store_id=store_id, first=7)
    await assert_stalls(rig, RefusalKind.UNKNOWN_SOURCE, "none that is offloaded")


async def test_an_unknown_source_stays_refused_until_its_list_shares_a_ledger() -> None:
    """That it has no id that differs is no reason to permit deletions between two looks."""
    rig = await offloaded(10, 10)
    own = rig.ledgers
    await forget_source(rig)
    other = await other_source(rig, 9, first=7)
    owned = await Owned.claim(rig)
    check = owned.offloader.source_check
    with pytest.raises(IdentityRefused, match="none that is offloaded"):
        await check.ledgers(other)
    await check.source()
    assert list(await refused(rig)) == [RefusalKind.UNKNOWN_SOURCE]
    assert own is not None
    await check.ledgers(own)
    assert await refused(rig) == {}


@pytest.mark.parametrize(
    ("said", "left"),
    [({"retention": TierRetention.FOLLOW}, 0), ({"retention": TierRetention.LIMITED, "retention_bytes": 1}, 1)],
    ids=["follow", "limited"],
)
async def test_a_topic_that_is_not_there_is_deleted_only_in_the_source_that_was_offloaded(
    said: dict[str, Any], left: int
) -> None:
    """Another cluster does not know it either; in the right one it is gone, and the tier keeps nothing for it."""
    rig = await offloaded(10, 10)
    other = await other_source(rig, 1, store_id="staging")
    other.unknown = True
    owned = await Owned.claim(rig)
    retention = Retention(owned.context, rig.register, FOLLOW, owned.book(**said))
    with pytest.raises(IdentityRefused, match="the ledger source is staging"):
        await retention.run_once(owned.offloader, {})
    await forget_source(rig)
    owned = await Owned.claim(rig)
    await owned.offloader.identity.load()
    await owned.offloader.source_check.source()
    assert await refused(rig) == {}
    await retention.run_once(owned.offloader, {})
    assert len(owned.offloader.map.segments) == 2
    other.store_id = "memory"
    owned = await identified(rig)
    retention = Retention(owned.context, rig.register, FOLLOW, owned.book(**said))
    await retention.run_once(owned.offloader, {})
    assert len(owned.offloader.map.segments) == left


async def test_a_ledger_that_was_closed_below_what_is_committed_stalls_a_new_owner() -> None:
    """Its end was not on record, and the owner that saw its entries is gone."""
    rig = await offloaded_topic(5, ledger_entries=10)
    shorter = memory_ledgers(rig.clock, ledger_entries_max=3)
    await shorter.append(TOPIC, payloads(6))
    ledgers = shorter._book._topics[TOPIC]
    ledgers |= {one: replace(ledger, created_ms=None) for one, ledger in ledgers.items()}
    rig.ledgers = shorter
    assert (await catalog.load(rig.tree.connect(), TOPIC)).ends == {}
    await assert_stalls(rig, RefusalKind.LEDGER_SHORTER, "ledger 0 is closed with 3 entries")


async def test_a_ledger_that_was_recovered_beyond_its_list_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read to its end while it was open, nothing of it is read again: what recovery has saved would pass unnoticed."""
    rig = await offloaded(10, 10)
    last = Position(1, 9)
    inspected = MemoryLedgers.inspected

    async def longer(self: MemoryLedgers, topic: TopicName, ledger_id: int) -> LedgerInfo:
        return replace(await inspected(self, topic, ledger_id), entries=12)

    monkeypatch.setattr(MemoryLedgers, "inspected", longer)
    owned = await identified(rig)
    assert owned.offloader.taken == last
    await owned.ledgers.roll(TOPIC)
    with capture_logs() as logs:
        for _ in range(3):
            await owned.offloader.source_check.ledgers(owned.ledgers)
    told = [one for one in logs if one["event"] == "source.ledger_longer_than_listed"]
    assert [(one["ledger_id"], one["listed"], one["stored"]) for one in told] == [(1, 10, 12)]
    assert await refused(rig) == {}


async def test_a_ledger_that_its_store_calls_open_is_inspected_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The list says that it is closed, and a recovery is under way: what that saves is not known yet."""
    rig = await offloaded(10, 10)
    inspected, stored, asked = MemoryLedgers.inspected, dict[str, Any](closed=False), 0

    async def recovering(self: MemoryLedgers, topic: TopicName, ledger_id: int) -> LedgerInfo:
        nonlocal asked
        asked += 1
        return replace(await inspected(self, topic, ledger_id), **stored)

    monkeypatch.setattr(MemoryLedgers, "inspected", recovering)
    owned = await identified(rig)
    await owned.ledgers.roll(TOPIC)
    with capture_logs() as logs:
        for _ in range(3):
            await owned.offloader.source_check.ledgers(owned.ledgers)
        assert asked == 1
        stored = {"entries": 12}
        await rig.clock.sleep(SETTLE_S)
        for _ in range(3):
            await owned.offloader.source_check.ledgers(owned.ledgers)
    assert asked == 2
    assert [one["stored"] for one in logs if one["event"] == "source.ledger_longer_than_listed"] == [12]


async def test_what_fits_again_is_offloaded_again() -> None:
    """The right source is back: the refusal goes by itself, and nothing is missing."""
    rig = await offloaded(10, 10, 10)
    here = rig.ledgers
    await other_source(rig, 1)
    await assert_stalls(rig, RefusalKind.LIST_BEHIND, "the list ends with ledger 0")
    rig.ledgers = rig.origin = rig.register = here  # type: ignore[assignment]
    assert rig.ledgers is not None
    last = await rig.ledgers.append(TOPIC, payloads(5, seed=5))
    async with rig.engine() as engine:
        topic = await offloader_of(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)
    assert await refused(rig) == {}
    assert len(await rig.committed()) == 35


@pytest.mark.parametrize("gone", [False, True])
async def test_a_refusal_stands_until_each_ledger_that_it_names_was_seen_to_be_right(gone: bool) -> None:
    """The right source is back; a ledger that it has deleted meanwhile shows nothing, so nothing is deleted here."""
    rig = await offloaded(10, 10, 10)
    here = rig.ledgers
    await other_source(rig, 3)
    await assert_stalls(rig, RefusalKind.LEDGER_REPLACED, "ledger 0 was created at")
    rig.ledgers = rig.origin = rig.register = here  # type: ignore[assignment]
    assert here is not None
    if gone:
        await here.delete(TOPIC, 0)
    owned = await Owned.claim(rig)
    await owned.offloader.identity.load()
    await owned.offloader.source_check.ledgers(owned.ledgers)
    assert (RefusalKind.LEDGER_REPLACED in await refused(rig)) is gone


async def test_what_an_operator_accepts_is_believed_from_then_on() -> None:
    """The ledgers that took the numbers over are the topic's: they are offloaded, and known by their time."""
    rig = await offloaded(10, 5)
    await other_source(rig, 2)
    await assert_stalls(rig, RefusalKind.LEDGER_REPLACED, "was created at")
    await accept(rig)
    async with rig.engine() as engine:
        topic = await offloader_of(engine)
        await topic.request_roll()
        await until_offloaded(topic, Position(1, 9))
    assert await refused(rig) == {}
    assert rig.ledgers is not None
    created = {info.ledger_id: info.created_ms for info in await rig.ledgers.ledgers(TOPIC)}
    assert (await catalog.load(rig.tree.connect(), TOPIC)).created == created


async def test_a_source_is_noted_once_its_list_has_something_that_is_offloaded() -> None:
    """A deployment of older releases goes on without a stop; what it does not know yet it takes from the source."""
    rig = await offloaded_topic(10, 10)
    before = (await catalog.load(rig.tree.connect(), TOPIC)).created
    rig.origin = rig.register = rig.ledgers  # type: ignore[assignment]
    with pytest.raises(NotFound):
        await rig.tree.connect().get(paths.IDENTITY)
    async with rig.engine() as engine:
        topic = await offloader_of(engine)
        await topic.request_roll()
    node = await rig.tree.connect().get(paths.IDENTITY)
    source = identity_record.decode_deployment(node.value, path=paths.IDENTITY).source
    assert source is not None
    assert (source.kind, source.instance_id) == ("bookkeeper", "memory")
    assert await refused(rig) == {}
    assert (await catalog.load(rig.tree.connect(), TOPIC)).created == before


async def test_a_new_deployment_notes_its_source_before_it_knows_a_topic() -> None:
    """And one that knows topics waits until one of them proves it."""
    rig = Rig()
    rig.ledgers = rig.origin = memory_ledgers(rig.clock)
    known = rig.known_source(rig.tree.connect())
    assert known is not None
    await known.begin()
    await known.check(TOPIC)
    assert known.trusted
    old = await offloaded_topic(5)
    old.origin = old.ledgers
    known = old.known_source(old.tree.connect())
    assert known is not None
    await known.begin()
    await known.check(TOPIC)
    assert not known.trusted


async def test_while_a_cluster_moves_its_metadata_nothing_is_offloaded_granted_or_deleted() -> None:
    """The topic stalls with the reason, and goes on when the cluster stays where it is."""
    rig = await offloaded(10, 10)
    moving = Listed(rig)
    moving.moving = "the cluster is moving its metadata to oxia://oxia:6648"
    here = rig.ledgers
    rig.origin = moving
    assert here is not None
    last = await here.append(TOPIC, payloads(5, seed=5))
    async with rig.engine() as engine:
        topic = await offloader_of(engine)
        with pytest.raises(Transient, match="moving its metadata"):
            await topic.request_roll()
        await until(lambda: topic.status().state == "stalled")
        assert "moving its metadata" in topic.status().stalled_reason
    await assert_nothing_is_deleted(rig)
    assert len(await rig.committed()) == 20
    moving.moving = None
    async with rig.engine() as engine:
        topic = await offloader_of(engine)
        await topic.request_roll()
        await until_offloaded(topic, last)


async def test_a_ledger_is_granted_only_as_the_one_that_was_offloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another's by now, of which the list tells nothing: who goes by grants would delete that one."""
    rig = await offloaded(10, 10, 10)
    owned = await Owned.claim(rig)
    ledgers = owned.ledgers._book._topics[TOPIC]
    ledgers[0] = replace(ledgers[0], created_ms=1)
    infos = [replace(info, created_ms=None) for info in await owned.ledgers.ledgers(TOPIC)]

    async def listed(_: TopicName) -> Sequence[LedgerInfo]:
        return infos

    monkeypatch.setattr(owned.ledgers, "ledgers", listed)
    grants = Grants(owned.context, None, GRANTS, owned.book(deletion_lag_s=0.0), daemon_id="one")
    with pytest.raises(IdentityRefused, match="ledger 0 was created at 1 ms"):
        await grants.run_once(owned.offloader, {})
    assert await rig.tree.connect().children(paths.grants(TOPIC)) == []


async def test_a_list_whose_newest_ledgers_cannot_be_read_is_not_behind() -> None:
    """BookKeeper has lost them, or their broker has deleted them there; an empty list says nothing either."""
    rig = await offloaded(10, 10, 10)
    source = Listed(rig)
    await source.append(TOPIC, payloads(30))
    rig.ledgers = rig.origin = rig.register = source
    owned = await Owned.claim(rig)
    await source.delete(TOPIC, 2)
    source.more = [2]
    infos = await source.ledgers(TOPIC)
    assert [info.ledger_id for info in infos] == [0, 1]
    await owned.offloader.source_check._check_newest(infos)
    source.more = []
    with pytest.raises(IdentityRefused, match="the list ends with ledger 1"):
        await owned.offloader.source_check._check_newest(infos)
    for ledger_id in (0, 1):
        await source.delete(TOPIC, ledger_id)
    await owned.offloader.source_check._check_newest([])


async def test_limited_keeps_what_the_source_lists_though_nobody_can_read_it_there() -> None:
    """A broker has deleted its copy in BookKeeper on our word and lists the ledger still: ours is the only one (P1)."""
    rig = await offloaded(10, 10, 10)
    source = Listed(rig)
    await source.append(TOPIC, payloads(1))
    owned = await Owned.claim(rig)
    await owned.ledgers.delete(TOPIC, 0)

    class Register:
        """Pulsar's list."""

        async def listed(self, topic: TopicName) -> Collection[int]:
            """Return all that it has."""
            return [0, 1, 2]

    book = owned.book(retention=TierRetention.LIMITED, retention_bytes=1)
    await Retention(owned.context, Register(), FOLLOW, book).run_once(owned.offloader, {})
    assert len(owned.offloader.map.segments) == 3
    await Retention(owned.context, None, FOLLOW, book).run_once(owned.offloader, {})
    assert len(owned.offloader.map.segments) == 2


async def test_what_is_unknown_is_no_difference() -> None:
    """When a ledger was made is compared where both sides know it; an open ledger may seem short."""
    rig = await offloaded(10, 5)
    topic_map = (await Owned.claim(rig)).offloader.map
    created_ms = topic_map.created[0]

    def info(entries: int, *, closed: bool = True, created_ms: int | None = None) -> LedgerInfo:
        return LedgerInfo(ledger_id=0, closed=closed, entries=entries, size_bytes=0, created_ms=created_ms)

    taken = Position(1, 4)
    assert differing(topic_map, taken, [info(10), info(10, created_ms=created_ms), info(3, closed=False)]) == []
    assert [one.kind for one in differing(topic_map, taken, [info(9)])] == ["ledger-shorter"]
    assert [one.kind for one in differing(topic_map, taken, [info(3, created_ms=1)])] == [
        "ledger-replaced",
        "ledger-shorter",
    ]


@pytest.mark.parametrize("entries", [9, 10])
def test_a_ledger_that_was_closed_one_entry_below_what_is_taken_is_shorter(entries: int) -> None:
    """Nothing of it is committed; its entry 9 is in the open segment."""
    info = LedgerInfo(ledger_id=5, closed=True, entries=entries, size_bytes=1)
    found = [one.kind for one in differing(TopicMap(TOPIC), Position(5, 9), [info])]
    assert found == ([RefusalKind.LEDGER_SHORTER] if entries == 9 else [])
