"""Direct reads: the entries of a range as the daemon would give them, out of the bucket where they are in it."""

from __future__ import annotations

import uuid
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from offloaderd.api.read import ReadService
from offloaderd.client import DaemonClient, Goal, Position, SeekKind, TimedOut
from offloaderd.core.errors import (
    BucketMissing,
    CorruptData,
    Denied,
    EntriesMissing,
    OffloaderError,
    Transient,
)
from offloaderd.core.model import EntryBatch, Gap, OffloadMethod
from offloaderd.core.read_options import ReadPriority, Tier
from offloaderd.direct import BucketReads
from offloaderd.direct.bucket import segments_of
from offloaderd.format.pulsar import broker_entry
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.protocol.v1 import common_pb2, read_pb2, read_pb2_grpc
from offloaderd.read import reader
from offloaderd.read.plan import Run
from offloaderd.read.planned import committed, plan_message
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.api.serve import listening
from tests.unit.read.build import TOPIC, Piece, flat, for_ever, make_read_rig, payloads, put_segment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from grpc import aio

    from offloaderd.core.clock import Clock
    from tests.unit.read.build import ReadRig

REAL_TIME = "gRPC"

BUCKET, DAEMON = common_pb2.TIER_OBJECTS, common_pb2.TIER_BUFFER


class Service(ReadService):
    """Counts what it is asked for."""

    reads: list[read_pb2.ReadRequest]
    plans: list[read_pb2.ReadRequest]
    breaks = 0
    """Streams that break behind their first answer."""
    older = False
    """Whether it is of a release without plans."""

    async def Read(self, request: Any, context: Any) -> Any:  # noqa: N802, ANN401
        """Serve a range."""
        self.reads.append(read_pb2.ReadRequest.FromString(request.SerializeToString()))
        async for answer in super().Read(request, context):
            yield answer
            if self.breaks:
                self.breaks -= 1
                raise Transient("it stops")

    async def PlanRead(self, request: Any, context: Any) -> Any:  # noqa: N802, ANN401
        """Plan a range."""
        if self.older:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        self.plans.append(request)
        return await super().PlanRead(request, context)


@dataclass
class Site:
    """A daemon with a topic, and a client with access to the same bucket, or to what a test makes of it."""

    rig: ReadRig
    client: DaemonClient
    service: Service
    bucket: BucketReads
    faults: Faults

    async def read(self, *, direct: bool = True, **wanted: Any) -> list[tuple[int, int, bytes]]:  # noqa: ANN401
        """Return the entries of a range."""
        answers = self.client.read("orders", direct=self.bucket if direct else None, **wanted)
        return flat([answer.batch async for answer in answers])


async def stored(rig: ReadRig, *ledgers: tuple[int, int, int]) -> None:
    """Commit a segment for each (ledger, first, last); the ledger is closed at the end of its last one."""
    for number, (ledger_id, first, last) in enumerate(ledgers, 1):
        ends = number == len(ledgers) or ledgers[number][0] != ledger_id
        piece = Piece(ledger_id, first, payloads(ledger_id, first, last), last + 1 if ends else None)
        rig.map.segments.append(await put_segment(rig.store, [piece], segment_id=uuid.UUID(int=number)))


@asynccontextmanager
async def site(rig: ReadRig | None = None) -> AsyncIterator[Site]:
    """Serve a topic of three segments, ledgers 3 and 4, whose last four entries are in the daemon's buffer alone."""
    if rig is None:
        rig = make_read_rig()
        await stored(rig, (3, 0, 9), (3, 10, 19), (4, 0, 7))
        rig.map.segments[-1] = await put_segment(
            rig.store, [Piece(4, 0, payloads(4, 0, 7))], segment_id=uuid.UUID(int=3)
        )
        rig.hot.add(EntryBatch(4, 8, payloads(4, 8, 11)), follows=Position(4, 7))
    service = Service(rig.reader, 8, metrics=rig.metrics)
    service.reads, service.plans = [], []

    def register(server: aio.Server) -> None:
        read_pb2_grpc.add_ReadServiceServicer_to_server(service, server)

    faults = Faults()
    seen = FaultyStore(rig.store, faults)
    async with (
        rig.reader,
        listening(rig.metrics, register) as address,
        DaemonClient(address, connect_s=60) as client,
        segments_of(seen, rig.clock) as bucket,
    ):
        yield Site(rig, client, service, bucket, faults)


async def test_the_bucket_gives_what_it_has_and_the_daemon_the_rest() -> None:
    """One plan, and one stream for what is in the buffer."""
    async with site() as here:
        tiers = [
            (answer.tier, len(answer.batch.payloads)) async for answer in here.client.read("orders", direct=here.bucket)
        ]
        assert sum(count for tier, count in tiers if tier == BUCKET) == 28
        assert sum(count for tier, count in tiers if tier == DAEMON) == 4
        assert [(one.first.ledger_id, one.first.entry_id) for one in here.service.reads] == [(4, 8)]


async def test_answers_of_the_bucket_are_as_large_as_asked() -> None:
    """As those of the daemon: one entry at least."""
    async with site() as here:
        for batch_bytes, largest in ((1, 1), (0, 3)):
            answers = here.client.read("orders", direct=here.bucket, last="3:9", batch_bytes=batch_bytes)
            assert max([answer.batch.count async for answer in answers]) == largest


RANGES: list[dict[str, Any]] = [
    {},
    {"first": Position(3, 4), "last": Position(3, 4)},
    {"first": Position(3, 4), "last": Position(4, 2)},
    {"first": "3:9", "last": "3:10", "batch_bytes": 1},
    {"last": Position(4, 9)},
    {"first": Position(4, 8)},
    {"entries_max": 1},
    {"entries_max": 25, "first": Position(3, 2)},
    {"entries_max": 28},
    {"seek": Goal(SeekKind.SEQUENCE, 13), "entries_max": 9},
    {"batch_bytes": 20},
    {"read_priority": ReadPriority.BOOKKEEPER_FIRST},
]


@pytest.mark.parametrize("wanted", RANGES, ids=str)
@pytest.mark.parametrize("resume_s", [0, 60])
async def test_every_range_is_that_of_the_daemon(wanted: dict[str, Any], resume_s: int) -> None:
    """Both ends, a number of entries, a seek, and sizes of answers."""
    async with site() as here:
        found = await here.read(resume_s=resume_s, **wanted)
        assert found == await here.read(direct=False, resume_s=resume_s, **wanted)
        assert found


async def test_all_in_the_bucket_needs_no_stream() -> None:
    """The daemon sends no entry."""
    rig = make_read_rig()
    await stored(rig, (3, 0, 9), (4, 0, 9))
    async with site(rig) as here:
        assert len(await here.read()) == 20
        assert not here.service.reads
        assert len(here.service.plans) == 1


@pytest.mark.parametrize(
    "wanted", [{"first": Position(2, 0)}, {"first": Position(9, 0)}, {"last": Position(4, 12)}], ids=str
)
async def test_errors_are_those_of_the_daemon(wanted: dict[str, Any]) -> None:
    """Before the oldest and beyond the newest entry."""
    async with site() as here:
        with pytest.raises(OffloaderError) as direct:
            await here.read(resume_s=0, **wanted)
        with pytest.raises(OffloaderError) as through:
            await here.read(direct=False, resume_s=0, **wanted)
        assert (type(direct.value), direct.value.message) == (type(through.value), through.value.message)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("resume_s", [0, 60])
async def test_a_topic_that_ends_in_a_gap(direct: bool, resume_s: int) -> None:
    """Entries that cannot be read may follow: the read says so behind the last that can be."""
    rig = make_read_rig()
    await stored(rig, (3, 0, 9))
    rig.map.gaps = (Gap(Position(3, 9), None, "a manifest is damaged"),)
    async with site(rig) as here:
        found: list[tuple[int, int, bytes]] = []

        async def read() -> None:
            bucket = here.bucket if direct else None
            async for answer in here.client.read("orders", direct=bucket, resume_s=resume_s):
                found.extend(flat([answer.batch]))

        with pytest.raises(EntriesMissing, match="a manifest is damaged"):
            await read()
        assert len(found) == 10


async def test_a_long_range_is_planned_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plan begins behind the one before it."""
    monkeypatch.setattr(reader, "PLANNED_MAX", 2)
    rig = make_read_rig()
    await stored(rig, *((ledger_id, 0, 4) for ledger_id in range(1, 6)))
    async with site(rig) as here:
        assert [entry[:2] for entry in await here.read()] == [(one, two) for one in range(1, 6) for two in range(5)]
        begins = [one.first.ledger_id if one.HasField("first") else None for one in here.service.plans]
        assert begins == [None, 2, 4]
        assert not here.service.reads


async def copied(store: MemoryStore, clock: Clock) -> MemoryStore:
    """Return another store with the same objects."""
    found = MemoryStore(clock)
    async for info in store.list():
        await found.put(info.key, await store.get(info.key))
    return found


@pytest.mark.parametrize("what", ["missing", "damaged", "damaged at its end"])
async def test_the_daemon_reads_a_segment_that_the_bucket_does_not_give(what: str) -> None:
    """That segment alone, from where it broke; it may be deleted, merged or damaged since the plan."""
    async with site() as here:
        store = await copied(here.rig.store, here.rig.clock)
        key = here.rig.map.segments[0].keys.data
        if what == "missing":
            await store.delete([key])
        else:
            data = await store.get(key)
            spoilt = len(data) // 2 if what == "damaged at its end" else 150
            await store.put(key, data[:spoilt] + bytes([data[spoilt] ^ 1]) + data[spoilt + 1 :])
        async with segments_of(store, here.rig.clock) as here.bucket:
            expected = await here.read(direct=False)
            here.service.reads.clear()
            assert await here.read() == expected
        (first, second) = here.service.reads
        assert (second.first.ledger_id, second.first.entry_id) == (4, 8)
        assert (first.last.ledger_id, first.last.entry_id) == (3, 9)
        assert (first.first.entry_id > 0) == (what == "damaged at its end")


async def test_a_bucket_that_is_away_is_left_alone() -> None:
    """The daemon reads all that is left: each further segment would wait for its retries."""
    async with site() as here:
        here.faults.fail("get", Transient("no route"), times=-1)
        here.faults.fail("get_pieces", Transient("no route"), times=-1)
        expected = await here.read(direct=False)
        here.service.reads.clear()
        assert await here.read() == expected
        assert len(here.service.reads) == 1
        assert {one.split("-")[0] for one in here.faults.asked} == {"get p/00000000"}
        assert all("000000000001-" in one for one in here.faults.asked), "no other segment was tried"


@pytest.mark.parametrize("error", [Denied("no right to read"), BucketMissing("no such bucket")], ids=str)
async def test_a_client_without_access_is_told_so(error: OffloaderError) -> None:
    """It asked for direct reads: the daemon does not take over in silence."""
    async with site() as here:
        here.faults.fail("get", error, times=-1)
        here.faults.fail("get_pieces", error, times=-1)
        with pytest.raises(type(error), match=error.message):
            await here.read()
        assert not here.service.reads


async def test_the_deadline_holds_for_the_bucket() -> None:
    """A GET that does not end is no reason to wait longer than was allowed."""
    async with site() as here:

        class Silent(MemoryStore):
            async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
                await for_ever()
                return b""

        async with segments_of(Silent(here.rig.clock), here.rig.clock) as here.bucket:
            with pytest.raises(TimedOut):
                await here.read(timeout_s=0.2)


async def test_new_entries_are_followed() -> None:
    """Behind the bucket's entries the daemon's stream goes on."""
    async with site() as here:
        found: list[tuple[int, int, bytes]] = []
        async with aclosing(here.client.read("orders", direct=here.bucket, follow=True)) as answers:
            async for answer in answers:
                found += flat([answer.batch])
                if len(found) == 32:
                    here.rig.hot.add(EntryBatch(4, 12, payloads(4, 12, 13)), follows=Position(4, 11))
                if len(found) == 34:
                    break
        assert found[-2:] == [(4, 12 + at, data) for at, data in enumerate(payloads(4, 12, 13))]


@pytest.mark.parametrize("resume_s", [0, 60])
async def test_the_end_is_the_newest_entry_of_the_call(resume_s: int) -> None:
    """What comes while the bucket is read is not in the range."""
    async with site() as here:
        found: list[tuple[int, int, bytes]] = []
        reading = here.client.read("orders", direct=here.bucket, resume_s=resume_s, ahead=1, batch_bytes=1)
        async with aclosing(reading) as answers:
            async for answer in answers:
                if not found:
                    here.rig.hot.add(EntryBatch(4, 12, payloads(4, 12, 13)), follows=Position(4, 11))
                found += flat([answer.batch])
        assert found[-1][:2] == (4, 11)


async def test_the_metadata_of_brokers_is_left_out_as_asked() -> None:
    """client_bytes is the same from the bucket and from the daemon."""
    rig = make_read_rig()
    headed = [broker_entry.encode_head(broker_timestamp=5, index=at) + b"entry" for at in range(4)]
    rig.map.segments = [await put_segment(rig.store, [Piece(3, 0, headed, 4)], segment_id=uuid.UUID(int=1))]
    async with site(rig) as here:
        assert [entry[2] for entry in await here.read(client_bytes=True)] == [b"entry"] * 4
        assert [entry[2] for entry in await here.read()] == headed
        assert not here.service.reads


async def test_a_broken_stream_goes_on_by_a_new_plan() -> None:
    """Behind what came, each entry once; meanwhile more may have reached the bucket."""
    async with site() as here:
        expected = await here.read(direct=False)
        here.service.breaks = 1
        assert await here.read(batch_bytes=1) == expected
        begins = [(one.first.ledger_id, one.first.entry_id) for one in here.service.plans if one.HasField("first")]
        assert begins == [(4, 8), (4, 9)]


async def test_a_daemon_of_an_older_release() -> None:
    """It sends all; a read that began with plans goes on there."""
    async with site() as here:
        expected = await here.read(direct=False)
        here.service.reads.clear()
        here.service.older = True
        assert await here.read() == expected
        assert len(here.service.reads) == 1
        here.service.older, here.service.breaks = False, 1
        found: list[tuple[int, int, bytes]] = []
        async with aclosing(here.client.read("orders", direct=here.bucket, ahead=1, batch_bytes=1)) as answers:
            async for answer in answers:
                found += flat([answer.batch])
                here.service.older = True
        assert found == expected


async def test_two_reads_of_one_bucket_at_a_time() -> None:
    """Each gets all; one that is left early does not disturb the other."""
    async with site() as here:
        expected = await here.read(direct=False)
        one, other, left = (here.client.read("orders", direct=here.bucket, batch_bytes=1) for _ in range(3))
        async with aclosing(one), aclosing(other), aclosing(left):
            await anext(left)
            found = [[(await anext(each)).batch] for each in (one, other)]
            await left.aclose()
            for batches, each in zip(found, (one, other), strict=True):
                batches += [answer.batch async for answer in each]
        assert [flat(batches) for batches in found] == [expected, expected]


def segment(number: int, slices: list[tuple[int, int, int]], **other: Any) -> CommittedSegment:  # noqa: ANN401
    """Return a segment of slices (ledger, first, last)."""
    return CommittedSegment(
        segment_id=uuid.UUID(int=number),
        slices=tuple(LedgerSlice(*one, payload_bytes=7) for one in slices),
        object_bytes=100,
        assigned_ms=0,
        offloaded_ms=0,
        bucket="bucket",
        prefix="p/",
        **other,
    )


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"mirror": ("other", "")},
        {"method": OffloadMethod.LEDGER_BASED, "driver": "aws-s3"},
        {"method": OffloadMethod.LEDGER_BASED},
    ],
    ids=str,
)
def test_a_plan_has_all_that_a_reader_needs(other: dict[str, Any]) -> None:
    """A segment comes over as it was: its mirror, Pulsar's own object, the keys of a whole ledger."""
    there = segment(1, [(3, 0, 9)], **other)
    (message,) = plan_message([Run(Tier.OBJECTS, 3, 2, 5, there)], complete=True).segments
    here = committed(read_pb2.StoredSegment.FromString(message.SerializeToString()), where="the plan")
    assert here == there
    assert (here.keys, here.foreign) == (there.keys, there.foreign)


def test_neighbouring_runs_of_a_segment_are_one() -> None:
    """Over its ledgers; a segment is named once, also when others have entries between, which are one of a ledger."""
    first, second = segment(1, [(3, 0, 9), (4, 0, 9)]), segment(2, [(5, 0, 9)])
    runs = [
        Run(Tier.OBJECTS, 3, 5, 9, first),
        Run(Tier.OBJECTS, 4, 0, 9, first),
        Run(Tier.BUFFER, 4, 10, 11),
        Run(Tier.SOURCE, 4, 12, 12),
        Run(Tier.SOURCE, 5, 0, 0),
        Run(Tier.OBJECTS, 5, 1, 3, second),
        Run(Tier.OBJECTS, 5, 4, 9, first),
    ]
    plan = plan_message(runs, complete=False)
    assert [one.segment_id[-1] for one in plan.segments] == ["1", "2"]
    assert [
        (one.first.ledger_id, one.first.entry_id, one.last.ledger_id, one.last.entry_id, one.HasField("segment"))
        for one in plan.runs
    ] == [(3, 5, 4, 9, True), (4, 10, 4, 12, False), (5, 0, 5, 0, False), (5, 1, 5, 3, True), (5, 4, 5, 9, True)]
    assert [one.segment for one in plan.runs if one.HasField("segment")] == [0, 1, 0]


@pytest.mark.parametrize(
    "change",
    [
        lambda message: setattr(message, "segment_id", "x"),
        lambda message: setattr(message, "method", "fast"),
        lambda message: message.ClearField("slices"),
        lambda message: setattr(message.slices[0], "last_entry_id", -1),
    ],
    ids=["id", "method", "slices", "entries"],
)
def test_a_plan_that_makes_no_sense_is_damage(change: Callable[[read_pb2.StoredSegment], None]) -> None:
    """It is an error with what is wrong, and the daemon serves the range."""
    (message,) = plan_message([Run(Tier.OBJECTS, 3, 0, 9, segment(1, [(3, 0, 9)]))], complete=True).segments
    change(message)
    with pytest.raises(CorruptData, match="the plan"):
        committed(message, where="the plan")


async def test_a_plan_ends_with_the_bucket() -> None:
    """Entries of another tier behind the bucket's are for Read alone; with nothing in the bucket there is no plan."""
    rig = make_read_rig()
    await stored(rig, (3, 0, 9))
    async with rig.reader:
        runs, complete = await rig.reader.plan(TOPIC)
        assert ([run.last_entry_id for run in runs], complete) == ([9], True)
        rig.map.segments = [replace(rig.map.segments[0])]
        rig.hot.add(EntryBatch(4, 0, payloads(4, 0, 3)), follows=Position(3, 9))
        runs, complete = await rig.reader.plan(TOPIC)
        assert ([run.last_entry_id for run in runs], complete) == ([9], False)
        assert await rig.reader.plan(TOPIC, first=Position(4, 0)) == ([], False)
        with pytest.raises(EntriesMissing):
            await rig.reader.plan(TOPIC, first=Position(2, 0))
