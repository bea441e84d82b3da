"""Live ends: committed segments and what a daemon has behind them as one table, each entry once, or an error."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from offloaderd.client import Trust, Unreachable
from offloaderd.core.errors import Conflict, CorruptData, EntriesMissing, InvalidInput, OffloaderError, Transient
from offloaderd.core.model import HistoryOrder, Loss, Position
from offloaderd.core.read_options import Transactions
from offloaderd.metadata import identity, paths
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.metadata.records.identity import Deployment
from offloaderd.protocol.v1 import retention_pb2
from offloaderd.spark.scan import plan as source_plan
from offloaderd.spark.scan import transactions as source_transactions
from offloaderd.spark.scan.live_end import with_live_ends
from offloaderd.spark.scan.options import Mode
from offloaderd.spark.scan.plan import HoleInRange
from offloaderd.spark.scan.query import EntryQuery
from offloaderd.spark.scan.share import BrokenSegment, Condition, Daemon, LiveSegment, Missing, Piece
from offloaderd.spark.scan.snapshot import Stores
from offloaderd.testing.builders import payloads
from offloaderd.testing.memory.metadata import MemoryTree
from tests.unit.format.test_pulsar_message import entry
from tests.unit.read.build import TOPIC
from tests.unit.spark.lake import BASE_MS, entries, options, timed
from tests.unit.spark.live_daemon import Connected, LiveTopic
from tests.unit.spark.test_source import counted
from tests.unit.spark.test_source_messages import cut
from tests.unit.transactional import IDS, OPS, Op, commit, consumed, sent
from tests.virtual import LoopClock, virtually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from offloaderd.client.reading import ReadAnswer
    from offloaderd.core.model import TopicName
    from offloaderd.spark.scan.share import Share

EVERYTHING = frozenset(Condition)


def expected(topic: LiveTopic, count: int | None = None) -> list[tuple[int, int, bytes]]:
    """Return the first entries of a topic, or all, as rows have them."""
    return [(at.ledger_id, at.entry_id, data) for at, data in topic.entries[:count]]


def live_pieces(shares: Sequence[Share]) -> list[Piece]:
    """Return the pieces that a daemon is to read."""
    return [one for share in shares for one in share if isinstance(one, Piece) and isinstance(one.segment, LiveSegment)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_each_entry_once_whatever_happens_meanwhile(data: st.DataObject) -> None:
    """Entries come, are committed, merged and deleted at the source between the planning and each task."""
    count = data.draw(st.integers(1, 40))
    wish = options(partition_bytes=data.draw(st.sampled_from([60, 300, 1000, 10**9])))
    commits = data.draw(st.lists(st.integers(1, 12), max_size=4))

    async def run() -> None:
        topic = LiveTopic(ledger_entries_max=data.draw(st.integers(1, 9)))
        async with topic.reader:
            await topic.arrive(payloads(count, ledger_id=1))
            for size in commits:
                await topic.commit(size)
            if data.draw(st.booleans()):
                await topic.trim()
            made = await topic.planned(wish)
            rows = []
            for share in made:
                match data.draw(st.sampled_from(["nothing", "more", "commit", "merge", "trim"])):
                    case "more":
                        await topic.arrive([b"later"] * 3)
                    case "commit":
                        await topic.commit(data.draw(st.integers(1, 50)))
                    case "merge" if topic.map.segments:
                        await topic.merge()
                    case "trim":
                        await topic.trim()
                rows += await topic.read_share(share, wish)
            assert entries(rows) == expected(topic, count)

    virtually(run())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_each_entry_is_given_or_counted(data: st.DataObject) -> None:
    """Segments are deleted by retention, and ledgers at the source before they are committed, between two tasks."""
    count = data.draw(st.integers(1, 40))
    wish = options(partition_bytes=data.draw(st.sampled_from([60, 300, 1000, 10**9])), skip=EVERYTHING)

    async def run() -> None:
        topic = LiveTopic(ledger_entries_max=data.draw(st.integers(1, 9)))
        async with topic.reader:
            await topic.arrive(payloads(count, ledger_id=1))
            for size in data.draw(st.lists(st.integers(1, 12), max_size=4)):
                await topic.commit(size)
            rows = []
            for share in await topic.planned(wish):
                match data.draw(st.sampled_from(["nothing", "commit", "retire", "lose"])):
                    case "commit" if not topic.gone:
                        await topic.commit(data.draw(st.integers(1, 50)))
                    case "retire" if topic.map.segments:
                        await topic.retire()
                    case "lose":
                        await topic.lose_ledger(data.draw(st.integers(0, 40)))
                rows += await topic.read_share(share, wish)
            given_out = entries([row for row in rows if row["skipped"] is None])
            assert all(row["skipped"] is not None or row["reason"] is None for row in rows)
            left_out = counted(rows)
            assert Counter([*(one[:2] for one in given_out), *left_out]) == Counter(at for at, _ in topic.entries)
            assert set(given_out) <= set(expected(topic))

    virtually(run())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ops=OPS,
    ledger_entries_max=st.integers(1, 9),
    commits=st.lists(st.integers(1, 6), max_size=3),
    partition_bytes=st.sampled_from([200, 10**9]),
    data=st.data(),
)
def test_rows_are_what_a_consumer_is_given(
    ops: list[Op], ledger_entries_max: int, commits: list[int], partition_bytes: int, data: st.DataObject
) -> None:
    """Wherever ledgers, segments and the live end begin, and whichever of them the query is about; and all of them."""
    low = data.draw(st.integers(0, len(ops) - 1))
    high = data.draw(st.integers(low, len(ops) - 1))

    async def run() -> tuple[list[int], list[Position]]:
        topic = LiveTopic(ledger_entries_max=ledger_entries_max)
        async with topic.reader:
            await topic.arrive(op.payload(at) for at, op in enumerate(ops))
            for size in commits:
                await topic.commit(size)
            query = EntryQuery(first=topic.entries[low][0], last=topic.entries[high][0])
            wish = options(messages=True, query=query, partition_bytes=partition_bytes)
            rows = await topic.rows(wish)
            everything = await topic.rows(replace(wish, transactions=Transactions.ALL))
            found = [Position(row["ledger_id"], row["entry_id"]) for row in everything]
            assert found == [at for at, _ in topic.entries[low : high + 1]]
            return [int(row["value"]) for row in rows], found

    given_out, _ = virtually(run())
    assert given_out == [at for at in consumed(ops)[0] if low <= at <= high]


async def test_the_daemon_is_asked_for_what_is_not_committed() -> None:
    """Behind the last committed entry, up to the newest at the planning, in shares that are even."""
    topic = LiveTopic(ledger_entries_max=20)
    async with topic.reader:
        await topic.arrive(payloads(100, ledger_id=1))
        await topic.commit(30)
        entry_bytes = topic.map.segments[0].payload_bytes // 30
        wish = options(partition_bytes=20 * entry_bytes)
        made = await topic.planned(wish)
        pieces = live_pieces(made)
        assert (pieces[0].first, pieces[-1].last) == (Position(1, 10), topic.entries[-1][0])
        asked = [(Position(one, 20), Position(one + 1, 0)) for one in (1, 2, 3)]
        assert topic.ranges == asked, "the planning reads the first entries of ledgers behind others alone"
        topic.ranges.clear()
        assert len(pieces) >= 4
        assert max(one.object_bytes for one in pieces) < wish.partition_bytes + 3 * entry_bytes
        rows = [row for share in made for row in await topic.read_share(share, wish)]
        assert entries(rows) == expected(topic)
        assert topic.ranges == [(one.first, one.last) for one in pieces]


async def test_a_topic_of_which_nothing_is_committed() -> None:
    """All of it comes from the daemon; a topic without an entry has no rows."""
    topic = LiveTopic()
    async with topic.reader:
        await topic.source.create(TOPIC)
        assert await topic.rows(options()) == []
        await topic.arrive(payloads(20, ledger_id=1))
        assert entries(await topic.rows(options())) == expected(topic)


async def test_a_topic_of_which_retention_has_left_nothing() -> None:
    """What is behind the deleted entries is read, also where the source has nothing of their ledger any more."""
    topic = LiveTopic(ledger_entries_max=10)
    async with topic.reader:
        await topic.arrive(payloads(25, ledger_id=1))
        await topic.commit(10)
        await topic.retire()
        assert topic.map.floor == Position(0, 9)
        assert entries(await topic.rows(options())) == expected(topic)[10:]
        await topic.commit(4)
        await topic.retire()
        assert topic.map.floor == Position(1, 3)
        assert entries(await topic.rows(options())) == expected(topic)[14:]


async def test_filters_reach_into_the_live_end() -> None:
    """Positions of options and of filters bound what the daemon is asked for; times are compared with each entry."""
    topic = LiveTopic(ledger_entries_max=10)
    async with topic.reader:
        await topic.arrive(timed(1, at, BASE_MS + 1000 * at) for at in range(50))
        await topic.commit(15)
        every = expected(topic)
        query = EntryQuery(first=Position(1, 2), last=Position(3, 4))
        assert entries(await topic.rows(options(query=query))) == every[12:35]
        assert topic.ranges.pop() == (Position(1, 5), Position(3, 4))
        behind = EntryQuery(first=Position(2, 3))
        assert entries(await topic.rows(options(query=behind))) == every[23:]
        assert topic.ranges.pop() == (Position(2, 3), Position(4, 9))
        of_ledger = EntryQuery().narrowed([spark.EqualTo(("ledger_id",), 3)])
        assert entries(await topic.rows(options(), of_ledger)) == every[30:40]
        assert topic.ranges.pop() == (Position(3, 0), Position(3, 9))
        times = EntryQuery(since_ms=BASE_MS + 12_500, until_ms=BASE_MS + 21_000)
        assert entries(await topic.rows(options(query=times))) == every[13:21]
        topic.ranges.clear()
        for elsewhere in (
            EntryQuery(last=Position(1, 4)),
            EntryQuery().narrowed([spark.EqualTo(("topic",), "persistent://a/b/c")]),
        ):
            await topic.rows(options(), elsewhere)
        assert not topic.ranges
        with pytest.raises(InvalidInput, match=r"end = 4:10 is beyond the end") as caught:
            await topic.rows(options(query=EntryQuery(last=Position(4, 10))))
        assert caught.value.hint == "the newest is 4:9"


@pytest.mark.parametrize("committed", [0, 1, 4, 6, 7])
@pytest.mark.parametrize("partition_bytes", [150, 10**9])
async def test_a_message_whose_chunks_are_on_both_sides(committed: int, partition_bytes: int) -> None:
    """Its first chunks may be in a segment, in the live end, or in another task's share of that."""
    topic = LiveTopic(ledger_entries_max=3)
    whole = bytes(range(256)) * 4
    chunks = cut("a", whole, 4)
    async with topic.reader:
        await topic.arrive([chunks[0], entry(b"#"), chunks[1], chunks[2], entry(b"#"), chunks[3], entry(b"#")])
        if committed:
            await topic.commit(committed)
        rows = await topic.rows(options(messages=True, partition_bytes=partition_bytes))
        assert [row["state"] for row in rows] == ["chunk", "plain", "chunk", "chunk", "plain", "plain", "plain"]
        assert rows[5]["value"] == whole
        last = EntryQuery(first=topic.entries[5][0])
        assert (await topic.rows(options(messages=True, query=last)))[0]["value"] == whole


async def test_history_that_is_not_offloaded_comes_from_the_daemon() -> None:
    """Live segments precede it in the map; its gap is no hole where the daemon has its entries, and one where not."""
    topic = LiveTopic(ledger_entries_max=10)
    async with topic.reader:
        await topic.arrive(payloads(65, ledger_id=1))
        plan = HistoryPlan(
            boundary=4, first=0, last=Position(3, 9), order=HistoryOrder.ALONGSIDE, worker=Worker.DAEMON,
            planned_ms=1, epoch=1, daemon_id="d", entries=40, payload_bytes=1,
        )  # fmt: skip
        topic.begin_history(plan)
        await topic.commit_these(topic.entries[40:55])
        assert entries(await topic.rows(options())) == expected(topic)
        await topic.commit_these(topic.entries[:15])
        assert topic.map.history_end == Position(1, 4)
        made = await topic.planned(options())
        assert [one.first for one in live_pieces(made)] == [Position(1, 5), Position(5, 5)]
        await topic.commit_these(topic.entries[15:40])
        assert entries([row for share in made for row in await topic.read_share(share, options())]) == expected(topic)
    found = LiveTopic(ledger_entries_max=10)
    async with found.reader:
        await found.arrive(payloads(65, ledger_id=1))
        found.begin_history(plan)
        await found.commit_these(found.entries[40:55])
        for ledger_id in range(4):
            await found.source.delete(TOPIC, ledger_id)
        with pytest.raises(HoleInRange, match=r"^\[OFFLOAD_UNFINISHED\]"):
            await found.rows(options())


async def test_recorded_losses_are_holes() -> None:
    """One behind the committed entries ends the query, or is counted once; what follows it is read."""
    topic = LiveTopic(ledger_entries_max=10)
    async with topic.reader:
        await topic.arrive(payloads(55, ledger_id=1))
        await topic.commit(10)
        for ledger_id in (0, 1, 3):
            await topic.source.delete(TOPIC, ledger_id)
        topic.lose(Loss(Position(0, 9), Position(2, 0), 10), Loss(Position(2, 9), Position(4, 0), 10))
        with pytest.raises(HoleInRange, match=r"^\[OFFLOAD_LOSSES\]"):
            await topic.rows(options())
        for partition_bytes in (150, 10**9):
            rows = await topic.rows(options(skip=EVERYTHING, partition_bytes=partition_bytes))
            every = expected(topic)
            kept = [row for row in rows if row["skipped"] is None]
            assert sorted(entries(kept)) == [*every[:10], *every[20:30], *every[40:]]
            assert [row["skipped"] for row in rows if row["skipped"]] == [10, 10]


async def test_what_the_daemon_lost_after_the_planning_is_told() -> None:
    """A ledger that the source deletes before it is committed ends the query, or is counted; the rest is read."""
    topic = LiveTopic(ledger_entries_max=10)
    async with topic.reader:
        await topic.arrive(payloads(45, ledger_id=1))
        await topic.commit(5)
        made = {size: await topic.planned(options(partition_bytes=size)) for size in (300, 10**9)}
        await topic.source.delete(TOPIC, 2)
        for partition_bytes in (300, 10**9):
            wish = options(partition_bytes=partition_bytes)
            shares = [*made[partition_bytes]]
            with pytest.raises(BrokenSegment, match=r"^\[OFFLOAD_LOSSES\] the live end of .*orders, entries 2:0\.\.2:"):
                [await topic.read_share(share, wish) for share in shares]
            lenient = replace(wish, skip=frozenset({Condition.LOSSES}))
            rows = [row for share in shares for row in await topic.read_share(share, lenient)]
            every = expected(topic)
            assert entries([row for row in rows if row["skipped"] is None]) == [*every[:20], *every[30:]]
            assert counted(rows) == [one[:2] for one in every[20:30]]


async def test_what_may_be_missing_before_the_live_end_is_told() -> None:
    """Nothing is left out between the last committed entry and the oldest that the source still lists."""
    topic = LiveTopic(ledger_entries_max=10)
    async with topic.reader:
        await topic.arrive(payloads(45, ledger_id=1))
        await topic.commit(10)
        await topic.trim()
        assert entries(await topic.rows(options())) == expected(topic)
        await topic.lose_ledger(1)
        with pytest.raises(HoleInRange, match=r"^\[OFFLOAD_LOSSES\] .*what was between ledgers 0 and 2"):
            await topic.rows(options())
        rows = await topic.rows(options(skip=EVERYTHING))
        (told,) = [row for row in rows if row["reason"]]
        assert (told["ledger_id"], told["entry_id"], told["skipped"]) == (0, 10, None)
        assert "how many entries it stands for is not known" in told["reason"]
        every = expected(topic)
        kept = [row for row in rows if not row["reason"]]
        assert sorted(entries(kept)) == [*every[:10], *every[20:]]
        behind = options(query=EntryQuery(first=Position(2, 0)))
        assert entries(await topic.rows(behind)) == every[20:]


async def test_a_ledger_that_is_deleted_behind_its_last_entry_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task has read all of it, and goes on with the next one."""
    topic = LiveTopic(ledger_entries_max=10)
    async with topic.reader:
        await topic.arrive(payloads(25, ledger_id=1))
        (share,) = await topic.planned(options())
        real = topic.read

        async def losing(name: TopicName | str, **wanted: Any) -> AsyncGenerator[ReadAnswer, None]:  # noqa: ANN401
            async for answer in real(name, **wanted):
                yield answer
                if answer.batch.last == Position(0, 9):
                    raise EntriesMissing("no tier knows ledger 0 of 0:10")

        monkeypatch.setattr(topic, "read", losing)
        assert entries(await topic.read_share(share, options())) == expected(topic)


async def test_what_retention_deleted_meanwhile_is_told() -> None:
    """It was committed after the planning, and deleted before a task came to it: each of its entries is counted."""
    topic = LiveTopic(ledger_entries_max=10)
    async with topic.reader:
        await topic.arrive(payloads(45, ledger_id=1))
        await topic.commit(5)
        wish = options(partition_bytes=10**9)
        (share,) = await topic.planned(wish)
        live = live_pieces([share])
        await topic.commit(18)
        await topic.retire()
        await topic.retire()
        with pytest.raises(BrokenSegment, match=r"^\[OFFLOAD_RETENTION\] the live end of .*deleted by retention"):
            await topic.read_share(tuple(live), wish)
        rows = await topic.read_share(tuple(live), options(skip=frozenset({Condition.RETENTION})))
        every = expected(topic)
        assert counted(rows) == [one[:2] for one in every[5:20]]
        assert entries([row for row in rows if row["skipped"] is None]) == every[20:], "the source still has 2:0 to 2:2"


async def test_a_daemon_without_the_buffer_of_the_planning_is_not_believed() -> None:
    """Another one may know less of a topic without a source: that is no loss, and ends the query whatever it skips."""
    topic = LiveTopic(ledger_entries_max=10, sourced=False)
    async with topic.reader:
        await topic.arrive(payloads(8, ledger_id=1))
        await topic.commit(3)
        wish = options(skip=EVERYTHING)
        (share,) = await topic.planned(wish)
        topic.hot.clear()
        with pytest.raises(Transient, match=r"does not know entries up to 0:7 yet, or any more: .*beyond the end"):
            await topic.read_share(share, wish)


async def test_one_damaged_entry_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source cannot give it; those before and behind it are read."""
    topic = LiveTopic(ledger_entries_max=10)
    real = topic.source.read

    async def damaged(
        name: TopicName, ledger_id: int, first: int, last: int, *, batch_bytes: int
    ) -> AsyncGenerator[Any, None]:
        for entry_id in range(first, last + 1):
            if (ledger_id, entry_id) == (1, 4):
                raise CorruptData(key="ledger 1", offset=0, expected="a", found="b")
            async for batch in real(name, ledger_id, entry_id, entry_id, batch_bytes=batch_bytes):
                yield batch

    monkeypatch.setattr(topic.source, "read", damaged)
    async with topic.reader:
        await topic.arrive(payloads(25, ledger_id=1))
        with pytest.raises(BrokenSegment, match=r"^\[OFFLOAD_DAMAGE\] .*entries 1:4\.\.1:4, cannot be read: corrupt"):
            await topic.rows(options())
        for messages in (False, True):
            rows = await topic.rows(options(mode=Mode.SKIP, messages=messages))
            assert counted(rows) == [(1, 4)]
            assert [row["payload"] for row in rows if row["skipped"] is None] == [
                data for at, data in topic.entries if at != (1, 4)
            ]


async def test_an_outcome_in_the_live_end_that_cannot_be_read_is_not_guessed() -> None:
    """The message is in a segment, its marker in a ledger that was deleted: an error, or raw with the reason."""
    topic = LiveTopic(ledger_entries_max=2)
    async with topic.reader:
        await topic.arrive([sent(IDS[0], b"1"), entry(b"2"), commit(IDS[0]), entry(b"3"), entry(b"4")])
        await topic.commit(2)
        wish = options(messages=True, query=EntryQuery(last=Position(0, 1)))
        (share,) = await topic.planned(wish)
        assert [row["value"] for row in await topic.read_share(share, wish)] == [b"1", b"2"]
        await topic.source.delete(TOPIC, 1)
        with pytest.raises(BrokenSegment, match=r"the live end of .* cannot be read"):
            await topic.read_share(share, wish)
        rows = await topic.read_share(share, replace(wish, mode=Mode.SKIP))
        assert [row["state"] for row in rows] == ["raw", "plain"]


async def test_the_driver_reads_the_newest_of_the_live_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many bytes of the live end as of segments are looked through for open transactions."""
    monkeypatch.setattr(source_transactions, "LOOK_BACK_BYTES", 1)
    topic = LiveTopic(ledger_entries_max=3)
    async with topic.reader:
        await topic.arrive([entry(b"0"), entry(b"1"), entry(b"2"), entry(b"3"), sent(IDS[0], b"4")])
        await topic.commit(1)
        made = await topic.planned(options(messages=True))
        assert topic.ranges == [(Position(0, 3), Position(1, 0)), (Position(1, 1), Position(1, 1))]
        assert live_pieces(made)[-1].last == Position(1, 0), "nothing from the open transaction on"


async def test_a_topic_without_a_source_has_its_newest_ledgers_in_the_buffer() -> None:
    """The planning reads them once where nobody lists them, and not where one ledger has all."""
    topic = LiveTopic(ledger_entries_max=4, sourced=False)
    async with topic.reader:
        await topic.arrive(payloads(10, ledger_id=1))
        await topic.commit(2)
        topic.hot.runs = topic.hot.runs[2:]
        for partition_bytes in (100, 10**9):
            topic.ranges.clear()
            assert entries(await topic.rows(options(partition_bytes=partition_bytes))) == expected(topic)
            assert topic.ranges[0] == (Position(0, 2), Position(2, 1))
        await topic.commit(7)
        topic.hot.runs = topic.hot.runs[7:]
        topic.ranges.clear()
        assert entries(await topic.rows(options())) == expected(topic)
        assert topic.ranges == [(Position(2, 1), Position(2, 1))]


async def test_a_daemon_that_lags_or_is_of_another_cluster_is_refused() -> None:
    """It knows no entry as new as those that are committed, or it says that it is of another deployment."""
    topic, other = LiveTopic(), LiveTopic()
    async with topic.reader, other.reader:
        await topic.arrive(payloads(20, ledger_id=1))
        await topic.commit(20)
        await other.arrive(payloads(3, ledger_id=1))
        other.store, there = topic.store, topic.map
        other_client, topic.map = Connected(other), there
        found = await topic.snapshot(EntryQuery())
        with pytest.raises(Transient, match=r"2:5 is committed, and for the daemon at 127.0.0.1:1 0:2 is the newest"):
            await with_live_ends(
                [replace(found, live=())], EntryQuery(), await other_client.client(), Stores(topic.store, None)
            )
        clock = LoopClock()
        made = Deployment(deployment_id=clock.uuid(), made_ms=1, made_by="test", source=None)
        async with MemoryTree().connect() as metadata:
            await identity.ensure_deployment(metadata, made)
            stores = Stores(topic.store, metadata)
            topic.deployment_id = str(made.deployment_id)
            assert await with_live_ends([found], EntryQuery(), topic, stores)
            topic.deployment_id = str(clock.uuid())
            with pytest.raises(Conflict, match="is of deployment"):
                await with_live_ends([found], EntryQuery(), topic, stores)


async def test_what_comes_during_the_planning_is_for_the_next_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest entry is fixed before the ledgers are listed, and the last of them may have grown by then."""
    topic = LiveTopic(ledger_entries_max=10)
    real = topic.ledgers

    async def later(name: TopicName | str) -> retention_pb2.ListLedgersResponse:
        await topic.arrive([b"later"] * 12)
        return await real(name)

    monkeypatch.setattr(topic, "ledgers", later)
    async with topic.reader:
        await topic.arrive(payloads(25, ledger_id=1))
        assert entries(await topic.rows(options())) == expected(topic, 25)


async def test_ledgers_that_are_not_listed_are_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that does not answer, or does not name the newest ledger, ends the planning; it may do so soon."""
    topic = LiveTopic(ledger_entries_max=10)
    real = topic.ledgers

    async def less(name: TopicName | str) -> retention_pb2.ListLedgersResponse:
        listed = await real(name)
        del listed.ledgers[-1]
        return listed

    async def silent(_: TopicName | str) -> retention_pb2.ListLedgersResponse:
        return retention_pb2.ListLedgersResponse(source_error="no answer")

    async with topic.reader:
        await topic.arrive(payloads(25, ledger_id=1))
        for answer, told in ((less, "does not list the ledgers up to 2:4 yet"), (silent, "ledger source: no answer")):
            monkeypatch.setattr(topic, "ledgers", answer)
            with pytest.raises(Transient, match=told):
                await topic.planned(options())


async def test_entries_that_the_daemon_passes_over_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task compares what comes with what the planning found; what comes twice ends the query, whatever it skips."""
    topic = LiveTopic(ledger_entries_max=10)
    async with topic.reader:
        await topic.arrive(payloads(35, ledger_id=1))
        (share,) = await topic.planned(options())
        every, real = expected(topic), topic.read
        spoilt: dict[Position, int] = {}

        async def others(name: TopicName | str, **wanted: Any) -> AsyncGenerator[ReadAnswer, None]:  # noqa: ANN401
            async for answer in real(name, **wanted):
                for _ in range(spoilt.get(answer.batch.first, 1)):
                    yield answer

        monkeypatch.setattr(topic, "read", others)
        places = [Position(ledger_id, entry_id) for ledger_id in range(4) for entry_id in (0, 3, 6, 9)]
        for left_out, kept in ((places[2:7], [*every[:6], *every[19:]]), (places[13:], every[:33])):
            spoilt.update(dict.fromkeys(left_out, 0))
            with pytest.raises(BrokenSegment, match=rf"^\[OFFLOAD_LOSSES\] .*passed over {left_out[0]},"):
                await topic.read_share(share, options())
            rows = await topic.read_share(share, options(skip=EVERYTHING))
            assert entries([row for row in rows if row["skipped"] is None]) == kept
            assert counted(rows) == [one[:2] for one in every if one not in kept]
            spoilt.clear()
        spoilt[places[1]] = 2
        with pytest.raises(OffloaderError, match=r"the daemon sent 0:3 to 0:5, and 0:6..0:9 was to come") as caught:
            await topic.read_share(share, options(skip=EVERYTHING))
        assert not isinstance(caught.value, BrokenSegment)


async def test_a_query_is_planned_on_the_map_and_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan` asks the daemon of the options behind its snapshot of ZooKeeper, and holds open transactions back."""
    topic = LiveTopic(ledger_entries_max=4)
    monkeypatch.setattr(source_plan, "LiveReader", lambda _: Connected(topic))
    wish = options(live=Daemon(("h:1",), Trust()), messages=True)
    async with topic.reader, MemoryTree().connect() as metadata:
        for folder in paths.folders(TOPIC):
            await metadata.create(folder, b"")
        await topic.arrive([entry(b"0"), sent(IDS[0]), commit(IDS[0]), entry(b"3"), sent(IDS[1]), entry(b"5")])
        segments = LiveTopic(ledger_entries_max=4)
        await segments.arrive(data for _, data in topic.entries)
        await topic.commit(2)
        steps, _ = type(topic.map)(TOPIC).with_commit(topic.map.segments[0])
        await metadata.transact(steps)
        (share,) = await source_plan.plan(wish, EntryQuery(), Stores(topic.store, metadata))
        rows = await topic.read_share(share, wish)
        assert [row["entry_id"] for row in rows] == [0, 1, 3]
        plain = replace(wish, live=None)
        (share,) = await source_plan.plan(plain, EntryQuery(), Stores(topic.store, metadata))
        assert [row["entry_id"] for row in await topic.read_share(share, plain)] == [0]
        assert all(not isinstance(one, Missing) for one in share)


async def test_a_daemon_that_nobody_reaches() -> None:
    """The query fails and names the address."""
    topic = LiveTopic()
    async with topic.reader:
        await topic.arrive(payloads(5, ledger_id=1))
        (share,) = await topic.planned(options())

        class Away(Connected):
            async def client(self) -> LiveTopic:
                raise Unreachable("cannot connect to the daemon at h:1")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LiveTopic, "live", property(Away))
            with pytest.raises(Unreachable, match="h:1"):
                await topic.read_share(share, options(skip=EVERYTHING))
