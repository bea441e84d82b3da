"""Drills of a restore: what would come up out of a bucket, what would not, and how that is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.capture.records import Capture, Key, Kind, cursor_value
from offloaderd.core.errors import Denied, InvalidInput, NoSpace, Transient
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.daemon.settings import check
from offloaderd.drill import restore
from offloaderd.drill.restore import Counts, Found, Reading, RestoreDrill, Wish
from offloaderd.drill.restore_report import RestoreReport
from offloaderd.ledgers.pulsar.cursors import Cursor
from offloaderd.mount.captured import Captured
from offloaderd.mount.plan import AtGap
from offloaderd.objects import keys
from offloaderd.testing.faults import Faults, FaultyStore
from tests.unit.upkeep.site import CLUSTER, PREFIX, TOPIC, Ground, data_key, index_key, manifest_key, runs
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.daemon.settings import Settings

BUCKET, COPY = "offload", "copy/"
PARTITIONS = [replace(TOPIC, local=f"parts-partition-{number}") for number in range(3)]
WRITES = ("put", "delete", "create_upload", "upload_part", "complete_upload", "abort_upload")


def settings(**values: str) -> Settings:
    """Return the settings of a daemon that has the bucket of a `Ground`."""
    options = {"daemon.cluster": CLUSTER, "objects.bucket": BUCKET, "objects.prefix": PREFIX, **values}
    report = check(None, {}, options)
    assert report.settings is not None, report.mistakes
    return report.settings


class Site(Ground):
    """A bucket of some topics, that drills are run on, and that refuses every write meanwhile."""

    def __post_init__(self) -> None:
        """Let no drill write."""
        super().__post_init__()
        self.faults = Faults()
        self.given = settings()
        self.captured: Captured | None = None
        for operation in WRITES:
            self.faults.fail(operation, AssertionError(f"{operation} in a bucket that is only to be read"), times=-1)

    async def filled(self) -> Site:
        """Store three segments of a topic, and one for each partition of another one."""
        await self.store(1, [*runs(3, 0, 10), *runs(5, 0, 5)])
        await self.store(2, runs(5, 5, 5))
        await self.store(3, [*runs(5, 10, 1), *runs(8, 0, 4)])
        for number, topic in enumerate(PARTITIONS, start=11):
            await self.store(number, runs(number, 0, 2), topic=topic)
        return self

    async def drilled(self, *patterns: str, reading: Reading = Reading.ENDS, at_gap: AtGap = AtGap.REFUSE) -> Found:
        """Run a drill."""
        wish = Wish(patterns=[*map(TopicPattern.parse, patterns)], reading=reading, at_gap=at_gap)
        store = FaultyStore(self.memory, self.faults)
        return await RestoreDrill(store, self.given, wish, LoopClock(), self.progress, self.captured).run()

    def progress(self, name: str, done: int, total: int) -> None:
        """Keep the last progress."""
        self.last = name, done, total

    async def flip(self, key: str, at: int) -> None:
        """Change a byte of an object."""
        info = await self.memory.head(key)
        data = bytearray(await self.memory.get(key))
        data[at] ^= 1
        await self.memory.put(key, bytes(data), metadata=info.metadata)


def whys(found: Found) -> dict[TopicName, tuple[str, ...]]:
    """Return the reasons of the topics that would not come up."""
    return {one.topic: one.why for one in found.failed}


@pytest.mark.parametrize("reading", Reading)
async def test_a_sound_bucket_comes_up_and_is_not_written_to(reading: Reading) -> None:
    """All topics with all their entries; read is what was asked for."""
    site = await Site().filled()
    found = await site.drilled(reading=reading)
    assert (found.sound, found.failed, found.unread, found.to_do) == (True, [], [], [])
    assert (len(found.topics), found.partitioned_topics) == (4, 1)
    one = next(one for one in found.topics if one.topic == TOPIC)
    assert (one.ledgers, one.entries, one.begin, one.end) == (3, 25, Position(3, 0), Position(8, 3))
    ends = [(3, 0), (3, 9), (5, 0), (5, 4), (5, 5), (5, 9), (5, 10), (8, 0), (8, 3)]
    size = one.payload_bytes
    expected = {
        Reading.NONE: Counts(),
        Reading.ENDS: Counts(len(ends), sum(len(f"{ledger_id}:{entry_id}") for ledger_id, entry_id in ends)),
        Reading.ALL: Counts(25, size, 25),
    }
    assert one.read == expected[reading]
    size = sum(one.payload_bytes for one in found.topics)
    assert site.last == (("bytes read", size, size) if reading is Reading.ALL else ("ledgers", 6, 6))
    assert {operation.split()[0] for operation in site.faults.asked}.isdisjoint(WRITES)


async def test_patterns_choose_topics() -> None:
    """One that matches nothing is a mistake, as the name of another cluster is."""
    site = await Site().filled()
    assert [one.topic for one in (await site.drilled(str(TOPIC))).topics] == [TOPIC]
    with pytest.raises(InvalidInput):
        await site.drilled("nobody/*")
    site.given = settings(**{"daemon.cluster": "another"})
    with pytest.raises(InvalidInput, match="another"):
        await site.drilled()


async def test_a_gap_fails_the_drill_until_it_is_decided() -> None:
    """As a mount refuses such a topic; all others are tried."""
    site = await Site().filled()
    await site.memory.delete([data_key(2), index_key(2), manifest_key(2)])
    found = await site.drilled()
    assert [*whys(found)] == [TOPIC]
    assert "after 5:4 and before 5:10" in whys(found)[TOPIC][0]
    decided = await site.drilled(at_gap=AtGap.SKIP)
    assert decided.sound
    assert next(one.entries_left_out for one in decided.topics if one.topic == TOPIC) == 1


@pytest.mark.parametrize(
    ("reading", "entry", "seen"),
    [
        (Reading.ALL, b"3:4", True),
        (Reading.ENDS, b"3:9", True),
        (Reading.NONE, b"3:9", False),
    ],
)
async def test_a_damaged_block_fails_its_topic_if_it_is_read(reading: Reading, entry: bytes, *, seen: bool) -> None:
    """A byte of one entry differs from what was written."""
    site = await Site().filled()
    await site.flip(data_key(1), (await site.memory.get(data_key(1))).index(entry))
    found = await site.drilled(reading=reading)
    assert [*whys(found)] == [TOPIC] * seen
    assert all("ledger 3: corrupt data in seg/" in why[0] for why in whys(found).values())


async def test_failures_of_many_ledgers_are_counted() -> None:
    """A store that has lost everything makes no endless report."""
    site = Site()
    for number in range(1, 9):
        await site.store(number, runs(number, 0, 2))
        await site.flip(data_key(number), -1)
    ((*first, last),) = whys(await site.drilled(reading=Reading.ALL)).values()
    assert (len(first), last) == (restore.FAILURES_MAX, "and 3 more of its ledgers")


@pytest.mark.parametrize("number", [2, 3])
async def test_a_damaged_manifest_fails_the_drill(number: int) -> None:
    """Its entries are a gap in their topic, or nobody knows of which topic they are the newest ones."""
    site = await Site().filled()
    await site.flip(manifest_key(number), 60)
    found = await site.drilled()
    assert not found.sound
    assert any(manifest_key(number) in why for why in whys(found)[TOPIC])
    assert (await site.drilled(at_gap=AtGap.SKIP)).sound, "an operator has decided"


async def test_a_manifest_of_no_known_topic_fails_the_drill() -> None:
    """Its entries may be of any topic."""
    site = await Site().filled()
    await site.memory.put(manifest_key(3), b"no manifest", metadata=keys.segment_metadata(CLUSTER))
    found = await site.drilled()
    assert (found.sound, found.failed, [manifest_key(3) in text for text in found.unread]) == (False, [], [True])


async def test_damage_that_the_mirror_makes_good_is_told_and_fails_nothing() -> None:
    """A daemon reads the other copy as well."""
    site = await Site().filled()
    for number in (1, 2, 3):
        for key in (data_key(number), index_key(number), manifest_key(number)):
            copy = COPY + key.removeprefix(PREFIX)
            await site.memory.put(copy, await site.memory.get(key), metadata=keys.segment_metadata(CLUSTER))
    site.given = settings(**{"objects.places": f"{BUCKET}/{COPY}"})
    await site.flip(data_key(1), (await site.memory.get(data_key(1))).index(b"3:0"))
    found = await site.drilled(str(TOPIC))
    assert found.sound
    assert ["corrupt data in seg/" in text for text in found.topics[0].damaged] == [True]


async def test_what_the_live_bucket_replaces_meanwhile_is_tried_again() -> None:
    """A segment that went while its topic was read is in no later listing."""
    site = await Site().filled()
    await site.store(4, runs(8, 4, 2))
    drill = RestoreDrill(site.memory, site.given, Wish(), LoopClock())
    refresh, listings = drill._topics.refresh, 0

    async def refreshed(progress: Callable[[int], None] = lambda _: None) -> None:
        nonlocal listings
        await refresh(progress)
        listings += 1
        if listings == 1:
            await site.memory.delete([data_key(4), index_key(4), manifest_key(4)])

    drill._topics.refresh = refreshed  # type: ignore[method-assign] # what happens between two requests
    found = await drill.run()
    assert (listings, found.sound) == (2, True)
    assert next(one.end for one in found.topics if one.topic == TOPIC) == Position(8, 3)


async def test_a_bucket_whose_topics_go_meanwhile_is_not_sound() -> None:
    """Nothing would come up then."""
    found = Found(started_ms=1, topics=[], system_topics=0, to_do=[], unread=[], seconds={})
    assert not found.sound


async def test_subscriptions_come_up_out_of_a_capture() -> None:
    """And those that do not are told; no drill fails for them, as none of their entries is missing."""
    site = await Site().filled()
    cursor = cursor_value(Cursor(mark_delete=Position(3, 4)))
    records: dict[Key, object] = {(Kind.SUBSCRIPTION, str(TOPIC), name): cursor for name in ("billing", "__compaction")}
    site.captured = Captured(Capture(cluster=CLUSTER, deployment_id="", taken_ms=5, records=records))
    found = await site.drilled()
    one = next(one for one in found.topics if one.topic == TOPIC)
    assert (found.sound, one.subscriptions, list(one.subscriptions_left_out)) == (True, 1, ["__compaction"])
    report = RestoreReport(cluster=CLUSTER, bucket=BUCKET, wish=Wish(), found=found, captured_ms=5)
    assert "- subscriptions: 1, as the capture of 1970-01-01 00:00:00 has them\n" in report.markdown()
    assert f"## Subscriptions that would not come up\n\n- {TOPIC}: __compaction: " in report.markdown()


async def test_topics_of_pulsar_itself_fail_no_drill() -> None:
    """Most are never mounted; one that a mount takes where it is named is tried."""
    site = await Site().filled()
    await site.store(5, runs(20, 0, 2), topic=replace(TOPIC, local="t-s__transaction_pending_ack"))
    await site.store(6, runs(21, 0, 2), topic=replace(TOPIC, local="__change_events"))
    found = await site.drilled()
    assert (found.sound, found.system_topics, len(found.topics)) == (True, 1, 5)


async def test_a_list_that_no_node_holds_fails_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes of a drill have the limits of ZooKeeper's."""

    async def refused(_: object, topic: TopicName, *__: object) -> None:
        if topic == TOPIC:
            raise NoSpace("a write of 2000000 bytes is too large")

    monkeypatch.setattr("offloaderd.mount.cluster.TargetCluster.write", refused)
    found = await (await Site().filled()).drilled(str(TOPIC))
    assert whys(found) == {TOPIC: ("its list of 3 ledgers is not written: a write of 2000000 bytes is too large",)}


async def test_what_an_operator_has_to_do_besides_fails_nothing() -> None:
    """A date in a name is no partition."""
    site = Site()
    topic = replace(TOPIC, local="log-partition-20261128")
    await site.store(1, runs(3, 0, 2), topic=topic)
    found = await site.drilled()
    assert (found.sound, ["create-partitioned-topic" in one for one in found.to_do]) == (True, [True])


async def test_partitions_of_a_topic_are_tried_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many topics there are: their number is seen from all of them."""
    monkeypatch.setattr(restore, "TOPICS_AT_ONCE", 1)
    found = await (await Site().filled()).drilled()
    assert (found.sound, len(found.topics), found.to_do) == (True, 4, [])


async def test_a_store_that_does_not_answer_ends_the_drill() -> None:
    """Nothing is known then, and each read would wait."""
    site = await Site().filled()
    site.faults.fail("get_pieces", Transient("no answer"), times=-1)
    site.faults.fail("get", Transient("no answer"), times=-1)
    with pytest.raises(Transient):
        await site.drilled()


async def test_objects_that_the_store_refuses_fail_their_topics() -> None:
    """As those under a key that was withdrawn."""
    site = await Site().filled()
    refused = Denied("GET: AccessDenied")

    def plan(operation: str, key: str, when: str) -> Exception | None:
        return refused if (operation, key, when) == ("get", data_key(2), "before") else None

    found = await RestoreDrill(FaultyStore(site.memory, plan), site.given, Wish(), LoopClock()).run()
    assert whys(found) == {TOPIC: ("ledger 5: GET: AccessDenied",)}


async def test_the_report_has_figures_reasons_and_times() -> None:
    """For people and for programs."""
    site = await Site().filled()
    await site.flip(data_key(1), (await site.memory.get(data_key(1))).index(b"3:9"))
    wish = Wish(reading=Reading.ALL)
    report = RestoreReport(cluster=CLUSTER, bucket=BUCKET, wish=wish, found=await site.drilled(reading=Reading.ALL))
    document = report.document()
    figures = ("sound", "topics", "topics_failed", "partitioned_topics", "ledgers", "entries", "messages")
    assert [document[name] for name in figures] == [False, 3, 1, 1, 3, 6, 6]
    text = report.markdown()
    assert "NOT EVERYTHING WOULD COME UP" in text
    assert "- topics that would come up: 3 of 4, with those of 1 partitioned topic\n" in text
    assert f"## Topics that would not come up\n\n- {TOPIC}: ledger 3: corrupt data" in text
    sound = RestoreReport(
        cluster=CLUSTER, bucket=BUCKET, wish=Wish(), found=await site.drilled(f"{TOPIC.tenant}/{TOPIC.namespace}/parts")
    )
    assert "Every topic would come up." in sound.markdown()
    assert sound.document()["messages"] is None
