"""The cost model against what a real segment asks of the bucket and of ZooKeeper."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import EntryBatch, Position
from offloaderd.metadata import paths
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.retrying import RetryingReader
from offloaderd.objects.stored_as import CLASSES
from offloaderd.policy.cost import (
    METADATA_WRITES,
    METADATA_WRITES_WITH_UPLOAD,
    MONTH_S,
    SEGMENT_REQUESTS,
    Cutting,
    Load,
    Requests,
    class_costs,
    copy_costs,
    estimate,
    parts_of,
    per_scrub,
    per_segment,
)
from offloaderd.policy.prices import SOURCES, TABLE
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.settings import Prices
from offloaderd.segment.builder import SegmentLayout
from offloaderd.testing.faults import Faults, FaultyMetadata, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.upkeep.flaws import Level
from offloaderd.upkeep.verify.cluster import check_committed
from tests.unit.rigs.lives import until_recorded
from tests.unit.rigs.rig import TOPIC, Rig, enabled, until, until_offloaded
from tests.unit.upkeep.test_mirror import AWAY, HOME, breaking, buckets_of, lag, mirroring, offloaded, rig_of
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offloaderd.metadata.records.attempt import Attempt

LAYOUT = SegmentLayout(block_bytes=4096, part_bytes=16_384)
CUTTING = Cutting(
    segment_bytes_max=100_000, segment_age_max_s=3600.0, block_bytes=LAYOUT.block_bytes, part_bytes=LAYOUT.part_bytes
)
PRICES = Prices(put_1000=0.005, get_1000=0.0004, delete_1000=0.0, stored_gib_month=0.023)
CHARGED_AS_PUT = ("create_upload", "upload_part", "complete_upload", "put", "list", "list_uploads", "list_parts")
GIB = 1024**3


def charged(asked: Iterable[str]) -> Requests:
    """Sort the requests as a store charges them."""
    found = Counter(line.split()[0] for line in asked)
    puts = sum(count for operation, count in found.items() if operation in CHARGED_AS_PUT)
    return Requests(puts=puts, gets=found["get"] + found["head"], deletes=found["delete"])


def written_of(asked: Faults) -> list[str]:
    """Return the transactions about segments: what a daemon says of itself now and then is not theirs."""
    return [line for line in asked.asked if line.startswith("transact ") and paths.attempt(TOPIC) in line]


@pytest.mark.parametrize(
    ("entries", "entry_bytes"),
    [(1, 100), (40, 100), (1000, 100), (60, 1024), (20, 5000), (3, 30_000)],
    ids=["one entry", "one block", "many entries", "several parts", "an entry a block", "large entries"],
)
async def test_a_segment_costs_the_requests_of_the_model(entries: int, entry_bytes: int) -> None:
    """Writing one segment, and reading it again as the scrub does, takes the requests that are planned for."""
    asked, clock = Faults(), LoopClock()
    store = FaultyStore(MemoryStore(clock, part_bytes_min=1), asked)
    rig = Rig(objects=store, layout=LAYOUT, upload_bytes=1 << 20)
    async with rig.engine(push_only=True) as engine:
        topic = await enabled(engine, TopicPolicy(enabled=True, segment_bytes_max=1 << 20))
        await topic.identity.checked.wait()
        asked.asked.clear()
        topic.offer(EntryBatch(1, 0, [bytes(entry_bytes)] * entries))
        await topic.request_roll()
        await until_offloaded(topic, Position(1, entries - 1))
        wanted = per_segment(entries * entry_bytes, entry_bytes, CUTTING)
        assert charged(asked.asked) == wanted._replace(deletes=0), asked.asked
    (segment,) = (await catalog.load(rig.tree.connect(), TOPIC)).segments
    asked.asked.clear()
    retrying_reader = RetryingReader(store, clock=clock)
    flaws, _ = await check_committed(retrying_reader, TOPIC, segment, Level.FULL, cluster="test", buckets={"b"})
    assert not flaws
    assert charged(asked.asked) == per_scrub(entries * entry_bytes, entry_bytes, CUTTING), asked.asked


async def test_a_copy_costs_the_requests_of_the_model() -> None:
    """In the mirror those of a segment; in the first place index and manifest, and one for each part."""
    rig = await offloaded(rig_of(), 200)
    asked, counted = {bucket: Faults() for bucket, _ in (HOME, AWAY)}, dict[str, FaultyStore]()
    for bucket, plan in asked.items():
        breaking(rig, bucket, plan)
        counted |= buckets_of(rig).broken
    buckets_of(rig).broken = counted
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    first, mirror = (asked[bucket].asked for bucket, _ in (HOME, AWAY))
    parts = sum(line.startswith("upload_part ") for line in mirror)
    assert parts > 1
    of = SEGMENT_REQUESTS["s3"]
    assert charged(mirror) == of.segment.plus(of.part.times(parts)).plus(Requests(deletes=-1)), mirror
    assert charged(first) == Requests(gets=2 + parts), first


async def test_a_segment_writes_to_the_metadata_as_often_as_the_model_says() -> None:
    """From one commit to the next, of small segments: what a quiet topic costs ZooKeeper at every age."""
    asked = Faults()
    rig = Rig(layout=LAYOUT)
    async with rig.engine(metadata=FaultyMetadata(rig.tree.connect(), asked), push_only=True) as engine:
        topic = await enabled(engine)
        for number in range(3):
            asked.asked.clear()
            topic.offer(EntryBatch(1, number, [b"x"]))
            await topic.request_roll()
            await until_offloaded(topic, Position(1, number))
        assert len(written_of(asked)) == METADATA_WRITES, asked.asked


async def test_parts_that_come_slowly_are_recorded_one_by_one() -> None:
    """The most transactions that a segment takes: each of its parts but the last has its own."""
    asked = Faults()
    rig = Rig(layout=LAYOUT)
    async with rig.engine(metadata=FaultyMetadata(rig.tree.connect(), asked), push_only=True) as engine:
        topic = await enabled(engine)
        topic.offer(EntryBatch(0, 0, [b"first"]))
        await topic.request_roll()
        await until_offloaded(topic, Position(0, 0))
        asked.asked.clear()
        for part in range(3):
            topic.offer(EntryBatch(1, 18 * part, [bytes(1024)] * 18))
            await until_recorded(rig, partial(_has_parts, part))
        topic.offer(EntryBatch(1, 54, [bytes(1024)]))
        await until_recorded(rig, partial(_has_parts, 3))
        await topic.request_roll()
        await until_offloaded(topic, Position(1, 54))
    assert parts_of(55 * 1024, 1024, CUTTING) == 4
    assert len(written_of(asked)) == METADATA_WRITES_WITH_UPLOAD + 4, asked.asked


def _has_parts(count: int, attempt: Attempt) -> bool:
    """Whether that many parts are recorded: the last that was offered waits for the entry behind it."""
    return len(attempt.parts) == count


def test_a_slow_topic_pays_by_age_and_a_fast_one_by_size() -> None:
    """What decides where a segment ends decides how many there are."""
    slow = estimate([Load(topics=1000, bytes_per_s=1024, entry_bytes=1024)], CUTTING, PRICES)
    assert slow.segments_per_hour == pytest.approx(1000 * 1024 * 3600 / 100_000)
    slower = estimate([Load(topics=1000, bytes_per_s=10, entry_bytes=10)], CUTTING, PRICES)
    assert slower.segments_per_hour == 1000
    assert slower.durable_s_max == 3600
    assert slower.requests_per_topic_hour == per_segment(36_000, 10, CUTTING).all
    assert slow.durable_s_max == pytest.approx(100_000 / 1024)


def test_an_entry_that_is_rare_is_a_segment_of_its_own() -> None:
    """A topic with less than an entry in an age makes a segment for each entry, not parts of entries."""
    rare = estimate([Load(topics=1, bytes_per_s=0.01, entry_bytes=1000)], CUTTING, PRICES)
    assert rare.segments_per_hour == pytest.approx(0.01 * 3600 / 1000)


def test_a_topic_without_entries_costs_nothing() -> None:
    """No rate, no requests, no division by it."""
    idle = estimate([Load(topics=10, bytes_per_s=0, entry_bytes=1024)], CUTTING, PRICES, scrub_interval_s=86_400)
    assert (idle.requests_month, idle.requests_per_gib, idle.requests_per_topic_hour, idle.durable_s_max) == (0,) * 4


def test_money_is_requests_times_prices() -> None:
    """By hand: one segment an hour with two parts, kept and read again once a month."""
    cutting = Cutting(segment_bytes_max=1 << 40, segment_age_max_s=3600, block_bytes=1 << 20, part_bytes=8 << 20)
    load = Load(topics=1, bytes_per_s=10 * (1 << 20) / 3600, entry_bytes=1024)
    found = estimate([load], cutting, PRICES, scrub_interval_s=MONTH_S)
    hours = MONTH_S / 3600
    assert found.segments_per_hour == pytest.approx(1)
    assert found.write == pytest.approx(Requests(puts=7, gets=3, deletes=1))
    assert found.scrub.gets == pytest.approx(2 * (4 + 3))
    assert found.requests_month == pytest.approx(hours * (7 * 0.005 + (3 + 14) * 0.0004) / 1000)
    assert found.gib_per_hour == pytest.approx(10 / 1024)
    assert found.requests_per_gib == pytest.approx((11 + 14) * 102.4)
    assert found.stored_month == pytest.approx(hours * 10 / 1024 * (1 + 12 / 1024) * 0.023)
    assert found.metadata_writes_per_s == pytest.approx((METADATA_WRITES_WITH_UPLOAD + 2) / 3600)


def test_a_class_is_charged_for_its_own_requests_alone() -> None:
    """Index, manifest and head are in the base class; in that one the sum is what the whole model says."""
    load = Load(topics=3, bytes_per_s=100.0, entry_bytes=100.0)
    takes = estimate([load], CUTTING, PRICES, scrub_interval_s=MONTH_S)
    requests, stored, reads = class_costs(takes, TABLE["aws/STANDARD"])
    assert (requests, stored) == pytest.approx((takes.requests_month, takes.stored_month))
    assert reads == 0
    rare, _, reads = class_costs(takes, TABLE["aws/STANDARD_IA"])
    assert requests < rare < 2.5 * requests
    assert reads == pytest.approx(2 * takes.stored_gib_month * 0.01)  # after the commit, and once more in a month


def test_a_mirror_costs_a_second_segment_and_the_reads_of_the_first() -> None:
    """In its own class, with what the scrub reads there; traffic is for what is copied and for those reads."""
    load = Load(topics=3, bytes_per_s=100.0, entry_bytes=100.0)
    takes = estimate([load], CUTTING, PRICES, scrub_interval_s=MONTH_S)
    row = TABLE["aws/STANDARD_IA"]
    found = copy_costs(takes, row, PRICES, 0.02)
    assert (found.requests, found.stored, found.reads) == class_costs(takes, row)
    assert found.traffic == pytest.approx(3 * takes.stored_gib_month * 0.02)  # copied, and read twice in a month
    reads = takes.segments_per_hour * (2 + parts_of(100_000, 100, CUTTING))
    assert found.first_reads == pytest.approx(reads * 0.0004 / 1000 * MONTH_S / 3600)
    dearer = copy_costs(takes, row, PRICES, 0.02, retrieval_gib=0.01)
    assert dearer.first_reads == pytest.approx(found.first_reads + takes.stored_gib_month * 0.01)


def test_every_price_has_a_source_and_a_base() -> None:
    """Classes are known to the policies as readable at once, and their base is a row of the same service."""
    for name, row in TABLE.items():
        assert name == row.name
        assert row.service in SOURCES
        assert row.storage_class in CLASSES[row.service].readable
        assert f"{row.service}/{row.base}" in TABLE
