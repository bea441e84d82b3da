"""Direct reads by plans that no longer hold, that are wrong, or that cannot be had."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.client import Goal, Position, SeekKind, TimedOut
from offloaderd.client.reading import DirectRead, Wanted, read_request
from offloaderd.core.aio import each
from offloaderd.core.errors import Archived, BucketMissing, NotFound, Transient
from offloaderd.core.model import EntryBatch, HistoryOrder, Loss
from offloaderd.core.names.patterns import Scope
from offloaderd.core.quotas import Accounts
from offloaderd.core.read_options import ReadPriority
from offloaderd.direct.bucket import segments_of
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.protocol.v1 import common_pb2, read_pb2
from offloaderd.read import cache, reader, stream
from offloaderd.read.segments import SLOT_BLOCK_BYTES, SegmentOptions
from offloaderd.testing.faults import Faults, FaultyStore
from tests.unit.broker_objects import BrokerLedger
from tests.unit.direct.here import Here, Planned
from tests.unit.read.build import TOPIC, Piece, make_read_rig, payload, payloads, put_segment, turns
from tests.unit.read.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.client import ReadAnswer
    from offloaderd.core.errors import OffloaderError
    from offloaderd.ledgers.port import LedgerSource
    from offloaderd.metadata.committed import CommittedSegment
    from offloaderd.testing.memory.objects import MemoryStore
    from tests.unit.direct.here import Planned
    from tests.unit.read.build import ReadRig

LEDGERS = {3: 10, 4: 5, 5: 10}
ALL = [(ledger, entry, payload(ledger, entry)) for ledger, count in LEDGERS.items() for entry in range(count)]


async def segment(rig: ReadRig, number: int, *pieces: tuple[int, int, int]) -> CommittedSegment:
    """Store a segment of pieces (ledger, first, last); ledgers 3 and 4 are closed."""
    made = [
        Piece(ledger, first, payloads(ledger, first, last), LEDGERS[ledger] if ledger < 5 else None)
        for ledger, first, last in pieces
    ]
    return await put_segment(rig.store, made, segment_id=uuid.UUID(int=number))


async def three_segments(source: LedgerSource | None = None) -> ReadRig:
    """Return a topic that is all in the bucket: ledgers 3 to 5, in segments that cross the ends of two."""
    rig = make_read_rig(source=source)
    rig.map.enabled = True
    rig.map.segments = [
        await segment(rig, 1, (3, 0, 9)),
        await segment(rig, 2, (4, 0, 4), (5, 0, 4)),
        await segment(rig, 3, (5, 5, 9)),
    ]
    return rig


async def test_segments_that_are_merged_after_the_plan() -> None:
    """The daemon reads what the first of the old objects would give; then the next plan has the segment of now."""
    rig = await three_segments()
    merged = await segment(rig, 9, (3, 0, 9), (4, 0, 4), (5, 0, 9))
    here = Here(rig)

    async def merge(plan: Planned) -> None:
        here.replan = None
        for old in rig.map.segments[: len(plan.segments)]:
            await rig.store.delete(old.keys.all)
        rig.map.segments = [merged]

    here.replan = merge
    async with rig.reader:
        assert await here.direct(Wanted()) == (ALL, "")
    assert (len(here.plans), len(here.streams)) == (2, 1)


class Spoilt(FaultyStore):
    """A store whose reads of one object fail, or that gives it with other last bytes."""

    def __init__(self, store: MemoryStore, key: str, error: OffloaderError | None = None) -> None:
        super().__init__(store, Faults())
        self._key = key
        self._error = error

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        if key == self._key and self._error is not None:
            raise self._error
        return await super().get(key, first, length)

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        found: Sequence[bytes] = await super().get_pieces(key, first, lengths)
        if key != self._key:
            return found
        if self._error is not None:
            raise self._error
        return [*found[:-1], bytes(len(found[-1]))]


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_bucket_that_is_away_where_all_was_planned(number: int) -> None:
    """The plan is complete, and the read is not: the daemon reads the rest."""
    rig = await three_segments()
    here, store = Here(rig), Spoilt(rig.store, rig.map.segments[number].keys.data, Transient("no route"))
    async with rig.reader:
        assert await here.direct(Wanted(), store) == (ALL, "")
    assert len(here.streams) == 1
    assert not here.streams[0].HasField("last") or here.streams[0].last.entry_id == 9


async def test_an_object_in_an_archive_is_left_to_the_daemon() -> None:
    """It may be readable from another place or tier there; the right to read it is not what is missing."""
    rig = await three_segments()
    here, store = Here(rig), Spoilt(rig.store, rig.map.segments[1].keys.data, Archived("it is in an archive"))
    async with rig.reader:
        assert await here.direct(Wanted(), store) == (ALL, "")
    assert [one.last.entry_id for one in here.streams] == [4]


async def test_a_segment_that_breaks_behind_the_end_of_a_ledger() -> None:
    """The daemon reads on in the ledger that broke, and waits for nothing behind the segment."""
    rig = await three_segments()
    here, store = Here(rig), Spoilt(rig.store, rig.map.segments[1].keys.data)
    async with rig.reader:
        assert await here.direct(Wanted(follow=True, entries_max=len(ALL)), store) == (ALL, "")
    (stream,) = here.streams
    assert (stream.first.ledger_id, stream.last.ledger_id, stream.last.entry_id, stream.follow) == (5, 5, 4, False)


async def test_a_read_from_a_seek_whose_first_segment_the_bucket_does_not_give() -> None:
    """The daemon reads from the position that it found, and seeks no second time."""
    rig = await three_segments()
    here, store = Here(rig), Spoilt(rig.store, rig.map.segments[0].keys.data, NotFound("no object"))
    async with rig.reader:
        assert await here.direct(Wanted(seek=Goal(SeekKind.SEQUENCE, 7)), store) == (ALL[7:], "")


@pytest.mark.parametrize("gone", [1, 2, 3])
async def test_segments_that_retention_deletes_after_the_plan(gone: int) -> None:
    """An error, as for any reader that comes too late, and not an entry behind the gap."""
    rig = await three_segments()
    here = Here(rig)

    async def expire(plan: Planned) -> None:
        del plan
        for old in rig.map.segments[:gone]:
            await rig.store.delete(old.keys.all)
        rig.map.segments = rig.map.segments[gone:]

    here.replan = expire
    async with rig.reader:
        found, error = await here.direct(Wanted())
    assert (found, bool(error)) == ([], True)


async def test_what_is_committed_after_the_plan_comes_from_the_bucket() -> None:
    """Without a gap or a repetition where the daemon's buffer ended; a follower waits at the daemon."""
    rig = await three_segments()
    newest = rig.map.segments.pop()
    rig.hot.add(EntryBatch(5, 5, payloads(5, 5, 9)), follows=Position(5, 4))
    here = Here(rig)

    async def commit(plan: Planned) -> None:
        del plan
        rig.map.segments = [*rig.map.segments[:2], newest]
        rig.hot.clear()

    here.replan = commit
    async with rig.reader:
        assert await here.direct(Wanted(follow=True, entries_max=len(ALL))) == (ALL, "")
        assert not here.streams
        assert len(here.plans) == 2


@pytest.mark.parametrize("empty", [True, False])
async def test_a_follower_waits_behind_the_bucket(empty: bool) -> None:
    """Where all is planned, or nothing is there yet, the read is not at its end."""
    rig = await three_segments()
    before = [] if empty else ALL
    rig.map.segments = [] if empty else rig.map.segments
    here = Here(rig)
    async with rig.reader, asyncio.TaskGroup() as group:
        reading = group.create_task(here.direct(Wanted(follow=True, entries_max=len(before) + 1)))
        while not here.streams and not reading.done():
            await turns()
        rig.hot.add(EntryBatch(5, 10, [b"new"]), follows=Position(5, 9))
    assert reading.result() == ([*before, (5, 10, b"new")], "")


@pytest.mark.parametrize("ledgers", [1, 2, 3])
async def test_a_plan_that_is_full_at_the_end_of_the_range_is_complete(
    ledgers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another plan from behind the end would be refused as a reversed range."""
    rig = await three_segments()
    monkeypatch.setattr(reader, "PLANNED_MAX", ledgers)
    here = Here(rig)
    last = Position(ledgers + 2, 4)
    async with rig.reader:
        found, error = await here.direct(Wanted(last=last))
    assert (found[-1][:2], error, len(here.plans)) == (last, "", 1)


RANGES = [
    Wanted(),
    Wanted(first=Position(3, 7)),
    Wanted(last=Position(3, 7)),
    Wanted(entries_max=5),
    Wanted(entries_max=12),
    Wanted(batch_bytes=10),
    Wanted(client_bytes=True),
]


@pytest.mark.parametrize("wanted", RANGES, ids=str)
async def test_ledgers_that_a_broker_offloaded(wanted: Wanted) -> None:
    """They are read from the bucket as well, by their index."""
    rig = make_read_rig()
    rig.map.enabled = True
    ledger = BrokerLedger(topic=TOPIC, ledger_id=3, object_id=uuid.UUID(int=77), payloads=payloads(3, 0, 9))
    await ledger.put(rig.store)
    rig.map.segments = [ledger.adopted, await segment(rig, 2, (4, 0, 4))]
    here = Here(rig)
    async with rig.reader:
        assert await here.direct(wanted) == await here.through(wanted)
        assert len(here.streams) == 1


@pytest.mark.parametrize("priority", list(ReadPriority))
@pytest.mark.parametrize("entries_max", [0, 12, 15, 17])
async def test_entries_of_another_tier_between_those_of_the_bucket(priority: ReadPriority, entries_max: int) -> None:
    """A source with the middle of the topic is read as the priority says, up to where the bucket goes on."""
    shelf = Shelf()
    rig = await three_segments(shelf)
    shelf.put(4, payloads(4, 0, 4))
    shelf.put(5, payloads(5, 0, 9), closed=False)
    shelf.rotten.add((4, 2))
    here, wanted = Here(rig), Wanted(read_priority=priority, entries_max=entries_max)
    async with rig.reader:
        assert await here.direct(wanted) == await here.through(wanted)
        assert len(here.streams) == (1 if priority is ReadPriority.TIERED_STORAGE_FIRST else 2)


@pytest.mark.parametrize("runs_max", [1, 2, 1000])
@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("what", ["lost", "unfinished", "unknown"])
async def test_an_error_in_the_range_comes_behind_the_entries_before_it(
    what: str, follow: bool, runs_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss, history that is not offloaded yet, and a ledger that is gone end a plan, and then the read."""
    rig = await three_segments()
    monkeypatch.setattr(reader, "PLANNED_MAX", runs_max)
    first, second = await segment(rig, 1, (3, 0, 9)), await segment(rig, 2, (4, 0, 1))
    third = await segment(rig, 3, (5, 5, 9))
    rig.map.segments = [first, second, third]
    if what == "lost":
        rig.map.losses = (Loss(Position(4, 1), Position(5, 5), 8),)
    elif what == "unfinished":
        rig.map.history = HistoryPlan(
            boundary=5, first=3, last=Position(4, 4), order=HistoryOrder.ALONGSIDE, worker=Worker.DAEMON,
            planned_ms=1, epoch=1, daemon_id="d", entries=15, payload_bytes=1,
        )  # fmt: skip
    here, wanted = Here(rig), Wanted(follow=follow)
    async with rig.reader:
        found, error = await here.direct(wanted)
        assert (found, error) == await here.through(wanted)
    assert (found, error.partition(":")[0]) == (ALL[:12], "EntriesLost" if what == "lost" else "EntriesMissing")


class OneBucket(FaultyStore):
    """A store that knows the bucket `bucket` alone."""

    def at(self, bucket: str) -> OneBucket:
        """See ObjectReader."""
        if bucket != "bucket":
            raise BucketMissing(f"bucket {bucket!r} is not named")
        return self


async def test_one_segment_in_a_bucket_that_the_settings_lack() -> None:
    """The error comes behind the entries before it; with a copy in a known bucket there is none."""
    rig = await three_segments()
    rig.map.segments[1] = replace(rig.map.segments[1], bucket="elsewhere")
    here, store = Here(rig), OneBucket(rig.store, Faults())
    async with rig.reader:
        found, error = await here.direct(Wanted(), store)
        assert (found, here.streams) == (ALL[:10], [])
        assert error.startswith("BucketMissing: entries 4:0..5:4 lie in elsewhere/p/, and cannot be read: ")
        assert "bucket 'elsewhere' is not named" in error
        rig.map.segments[1] = replace(rig.map.segments[1], mirror=("bucket", rig.map.segments[1].prefix))
        assert await here.direct(Wanted(), store) == (ALL, "")


def planned(first: int, last: int, number: int | None = None, ledger: int = 3) -> read_pb2.PlannedRun:
    """Return a run of a ledger."""
    ends = (common_pb2.Position(ledger_id=ledger, entry_id=entry) for entry in (first, last))
    return read_pb2.PlannedRun(**dict(zip(("first", "last"), ends, strict=True)), segment=number)


@pytest.mark.parametrize(
    ("number", "run", "message"),
    [
        (0, planned(0, 9, 7), "planned 3:0 of .* in a segment that it does not describe"),
        (0, planned(5, 9, 0), "planned 3:5 of .* in place of 3:0"),
        (1, planned(5, 9, 0), "planned 3:5 of .* in place of 3:10"),
        (0, planned(0, 30, 0), "planned entries up to 3:30 of .*, and not all came"),
        (0, planned(9, 3, 0), "planned 3:9 of .* in place of 3:0"),
        (2, planned(5, 3, 2, ledger=5), r"the range 5:5\.\.5:3 is reversed"),
        (0, planned(-1, 9, 0), "position 3:-1 is out of range"),
    ],
    ids=["segment", "behind", "before", "beyond", "reversed", "reversed in place", "negative"],
)
async def test_a_wrong_plan_is_not_believed(number: int, run: read_pb2.PlannedRun, message: str) -> None:
    """No entry is left out, repeated or out of order: the read ends with an error."""
    rig = await three_segments()
    here = Here(rig)

    async def spoil(plan: Planned) -> None:
        plan.runs[number].CopyFrom(run)

    here.replan = spoil
    async with rig.reader:
        found, error = await here.direct(Wanted(first=Position(3, 0)))
    assert found == ALL[: len(found)]
    assert re.search(message, error)


@pytest.mark.parametrize("other", [1, 2])
async def test_a_run_outside_its_segment_is_read_by_the_daemon(other: int) -> None:
    """The segment's manifest alone would not show it."""
    rig = await three_segments()
    here = Here(rig)

    async def swap(plan: Planned) -> None:
        plan.runs[0].segment, plan.runs[other].segment = other, 0

    here.replan = swap
    async with rig.reader:
        assert await here.direct(Wanted()) == (ALL, "")
    assert len(here.streams) == 2


async def test_a_plan_whose_entries_do_not_come_is_not_repeated_without_end() -> None:
    """A daemon that plans entries and sends none."""
    rig = await three_segments()
    here = Here(rig)

    async def none_in_the_bucket(plan: Planned) -> None:
        assert len(here.plans) == 1
        del plan.runs[1:]
        plan.runs[0].CopyFrom(planned(0, 9))

    class Silent(Here):
        async def read_once(self, request: read_pb2.ReadRequest, timeout_s: float | None) -> Any:  # noqa: ANN401
            del request, timeout_s
            return
            yield

    here = Silent(rig)
    here.replan = none_in_the_bucket
    async with rig.reader:
        found, error = await here.direct(Wanted())
    assert (found, "not all came" in error) == ([], True)


async def test_a_bucket_that_was_closed() -> None:
    """It is the program's mistake: no daemon is asked again for it."""
    rig = await three_segments()
    async with rig.reader:
        async with segments_of(rig.store, rig.clock) as bucket:
            pass
        found, error = await Here(rig).direct_of(bucket, Wanted())
    assert (found, error) == ([], "InvalidInput: the bucket of a direct read was closed")


async def test_no_call_is_made_behind_the_deadline() -> None:
    """A deadline that has just passed is none of zero seconds, which would mean that of the client."""
    rig = await three_segments()
    here: Any = Here(rig)
    async with rig.reader, segments_of(rig.store, rig.clock) as bucket:
        attempt = DirectRead(here, bucket.sequence(), rig.clock).attempt
        async with aclosing(attempt(read_request(TOPIC, Wanted(), framed=True), 0.0)) as answers:
            with pytest.raises(TimedOut):
                await anext(answers)
    assert not here.plans


async def test_a_namespace_that_is_read_by_plans_has_an_account() -> None:
    """As by other reads: its quotas hold for the next call."""
    rig = await three_segments()
    accounts = rig.reader.accounts = Accounts(rig.clock, rig.metrics)
    async with rig.reader:
        await rig.reader.plan(TOPIC)
    assert accounts.known(Scope(TOPIC.tenant, TOPIC.namespace)) is not accounts.nobody


async def test_a_direct_read_that_is_left_leaves_no_task() -> None:
    """Neither in the bucket nor at the daemon, wherever it waits."""
    rig = await three_segments()
    waiting = asyncio.Event()

    class Silent(FaultyStore):
        async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
            if key.startswith(rig.map.segments[1].keys.data):
                waiting.set()
                await asyncio.Event().wait()
            return await super().get(key, first, length)

    here: Any = Here(rig)
    async with rig.reader, segments_of(Silent(rig.store, Faults()), rig.clock) as bucket:
        found: list[ReadAnswer] = []

        async def read() -> None:
            attempt = DirectRead(here, bucket.sequence(), rig.clock).attempt
            async with aclosing(attempt(request, None)) as answers:
                async for answer in answers:
                    found.append(answer)
                    request.first.ledger_id = answer.batch.ledger_id
                    request.first.entry_id = answer.batch.last_entry_id + 1

        request = read_request(TOPIC, Wanted(), framed=True)
        reading = asyncio.ensure_future(read())  # noqa: TID251 - cancelled here
        await waiting.wait()
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
        assert bucket._segments.pinned_bytes == 0
    assert found


BLOCK = 5144
"""Bytes of a block of one entry of 5000 bytes."""


class Asked(FaultyStore):
    """Notes the requests for blocks: of which object, from which block on, how many."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, Faults())
        self.asked: list[tuple[str, int, int]] = []

    async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
        """See ObjectReader."""
        self.asked.append((key, first // BLOCK, len(lengths)))
        found: Sequence[bytes] = await super().get_pieces(key, first, lengths)
        return found


async def long_segments(count: int) -> ReadRig:
    """Return a topic of so many segments of 200 blocks; each has a ledger, from 3 on."""
    rig = make_read_rig()
    rig.map.segments = [
        await put_segment(
            rig.store, [Piece(ledger, 0, [b"x" * 5000] * 200, 200)], segment_id=uuid.UUID(int=ledger), block_entries=1
        )
        for ledger in range(3, 3 + count)
    ]
    return rig


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), [(0, 1), (1, 10), (11, 10)]),
        (Wanted(entries_max=1), [(0, 1)]),
        (Wanted(entries_max=5), [(0, 1), (1, 4)]),
        (Wanted(first=Position(3, 50), last=Position(3, 50)), [(50, 1)]),
    ],
)
async def test_a_direct_read_fetches_ahead_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch, wanted: Wanted, expected: list[tuple[int, int]]
) -> None:
    """Two requests of a third of the window are under way with that for the first block, for nothing behind its end."""
    monkeypatch.setattr(cache, "WINDOW_BYTES_MIN", 64)
    rig = await long_segments(1)
    options = SegmentOptions(cache_bytes=1 << 20, read_ahead_bytes=30 * BLOCK)
    here, request, store = Here(rig), read_request(TOPIC, wanted, framed=True), Asked(rig.store)
    async with rig.reader, segments_of(store, rig.clock, options) as bucket:
        attempt = DirectRead(here, bucket.sequence(), rig.clock).attempt  # type: ignore[arg-type] # has what it needs
        async with aclosing(attempt(request, None)) as answers:
            await anext(answers)
            await turns(20)
            assert [(first, count) for _, first, count in store.asked] == expected
        assert bucket._segments.pinned_bytes == 0


@pytest.mark.parametrize("last", [None, Position(3, 199)])
async def test_the_next_segment_is_fetched_before_the_present_one_ends(
    monkeypatch: pytest.MonkeyPatch, last: Position | None
) -> None:
    """If the plan has it: its tables, and as much as the window has room for."""
    monkeypatch.setattr(cache, "WINDOW_BYTES_MIN", 64)
    rig = await long_segments(2)
    options = SegmentOptions(cache_bytes=1 << 20, read_ahead_bytes=30 * BLOCK)
    here, request, store = Here(rig), read_request(TOPIC, Wanted(last=last), framed=True), Asked(rig.store)
    async with rig.reader, segments_of(store, rig.clock, options) as bucket:
        attempt = DirectRead(here, bucket.sequence(), rig.clock).attempt  # type: ignore[arg-type] # has what it needs
        async with aclosing(attempt(request, None)) as answers:
            while request.first.entry_id < 199:
                batch = (await anext(answers)).batch
                assert batch.ledger_id == 3
                request.first.ledger_id, request.first.entry_id = batch.last.next()
                await turns(20)
            asked = [count for key, _, count in store.asked if key == rig.map.segments[1].keys.data]
            assert asked if last is None else not asked
            assert sum(asked) <= 30
        assert bucket._segments.pinned_bytes == 0


@pytest.mark.parametrize("ends", [((4, 0), (4, 200)), ((3, 199), (4, 5)), ((4, 9), (4, 8)), ((2**63 - 1, 0),) * 2])
async def test_what_comes_next_by_a_wrong_plan_is_not_fetched(ends: tuple[tuple[int, int], ...]) -> None:
    """Entries that its segment does not hold, or in the wrong order: the entries before are read all the same."""
    rig = await long_segments(2)
    here, request, store = Here(rig), read_request(TOPIC, Wanted(), framed=True), Asked(rig.store)

    async def replan(plan: Planned) -> None:
        for at, (ledger_id, entry_id) in zip((plan.runs[1].first, plan.runs[1].last), ends, strict=True):
            at.ledger_id, at.entry_id = ledger_id, entry_id

    here.replan = replan
    async with rig.reader, segments_of(store, rig.clock) as bucket:
        attempt = DirectRead(here, bucket.sequence(), rig.clock).attempt  # type: ignore[arg-type] # has what it needs
        async with aclosing(attempt(request, None)) as answers:
            while request.first.entry_id < 199:
                batch = (await anext(answers)).batch
                request.first.ledger_id, request.first.entry_id = batch.last.next()
                await turns(20)
    assert {key for key, _, _ in store.asked} == {rig.map.segments[0].keys.data}


async def test_direct_reads_that_begin_together_have_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the whole cache those that come first, and one block at a time the others."""
    monkeypatch.setattr(cache, "WINDOW_BYTES_MIN", 64)
    rig = await long_segments(4)
    slot = BLOCK + SLOT_BLOCK_BYTES
    options = SegmentOptions(cache_bytes=60 * slot, read_ahead_bytes=30 * slot)
    here, store = Here(rig), Asked(rig.store)
    async with rig.reader, segments_of(store, rig.clock, options) as bucket, AsyncExitStack() as stack:
        answers = []
        for ledger in range(3, 7):
            request = read_request(TOPIC, Wanted(first=Position(ledger, 0), last=Position(ledger, 199)), framed=True)
            attempt = DirectRead(here, bucket.sequence(), rig.clock).attempt  # type: ignore[arg-type] # as above
            answers.append(await stack.enter_async_context(aclosing(attempt(request, None))))
        await each(answers, anext)
        await turns(20)
        assert bucket._segments._blocks.pinned_bytes <= options.cache_bytes
        asked: Counter[str] = Counter()
        for key, _, count in store.asked:
            asked[key] += count
        assert len(asked) == 4
        assert len(set(asked.values())) == 1


async def test_a_read_that_goes_on_where_retention_has_deleted_up_to() -> None:
    """By a plan and without one: nothing of what it asks for is missing."""
    rig = await three_segments()
    here, wanted = Here(rig), Wanted(first=Position(3, 10))
    rig.map.expire(1)
    async with rig.reader:
        assert await here.direct(wanted) == (ALL[10:], "")
        assert not here.streams
        assert await here.through(wanted) == (ALL[10:], "")


@pytest.mark.parametrize("entries_max", [0, 11, 12, 18])
async def test_entries_of_the_buffer_between_those_of_the_bucket(entries_max: int) -> None:
    """The daemon sends these, by one stream, and the plan goes on behind them."""
    rig = await three_segments()
    for entry in range(5):
        rig.hot.add(EntryBatch(4, entry, payloads(4, entry, entry)), follows=Position(3, 9) if not entry else None)
    here, wanted = Here(rig), Wanted(entries_max=entries_max)
    async with rig.reader:
        assert await here.direct(wanted) == (ALL[: entries_max or len(ALL)], "")
        assert len(here.streams) == 1
        assert len(here.plans) == (2 if entries_max in {11, 12} else 1)


async def test_a_plan_reads_few_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only manifests say that ledgers have ended, it ends early, and another one goes on."""
    monkeypatch.setattr(stream, "ENDS_MAX", 2)
    rig = make_read_rig()
    rig.map.segments = [await segment(rig, number, (number, 0, 3)) for number in range(5, 11)]
    here = Here(rig)
    async with rig.reader:
        assert await here.direct(Wanted()) == await here.through(Wanted())
    assert [one.first.ledger_id for one in here.plans] == [0, 7, 9]
