"""Verifying the bucket: what is sound stays quiet, every other thing is found, named, and told what to do about."""

from __future__ import annotations

import re
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import BucketMissing, Denied, NotFound, Transient
from offloaderd.core.limits import TokenBucket
from offloaderd.core.model import LedgerEnd, Loss, Position
from offloaderd.format import manifest_bytes
from offloaderd.format.pulsar.entry_time import Survey
from offloaderd.objects import keys
from offloaderd.objects.retrying import RetryingReader
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.upkeep.flaws import Flaw, Kind, Level
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify import cluster as verify
from offloaderd.upkeep.verify.cluster import Report, Verifier, Wish
from tests.unit.format import builders
from tests.unit.format.builders import Run
from tests.unit.read.build import FastClock
from tests.unit.upkeep.site import (
    BUCKET,
    CLUSTER,
    PREFIX,
    TOPIC,
    Ground,
    all_keys,
    data_key,
    index_key,
    manifest_key,
    runs,
    segment_id,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.objects.port import ObjectReader

OTHER = replace(TOPIC, local="other")
SITE = Site(cluster=CLUSTER, bucket=BUCKET, prefix=PREFIX)


@pytest.fixture
async def ground() -> Ground:
    """A site with two topics; the first has three segments over three ledgers, of several blocks, and a loss."""
    site = Ground()
    for topic in (TOPIC, OTHER):
        await site.enable(topic)
    await site.commit(await site.store(1, [*runs(1, 0, 4), *runs(1, 4, 6)]))
    await site.commit(
        await site.store(2, [*runs(1, 10, 5), *runs(3, 0, 2), *runs(3, 2, 2)], ends=((1, LedgerEnd(15, 3)),))
    )
    loss = Loss(Position(3, 3), Position(7, 0), 5, 99)
    await site.metadata.transact((await site.map()).with_loss(loss)[0])
    await site.commit(await site.store(3, runs(7, 0, 4), losses=(loss,), ends=((3, LedgerEnd(4, 4)),)))
    await site.commit(await site.store(4, runs(20, 0, 3), topic=OTHER), OTHER)
    return site


async def verified(
    ground: Ground,
    *,
    level: Level = Level.FULL,
    against_map: bool = False,
    objects: ObjectReader | None = None,
    wish: Wish | None = None,
) -> list[Report]:
    """Verify everything."""
    clock = FastClock()
    store = objects or ground.objects
    metadata = ground.metadata if against_map else None
    verifier = Verifier(store, [SITE], RetryingReader(store, clock=clock), clock=clock, metadata=metadata)
    async with aclosing(verifier.run(wish or Wish(level=level))) as reports:
        return [report async for report in reports]


def kinds(reports: Sequence[Report]) -> list[tuple[str, str]]:
    """Return kind and key of every flaw."""
    return sorted((flaw.kind.value, flaw.key) for report in reports for flaw in report.flaws)


async def rewrite(ground: Ground, key: str, data: bytes) -> None:
    """Put other bytes in an object's place, its labels kept."""
    info = await ground.objects.head(key)
    await ground.objects.put(key, data, metadata=info.metadata)


async def flip(ground: Ground, key: str, at: int, bit: int = 1) -> None:
    """Flip a bit of an object."""
    data = bytearray(await ground.objects.get(key))
    data[at] ^= bit
    await rewrite(ground, key, bytes(data))


@pytest.mark.parametrize("against_map", [False, True])
@pytest.mark.parametrize("level", list(Level))
async def test_a_sound_bucket_has_no_flaw(ground: Ground, level: Level, against_map: bool) -> None:
    """Every topic is reported, in order, with what it holds; the higher the level the more is read."""
    reports = await verified(ground, level=level, against_map=against_map)
    assert [(str(report.topic), report.segments, report.entries) for report in reports] == [
        (str(TOPIC), 3, 23),
        (str(OTHER), 1, 3),
    ]
    assert kinds(reports) == []
    data_bytes = sum([(await ground.objects.head(data_key(number))).size_bytes for number in (1, 2, 3)])
    if level is Level.METADATA:
        assert reports[0].read_bytes == 0
    elif level is Level.HEADERS:
        assert 6 * 140 < reports[0].read_bytes < data_bytes + 3000
    else:
        assert reports[0].read_bytes > data_bytes


async def test_every_byte_of_every_object_counts(ground: Ground) -> None:
    """A bit flipped anywhere in any of the three objects is found, at its key and byte, by the level it needs."""
    for key in all_keys(2):
        data = await ground.objects.get(key)
        for at in range(len(data)):
            await flip(ground, key, at, 1 << at % 8)
            reports = await verified(ground)
            found = [flaw for report in reports for flaw in report.flaws if flaw.is_problem]
            assert found, f"byte {at} of {key}"
            assert all(flaw.key == key for flaw in found if flaw.kind is not Kind.GAP), f"byte {at} of {key}"
            assert all(flaw.what_to_do for flaw in found)
            await rewrite(ground, key, data)
    assert kinds(await verified(ground)) == []


async def test_a_damaged_block_is_named_with_its_entries(ground: Ground) -> None:
    """Which block, what was expected, and which entries it cost; the sound blocks beside it are not blamed."""
    await flip(ground, data_key(2), 140)
    await flip(ground, data_key(2), 500)
    flaws = [flaw for report in await verified(ground) for flaw in report.flaws]
    assert [(flaw.kind, flaw.offset, flaw.entries) for flaw in flaws] == [
        (Kind.BLOCK, 0, "1:10 to 1:14"),
        (Kind.BLOCK, 374, "3:2 to 3:3"),
    ]
    assert flaws[0].expected.startswith("a block with checksum")
    assert (flaws[0].topic, flaws[0].segment_id) == (TOPIC, segment_id(2))


async def test_a_block_header_is_found_without_reading_the_block(ground: Ground) -> None:
    """Headers is enough for what lies at the begin of a block; a payload needs full."""
    await flip(ground, data_key(1), 25)
    assert kinds(await verified(ground, level=Level.METADATA)) == []
    assert kinds(await verified(ground, level=Level.HEADERS)) == [("header", data_key(1))]
    await flip(ground, data_key(1), 25)
    await flip(ground, data_key(1), 150)
    assert kinds(await verified(ground, level=Level.HEADERS)) == []
    assert kinds(await verified(ground, level=Level.FULL)) == [("block", data_key(1))]


async def test_a_swapped_object_is_found_by_its_header(ground: Ground) -> None:
    """Data of the same length under another segment's key: sizes agree, the headers do not."""
    one, two = await ground.store(8, runs(20, 3, 3), topic=OTHER), await ground.store(9, runs(20, 6, 3), topic=OTHER)
    assert one.data_bytes == two.data_bytes
    data = await ground.objects.get(data_key(8)), await ground.objects.get(data_key(9))
    await rewrite(ground, data_key(8), data[1])
    await rewrite(ground, data_key(9), data[0])
    assert kinds(await verified(ground, level=Level.METADATA)) == []
    expected = [("header", data_key(8)), ("header", data_key(9))]
    assert kinds(await verified(ground, level=Level.HEADERS)) == expected
    assert kinds(await verified(ground)) == [("block", data_key(8)), ("block", data_key(9))]


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_whole_segment_under_another_key_is_found(ground: Ground, number: int) -> None:
    """All three objects of another segment: each is sound in itself, and none is what the key says."""
    for make in (data_key, index_key, manifest_key):
        await rewrite(ground, make(number), await ground.objects.get(make(4)))
    assert ("identity", manifest_key(number)) in kinds(await verified(ground))


async def test_an_object_that_is_cut_short_is_told_once(ground: Ground) -> None:
    """By its size, without a word about each block that is gone."""
    data = await ground.objects.get(data_key(2))
    await rewrite(ground, data_key(2), data[:200])
    reports = await verified(ground)
    assert kinds(reports) == [("size", data_key(2))]
    flaw = reports[0].flaws[0]
    assert (flaw.offset, flaw.expected, flaw.found) == (200, f"{len(data)} bytes", "200 bytes")


@pytest.mark.parametrize("lost", [data_key, index_key, manifest_key])
@pytest.mark.parametrize("against_map", [False, True])
async def test_a_missing_object_is_found(ground: Ground, lost: object, against_map: bool) -> None:
    """Whichever of the three; with the map it is told of the topic that misses it."""
    key = lost(2)  # type: ignore[operator]
    await ground.objects.delete([key])
    reports = await verified(ground, against_map=against_map)
    assert ("missing", key) in kinds(reports)
    if against_map:
        assert [report.problems for report in reports if report.topic == TOPIC] == [1 + (lost is manifest_key)]


async def test_a_segment_that_is_gone_leaves_a_gap(ground: Ground) -> None:
    """Without the map its neighbours tell which entries are missing; with it each of its objects is named."""
    await ground.objects.delete(all_keys(2))
    (flaw,) = [flaw for report in await verified(ground) for flaw in report.flaws if flaw.is_problem]
    assert flaw.kind is Kind.GAP
    assert "3:0..3:3 between 1:9 and 7:0" in flaw.found
    found = kinds(await verified(ground, against_map=True))
    assert [key for kind, key in found if kind == "missing"] == sorted(all_keys(2))


async def test_what_overlaps_is_a_problem_unless_the_map_knows_which_counts(ground: Ground) -> None:
    """The bucket alone cannot tell which of two segments was committed; the map can."""
    await ground.store(9, runs(7, 0, 4))
    reports = await verified(ground)
    assert [kind for kind, _ in kinds(reports)] == ["overlap"]
    assert [flaw.segment_id for report in reports for flaw in report.flaws] in ([segment_id(3)], [segment_id(9)])
    assert kinds(await verified(ground, against_map=True)) == [("unreferenced", data_key(9))]


async def test_what_was_never_finished_is_no_problem(ground: Ground) -> None:
    """Data or index alone are leftovers of an attempt; both without a manifest are a segment that lost it."""
    for number in (8, 9):
        await ground.store(number, runs(7, 4, 2))
    await ground.objects.delete([index_key(8), manifest_key(8), data_key(9), manifest_key(9)])
    reports = await verified(ground)
    assert kinds(reports) == [("orphan", data_key(8)), ("orphan", index_key(9))]
    assert not any(report.problems for report in reports)


async def test_others_are_left_alone(ground: Ground) -> None:
    """A segment of another cluster, and keys that are none of ours, are noted at most."""
    await ground.store(9, runs(7, 4, 2), cluster="elsewhere")
    await ground.objects.put(f"{PREFIX}notes.txt", b"x")
    reports = await verified(ground)
    assert kinds(reports) == [("foreign", manifest_key(9))]
    assert reports[-1].topic is None


async def test_labels_that_pulsar_needs_are_asked_for(ground: Ground) -> None:
    """An object that was copied without its user metadata reads well here, and not in Pulsar."""
    await ground.objects.put(data_key(1), await ground.objects.get(data_key(1)))
    reports = await verified(ground)
    assert kinds(reports) == [("labels", data_key(1))]
    assert keys.FORMAT_VERSION_KEY in reports[0].flaws[0].expected


async def test_a_manifest_that_differs_from_the_map_is_found(ground: Ground) -> None:
    """Sound in itself, under the right key, and not what was committed."""
    described = manifest_bytes.decode(await ground.objects.get(manifest_key(3)), key="k")
    built = builders.build_segment([Run(7, 0, [b"7:0", b"7:1", b"7:2"])])
    changed = replace(
        described,
        ledgers=(replace(described.ledgers[0], last_entry_id=2, payload_bytes=9, ledger_entries=3),),
        blocks=built.manifest.blocks,
        data_bytes=len(built.data),
        index_bytes=len(built.index),
        index_crc32c=built.manifest.index_crc32c,
    )
    await rewrite(ground, data_key(3), built.data)
    await rewrite(ground, index_key(3), built.index)
    await rewrite(ground, manifest_key(3), manifest_bytes.encode(changed))
    assert kinds(await verified(ground)) == []
    assert kinds(await verified(ground, against_map=True)) == [("map", manifest_key(3))] * 2


async def test_the_sums_of_a_ledger_have_to_be_right(ground: Ground) -> None:
    """A manifest that says other payload bytes than its blocks hold would make sizes wrong for ever."""
    described = manifest_bytes.decode(await ground.objects.get(manifest_key(3)), key="k")
    wrong = replace(described, ledgers=(replace(described.ledgers[0], payload_bytes=5),))
    await rewrite(ground, manifest_key(3), manifest_bytes.encode(wrong))
    assert kinds(await verified(ground)) == [("manifest", manifest_key(3))]


@pytest.mark.parametrize(
    "change",
    [
        {"survey": Survey(5, 6)},
        {"survey": Survey(5, 6, 0, 7)},
        {"survey": Survey(5, 5, 2), "first_publish_time": 5},
        {"survey": None, "first_index": 7},
        {"survey": None, "last_broker_timestamp": 7},
    ],
)
async def test_other_times_than_the_entries_have_are_found(ground: Ground, change: dict[str, object]) -> None:
    """What seeks go by is compared with the entries; a manifest of an older version may leave it out."""
    described = manifest_bytes.decode(await ground.objects.get(manifest_key(3)), key="k")
    first = described.blocks[0]
    silent = replace(described, blocks=(replace(first, survey=None), *described.blocks[1:]))
    await rewrite(ground, manifest_key(3), manifest_bytes.encode(silent))
    assert kinds(await verified(ground)) == []
    wrong = replace(described, blocks=(replace(first, **change), *described.blocks[1:]))  # type: ignore[arg-type]
    await rewrite(ground, manifest_key(3), manifest_bytes.encode(wrong))
    reports = await verified(ground)
    assert kinds(reports) == [("times", data_key(3))]


async def chunked(ground: Ground, **change: object) -> list[Flaw]:
    """Return what is wrong with a segment with chunks, of whose one block the manifest says something else."""
    built = builders.chunked_segment()
    (block,) = built.manifest.blocks
    described = replace(
        built.manifest,
        segment_id=segment_id(9),
        managed_ledger=OTHER.managed_ledger,
        blocks=(replace(block, **change),),  # type: ignore[arg-type]
    )
    labels = keys.segment_metadata(CLUSTER)
    for key, data in (
        (data_key(9), built.data),
        (index_key(9), built.index),
        (manifest_key(9), manifest_bytes.encode(described)),
    ):
        await ground.objects.put(key, data, metadata=labels)
    return [flaw for report in await verified(ground) for flaw in report.flaws if flaw.is_problem]


@pytest.mark.parametrize(
    ("change", "offset", "text"),
    [
        (
            {"chunks": builders.chunked_segment().manifest.blocks[0].chunks[:20] + bytes(4)},
            320,
            "a chunk with checksum",
        ),
        ({"sparse": ()}, 0, r"first entry of a chunk \(3, 284\), found none"),
        ({"sparse": ((2, 256),)}, 0, r"first entry of a chunk \(3, 284\), found \(2, 256\)"),
    ],
)
async def test_other_chunks_than_the_block_has_are_found(
    ground: Ground, change: dict[str, object], offset: int, text: str
) -> None:
    """What single entries are read by is compared with the block, which is sound for all that."""
    assert await chunked(ground) == []
    (flaw,) = await chunked(ground, **change)
    assert (flaw.kind, flaw.key, flaw.offset) == (Kind.CHUNKS, data_key(9), offset)
    assert flaw.entries == "7:41 to 7:45"
    assert re.search(text, str(flaw))
    assert "read whole" in flaw.what_to_do


async def test_a_preamble_counts(ground: Ground) -> None:
    """No block's checksum covers it, so it is compared."""
    built = builders.build_segment(runs(20, 3, 3), preamble=True)
    described = replace(
        built.manifest, segment_id=segment_id(9), managed_ledger=OTHER.managed_ledger, ends=(), losses=()
    )
    labels = keys.segment_metadata(CLUSTER)
    for key, data in ((data_key(9), built.data), (index_key(9), built.index)):
        await ground.objects.put(key, data, metadata=labels)
    await ground.objects.put(manifest_key(9), manifest_bytes.encode(described), metadata=labels)
    assert kinds(await verified(ground)) == []
    await flip(ground, data_key(9), 2)
    assert kinds(await verified(ground)) == [("block", data_key(9))]
    assert kinds(await verified(ground, level=Level.HEADERS)) == [("block", data_key(9))]


async def test_some_topics_or_those_that_are_left(ground: Ground) -> None:
    """A verification that was broken off goes on behind the last topic it told of."""
    assert [report.topic for report in await verified(ground, wish=Wish(topics=(OTHER,)))] == [OTHER]
    assert [report.topic for report in await verified(ground, wish=Wish(after=TOPIC))] == [OTHER]
    assert await verified(ground, wish=Wish(after=OTHER)) == []


async def test_what_cannot_be_reached_is_no_flaw_and_no_success(ground: Ground) -> None:
    """One object that does not answer leaves its segment unlooked at, and the others are verified."""
    faults = Faults()
    faults.fail("get", Denied("no right", hint="give it"), times=1)
    reports = await verified(ground, objects=FaultyStore(ground.objects, faults))
    (flaw,) = [flaw for report in reports for flaw in report.flaws if flaw.kind is Kind.UNREACHABLE]
    assert (flaw.found, flaw.what_to_do, flaw.is_problem) == ("no right", "give it", False)
    assert sum(report.unreachable for report in reports) == 1


async def test_transient_errors_are_tried_again(ground: Ground) -> None:
    """A store that stumbles now and then is no finding."""
    faults = Faults()
    faults.fail("get", Transient("busy"), times=3)
    faults.fail("head", Transient("busy"), times=3)
    assert kinds(await verified(ground, objects=FaultyStore(ground.objects, faults))) == []


async def test_a_bucket_that_is_away_ends_it(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a thousand time-outs; and a bucket that does not exist holds no missing objects."""
    monkeypatch.setattr(verify, "UNREACHABLE_MAX", 2)
    faults = Faults()
    faults.fail("get", Denied("no right"), times=-1)
    with pytest.raises(Transient, match="gave up after 2"):
        await verified(ground, objects=FaultyStore(ground.objects, faults))
    faults = Faults()
    faults.fail("get", BucketMissing("no bucket"), times=-1)
    with pytest.raises(Transient, match="no bucket"):
        await verified(ground, objects=FaultyStore(ground.objects, faults))


async def test_what_is_deleted_meanwhile_is_no_flaw(ground: Ground) -> None:
    """A segment whose data goes after the listing, and its other objects a moment later, was deleted by rule."""

    class Deleting(FastClock):
        """Pauses long enough for a deletion to end."""

        async def sleep(self, seconds: float) -> None:
            """Let the rest of the segment go."""
            await ground.objects.delete(all_keys(4))
            await super().sleep(seconds)

    await ground.objects.delete([data_key(4)])
    clock = Deleting()
    verifier = Verifier(ground.objects, [SITE], RetryingReader(ground.objects, clock=clock), clock=clock)
    reports = [report async for report in verifier.run(Wish())]
    assert [report.topic for report in reports] == [TOPIC]
    assert kinds(reports) == []


async def test_an_object_that_is_not_there_when_it_is_read_is_missing(ground: Ground) -> None:
    """Its segment has its other objects: nobody has deleted it by rule, and a reader will not find it."""

    def lost(operation: str, key: str, when: str) -> Exception | None:
        gone = (operation, key, when) == ("get", data_key(4), "before")
        return NotFound("no such object") if gone else None

    assert kinds(await verified(ground, objects=FaultyStore(ground.objects, lost))) == [("missing", data_key(4))]


async def test_the_rate_is_kept() -> None:
    """Bytes are paid for by waiting, whatever their portions; idle time earns nothing."""
    clock = FastClock()
    times: list[float] = []

    async def sleep(seconds: float) -> None:
        times.append(seconds)
        now[0] += seconds

    now = [100.0]
    clock.sleep = sleep  # type: ignore[method-assign]
    clock.monotonic = lambda: now[0]  # type: ignore[method-assign]
    throttle = TokenBucket(1000, clock, burst_s=0)
    for count in (500, 4000, 1):
        await throttle.ready()
        throttle.take(count)
    assert times == [0.5, 4.0]
    now[0] += 1000
    await throttle.ready()
    throttle.take(1000)
    await throttle.ready()
    assert times == [0.5, 4.0, 1.0]
