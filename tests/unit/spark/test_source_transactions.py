"""Messages in transactions as rows of the data source: those that a consumer is given, each once, or all of them."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offloaderd.core.model import Position
from offloaderd.core.read_options import Transactions
from offloaderd.format.pulsar.transactions import mention_of
from offloaderd.read.transactions import KnownOutcomes
from offloaderd.spark.scan import plan as source_plan
from offloaderd.spark.scan import transactions as source_transactions
from offloaderd.spark.scan.options import Mode
from offloaderd.spark.scan.query import EntryQuery, following, position
from offloaderd.spark.scan.segments import segment_reader
from offloaderd.spark.scan.share import BrokenSegment
from offloaderd.spark.scan.transactions import OutcomeUnknown, with_held
from offloaderd.spark.stream import advance
from tests.unit.format.test_pulsar_message import batch, entry
from tests.unit.read.build import PREFIX, TOPIC, Piece, put_segment
from tests.unit.spark.lake import CountingStore, options, read_share, snapshot
from tests.unit.transactional import IDS, OPS, Op, abort, commit, consumed, cut_at, place, sent
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.format.pulsar.transactions import Mention
    from offloaderd.spark.scan.options import SourceOptions
    from offloaderd.spark.scan.snapshot import Snapshot


async def topic_of(store: CountingStore, ledgers: Sequence[Sequence[bytes]]) -> Snapshot:
    """Store a segment for each ledger."""
    return snapshot(
        [
            await put_segment(
                store,
                [Piece(ledger_id, 0, payloads, closed=len(payloads))],
                segment_id=uuid.UUID(int=ledger_id + 1),
                block_entries=2,
            )
            for ledger_id, payloads in enumerate(ledgers)
        ]
    )


async def rows_of(store: CountingStore, found: Snapshot, wish: SourceOptions) -> list[Any]:
    """Return the rows of a query, or of a step, that is planned now."""
    rows: list[Any] = []
    async with segment_reader(store) as reader:
        held = await with_held([found], reader) if wish.holds_back else [found]
        places = None if wish.step is None else {TOPIC: (wish.query.first, wish.query.last)}
        shares = await source_plan.shares(held, wish, wish.query, reader, places=places)
    for share in shares:
        rows += await read_share(store, share, wish)
    return rows


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ops=OPS, cuts=st.sets(st.integers(1, 13), max_size=3), partition_bytes=st.sampled_from([200, 10**9]), data=st.data()
)
def test_rows_are_what_a_consumer_is_given(
    ops: list[Op], cuts: set[int], partition_bytes: int, data: st.DataObject
) -> None:
    """Wherever ledgers, segments and tasks end, and wherever the query begins; and all of them with their states."""
    ledgers = cut_at([op.payload(at) for at, op in enumerate(ops)], cuts)
    first = data.draw(st.integers(0, len(ops) - 1))
    last = data.draw(st.integers(first, len(ops) - 1))
    query = EntryQuery(first=Position(*place(first, ledgers)), last=Position(*place(last, ledgers)))

    async def run() -> tuple[list[int], list[tuple[int, int]]]:
        store = CountingStore()
        found = await topic_of(store, ledgers)
        wish = options(messages=True, query=query, partition_bytes=partition_bytes)
        rows = await rows_of(store, found, wish)
        everything = await rows_of(store, found, replace(wish, transactions=Transactions.ALL))
        return [int(row["value"]) for row in rows], [(row["ledger_id"], row["entry_id"]) for row in everything]

    given_out, everything = virtually(run())
    assert given_out == [at for at in consumed(ops)[0] if first <= at <= last]
    assert everything == [place(at, ledgers) for at in range(first, last + 1)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ops=OPS, cuts=st.sets(st.integers(1, 13), max_size=4), room=st.sampled_from([None, 1]))
def test_steps_of_a_stream_pass_over_no_message(ops: list[Op], cuts: set[int], room: int | None) -> None:
    """Segment by segment, with an outcome in a later one or none: each message that was committed comes, once."""
    ledgers = cut_at([op.payload(at) for at, op in enumerate(ops)], cuts)

    async def run() -> list[int]:
        store = CountingStore()
        whole = await topic_of(store, ledgers)
        offset: dict[str, str] = {}
        values: list[int] = []
        known = KnownOutcomes()
        for count in range(1, len(ledgers) + 1):
            found = snapshot(whole.map.segments[:count])
            while True:
                async with segment_reader(store) as reader:
                    (held,) = await with_held([found], reader, known)
                step = advance([held], offset, EntryQuery(), room=room)
                if not step.object_bytes:
                    break
                reached = step.offset
                low = following(position(offset, str(TOPIC)))
                query = EntryQuery(first=low, last=position(reached, str(TOPIC)))
                wish = options(messages=True, query=query, step=(offset, reached))
                values += [int(row["value"]) for row in await rows_of(store, found, wish)]
                offset = reached
        return values

    assert virtually(run()) == consumed(ops)[0]


async def test_all_rows_say_what_became_of_them() -> None:
    """The transaction's id and state, null outside of transactions; batches and markers as well."""
    store = CountingStore()
    two = batch((b"one", {}), (b"two", {}))
    ledgers = [
        [entry(b"plain"), sent(IDS[0], two, num_messages_in_batch=2), sent(IDS[1])],
        [sent(IDS[2]), commit(IDS[0]), entry(b"", marker_type=12)],
        [abort(IDS[1])],
    ]
    rows = await rows_of(store, await topic_of(store, ledgers), options(messages=True, transactions=Transactions.ALL))
    assert [(row["state"], row["transaction_id"], row["transaction_state"]) for row in rows] == [
        ("plain", None, None),
        ("plain", "(1,0)", "committed"),
        ("plain", "(1,0)", "committed"),
        ("plain", "(1,1)", "aborted"),
        ("plain", "(1,2)", "open"),
        ("marker", "(1,0)", "committed"),
        ("marker", None, None),
        ("marker", "(1,1)", "aborted"),
    ]
    names = options(messages=True).columns.names
    assert "transaction_id" not in names, "without all of them it would say nothing"


async def test_an_outcome_that_cannot_be_read_is_not_guessed() -> None:
    """A damaged segment ahead ends the query and is named; with mode=skip the entry comes as it is, with the reason."""
    store = CountingStore()
    found = await topic_of(store, [[sent(IDS[0], b"1"), entry(b"2")], [commit(IDS[0])]])
    await store.delete([f"{PREFIX}{uuid.UUID(int=2)}"])
    wish = options(messages=True, query=EntryQuery(last=Position(0, 1)))
    with pytest.raises(BrokenSegment, match=str(uuid.UUID(int=2))):
        await rows_of(store, found, wish)
    rows = await rows_of(store, found, replace(wish, mode=Mode.SKIP))
    assert [(row["state"], row["value"]) for row in rows] == [("raw", sent(IDS[0], b"1")), ("plain", b"2")]
    assert "cannot be read" in rows[0]["reason"]
    (one, _) = await rows_of(store, found, replace(wish, transactions=Transactions.ALL))
    assert one["transaction_state"] == "unknown"


async def test_a_step_never_leaves_out_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that the driver did not find, since it is open for too long: the step waits for it, loudly."""
    monkeypatch.setattr(source_transactions, "LOOK_BACK_BYTES", 1)
    store = CountingStore()
    found = await topic_of(store, [[sent(IDS[0], b"1"), entry(b"2")], [entry(b"3")]])
    wish = options(messages=True)
    assert [row["value"] for row in await rows_of(store, found, wish)] == [b"2", b"3"], "a query leaves it out"
    step = replace(wish, query=EntryQuery(last=Position(1, 0)), step=({}, {str(TOPIC): "1:0"}))
    with pytest.raises(OutcomeUnknown, match=r"message 0:0: whether its transaction \(1,0\) was committed"):
        await rows_of(store, found, step)


async def test_how_far_a_task_looks_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outcome behind that is unknown, which is another thing than open."""
    monkeypatch.setattr(source_plan, "LOOK_AHEAD_SEGMENTS", 1)
    store = CountingStore()
    found = await topic_of(store, [[sent(IDS[0], b"1")], [entry(b"2")], [commit(IDS[0])]])
    with pytest.raises(OutcomeUnknown, match="up to 1:0"):
        await rows_of(store, found, options(messages=True))


async def test_a_stream_reads_what_is_new_only() -> None:
    """The driver looks at each entry once, however many steps there are, and forgets nothing that is still open."""
    store = CountingStore()
    whole = await topic_of(store, [[sent(IDS[0])], [entry(b"1")], [entry(b"2")]])
    known = KnownOutcomes()
    for count in (1, 2, 3, 3):
        store.asked.clear()
        async with segment_reader(store) as reader:
            (held,) = await with_held([snapshot(whole.map.segments[:count])], reader, known)
        assert held.held == Position(0, 0)
    assert not store.asked


async def test_a_message_that_came_too_late_is_aborted() -> None:
    """Its transaction's abort lies before it, in a segment of another task."""
    store = CountingStore()
    found = await topic_of(store, [[sent(IDS[0]), abort(IDS[0])], [sent(IDS[0]), entry(b"1")]])
    wish = options(messages=True, query=EntryQuery(first=Position(1, 0)))
    assert [row["value"] for row in await rows_of(store, found, wish)] == [b"1"]
    (late, _) = await rows_of(store, found, replace(wish, transactions=Transactions.ALL))
    assert late["transaction_state"] == "aborted"


async def test_what_precedes_is_read_once_however_many_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever leaves many transactions open has nobody read the topic as often."""
    monkeypatch.setattr(source_transactions, "LOOK_BACK_BYTES", 1)
    looked = []

    def counted(payload: bytes) -> Mention | None:
        looked.append(payload)
        return mention_of(payload)

    monkeypatch.setattr(source_transactions, "mention_of", counted)
    store = CountingStore()
    found = await topic_of(store, [[entry(b"0")], [sent(one) for one in IDS], [entry(b"1")]])
    wish = options(messages=True, query=EntryQuery(first=Position(1, 0)))
    assert [row["value"] for row in await rows_of(store, found, wish)] == [b"1"]
    assert looked.count(entry(b"0")) == 1
