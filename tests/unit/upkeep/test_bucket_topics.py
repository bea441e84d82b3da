"""Topics of a bucket alone, against the maps of the daemons that offload them at the same time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.api.bucket import BucketAdminService
from offloaderd.client.reading import Wanted
from offloaderd.core.aio import Group
from offloaderd.core.errors import BucketMissing, EntriesMissing, NotFound, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position
from offloaderd.core.read_options import Goal, SeekKind
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.removal import without_oldest
from offloaderd.objects import keys
from offloaderd.policy.policies import effective
from offloaderd.protocol.v1 import admin_pb2
from offloaderd.read.reader import TopicReader
from offloaderd.read.seek import seek
from offloaderd.read.stream import NoBuffers
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.bucket_topics import ANSWERS_S, LISTING_PAUSE_S, BucketTopics
from offloaderd.upkeep.stored import Site
from tests.unit.direct.here import Here
from tests.unit.rigs.owned import offload_more, offloaded_topic
from tests.unit.rigs.rig import TOPIC, Rig, memory_ledgers, payloads, until
from tests.unit.upkeep.test_mirror import AWAY, HOME, lag, mirroring
from tests.unit.upkeep.test_mirror import rig_of as mirror_rig
from tests.unit.upkeep.test_rebuild_living import SEEDS, lived

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.objects.port import ObjectInfo, SegmentStore
    from offloaderd.policy.policies import Effective

SITE = Site(cluster="test", bucket="b", prefix="seg/")
LISTING_S, HEAD_S = 300.0, 2.0


class LaterStore(FaultyStore):
    """A store whose first `listings` lack the `hidden` segments; requests for heads wait until `heads` is set."""

    def __init__(self, store: SegmentStore, faults: Faults, hidden: str = "", listings: int = 1_000_000) -> None:
        super().__init__(store, faults)
        self.hidden = hidden
        self.listings = listings
        self.heads = asyncio.Event()
        self.heads.set()
        self.waiting = 0

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """See ObjectReader."""
        self.listings -= 1
        async for info in super().list(prefix):
            if self.listings < 0 or not any(one in info.key for one in self.hidden.split()):
                yield info

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        if key.endswith(".head"):
            self.waiting += not self.heads.is_set()
            await self.heads.wait()
        return await super().get(key, first, length)


def bucket_topics(rig: Rig, faults: Faults | None = None) -> BucketTopics:
    """Return the topics of the rig's bucket, before the first listing."""
    return BucketTopics(
        FaultyStore(rig.store, faults or Faults()),
        [SITE],
        listing_s=LISTING_S,
        head_s=HEAD_S,
        clock=rig.clock,
        metrics=Metrics(),
    )


async def listed(rig: Rig, faults: Faults | None = None) -> BucketTopics:
    """Return them after one listing."""
    found = bucket_topics(rig, faults)
    await found.refresh()
    return found


async def live(rig: Rig) -> TopicMap:
    """Return the map that the owner has committed."""
    return await catalog.load(rig.tree.connect(), TOPIC)


@asynccontextmanager
async def running(found: BucketTopics) -> AsyncIterator[BucketTopics]:
    """Have the maps kept fresh."""
    async with Group() as group:
        work = group.create_task(found.run())
        yield found
        work.cancel()


class Settings:
    """Policies of a daemon that only reads."""

    async def of(self, topic: TopicName) -> Effective:
        """Return the defaults; no topic is known by a policy."""
        return effective([], known=False)


@asynccontextmanager
async def reader_of(rig: Rig, found: BucketTopics) -> AsyncIterator[TopicReader]:
    """Yield a reader that has the bucket alone."""
    reader = TopicReader(
        maps=found,
        policies=Settings(),
        objects=rig.store,
        source=None,
        hot=NoBuffers(),
        clock=rig.clock,
        metrics=Metrics(),
    )
    async with reader:
        yield reader


async def read_all(reader: TopicReader, first: Position | None = None) -> list[tuple[int, int, bytes]]:
    """Return all entries from a position on."""
    return [
        (batch.ledger_id, batch.first_entry_id + number, bytes(payload))
        async for batch, _ in reader.read(TOPIC, first=first)
        for number, payload in enumerate(batch.payloads)
    ]


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_bucket_alone_gives_the_map_that_was_committed(seed: int) -> None:
    """Segments, losses and ends, of histories with losses and changes of owner."""
    rig = await lived(seed)
    found, wanted = await (await listed(rig)).topic_map(TOPIC), await live(rig)
    assert (found.segments, found.losses, found.gaps) == (wanted.segments, wanted.losses, ())
    for ledger_id, end in found.ends.items():
        assert wanted.ends[ledger_id].entries == end.entries
    async with reader_of(rig, await listed(rig)) as reader:
        positions = await reader.last_positions(TOPIC)
    assert positions.offloaded == wanted.segments[-1].end


async def test_every_byte_is_read_back() -> None:
    """Without metadata, source and buffer."""
    rig = await offloaded_topic(10, 7, 13)
    async with reader_of(rig, await listed(rig)) as reader:
        found = await read_all(reader)
    wanted = [*payloads(10), *payloads(7, seed=1), *payloads(13, seed=2)]
    assert [payload for _, _, payload in found] == wanted


async def test_direct_reads_are_planned() -> None:
    """All entries come out of the bucket, none out of a stream of the daemon."""
    rig = await offloaded_topic(10, 7, 13)
    async with reader_of(rig, await listed(rig)) as reader:
        site: Any = SimpleNamespace(reader=reader, metrics=Metrics(), store=rig.store, clock=rig.clock)
        here = Here(site)
        assert await here.direct(Wanted()) == (await read_all(reader), "")
        assert (len(here.plans), here.streams) == (1, [])


async def test_whether_a_topic_is_offloaded_is_not_known() -> None:
    """The bucket has no policies: a list of topics does not say `no` of one that is offloaded."""
    rig = await offloaded_topic(10)
    service = BucketAdminService(await listed(rig), snapshot=lambda: None)  # type: ignore[arg-type, return-value]
    (row,) = (await service.ListTopics(admin_pb2.ListTopicsRequest(), None)).topics  # type: ignore[arg-type]
    assert (row.topic, row.policy_unknown, row.enabled, row.entries) == (str(TOPIC), True, False, 10)


async def test_before_the_first_listing_nothing_is_said_of_a_topic() -> None:
    """Not known is not the same as not there."""
    rig = await offloaded_topic(10)
    found = bucket_topics(rig)
    with pytest.raises(Transient, match="not listed yet"):
        await found.topic_map(TOPIC)
    with pytest.raises(Transient, match="not listed yet"):
        await found.every_topic()
    with pytest.raises(Transient, match="not listed yet"):
        await BucketAdminService(found, snapshot=lambda: None).ListTopics(admin_pb2.ListTopicsRequest(), None)  # type: ignore[arg-type, return-value]


async def test_a_commit_shows_within_the_age_of_a_head_without_a_listing() -> None:
    """Reading the topic is what asks for its head."""
    rig, faults = await offloaded_topic(10), Faults()
    found = await listed(rig, faults)
    await offload_more(rig, [5], seed=1)
    assert len((await found.topic_map(TOPIC)).segments) == 1, "the map is young enough"
    faults.asked.clear()
    await rig.clock.sleep(HEAD_S)
    assert (await found.topic_map(TOPIC)).segments == (await live(rig)).segments
    assert not [one for one in faults.asked if one.startswith("list")]
    faults.asked.clear()
    await rig.clock.sleep(HEAD_S)
    await found.topic_map(TOPIC)
    assert len(faults.asked) == 1, "a head that says nothing new costs one request"


async def test_a_reader_that_follows_gets_what_is_committed_meanwhile() -> None:
    """From the head, segment by segment."""
    rig = await offloaded_topic(10)
    found = await listed(rig)
    got: list[bytes] = []
    async with reader_of(rig, found) as reader, Group() as group:

        async def follow() -> None:
            async for batch, _ in reader.read(TOPIC, follow=True):
                got.extend(map(bytes, batch.payloads))

        work = group.create_task(follow())
        for number in range(1, 4):
            await offload_more(rig, [6], seed=number)
            await until(lambda number=number: len(got) == 10 + 6 * number)  # type: ignore[misc]
        work.cancel()
    assert got == [*payloads(10), *(one for number in range(1, 4) for one in payloads(6, seed=number))]


async def test_several_commits_between_two_looks_are_found_by_a_listing() -> None:
    """The head names the newest alone; the map stays as it was until those before it are known."""
    rig = await offloaded_topic(10)
    async with running(bucket_topics(rig)) as found:
        await until(lambda: found.listed_ms > 0)
        began_s = rig.clock.monotonic()
        await offload_more(rig, [5, 5, 5], seed=1)
        await rig.clock.sleep(HEAD_S)
        assert len((await found.topic_map(TOPIC)).segments) == 1
        first_ms = found.listed_ms
        await until(lambda: found.listed_ms > first_ms)
        assert rig.clock.monotonic() - began_s < LISTING_S
        assert (await found.topic_map(TOPIC)).segments == (await live(rig)).segments


async def test_a_head_that_names_a_segment_that_is_not_there_costs_one_listing() -> None:
    """Then it is a gap at the end, and the head says nothing new."""
    rig, faults = await offloaded_topic(10), Faults()
    async with running(bucket_topics(rig, faults)) as found:
        await until(lambda: found.listed_ms > 0)
        await offload_more(rig, [5], seed=1)
        newest = (await live(rig)).segments[-1]
        await rig.store.delete(newest.keys.every)
        faults.asked.clear()
        for _ in range(50):
            await rig.clock.sleep(HEAD_S)
            await found.topic_map(TOPIC)
        current = await found.topic_map(TOPIC)
        assert [(gap.after, gap.before) for gap in current.gaps] == [(Position(0, 9), None)]
        assert str(newest.segment_id) in current.gaps[0].why
        assert sum(one == "list seg/" for one in faults.asked) == 1


async def test_a_segment_that_a_head_named_and_that_is_gone_is_gone_after_the_next_listing() -> None:
    """As any other."""
    rig = await offloaded_topic(10)
    found = await listed(rig)
    await offload_more(rig, [5], seed=1)
    await rig.clock.sleep(HEAD_S)
    assert len((await found.topic_map(TOPIC)).segments) == 2
    await rig.store.delete((await live(rig)).segments[-1].keys.every)
    await found.refresh()
    current = await found.topic_map(TOPIC)
    assert len(current.segments) == 1
    assert [(gap.after, gap.before) for gap in current.gaps] == [(Position(0, 9), None)]


async def test_a_listing_that_fails_half_way_is_made_up_for_by_the_next() -> None:
    """It had new segments, and could not read the one that the head names."""
    rig, faults = await offloaded_topic(10), Faults()
    found = await listed(rig, faults)
    await offload_more(rig, [5, 5], seed=1)
    newest = (await live(rig)).segments[-1]
    store = LaterStore(rig.store, faults, hidden=str(newest.segment_id))
    found = BucketTopics(store, [SITE], listing_s=LISTING_S, head_s=HEAD_S, clock=rig.clock, metrics=Metrics())
    store.hidden = f"{(await live(rig)).segments[1].segment_id} {newest.segment_id}"
    await found.refresh()
    store.hidden = str(newest.segment_id)
    faults.fail("head", Transient("the store is away"))
    with pytest.raises(Transient):
        await found.refresh()
    await found.refresh()
    assert (await found.topic_map(TOPIC)).segments == (await live(rig)).segments


async def test_a_search_for_ledgers_of_brokers_that_failed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else their entries would not be read until the topic changes."""
    rig = await offloaded_topic(10, 10, 10)
    found = await listed(rig)
    await rig.store.delete([(await live(rig)).segments[1].keys.index])
    searches: list[object] = []

    async def search(*_: object) -> list[object]:
        searches.append(_)
        if len(searches) == 1:
            raise Transient("the store is away")
        return []

    monkeypatch.setattr(rebuild, "broker_ledgers", search)
    with pytest.raises(Transient):
        await found.refresh()
    for _ in range(2):
        await found.refresh()
    assert len(searches) == 2


async def test_a_read_does_not_wait_for_a_listing_that_waits_for_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with the map as it is, as when it asks for the head itself."""
    monkeypatch.setattr("offloaderd.upkeep.bucket_topics.ANSWERS_S", 0.01)
    rig = await offloaded_topic(10)
    store = LaterStore(rig.store, Faults())
    found = BucketTopics(store, [SITE], listing_s=LISTING_S, head_s=HEAD_S, clock=rig.clock, metrics=Metrics())
    await found.refresh()
    await offload_more(rig, [5], seed=1)
    store.heads.clear()
    await rig.clock.sleep(HEAD_S)
    async with Group() as group:
        work = group.create_task(found.refresh())
        await until(lambda: store.waiting > 0)
        assert len((await found.topic_map(TOPIC)).segments) == 1
        work.cancel()


@pytest.mark.parametrize("missing", [0, 1])
async def test_a_listing_that_lacks_what_was_committed_meanwhile_makes_no_gap(missing: int) -> None:
    """It is in the order of keys, so it may have a segment and not the one before it; the next listing has both."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=10)
    store = LaterStore(rig.store, Faults())
    found = BucketTopics(store, [SITE], listing_s=LISTING_S, head_s=HEAD_S, clock=rig.clock, metrics=Metrics())
    if missing:
        await offload_more(rig, [10])
    async with running(found):
        await until(lambda: found.listed_ms > 0)
        await offload_more(rig, [5, 5], seed=1)
        store.hidden = str((await live(rig)).segments[missing].segment_id)
        before_ms = found.listed_ms
        await until(lambda: found.listed_ms > before_ms)
        current, at_s = await found.topic_map(TOPIC), rig.clock.monotonic()
        assert (len(current.segments), current.gaps) == (missing, ())
        store.hidden = ""
        await until(lambda: found.counts.segments == 2 + missing)
        assert rig.clock.monotonic() - at_s < LISTING_S / 2
        assert (await found.topic_map(TOPIC)).segments == (await live(rig)).segments


async def test_a_first_listing_lacks_nothing_that_was_committed_before_what_it_has() -> None:
    """Whatever was committed meanwhile: it is repeated if anything seems to be missing."""
    rig = await offloaded_topic(10, 10, 10)
    store = LaterStore(rig.store, Faults(), hidden=str((await live(rig)).segments[1].segment_id), listings=1)
    found = BucketTopics(store, [SITE], listing_s=LISTING_S, head_s=HEAD_S, clock=rig.clock, metrics=Metrics())
    await found.refresh()
    assert (await found.topic_map(TOPIC)).segments == (await live(rig)).segments


async def test_a_topic_that_is_new_is_there_after_the_next_listing() -> None:
    """And unknown until then."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=10)
    async with running(bucket_topics(rig)) as found:
        await until(lambda: found.listed_ms > 0)
        assert not (await found.topic_map(TOPIC)).segments
        await offload_more(rig, [5])
        await rig.clock.sleep(LISTING_S + LISTING_PAUSE_S)
        assert found.topics == [TOPIC]
        assert len((await found.topic_map(TOPIC)).segments) == 1


async def test_what_retention_has_deleted_is_gone_after_the_next_listing() -> None:
    """A segment whose objects are not there is in no map."""
    rig = await offloaded_topic(10, 10, 10)
    found = await listed(rig)
    current = await live(rig)
    steps, after = without_oldest(current, current.segments[0], reason="old", now_ms=1)
    await rig.tree.connect().transact(steps)
    await rig.store.delete([info.key async for info in rig.store.list(f"seg/{current.segments[0].segment_id}")])
    await found.refresh()
    assert (await found.topic_map(TOPIC)).segments == after.segments


async def test_a_listing_reads_no_manifest_twice() -> None:
    """They do not change; the head of a topic without changes is not read either."""
    rig, faults = await offloaded_topic(10, 10), Faults()
    found = await listed(rig, faults)
    faults.asked.clear()
    await found.refresh()
    assert all(one.startswith("list") for one in faults.asked)


@pytest.mark.parametrize("broken", ["index", "manifest", "data"])
async def test_one_bad_segment_costs_its_own_entries_alone(broken: str) -> None:
    """The error of a read there names the object; the rest is read."""
    rig = await offloaded_topic(10, 10, 10)
    victim = (await live(rig)).segments[1]
    key = getattr(victim.keys, broken)
    if broken == "manifest":
        data = await rig.store.get(key)
        await rig.store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    else:
        await rig.store.delete([key])
    found = await listed(rig)
    current = await found.topic_map(TOPIC)
    assert len(current.segments) == 2
    assert str(victim.segment_id) in current.gaps[0].why
    async with reader_of(rig, found) as reader:
        with pytest.raises(EntriesMissing, match=str(victim.segment_id)):
            await read_all(reader)
        behind = current.segments[1].begin
        assert len(await read_all(reader, behind)) == 10
        with pytest.raises(EntriesMissing, match=str(victim.segment_id)):
            await read_all(reader, victim.begin)


async def test_the_newest_segment_is_missing_and_its_head_is_not() -> None:
    """Who follows gets an error instead of waiting for what will not come."""
    rig = await offloaded_topic(10, 10)
    newest = (await live(rig)).segments[-1]
    await rig.store.delete([newest.keys.data])
    found = await listed(rig)
    async with reader_of(rig, found) as reader:
        with pytest.raises(EntriesMissing, match=str(newest.segment_id)):
            async for _ in reader.read(TOPIC, follow=True):
                pass
        for first in (None, newest.begin):
            with pytest.raises(EntriesMissing, match=str(newest.segment_id)):
                await read_all(reader, first)


async def test_a_first_segment_that_is_not_whole_is_no_begin_of_a_topic() -> None:
    """A read from the begin, or of its entries, is an error with the reason; what follows is read."""
    rig = await offloaded_topic(10, 10)
    first, second = (await live(rig)).segments
    await rig.store.delete([first.keys.index])
    async with reader_of(rig, await listed(rig)) as reader:
        for begin in (None, first.begin):
            with pytest.raises(EntriesMissing, match=str(first.segment_id)):
                await read_all(reader, begin)
        assert len(await read_all(reader, second.begin)) == 10


@pytest.mark.parametrize("broken", ["index", "manifest"])
async def test_a_topic_of_which_nothing_can_be_read_is_not_unknown(broken: str) -> None:
    """It is listed, and reads and seeks name what is wrong."""
    rig = await offloaded_topic(10)
    victim = (await live(rig)).segments[0]
    key = getattr(victim.keys, broken)
    if broken == "manifest":
        data = await rig.store.get(key)
        await rig.store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
        await rig.store.delete([keys.head("seg/", "test", TOPIC.managed_ledger)])
    else:
        await rig.store.delete([key])
    found = await listed(rig)
    assert found.topics == [TOPIC]
    async with reader_of(rig, found) as reader:
        with pytest.raises(EntriesMissing, match=str(victim.segment_id)):
            await read_all(reader)
        with pytest.raises(EntriesMissing, match=str(victim.segment_id)):
            await seek(reader, TOPIC, Goal(SeekKind.SEQUENCE, 0))


async def test_a_store_that_is_away_leaves_the_maps_as_they_were() -> None:
    """Reads go on with the old map, and the failure is told."""
    rig, faults = await offloaded_topic(10), Faults()
    async with running(bucket_topics(rig, faults)) as found:
        await until(lambda: found.listed_ms > 0)
        before_ms = found.listed_ms
        await offload_more(rig, [5], seed=1)
        for operation in ("get", "list", "head"):
            faults.fail(operation, Transient("the store is away"), times=-1)
        await rig.clock.sleep(LISTING_S + LISTING_PAUSE_S)
        assert len((await found.topic_map(TOPIC)).segments) == 1
        assert found.listed_ms == before_ms
        assert "the store is away" in str(found.failure)
        faults.heal()
        await rig.clock.sleep(LISTING_S)
        assert found.failure is None
        assert (await found.topic_map(TOPIC)).segments == (await live(rig)).segments


async def test_a_bucket_that_is_gone_is_no_empty_bucket() -> None:
    """Its topics stay as they were."""
    rig, faults = await offloaded_topic(10), Faults()
    found = await listed(rig, faults)
    faults.fail("list", BucketMissing("no such bucket"))
    with pytest.raises(NotFound):
        await found.refresh()
    assert found.topics == [TOPIC]


async def test_segments_of_another_cluster_in_the_same_place_do_not_count() -> None:
    """Each daemon reads its own cluster's topics; if there are none, the name may be wrong."""
    rig = await offloaded_topic(10)
    assert not (await listed(rig)).problems
    found = BucketTopics(
        rig.store,
        [Site(cluster="another", bucket="b", prefix="seg/")],
        listing_s=LISTING_S,
        head_s=HEAD_S,
        clock=rig.clock,
        metrics=Metrics(),
    )
    await found.refresh()
    assert found.topics == []
    assert "no segment here is of cluster 'another', and 1 are of others" in found.problems[0].text
    assert "of cluster 'test'" in found.problems[0].text


async def test_a_damaged_head_is_no_reason_not_to_read() -> None:
    """The listing has all segments."""
    rig = await offloaded_topic(10)
    await rig.store.put(keys.head("seg/", "test", TOPIC.managed_ledger), b"no head")
    assert len((await (await listed(rig)).topic_map(TOPIC)).segments) == 1


async def test_a_head_that_does_not_answer_holds_up_one_read_in_a_while() -> None:
    """The others go on with the map as it is, and the next to ask is not before a head is due again."""
    rig = await offloaded_topic(10)
    store = LaterStore(rig.store, Faults())
    found = BucketTopics(store, [SITE], listing_s=LISTING_S, head_s=HEAD_S, clock=rig.clock, metrics=Metrics())
    await found.refresh()
    store.heads.clear()
    for _ in range(2):
        await rig.clock.sleep(HEAD_S)
        began_s = rig.clock.monotonic()
        for _ in range(10):
            assert len((await found.topic_map(TOPIC)).segments) == 1
        assert rig.clock.monotonic() - began_s < 2 * ANSWERS_S
    assert store.waiting == 2


async def test_a_seek_does_not_pass_a_gap_over() -> None:
    """The first entry behind one is no answer: an earlier one may be in it."""
    rig = await offloaded_topic(10, 10, 10)
    segments = (await live(rig)).segments
    await rig.store.delete([segments[1].keys.manifest])
    async with reader_of(rig, await listed(rig)) as reader:
        found = await seek(reader, TOPIC, Goal(SeekKind.SEQUENCE, 7))
        assert found.begin == Position(segments[0].begin.ledger_id, 7)
        found = await seek(reader, TOPIC, Goal(SeekKind.SEQUENCE, 25))
        assert found.begin == Position(segments[2].begin.ledger_id, segments[2].begin.entry_id + 5)
        with pytest.raises(EntriesMissing, match="may be among those after"):
            await seek(reader, TOPIC, Goal(SeekKind.SEQUENCE, 15))


async def test_a_seek_behind_the_end_is_an_error_where_the_end_cannot_be_read() -> None:
    """Nothing was found, which is no proof that nothing is there."""
    rig = await offloaded_topic(10, 10)
    segments = (await live(rig)).segments
    await rig.store.delete([segments[1].keys.index])
    async with reader_of(rig, await listed(rig)) as reader:
        with pytest.raises(EntriesMissing, match="up to the end"):
            await seek(reader, TOPIC, Goal(SeekKind.SEQUENCE, 15))


async def test_a_segment_that_is_sound_in_its_mirror_is_no_gap() -> None:
    """Its manifest is damaged in the first place alone: the copy is served, and nothing is reported of the topic."""
    rig = mirror_rig()
    await offload_more(rig, [10, 10, 10])
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    victim = (await live(rig)).segments[1]
    home = rig.store.at(HOME[0])
    data = await home.get(victim.keys.manifest)
    await home.put(victim.keys.manifest, data[:-1] + bytes([data[-1] ^ 1]))
    found = BucketTopics(
        rig.store,
        [Site(cluster="test", bucket=bucket, prefix=prefix) for bucket, prefix in (HOME, AWAY)],
        listing_s=LISTING_S,
        head_s=HEAD_S,
        clock=rig.clock,
        metrics=Metrics(),
    )
    await found.refresh()
    current = await found.topic_map(TOPIC)
    assert [one.segment_id for one in current.segments] == [one.segment_id for one in (await live(rig)).segments]
    assert current.segments[1].place == AWAY
    assert (current.gaps, found.problems) == ((), ())
