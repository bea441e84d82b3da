"""What a broker has offloaded itself is adopted where it lies: in order, verified, once, and without a byte sent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import CorruptData, NotFound, Unsound
from offloaderd.core.model import HistoryOrder, OffloadMethod, Position
from offloaderd.format.v1 import decode_index, encode_index
from offloaderd.history.adoption import verified_index
from offloaderd.history.plan import left_of
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects import keys
from offloaderd.objects.places import Place
from offloaderd.policy.records import TopicPolicy
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.memory.ledgers import MemoryLedgers
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.upkeep.grants import records as grant_records
from offloaderd.upkeep.grants.copy_check import CopyChecker
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.retention import Retention
from offloaderd.upkeep.settings import GrantSettings, RetentionSettings
from tests.unit.broker_objects import BrokerLedger, metadata_of
from tests.unit.objects.buckets import Buckets
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC, Rig, enabled, payloads, until, until_offloaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.model import LedgerInfo, TopicName
    from offloaderd.format.v1 import LedgerObjectIndex
    from offloaderd.metadata.topic_map.map import TopicMap


class Brokers:
    """A source whose brokers offload by themselves, as far as the test says."""

    def __init__(self, rig: Rig, ledgers: MemoryLedgers) -> None:
        self.ledgers = ledgers
        self.offloads: dict[int, BrokerLedger] = {}
        self._rig = rig

    async def offloaded(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """Return what was offloaded; see BrokerOffloads."""
        assert topic == TOPIC
        return [one.info for _, one in sorted(self.offloads.items())]

    async def write(self, counts: Sequence[int]) -> list[list[bytes]]:
        """Write ledgers with so many entries, all closed but the last; returns what is in each."""
        found = []
        for number, count in enumerate(counts):
            found.append(payloads(count, seed=number))
            await self.ledgers.append(TOPIC, found[-1])
            if number < len(counts) - 1:
                await self.ledgers.roll(TOPIC)
        return found

    async def offload(self, ledger_id: int, content: Sequence[bytes], *, store: bool = True) -> BrokerLedger:
        """Have a broker offload a ledger; without `store` its objects vanish at once."""
        made = BrokerLedger(topic=TOPIC, ledger_id=ledger_id, object_id=self._rig.clock.uuid(), payloads=content)
        if store:
            await made.put(self._rig.store)
        self.offloads[ledger_id] = made
        return made

    async def trim(self, ledger_id: int) -> None:
        """Have the broker delete BookKeeper's copy."""
        self.offloads[ledger_id].source_deleted = True
        await self.ledgers.delete(TOPIC, ledger_id)


@pytest.fixture
def rig() -> Rig:
    """An engine's surroundings."""
    made = Rig(policy=RollPolicy(segment_bytes_max=1_000_000, segment_age_max_s=0.05))
    made.ledgers = MemoryLedgers(clock=made.clock)
    return made


@pytest.fixture
def brokers(rig: Rig) -> Brokers:
    """The brokers of that source."""
    assert isinstance(rig.ledgers, MemoryLedgers)
    rig.offloads = made = Brokers(rig, rig.ledgers)
    return made


async def committed(rig: Rig) -> TopicMap:
    """Return the map as a reader finds it."""
    return await catalog.load(rig.tree.connect(), TOPIC)


async def ids(brokers: Brokers) -> list[int]:
    """Return the source's ledgers."""
    return [info.ledger_id for info in await brokers.ledgers.ledgers(TOPIC)]


def shape(found: TopicMap) -> list[tuple[int, int, bool]]:
    """Return each segment's first and last ledger, and whether a broker wrote it."""
    return [(one.begin.ledger_id, one.end.ledger_id, one.foreign) for one in found.segments]


@pytest.mark.parametrize("method", [OffloadMethod.STREAMING, OffloadMethod.LEDGER_BASED])
@pytest.mark.parametrize("trimmed", [False, True])
async def test_adopted_at_the_head_and_in_the_middle(
    rig: Rig, brokers: Brokers, method: OffloadMethod, *, trimmed: bool
) -> None:
    """Ledgers of a broker before, between and after ours become part of one map, also those that only the tier has."""
    rig.policy = RollPolicy(segment_bytes_max=1_000_000, segment_age_max_s=0.05, method=method, threshold_bytes=0)
    contents = await brokers.write([5, 6, 7, 8, 3])
    a, b, c, d, e = await ids(brokers)
    for ledger_id, content in ((a, contents[0]), (c, contents[2])):
        await brokers.offload(ledger_id, content)
        if trimmed:
            await brokers.trim(ledger_id)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, Position(d, 7))
        if method is OffloadMethod.STREAMING:
            await until_offloaded(topic, Position(e, 2))
    found = await committed(rig)
    assert shape(found)[:3] == [(a, a, True), (b, b, False), (c, c, True)]
    assert found.losses == ()
    assert {ledger_id: end.entries for ledger_id, end in found.ends.items()}[c] == 7
    adopted = found.segments[2]
    assert adopted.keys == brokers.offloads[c].keys
    assert (adopted.driver, adopted.bucket, adopted.entries) == ("aws-s3", "b", 7)
    stored = [info.key async for info in rig.store.list()]
    assert not [key for key in stored if key.startswith(str(adopted.segment_id)) and key.endswith("manifest")]


@pytest.mark.parametrize("daemon_bytes_max", [0, 1 << 30])
async def test_before_history_is_planned(rig: Rig, brokers: Brokers, daemon_bytes_max: int) -> None:
    """Ledgers that only the tier has are in no list of what can be read: a plan of history begins behind them."""
    rig.policy = replace(rig.policy, history_order=HistoryOrder.ALONGSIDE)
    rig.history_bytes_max = daemon_bytes_max
    contents = await brokers.write([5, 6, 7, 2])
    a, b, c, d = await ids(brokers)
    for ledger_id, content in ((a, contents[0]), (b, contents[1])):
        await brokers.offload(ledger_id, content)
    await brokers.trim(a)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, Position(d, 1))
        await until(lambda: topic.map.unfinished is None or not daemon_bytes_max)
    found = await committed(rig)
    assert shape(found)[:2] == [(a, a, True), (b, b, True)]
    assert found.losses == ()
    assert found.history is not None
    assert (found.history.first, found.history.boundary, found.history.entries) == (c, d, 7)
    assert sum(one.entries for one in found.segments) == (20 if daemon_bytes_max else 13)
    assert left_of(found).entries == (0 if daemon_bytes_max else 7)


async def test_history_with_a_ledger_that_could_not_be_adopted_is_not_planned(rig: Rig, brokers: Brokers) -> None:
    """It is in no list of what can be read: the topic stops before it, as without an order, and skips nothing."""
    rig.policy = replace(rig.policy, history_order=HistoryOrder.ALONGSIDE)
    contents = await brokers.write([5, 6, 7, 2])
    a, b, _, _ = await ids(brokers)
    await brokers.offload(a, contents[0])
    theirs = await brokers.offload(b, contents[1])
    await brokers.trim(a)
    await brokers.trim(b)
    await rig.store.put(theirs.keys.index, b"damaged")
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.offloaded == Position(a, 4) and topic.failure_tracker.error is not None)
        assert topic.map.history is None
        assert shape(topic.map) == [(a, a, True)]


async def test_context_of_the_first_releases(rig: Rig, brokers: Brokers) -> None:
    """It names neither driver nor bucket, which were the broker's own settings; the objects are looked for in ours."""
    contents = await brokers.write([5, 2])
    a, b = await ids(brokers)
    theirs = await brokers.offload(a, contents[0])
    theirs.driver, theirs.bucket = "", ""
    async with rig.engine() as engine:
        await until_offloaded(await enabled(engine), Position(b, 1))
    found = await committed(rig)
    assert shape(found) == [(a, a, True), (b, b, False)]
    assert found.segments[0].driver == "aws-s3"


@pytest.mark.parametrize("driver", ["google-cloud-storage", "azureblob"])
@pytest.mark.parametrize("named", [True, False])
async def test_ledgers_of_a_broker_on_another_cloud(
    rig: Rig, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, driver: str, *, named: bool
) -> None:
    """Pulsar's drivers for Google and Azure write the same objects: they are adopted from a store of that kind."""
    monkeypatch.setattr("tests.unit.rigs.rig.Place", lambda **of: Place(driver={**of["driver"], "driver": driver}))
    contents = await brokers.write([5, 2])
    a, b = await ids(brokers)
    theirs = await brokers.offload(a, contents[0])
    theirs.driver, theirs.bucket = (driver, theirs.bucket) if named else ("", "")
    async with rig.engine() as engine:
        await until_offloaded(await enabled(engine), Position(b, 1))
    found = await committed(rig)
    assert shape(found) == [(a, a, True), (b, b, False)]
    assert found.segments[0].driver == driver


def two_services(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Buckets:
    """Give a rig a further place in a container of Azure's; returns the buckets of both."""

    def place(driver: dict[str, str]) -> Place:
        return Place(driver={**driver, "driver": "azureblob" if driver["bucket"] == "archive" else "s3"})

    monkeypatch.setattr("tests.unit.rigs.rig.Place", place)
    rig.places = (("b", "seg/"), ("archive", "old/"))
    rig.objects = made = Buckets(rig.clock, "b", "archive")
    return made


@pytest.mark.parametrize("first", ["aws-s3", "S3", "aliyun-oss", "azureblob"])
async def test_a_broker_that_changed_its_driver(
    rig: Rig, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Its ledgers lie in two services, and each is adopted from the one that its driver wrote to, in either order."""
    services = two_services(rig, monkeypatch)
    contents = await brokers.write([5, 6, 2])
    a, b, c = await ids(brokers)
    buckets = {"aws-s3": "b", "S3": "b", "aliyun-oss": "b", "azureblob": "archive"}
    drivers = [first, "aws-s3" if first == "azureblob" else "azureblob"]
    for ledger_id, content, driver in zip((a, b), contents, drivers, strict=False):
        theirs = await brokers.offload(ledger_id, content, store=False)
        theirs.driver, theirs.bucket = driver, buckets[driver]
        await theirs.put(services.at(theirs.bucket))
        await brokers.trim(ledger_id)
    async with rig.engine() as engine:
        await until_offloaded(await enabled(engine), Position(c, 1))
    found = await committed(rig)
    assert shape(found) == [(a, a, True), (b, b, True), (c, c, False)]
    assert [(one.driver, one.bucket) for one in found.segments[:2]] == [(one, buckets[one]) for one in drivers]


@pytest.mark.parametrize(("driver", "bucket"), [("azureblob", "b"), ("aws-s3", "archive"), ("aws-s3", "other")])
async def test_the_same_name_in_another_service(
    rig: Rig, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, driver: str, bucket: str
) -> None:
    """A container of Azure's is no bucket of S3 with its name: nothing is lost, and the refusal names both services."""
    two_services(rig, monkeypatch)
    contents = await brokers.write([5, 2])
    a, _ = await ids(brokers)
    theirs = await brokers.offload(a, contents[0], store=False)
    theirs.driver, theirs.bucket = driver, bucket
    await brokers.trim(a)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.failure_tracker.stalled is not None)
        stalled = topic.failure_tracker.stalled
        assert stalled is not None
        said = f"by driver '{driver}' into bucket '{bucket}', not into 'archive' (azureblob) or 'b' (s3)"
        assert said in str(stalled.error)
    assert (await committed(rig)).losses == ()


@pytest.mark.parametrize("begun", [False, True])
async def test_a_container_that_is_gone_is_no_loss(
    rig: Rig, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    """It may come back: the topic waits before its ledger, or in it, and goes on then; no entry is called lost."""
    two_services(rig, monkeypatch)
    rig.objects = services = Buckets(rig.clock, "b")
    content = payloads(15)
    await brokers.ledgers.append(TOPIC, content[:10])
    (a,) = await ids(brokers)
    if begun:
        async with rig.engine() as engine:
            await until_offloaded(await enabled(engine), Position(a, 9))
    await brokers.ledgers.append(TOPIC, content[10:])
    await brokers.ledgers.roll(TOPIC)
    await brokers.ledgers.append(TOPIC, payloads(3, seed=9))
    theirs = await brokers.offload(a, content, store=False)
    theirs.driver, theirs.bucket = "azureblob", "archive"
    await theirs.put(archive := MemoryStore(rig.clock))
    await brokers.trim(a)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.failure_tracker.stalled is not None)
        assert (await committed(rig)).losses == ()
        services.add("archive", archive)
        await until_offloaded(topic, Position(a + 1, 2))
    found = await committed(rig)
    assert found.losses == ()
    assert found.segments[0].foreign is not begun
    assert sum(one.entries for one in found.segments) == 18


async def test_not_twice_after_a_restart(rig: Rig, brokers: Brokers) -> None:
    """The next owner finds what was adopted in the map and goes on behind it."""
    contents = await brokers.write([5, 4])
    a, b = await ids(brokers)
    await brokers.offload(a, contents[0])
    for _ in range(2):
        async with rig.engine() as engine:
            topic = await enabled(engine)
            await until_offloaded(topic, Position(b, 3))
    assert shape(await committed(rig)) == [(a, a, True), (b, b, False)]


async def test_while_a_segment_is_open(rig: Rig, brokers: Brokers) -> None:
    """A broker offloads the next ledger while ours is open: ours ends with its ledger, and theirs follows."""
    rig.policy = RollPolicy(segment_bytes_max=1_000_000, segment_age_max_s=3600.0)
    first = payloads(5)
    await brokers.ledgers.append(TOPIC, first)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until(lambda: topic.progress is not None and topic.progress.entries == 5)
        await brokers.ledgers.roll(TOPIC)
        second = payloads(6, seed=1)
        (a,) = await ids(brokers)
        await brokers.offload(a + 1, second)
        await brokers.ledgers.append(TOPIC, second)
        await brokers.ledgers.roll(TOPIC)
        await brokers.ledgers.append(TOPIC, payloads(2, seed=2))
        await until_offloaded(topic, Position(a + 1, 5))
    assert shape(await committed(rig))[:2] == [(a, a, False), (a + 1, a + 1, True)]


class Crashed(Exception):
    """The daemon is gone at once."""


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("count", [5, 600])
async def test_attempt_of_a_crashed_owner(rig: Rig, brokers: Brokers, count: int, *, trimmed: bool) -> None:
    """A segment was begun with the ledger, with or without parts: whoever goes on has every entry once."""
    rig.policy = RollPolicy(segment_bytes_max=1_000_000, segment_age_max_s=3600.0)
    content = payloads(count)
    await brokers.ledgers.append(TOPIC, content)

    async def crash() -> None:
        async with rig.engine() as engine:
            topic = await enabled(engine)
            await until(lambda: topic.progress is not None and topic.progress.entries == count)
            await rig.clock.sleep(0.1)
            raise Crashed

    with pytest.raises(ExceptionGroup):
        await crash()
    await brokers.ledgers.roll(TOPIC)
    await brokers.ledgers.append(TOPIC, payloads(3, seed=9))
    a, b = await ids(brokers)
    await brokers.offload(a, content)
    if trimmed:
        await brokers.trim(a)
    rig.policy = RollPolicy(segment_bytes_max=1_000_000, segment_age_max_s=0.05)
    async with rig.engine() as engine:
        await until_offloaded(await enabled(engine), Position(b, 2))
    found = await committed(rig)
    assert found.losses == ()
    assert found.segments[0].begin == Position(a, 0)
    assert sum(one.entries for one in found.segments) == count + 3


async def test_rest_of_a_ledger_from_the_brokers_copy(rig: Rig, brokers: Brokers) -> None:
    """What was offloaded in part before the broker deleted it goes on from its copy: nothing of it is lost."""
    rig.policy = RollPolicy(segment_bytes_max=1_000_000, segment_age_max_s=0.05)
    content = payloads(40)
    await brokers.ledgers.append(TOPIC, content[:10])
    async with rig.engine() as engine:
        topic = await enabled(engine)
        (a,) = await ids(brokers)
        await until_offloaded(topic, Position(a, 9))
    await brokers.ledgers.append(TOPIC, content[10:])
    await brokers.ledgers.roll(TOPIC)
    await brokers.ledgers.append(TOPIC, payloads(3, seed=9))
    await brokers.offload(a, content)
    await brokers.trim(a)
    async with rig.engine() as engine:
        await until_offloaded(await enabled(engine), Position(a + 1, 2))
    found = await committed(rig)
    assert found.losses == ()
    assert not any(one.foreign for one in found.segments)
    assert [one for position, one in await rig.committed() if position.ledger_id == a] == content


async def test_what_follows_a_ledger_that_was_taken_whole_is_what_the_list_says(rig: Rig, brokers: Brokers) -> None:
    """An empty ledger that a broker's crash left behind is gone from the list: nothing was lost with it."""
    content = payloads(10)
    await brokers.ledgers.append(TOPIC, content)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        (a,) = await ids(brokers)
        await until_offloaded(topic, Position(a, 9))
    await brokers.ledgers.roll(TOPIC)
    await brokers.ledgers.append(TOPIC, payloads(3, seed=9))
    await brokers.offload(a, content)
    await brokers.trim(a)
    async with rig.engine() as engine:
        await until_offloaded(await enabled(engine), Position(a + 1, 2))
    assert (await committed(rig)).losses == ()


@pytest.mark.parametrize("wrong", ["bucket", "driver", "version", "short", "missing", "another ledger"])
async def test_what_cannot_be_adopted_is_offloaded(rig: Rig, brokers: Brokers, wrong: str) -> None:
    """Whatever is wrong with the broker's copy, BookKeeper still has the ledger: it goes our way, nothing is lost."""
    contents = await brokers.write([5, 6, 2])
    a, b, c = await ids(brokers)
    theirs = await brokers.offload(a, contents[0], store=wrong != "missing")
    await spoil(rig, theirs, wrong)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, Position(c, 1))
    found = await committed(rig)
    assert not any(one.foreign for one in found.segments)
    assert found.losses == ()
    assert len(await rig.committed()) == 13
    assert b


async def spoil(rig: Rig, theirs: BrokerLedger, wrong: str) -> None:
    """Make a broker's copy other than it should be."""
    match wrong:
        case "bucket":
            theirs.bucket = "elsewhere"
        case "driver":
            theirs.driver = "google-cloud-storage"
        case "version":
            theirs.user_metadata = {keys.FORMAT_VERSION_KEY: "2"}
            await theirs.put(rig.store)
        case "short":
            data, _ = theirs.objects()
            metadata = (await rig.store.head(theirs.keys.data)).metadata
            await rig.store.put(theirs.keys.data, data[:-1], metadata=metadata)
        case "another ledger":
            theirs.payloads = [*theirs.payloads, b"more"]
            await theirs.put(rig.store)
            theirs.payloads = theirs.payloads[:-1]


@pytest.mark.parametrize("wrong", ["bucket", "short"])
async def test_what_only_another_place_may_have_stops_the_topic(rig: Rig, brokers: Brokers, wrong: str) -> None:
    """Nobody can say that it is lost: the topic stops before it and says why; once it is right, it is adopted."""
    contents = await brokers.write([5, 6, 2])
    a, b, c = await ids(brokers)
    theirs = await brokers.offload(b, contents[1])
    await spoil(rig, theirs, wrong)
    await brokers.trim(b)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, Position(a, 4))
        await until(lambda: topic.failure_tracker.stalled is not None)
        stalled = topic.failure_tracker.stalled
        assert stalled is not None
        assert str(b) in str(stalled.error)
        assert (await committed(rig)).losses == ()
    theirs.bucket = "b"
    await theirs.put(rig.store)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, Position(c, 1))
    assert shape(await committed(rig)) == [(a, a, False), (b, b, True), (c, c, False)]


async def test_method_none_adopts_nothing(rig: Rig, brokers: Brokers) -> None:
    """A topic that is not offloaded is left alone."""
    contents = await brokers.write([5, 2])
    await brokers.offload((await ids(brokers))[0], contents[0])
    async with rig.engine() as engine:
        await enabled(engine, TopicPolicy(enabled=True, method=OffloadMethod.NONE))
        await rig.clock.sleep(0.2)
    assert (await committed(rig)).segments == ()


async def test_writer_that_cut_a_ledger_short(rig: Rig) -> None:
    """Pulsar's writer can leave out entries and report success: the last block gives it away."""
    whole = BrokerLedger(topic=TOPIC, ledger_id=3, object_id=rig.clock.uuid(), payloads=payloads(30))
    await whole.put(rig.store)
    index, data_bytes = await looked_at(rig, whole)
    assert (index.ledger().lastEntryId, data_bytes) == (29, len(whole.objects()[0]))
    short = BrokerLedger(topic=TOPIC, ledger_id=3, object_id=rig.clock.uuid(), payloads=whole.payloads[:20])
    data, short_index = short.objects()
    blocks = decode_index(short_index, key="index").entries
    wrong_index = encode_index(len(data), metadata_of(TOPIC.managed_ledger, whole.payloads), blocks)
    await short.put(rig.store)
    await rig.store.put(short.keys.index, wrong_index, metadata=(await rig.store.head(short.keys.index)).metadata)
    short.payloads = whole.payloads
    with pytest.raises(CorruptData, match="entry 20") as said:
        await looked_at(rig, short)
    assert said.value.key == short.keys.data


async def test_each_object_is_looked_at(rig: Rig) -> None:
    """A missing object, and one of another topic by its user metadata or by BookKeeper's, are told by name."""
    one = BrokerLedger(topic=TOPIC, ledger_id=3, object_id=rig.clock.uuid(), payloads=payloads(5))
    await one.put(rig.store)
    with pytest.raises(CorruptData, match="expected a ledger of a/b"):
        await verified_index(rig.store, one.keys, managed_ledger="a/b/persistent/c", info=one.info)
    for key in (one.keys.data, one.keys.index):
        content = await rig.store.get(key)
        await rig.store.put(key, content, metadata={keys.FORMAT_VERSION_KEY: "1"})
    with pytest.raises(CorruptData, match="expected a ledger of a/b"):
        await verified_index(rig.store, one.keys, managed_ledger="a/b/persistent/c", info=one.info)
    assert (await looked_at(rig, one))[1] == len(one.objects()[0]), "older brokers name neither topic nor role"
    for key in (one.keys.data, one.keys.index):
        content = await rig.store.get(key)
        await rig.store.put(key, content, metadata={keys.FORMAT_VERSION_KEY: "2"})
        with pytest.raises(CorruptData, match="expected user metadata") as said:
            await looked_at(rig, one)
        assert said.value.key == key
        await rig.store.put(key, content, metadata={keys.FORMAT_VERSION_KEY: "1"})
    for key in (one.keys.index, one.keys.data):
        await rig.store.delete([key])
        with pytest.raises(NotFound, match=str(key)):
            await looked_at(rig, one)


async def looked_at(rig: Rig, one: BrokerLedger) -> tuple[LedgerObjectIndex, int]:
    """Verify a broker's objects against what its list says."""
    return await verified_index(rig.store, one.keys, managed_ledger=TOPIC.managed_ledger, info=one.info)


async def test_what_the_broker_deletes_leaves_the_map(rig: Rig, brokers: Brokers) -> None:
    """The tier keeps its own for ever, and a broker's ledgers as long as its list has them; no object is touched."""
    contents = await brokers.write([5, 6, 7, 2])
    a, b, _, d = await ids(brokers)
    for ledger_id, content in ((a, contents[0]), (b, contents[1])):
        await brokers.offload(ledger_id, content)
    async with rig.engine() as engine:
        await until_offloaded(await enabled(engine), Position(d, 1))
    before = {info.key async for info in rig.store.list()}
    await brokers.ledgers.delete(TOPIC, a)
    del brokers.offloads[a]
    owned = await Owned.claim(rig)
    retention = Retention(owned.context, brokers.ledgers, RetentionSettings(follow_lag_s=0.0), owned.book())
    await retention.run_once(owned.offloader, {})
    assert shape(owned.offloader.map)[0] == (b, b, True)
    assert owned.offloader.map.floor == Position(a, 4)
    assert await owned.empty_trash() == 0
    assert {info.key async for info in rig.store.list()} == before


async def test_no_grant_for_what_a_broker_deletes_itself(rig: Rig, brokers: Brokers) -> None:
    """Its own deletion lag decides: neither a grant nor an alarm over a manifest that was never written."""
    contents = await brokers.write([5, 6, 2])
    a, b, c = await ids(brokers)
    await brokers.offload(a, contents[0])
    async with rig.engine() as engine:
        await until_offloaded(await enabled(engine), Position(c, 1))
    owned = await Owned.claim(rig)
    grants = Grants(owned.context, None, GrantSettings(readback=False, interval_s=1.0), owned.book(), daemon_id="one")
    await grants.run_once(owned.offloader, {})
    known = await grant_records.load_all(owned.context.metadata, TOPIC, {})
    assert set(known) == {b}
    with pytest.raises(Unsound, match="offloaded by a broker"):
        await CopyChecker(owned.context, readback=False).check(owned.offloader.map, owned.offloader.map.segments[0], a)


@pytest.mark.parametrize("made", [False, True])
async def test_a_topic_without_ledgers_is_taken_up(rig: Rig, brokers: Brokers, *, made: bool) -> None:
    """One that does not exist yet, and one that nobody has written to: there is nothing to adopt, and no error."""
    if made:
        await brokers.ledgers.create(TOPIC)
    async with rig.engine() as engine:
        topic = await enabled(engine)
        await brokers.write([3])
        await until_offloaded(topic, Position(0, 2))
