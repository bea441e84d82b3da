"""ReadMessages of topics with transactions: what a consumer is given, and all there is."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloaderd.api.read import ReadService
from offloaderd.core.errors import EntriesLost, NotFound, Throttled
from offloaderd.core.model import EntryBatch, Loss, Position, TopicName
from offloaderd.format.pulsar import transactions
from offloaderd.protocol.v1 import read_pb2
from offloaderd.read import transactions as outcomes
from offloaderd.read.transactions import look_back_from
from tests.unit.format.test_pulsar_message import batch, chunks_of, entry
from tests.unit.read.build import TOPIC, Piece, make_read_rig, put_segment, turns
from tests.unit.transactional import IDS, OPS, Op, abort, commit, consumed, cut_at, place, sent
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from tests.unit.read.build import ReadRig

ALL = read_pb2.TRANSACTIONS_ALL
COMMITTED, ABORTED, OPEN, UNKNOWN = (
    read_pb2.TransactionState.Value(f"TRANSACTION_STATE_{name}") for name in ("COMMITTED", "ABORTED", "OPEN", "UNKNOWN")
)


async def topic_of(ledgers: Sequence[Sequence[bytes]], *, hot: int = 0) -> ReadRig:
    """Return a topic with these ledgers: each a segment, but for the last `hot` ones, which are in the buffer."""
    rig = make_read_rig(batch_bytes=300)
    stored = len(ledgers) - hot
    for ledger_id, payloads in enumerate(ledgers):
        if ledger_id < stored:
            piece = Piece(ledger_id, 0, payloads, closed=len(payloads))
            segment = await put_segment(rig.store, [piece], segment_id=uuid.UUID(int=ledger_id + 1), block_entries=2)
            rig.map.segments.append(segment)
        else:
            before = ledgers[ledger_id - 1] if ledger_id else ()
            follows = Position(ledger_id - 1, len(before) - 1) if before else None
            rig.hot.add(EntryBatch(ledger_id, 0, payloads), follows)
    return rig


def answers(
    rig: ReadRig, service: ReadService | None = None, **fields: object
) -> AsyncIterator[read_pb2.ReadMessagesResponse]:
    """Ask for messages, of a service that has answered nothing yet unless one is given."""
    request = read_pb2.ReadRequest(topic=str(TOPIC), **fields)  # type: ignore[arg-type] # fields of the request
    service = service or ReadService(rig.reader, 4, metrics=rig.metrics)
    return service.ReadMessages(request, None)  # type: ignore[arg-type] # which is not looked at


async def read(
    rig: ReadRig, service: ReadService | None = None, **fields: object
) -> tuple[list[read_pb2.Message], read_pb2.HeldBack | None]:
    """Return all messages, and what is held back."""
    found = [answer async for answer in answers(rig, service, **fields)]
    held = [answer.held_back for answer in found if answer.HasField("held_back")]
    assert held in ([], [found[-1].held_back if found else None]), "only the last answer may say so"
    return [message for answer in found for message in answer.messages], held[0] if held else None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ops=OPS, cuts=st.sets(st.integers(1, 13), max_size=3), hot=st.integers(0, 2), data=st.data())
def test_messages_are_those_that_a_consumer_is_given(
    ops: list[Op], cuts: set[int], hot: int, data: st.DataObject
) -> None:
    """Whatever is open, committed and aborted, wherever ledgers and segments end, and wherever the read begins.

    Also by a service that has read some other range before, and remembers what it found out.
    """
    payloads = [op.payload(at) for at, op in enumerate(ops)]
    ledgers = cut_at(payloads, cuts)
    first = data.draw(st.integers(0, len(ops) - 1))
    last = data.draw(st.integers(first, len(ops) - 1))
    earlier = data.draw(st.one_of(st.none(), st.integers(0, len(ops) - 1)))

    async def run() -> tuple[list[int], list[tuple[int, int]], tuple[int, int] | None]:
        rig = await topic_of(ledgers, hot=min(hot, len(ledgers)))
        low, high = place(first, ledgers), place(last, ledgers)
        asked = {
            "first": {"ledger_id": low[0], "entry_id": low[1]},
            "last": {"ledger_id": high[0], "entry_id": high[1]},
        }
        async with rig.reader:
            service = ReadService(rig.reader, 4, metrics=rig.metrics)
            if earlier is not None:
                at = place(earlier, ledgers)
                await read(rig, service, first={"ledger_id": at[0], "entry_id": at[1]}, entries_max=3)
            messages, held = await read(rig, service, **asked)
            everything, _ = await read(rig, service, **asked, transactions=ALL)
        states = [(one.position.ledger_id, one.position.entry_id) for one in everything]
        waits_at = (held.position.ledger_id, held.position.entry_id) if held is not None else None
        return [int(one.data) for one in messages], states, waits_at

    found, everything, held = virtually(run())
    expected, waits = consumed(ops)
    assert found == [at for at in expected if first <= at <= last]
    assert everything == [place(at, ledgers) for at in range(first, last + 1)]
    hidden = waits is not None and waits <= last
    assert held == (place(waits, ledgers) if hidden and waits is not None else None)


async def test_everything_says_what_became_of_it() -> None:
    """States of messages and markers, and none where there is no transaction; an outcome may be two ledgers later."""
    ledgers = [
        [entry(b"plain"), sent(IDS[0], b"a"), sent(IDS[1], b"b")],
        [sent(IDS[2], b"c"), commit(IDS[0])],
        [abort(IDS[1]), entry(b"", marker_type=12)],
    ]
    rig = await topic_of(ledgers, hot=1)
    async with rig.reader:
        found, held = await read(rig, transactions=ALL)
    states = [one.transaction.state if one.HasField("transaction") else None for one in found]
    assert states == [None, COMMITTED, ABORTED, OPEN, COMMITTED, ABORTED, None]
    assert (found[1].transaction.most_bits, found[1].transaction.least_bits) == (1, 0)
    assert held is None


async def test_a_batch_and_chunks_in_transactions() -> None:
    """A batch is aborted as a whole; a message in chunks whose transaction was committed is joined."""
    two = batch((b"one", {}), (b"two", {}))
    parts = chunks_of(b"0123456789", 2, txnid_most_bits=1, txnid_least_bits=1)
    ledgers = [
        [sent(IDS[0], two, num_messages_in_batch=2), *parts, abort(IDS[0])],
        [sent(IDS[2], two, num_messages_in_batch=2), commit(IDS[1]), commit(IDS[2])],
    ]
    rig = await topic_of(ledgers)
    async with rig.reader:
        found, _ = await read(rig)
        everything, _ = await read(rig, transactions=ALL)
    assert [one.data for one in found] == [b"0123456789", b"one", b"two"]
    assert len(everything) == 8


async def test_following_waits_for_the_outcome() -> None:
    """Messages behind an open transaction come once it has ended, and not before; all of them come at once if asked."""
    rig = await topic_of([[entry(b"1"), sent(IDS[0], b"2"), entry(b"3")]], hot=1)
    seen: list[bytes] = []

    async def follow() -> None:
        async for answer in answers(rig, follow=True):
            seen.extend(one.data for one in answer.messages)

    async with rig.reader:
        following = asyncio.create_task(follow())  # noqa: TID251 - it is cancelled below
        await turns(200)
        assert seen == [b"1"]
        rig.hot.add(EntryBatch(0, 3, [sent(IDS[1], b"4"), commit(IDS[0])]), Position(0, 2))
        await turns(200)
        assert seen == [b"1", b"2", b"3"]
        rig.hot.add(EntryBatch(0, 5, [abort(IDS[1]), entry(b"5")]), Position(0, 4))
        await turns(200)
        assert seen == [b"1", b"2", b"3", b"5"]
        following.cancel()
        async with asyncio.timeout(5):
            async for answer in answers(rig, follow=True, transactions=ALL):
                if answer.messages[-1].data == b"5":
                    break


async def test_an_outcome_that_was_lost_is_not_guessed() -> None:
    """Where entries that may hold the marker are gone: an error by default, a state of its own for everything."""
    rig = await topic_of([[entry(b"1"), sent(IDS[0], b"2")], [entry(b"3")]])
    rig.map.losses = (Loss(Position(0, 1), Position(1, 0), 1),)
    last = {"ledger_id": 0, "entry_id": 1}
    async with rig.reader:
        with pytest.raises(EntriesLost):
            await read(rig, last=last)
        found, _ = await read(rig, last=last, transactions=ALL)
        assert [one.data for one in (await read(rig, first={"ledger_id": 1, "entry_id": 0}))[0]] == [b"3"]
    assert [one.transaction.state for one in found] == [0, UNKNOWN]


async def test_damage_before_the_read_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was open there is not known then, and what was asked for is sound."""
    rig = await topic_of([[sent(IDS[0], b"1")], [entry(b"2")]])

    async with rig.reader:
        plain = rig.reader.read

        def gone(topic: object, *, first: Position | None = None, **what: object) -> object:
            if first == Position(0, 0):
                raise NotFound("the segment is gone")
            return plain(topic, first=first, **what)  # type: ignore[arg-type] # passed through

        monkeypatch.setattr(rig.reader, "read", gone)
        assert [one.data for one in (await read(rig, first={"ledger_id": 1, "entry_id": 0}))[0]] == [b"2"]


@pytest.mark.parametrize(
    ("first", "room", "expected"),
    [
        (Position(0, 0), 1000, None),
        (Position(0, 2), 1000, Position(0, 0)),
        (Position(2, 0), 1000, Position(0, 0)),
        (Position(2, 2), 15, Position(2, 0)),
        (Position(2, 1), 25, Position(1, 1)),
        (Position(9, 0), 10, Position(2, 2)),
    ],
)
async def test_how_far_is_looked_back(first: Position, room: int, expected: Position | None) -> None:
    """About so many bytes of entries before the first one, over segments and what is behind them."""
    rig = await topic_of([[b"0123456789"] * 3] * 3, hot=1)
    async with rig.reader:
        view = await rig.reader.view(TOPIC)
    assert look_back_from(view, first, room) == expected


async def test_nothing_before_a_gap_is_looked_at() -> None:
    """What opened before it may have ended in it."""
    rig = await topic_of([[b"0123456789"] * 3] * 3)
    rig.map.losses = (Loss(Position(0, 2), Position(1, 1), 1),)
    async with rig.reader:
        view = await rig.reader.view(TOPIC)
    assert look_back_from(view, Position(2, 0), 1000) == Position(1, 1)
    assert look_back_from(view, Position(1, 1), 1000) is None


async def test_reads_in_pages_look_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads on where it ended is not given all that lies before it anew."""
    rig = await topic_of([[entry(str(number).encode()) for number in range(40)]], hot=1)
    looked = []
    plain = rig.reader.read

    def counted(topic: object, *, first: Position | None = None, **what: object) -> object:
        looked.append(first)
        return plain(topic, first=first, **what)  # type: ignore[arg-type] # passed through

    monkeypatch.setattr(rig.reader, "read", counted)
    async with rig.reader:
        service = ReadService(rig.reader, 4, metrics=rig.metrics)
        for at in (10, 20, 30):
            found, _ = await read(rig, service, first={"ledger_id": 0, "entry_id": at}, entries_max=10)
            assert [one.data for one in found] == [str(number).encode() for number in range(at, at + 10)]
    assert looked == [Position(0, at) for at in (10, 0, 20, 30)]


async def test_what_was_forgotten_is_found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read remembers not all aborts, so one that begins earlier looks for itself."""
    monkeypatch.setattr(transactions, "ENDED_MAX", 0)
    ledgers = [[sent(IDS[0]), abort(IDS[0])], [sent(IDS[1]), abort(IDS[1])], [entry(b"1")], [entry(b"2")]]
    rig = await topic_of(ledgers)
    async with rig.reader:
        service = ReadService(rig.reader, 4, metrics=rig.metrics)
        for _ in range(2):
            assert [one.data for one in (await read(rig, service))[0]] == [b"1", b"2"]
        first = {"ledger_id": 1, "entry_id": 0}
        assert [one.data for one in (await read(rig, service, first=first))[0]] == [b"1", b"2"]


def test_what_is_remembered_of_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topics that were read longest ago give way; more is not replaced by less."""
    monkeypatch.setattr(outcomes, "KNOWN_MAX", 2)
    known = outcomes.KnownOutcomes()
    names = [TopicName("public", "default", name) for name in "abc"]
    far = outcomes.Known(Position(0, 0), Position(0, 9), transactions.TransactionLog())
    for name in names:
        known.keep(name, far)
        known.keep(name, far._replace(upto=Position(0, 5)))
    assert [known.find(name, Position(0, 9), Position(0, 9)) is not None for name in names] == [False, True, True]
    assert known.find(names[1], Position(1, 0), Position(1, 0)) is None


def test_reads_that_begin_with_known_outcomes_do_not_share_them() -> None:
    """What one forgets, as it goes on, the other still needs."""
    known, topic, log = outcomes.KnownOutcomes(), TopicName("public", "default", "a"), transactions.TransactionLog()
    log.take(Position(0, 1), transactions.Mention(IDS[0]))
    known.keep(topic, outcomes.Known(Position(0, 0), Position(0, 9), log))
    one, other = (known.find(topic, Position(0, 9), Position(0, 9)) for _ in range(2))
    assert one is not None
    assert other is not None
    one.log.take(Position(0, 10), transactions.Mention(IDS[1]))
    assert (len(one.log), len(other.log), len(log)) == (2, 1, 1)


async def test_transactions_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than all reads together may remember end the read that comes to them, and hold up no later one."""
    monkeypatch.setattr(outcomes, "TOGETHER_MAX", 5)
    rig = await topic_of([[entry(b"0"), *(sent(one) for one in IDS[:3])]])
    first = {"ledger_id": 0, "entry_id": 3}
    async with rig.reader:
        service = ReadService(rig.reader, 4, metrics=rig.metrics)
        async with aclosing(cast("AsyncGenerator[object]", answers(rig, service, transactions=ALL))) as other:
            await anext(other)
            with pytest.raises(Throttled, match="more than 5 open or aborted"):
                await read(rig, service, first=first)
            with pytest.raises(Throttled, match="more than 5 open or aborted"):  # which begins with what is known
                await read(rig, service, first=first)
        for _ in range(3):
            _, held = await read(rig, service, first=first)
            assert held is not None


async def test_aborts_before_a_read_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked back at is forgotten like what is read."""
    monkeypatch.setattr(transactions, "ENDED_MAX", 1)
    monkeypatch.setattr(outcomes, "TOGETHER_MAX", 2)
    rig = await topic_of([[abort(one)] for one in IDS] + [[entry(b"1")]])
    async with rig.reader:
        found, _ = await read(rig, first={"ledger_id": len(IDS), "entry_id": 0})
    assert [one.data for one in found] == [b"1"]
