"""What is pushed too late: behind a gap that the source cannot fill any more, as its loss is on record already.

Ledger 0 is offloaded up to 0:3. Retention has deleted the ledgers 0, 1 and 2; the source goes on with 3:0.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from offloaderd.core.errors import NotFound, OffloaderError, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Confirmed, Edge, EntryBatch, LedgerInfo, Loss, OfferResult, Position, TopicName
from offloaderd.core.quotas import Accounts
from offloaderd.core.retry import PAUSES
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.roll import Requested, TopicView
from offloaderd.testing.clock import FakeClock
from offloaderd.topic.buffer import BufferPool, TailingBuffer
from offloaderd.topic.lag import LagTracker
from offloaderd.topic.tailer import PUSH_PATIENCE_S, EntriesMissing, SourceReader, Tailer
from tests.patience import PATIENCE_S
from tests.unit.rigs.rig import TOPIC, memory_ledgers, payloads, turn, until
from tests.virtual import LoopClock

LEFT = Position(0, 3)
NEXT = Position(3, 0)
END = Position(4, 4)
LIMIT_BYTES = 20_000


class Tailing:
    """A tailer with its buffer, and all that was reported to it as lost."""

    def __init__(self, *losses: Loss) -> None:
        self.clock = LoopClock()
        self.metrics = Metrics()
        self.source = memory_ledgers(self.clock, ledger_entries_max=10)
        self.pool = BufferPool(LIMIT_BYTES)
        self.buffer = TailingBuffer(self.pool, resume=LEFT, rereadable=True)
        self.taken = LEFT
        self.lost: list[Loss] = []
        self.chain = LedgerChain(LEFT, end=None, losses=losses)
        self.topic, self.pushers, self.oldest = TOPIC, 0, None
        self.account = Accounts(self.clock, self.metrics).of(TOPIC)
        self.lag = LagTracker()
        self.failure_tracker = FailureTracker(TOPIC, self.clock, lambda: None)
        reader = SourceReader(self.source, TOPIC)
        self.tailer = Tailer(reader, self, self.chain, self.pool, clock=self.clock, metrics=self.metrics)

    @property
    def view(self) -> TopicView:
        """See TailedTopic."""
        return TopicView(Requested())

    @property
    def outage(self) -> Tailing:
        """See TailedTopic."""
        return self

    async def may_take(self, meanwhile: object = None) -> None:
        """See Gate."""
        await turn()

    def refreshed(self) -> None:
        """See TailedTopic."""

    async def record_loss(self, loss: Loss) -> None:
        """See TailedTopic."""
        await turn()
        self.chain.accept(loss)
        self.lost.append(loss)

    async def fill_source(self) -> None:
        """Write five ledgers, of which retention leaves the last two."""
        await self.source.append(TOPIC, payloads(45))
        for ledger_id in (0, 1, 2):
            await self.source.delete(TOPIC, ledger_id)

    def decline(self, ledger_id: int, first: int, count: int) -> None:
        """Push when there is no room."""
        other = TailingBuffer(self.pool, resume=LEFT, rereadable=False)
        assert (
            other.offer(EntryBatch(0, 4, payloads(1, LIMIT_BYTES - 100 - self.pool.used_bytes))) is OfferResult.ACCEPTED
        )
        assert self.buffer.offer(EntryBatch(ledger_id, first, payloads(count))) is OfferResult.FULL
        other.close()

    def push(self, ledger_id: int, first: int, count: int) -> None:
        """Push when there is room."""
        assert self.buffer.offer(EntryBatch(ledger_id, first, payloads(count))) is OfferResult.ACCEPTED

    def held(self) -> list[Position]:
        """What a segment gets, by position."""
        return [
            Position(batch.ledger_id, batch.first_entry_id + at)
            for batch in self.buffer.take(self.taken, 1 << 30)
            for at in range(len(batch.payloads))
        ]

    async def until_at_end(self) -> list[Position]:
        """Tail until the newest entry can be taken; returns all that can."""
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            running = group.create_task(self.tailer.run())
            await until(lambda: END in self.held())
            running.cancel()
        return self.held()


async def test_what_was_known_of_an_open_ledger_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at which bookies do not answer must not have the tailer believe that it is at the end."""
    tailing = Tailing()
    await tailing.source.append(TOPIC, payloads(15))
    assert await tailing.tailer.refresh() == Position(1, 4)

    async def away(*_: object) -> Confirmed:
        raise Transient("no bookie answers")

    monkeypatch.setattr(tailing.source, "confirmed", away)
    with pytest.raises(Transient):
        await tailing.tailer.refresh()
    assert tailing.chain.ledgers[1].entries == 5


async def test_entries_that_the_list_does_not_show_stay_known_while_no_bookie_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The list says of an open ledger that it has none: who believed that would leave the last ones for good."""
    tailing = Tailing()
    edges = iter([Confirmed(4, closed=False)])

    async def ledgers(_: object) -> list[LedgerInfo]:
        return [listed(1, 0, closed=False)]

    async def confirmed(*_: object) -> Confirmed:
        if (edge := next(edges, None)) is None:
            raise Transient("no bookie answers")
        return edge

    monkeypatch.setattr(tailing.source, "ledgers", ledgers)
    monkeypatch.setattr(tailing.source, "confirmed", confirmed)
    assert await tailing.tailer.refresh() == Position(1, 4)
    with pytest.raises(Transient):
        await tailing.tailer.refresh()
    assert tailing.chain.ledgers[1].entries == 5


@pytest.mark.parametrize("changes", [1, 4])
async def test_an_open_ledger_that_vanishes_before_its_end_was_told_is_a_doubt(
    changes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bookies were away, and an operator deleted it: nobody can say that it was empty."""
    tailing = Tailing()
    lists = [[listed(0, 5), listed(1, 0, closed=False, version=1)]]
    lists.append([listed(0, 5), listed(2, 3, closed=False, version=1 + changes)])
    answers = iter(lists)

    async def ledgers(_: object) -> list[LedgerInfo]:
        return next(answers)

    async def confirmed(_: object, ledger_id: int) -> Confirmed:
        if ledger_id == 1:
            raise Transient("no bookie answers")
        return Confirmed(2, closed=False)

    monkeypatch.setattr(tailing.source, "ledgers", ledgers)
    monkeypatch.setattr(tailing.source, "confirmed", confirmed)
    with pytest.raises(Transient):
        await tailing.tailer.refresh()
    await tailing.tailer.refresh()
    assert tailing.chain.next_after(Position(0, 4)) == Loss(Position(0, 4), Position(2, 0), 0)


async def test_a_ledger_that_nobody_stores_any_more_is_no_deleted_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has it still: what it held when it vanished nobody knows."""
    tailing = Tailing()
    lists = [[listed(1, 5, closed=False)], [listed(1, 5, closed=False)], [listed(2, 3, closed=False)]]
    answers = iter(lists)

    async def ledgers(_: object) -> list[LedgerInfo]:
        return next(answers)

    async def confirmed(_: object, ledger_id: int) -> Confirmed:
        if ledger_id == 1 and next(asked):
            raise NotFound("no such ledger")
        return Confirmed(4 if ledger_id == 1 else 2, closed=False)

    asked = iter([False, True])
    monkeypatch.setattr(tailing.source, "ledgers", ledgers)
    monkeypatch.setattr(tailing.source, "confirmed", confirmed)
    for _ in lists:
        await tailing.tailer.refresh()
    assert tailing.chain.next_after(Position(1, 4)) == Loss(Position(1, 4), Position(2, 0), 0)


async def test_a_new_ledger_that_vanishes_with_its_topic_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list had it: others may have read what it held, and nobody can say that it was empty."""
    tailing = Tailing()
    answers = iter([[listed(0, 5)], [listed(0, 5), listed(1, 0, closed=False)], None, [listed(2, 3)]])

    async def ledgers(_: object) -> list[LedgerInfo]:
        found = next(answers)
        if found is None:
            raise NotFound("unknown topic")
        return found

    async def confirmed(*_: object) -> Confirmed:
        raise NotFound("no such ledger")

    monkeypatch.setattr(tailing.source, "ledgers", ledgers)
    monkeypatch.setattr(tailing.source, "confirmed", confirmed)
    for _ in range(4):
        await tailing.tailer.refresh()
    assert tailing.chain.next_after(Position(0, 4)) == Loss(Position(0, 4), Position(2, 0), 0)


def listed(ledger_id: int, entries: int, *, closed: bool = True, version: int | None = None) -> LedgerInfo:
    """A ledger of a list that was changed so often."""
    listing = (1_000, version) if version is not None else None
    return LedgerInfo(ledger_id=ledger_id, closed=closed, entries=entries, size_bytes=entries, listing=listing)


def whole(*ledger_ids: int) -> list[Position]:
    """All entries of ledgers."""
    return [Position(one, at) for one in ledger_ids for at in range(5 if one == END.ledger_id else 10)]


@pytest.mark.parametrize("known", [0, 6], ids=["maybe lost", "counted already"])
async def test_the_rest_of_a_ledger_behind_a_recorded_loss_is_dropped(known: int) -> None:
    """It cannot be stored, and would be in the way of all that follows; it is told, and counted once."""
    tailing = Tailing(Loss(LEFT, NEXT, known))
    await tailing.fill_source()
    tailing.decline(0, 4, 2)
    tailing.push(0, 6, 4)
    with capture_logs() as logs:
        assert await tailing.until_at_end() == whole(3, 4)
    assert [(line["range"], line["entries"]) for line in logs if line["event"] == "topic.pushed_entries_dropped"] == [
        ("0:6..0:9", 4)
    ]
    assert tailing.metrics.source_lost_entries._value.get() == (0 if known else 4)
    assert tailing.pool.used_bytes == tailing.buffer.used_bytes
    assert tailing.lost == []


async def test_all_pieces_of_a_rest_are_dropped_and_other_topics_get_their_room() -> None:
    """Declined and taken in turns: none of it can be stored; a push-only neighbour waits for what it occupies."""
    tailing = Tailing(Loss(LEFT, NEXT, 0))
    await tailing.fill_source()
    for first in (4, 7):
        tailing.decline(0, first, 1)
        tailing.push(0, first + 1, 2)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(tailing.pool.freed.wait())
        await turn()
        assert await tailing.until_at_end() == whole(3, 4)
        await waiting


async def test_a_rest_that_is_in_the_way_already_is_dropped() -> None:
    """It was pushed while the source was read behind the loss: the entries are there and nobody gets at them."""
    tailing = Tailing(Loss(LEFT, NEXT, 0))
    await tailing.fill_source()
    tailing.decline(0, 4, 2)
    tailing.push(0, 6, 4)
    assert tailing.buffer.fill(EntryBatch(3, 0, payloads(5)), LEFT)
    assert tailing.held() == []
    assert await tailing.until_at_end() == whole(3, 4)


async def test_a_broker_that_pushes_has_a_moment_for_each_position() -> None:
    """Before that the source would be read for what is on its way; without one it would be read too late."""
    tailing, clock = Tailing(), FakeClock()
    tailing.tailer._clock = clock
    tailing.pushers = 1
    for edge in (LEFT, NEXT):
        assert tailing.tailer._leave_to_pusher(edge)
        await clock.advance(PUSH_PATIENCE_S - 0.1)
        assert tailing.tailer._leave_to_pusher(edge)
        await clock.advance(0.2)
        assert not tailing.tailer._leave_to_pusher(edge)
    tailing.pushers = 0
    assert not tailing.tailer._leave_to_pusher(END)


async def test_a_read_that_waits_for_room_ends_with_its_need() -> None:
    """What it would go on with is not what the segment needs now; nothing of it counts as taken from the source."""
    tailing = Tailing()
    await tailing.source.append(TOPIC, payloads(10, 2000))
    other = TailingBuffer(tailing.pool, resume=LEFT, rereadable=False)
    assert other.offer(EntryBatch(0, 4, payloads(1, LIMIT_BYTES - 100))) is OfferResult.ACCEPTED
    declined = tailing.metrics.buffer_rejected_entries.labels(reason="full")._value
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(tailing.tailer.run())
        await until(lambda: declined.get() == 1)
        tailing.buffer.restart(LEFT)
        await until(lambda: declined.get() == 2)
        assert tailing.metrics.source_entries._value.get() == 0
        other.close()
        await until(lambda: Position(0, 9) in tailing.held())
        running.cancel()
    assert tailing.metrics.source_entries._value.get() == 6


async def test_what_was_pushed_is_not_read_from_the_source_as_well() -> None:
    """Only the entries that were declined are read, up to those behind them; each is held, and counted, once."""
    tailing = Tailing()
    await tailing.source.append(TOPIC, payloads(10))
    tailing.decline(0, 4, 2)
    tailing.push(0, 6, 4)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(tailing.tailer.run())
        await until(lambda: Position(0, 9) in tailing.held())
        running.cancel()
    assert tailing.held() == [Position(0, at) for at in range(4, 10)]
    assert tailing.metrics.source_entries._value.get() == 2
    entries, _ = tailing.buffer.pending_after(LEFT)
    assert entries == 6


async def test_who_reads_the_source_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic at rest is suspended: its entries would not be read on."""
    tailing, reading, read = Tailing(), asyncio.Event(), asyncio.Event()
    await tailing.source.append(TOPIC, payloads(5))
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(tailing.tailer.run())
        await until(lambda: tailing.tailer.resting)
        ledgers = tailing.source.ledgers

        async def slowly(topic: TopicName) -> list[LedgerInfo]:
            reading.set()
            await read.wait()
            return list(await ledgers(topic))

        monkeypatch.setattr(tailing.source, "ledgers", slowly)
        tailing.tailer.nudge()
        await reading.wait()
        assert not tailing.tailer.resting
        read.set()
        await until(lambda: tailing.tailer.resting)
        running.cancel()


async def test_what_comes_while_the_source_is_read_is_read_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the end that the source has just told, notified before the reading is done; no other notice follows."""
    tailing = Tailing()
    await tailing.source.append(TOPIC, payloads(5))
    asked, late = tailing.source.confirmed, iter([payloads(1)])

    async def confirmed(topic: TopicName, ledger_id: int) -> Confirmed:
        told = await asked(topic, ledger_id)
        for more in late:
            await tailing.source.append(TOPIC, more)
            await turn()
        return told

    monkeypatch.setattr(tailing.source, "confirmed", confirmed)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(tailing.tailer.run())
        await until(lambda: Position(0, 5) in tailing.held())
        running.cancel()


async def test_the_pause_after_a_failed_look_is_short_again_after_a_good_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It doubles with each failure in a row; a source that stumbles once a week is soon looked at again."""
    tailing, looks, failing = Tailing(), list[float](), 0
    ledgers = tailing.source.ledgers

    async def stumbling(topic: TopicName) -> list[LedgerInfo]:
        nonlocal failing
        looks.append(tailing.clock.monotonic())
        if failing:
            failing -= 1
            raise Transient("no answer")
        return list(await ledgers(topic))

    monkeypatch.setattr(tailing.source, "ledgers", stumbling)
    await tailing.source.append(TOPIC, payloads(5))
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(tailing.tailer.run())
        for failures in (6, 1):
            await until(lambda: tailing.tailer.resting)
            looks.clear()
            failing = failures
            tailing.tailer.nudge()
            await until(lambda: len(looks) > failures)  # noqa: B023 - awaited here
        running.cancel()
    assert looks[1] - looks[0] <= PAUSES[Transient].first_s


async def test_a_whole_ledger_within_a_recorded_loss_is_kept() -> None:
    """A broker still had it: what is lost is before and behind it, as if it had come before that was noticed."""
    tailing = Tailing(Loss(LEFT, NEXT, 0))
    await tailing.fill_source()
    tailing.decline(0, 4, 6)
    tailing.push(1, 0, 10)
    assert await tailing.until_at_end() == whole(1, 3, 4)
    assert tailing.lost == [Loss(LEFT, Position(1, 0), 0), Loss(Position(1, 9), NEXT, 0)]


async def test_a_rest_gives_way_to_a_whole_ledger_behind_it() -> None:
    """The one is dropped, the other is kept."""
    tailing = Tailing(Loss(LEFT, NEXT, 0))
    await tailing.fill_source()
    tailing.decline(0, 4, 2)
    tailing.push(0, 6, 4)
    tailing.decline(1, 0, 10)
    tailing.push(2, 0, 10)
    assert await tailing.until_at_end() == whole(2, 3, 4)
    assert tailing.lost == [Loss(LEFT, Position(2, 0), 0), Loss(Position(2, 9), NEXT, 0)]


async def test_what_directly_follows_what_is_taken_is_no_rest() -> None:
    """The broker pushed on where the topic stands: the loss begins behind it."""
    tailing = Tailing(Loss(LEFT, NEXT, 0))
    await tailing.fill_source()
    tailing.push(0, 4, 6)
    assert await tailing.until_at_end() == [Position(0, at) for at in range(4, 10)] + whole(3, 4)
    assert tailing.lost == [Loss(Position(0, 9), NEXT, 0)]


async def test_a_rest_that_came_before_the_loss_was_noticed_stops_the_topic() -> None:
    """A gap within a ledger that is not on record as lost is never passed over."""
    tailing = Tailing()
    await tailing.fill_source()
    tailing.decline(0, 4, 2)
    tailing.push(0, 6, 4)
    with pytest.raises(ExceptionGroup) as caught:
        await tailing.until_at_end()
    assert caught.group_contains(EntriesMissing, match="after 0:3 and before 0:6")
    assert tailing.lost == []


async def test_a_segment_that_is_given_up_finds_no_rest_in_its_way() -> None:
    """It begins again before the loss, what it had taken is still held: the rest behind the loss is dropped as well."""
    tailing = Tailing(Loss(Position(0, 5), NEXT, 0))
    await tailing.fill_source()
    tailing.push(0, 4, 2)
    tailing.taken = Position(0, 5)
    tailing.decline(0, 6, 2)
    tailing.push(0, 8, 2)
    tailing.taken = LEFT
    tailing.buffer.restart(LEFT)
    assert await tailing.until_at_end() == [Position(0, 4), Position(0, 5), *whole(3, 4)]
    assert tailing.lost == []


async def test_what_a_ledger_should_not_have_does_not_stop_the_topic() -> None:
    """The source has closed a ledger below what was pushed of it: it says where the topic goes on."""
    tailing = Tailing()
    await tailing.source.append(TOPIC, payloads(45))
    tailing.taken = Position(0, 7)
    tailing.buffer.release(Position(0, 7))
    tailing.decline(0, 8, 4)
    tailing.push(0, 12, 3)
    assert await tailing.until_at_end() == [Position(0, 8), Position(0, 9), *whole(1, 2, 3, 4)]
    assert tailing.metrics.source_lost_entries._value.get() == 3


async def test_what_is_hidden_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a ledger is asked for again as long as entries are stored and not confirmed."""
    tailing = Tailing()
    last = await tailing.source.append(TOPIC, payloads(5))
    ends = [Confirmed(1, closed=False, hidden=3), Confirmed(3, closed=False, hidden=1), Confirmed(4, closed=False)]

    async def confirmed(*_: object) -> Confirmed:
        await turn()
        return ends.pop(0)

    monkeypatch.setattr(tailing.source, "confirmed", confirmed)
    await tailing.tailer.settled()
    assert not ends
    assert tailing.chain.ledgers[0].entries == last.entry_id + 1


async def test_what_stays_hidden_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that nobody tells the end is taken at its word in the end."""
    tailing = Tailing()
    await tailing.source.append(TOPIC, payloads(5))

    async def confirmed(*_: object) -> Confirmed:
        await turn()
        return Confirmed(3, closed=False, hidden=1)

    monkeypatch.setattr(tailing.source, "confirmed", confirmed)
    monkeypatch.setattr("offloaderd.topic.tailer.SETTLE_S", 0.3)
    await tailing.tailer.settled()
    assert tailing.chain.ledgers[0].entries == 4


async def test_a_topic_that_is_deleted_while_entries_are_hidden_leaves_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was stored beyond the last confirmed entry may have been acknowledged to its producer."""
    tailing = Tailing()
    await tailing.source.append(TOPIC, payloads(4))

    async def confirmed(topic: object, ledger_id: int) -> Confirmed:
        await turn()
        return Confirmed(3, closed=False, edge=Edge.NEXT_WRITE, hidden=1)

    async def gone(topic: object) -> list[LedgerInfo]:
        await turn()
        raise NotFound("unknown topic")

    monkeypatch.setattr(tailing.source, "confirmed", confirmed)
    await tailing.tailer.refresh()
    monkeypatch.setattr(tailing.source, "ledgers", gone)
    await tailing.tailer.refresh()
    tailing.chain.update([LedgerInfo(ledger_id=3, closed=False, entries=2, size_bytes=2)])
    assert tailing.chain.next_after(LEFT) == Loss(LEFT, NEXT, 0)


async def test_a_topic_that_is_deleted_after_a_look_that_failed_leaves_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written meanwhile is nowhere."""
    tailing = Tailing()
    await tailing.source.append(TOPIC, payloads(4))
    await tailing.tailer.refresh()
    for error in (Transient("no answer"), NotFound("unknown topic")):

        async def answers(topic: object, error: OffloaderError = error) -> list[LedgerInfo]:
            await turn()
            raise error

        monkeypatch.setattr(tailing.source, "ledgers", answers)
        with suppress(Transient):
            await tailing.tailer.refresh()
    tailing.chain.update([LedgerInfo(ledger_id=3, closed=False, entries=2, size_bytes=2)])
    assert tailing.chain.next_after(LEFT) == Loss(LEFT, NEXT, 0)
