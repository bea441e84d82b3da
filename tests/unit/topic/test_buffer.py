"""The tailing buffer: PIP-76's answers, gaps, eviction and the shared budget."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.limits import Flow
from offloaderd.core.model import START, EntryBatch, OfferResult, Position
from offloaderd.topic.buffer import ENTRY_OVERHEAD_BYTES, BufferPool, Missing, TailingBuffer
from tests.patience import PATIENCE_S
from tests.unit.rigs.rig import turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.topic.buffer import MemoryHolder

COST = 10 * (10 + ENTRY_OVERHEAD_BYTES)
"""What a batch of ten entries takes."""


def entries(ledger_id: int, first: int, count: int, size: int = 10) -> EntryBatch:
    """Make a batch whose payloads name their positions."""
    return EntryBatch(ledger_id, first, [f"{ledger_id}:{first + i}".ljust(size).encode() for i in range(count)])


def holding(buffer: TailingBuffer, pool: BufferPool, pressed: list[str], name: str, *, helps: bool = True) -> None:
    """Have somebody who notes the name asked to free memory."""
    requests = SimpleNamespace(free_memory=lambda: pressed.append(name))
    pool.hold(cast("MemoryHolder", SimpleNamespace(buffer=buffer, requests=requests, frees_on_seal=helps)))


def make(
    limit: int = 1 << 20, *, resume: Position = START, rereadable: bool = False
) -> tuple[BufferPool, TailingBuffer, list[str]]:
    """Make a pool with one buffer, and the list of pressure calls."""
    pool = BufferPool(limit)
    pressed: list[str] = []
    buffer = TailingBuffer(pool, resume=resume, rereadable=rereadable)
    holding(buffer, pool, pressed, "now")
    return pool, buffer, pressed


def of_namespace(pool: BufferPool, flow: Flow, pressed: list[str], name: str) -> TailingBuffer:
    """Make one more buffer, of a topic of a namespace."""
    buffer = TailingBuffer(pool, resume=START, rereadable=False, flow=flow)
    holding(buffer, pool, pressed, name)
    return buffer


def fill_up(buffer: TailingBuffer) -> int:
    """Offer batches until one is declined; returns how many were not."""
    for number in range(1000):
        if buffer.offer(entries(1, 10 * number, 10)) is OfferResult.FULL:
            return number
    raise AssertionError("all of it was taken")


def pinned(pool: BufferPool, *, rereadable: bool = True) -> TailingBuffer:
    """Make one more buffer that holds ten entries behind 1:0 for a segment that an earlier owner sealed."""
    buffer = TailingBuffer(pool, resume=Position(1, 0), rereadable=rereadable)
    holding(buffer, pool, [], "sealed", helps=False)
    assert buffer.offer(entries(1, 1, 10)) is OfferResult.ACCEPTED
    return buffer


def taken(buffer: TailingBuffer, after: Position) -> list[bytes]:
    """Return all payloads that follow a position."""
    return [payload for batch in buffer.take(after, 1 << 30) for payload in batch.payloads]


def test_consecutive_offers_are_accepted_and_taken_in_order() -> None:
    """Entries of two ledgers come out as they went in."""
    _, buffer, _ = make()
    first, second, third = entries(3, 0, 5), entries(3, 5, 2), entries(7, 0, 3)
    assert [buffer.offer(batch) for batch in (first, second, third)] == [OfferResult.ACCEPTED] * 3
    assert buffer.last_offered == (7, 2)
    assert taken(buffer, START) == [*first.payloads, *second.payloads, *third.payloads]
    assert taken(buffer, Position(3, 4)) == [*second.payloads, *third.payloads]


def test_gaps_duplicates_and_empty_offers_are_not_consecutive() -> None:
    """What does not directly follow is declined and changes nothing."""
    _, buffer, _ = make(resume=Position(3, 9))
    refused = [entries(3, 11, 1), entries(3, 9, 1), entries(2, 0, 1), entries(4, 1, 1), EntryBatch(3, 10, [])]
    assert {buffer.offer(batch) for batch in refused} == {OfferResult.NOT_CONSECUTIVE}
    assert buffer.last_offered == (3, 9)
    assert buffer.offer(entries(3, 10, 1)) is OfferResult.ACCEPTED
    assert buffer.offer(entries(3, 10, 1)) is OfferResult.NOT_CONSECUTIVE


def test_a_fresh_push_only_topic_may_start_anywhere() -> None:
    """Nothing is known of what came before, so the first offer begins the topic."""
    _, buffer, _ = make()
    assert buffer.offer(entries(12, 500, 1)) is OfferResult.ACCEPTED
    assert taken(buffer, START) == [b"12:500    "]


def test_a_push_only_topic_keeps_what_is_not_committed() -> None:
    """Without a source nothing may be evicted before its commit; the full buffer asks for an early roll."""
    cost = 10 * (10 + ENTRY_OVERHEAD_BYTES)
    pool, buffer, pressed = make(cost)
    assert buffer.offer(entries(1, 0, 10)) is OfferResult.ACCEPTED
    buffer.mark_cut(Position(1, 9))
    assert buffer.offer(entries(1, 10, 1)) is OfferResult.FULL
    assert pressed == ["now"]
    assert not buffer.can_offer(1)
    buffer.release(Position(1, 9))
    assert pool.used_bytes == 0
    assert buffer.offer(entries(1, 10, 1)) is OfferResult.ACCEPTED


def test_a_push_only_topic_takes_nothing_behind_what_it_declined() -> None:
    """No source could fill the gap: the declined batch itself has to come again first."""
    _, buffer, _ = make(COST)
    assert buffer.offer(entries(1, 0, 10)) is OfferResult.ACCEPTED
    assert buffer.offer(entries(1, 10, 5)) is OfferResult.FULL
    buffer.release(Position(1, 9))
    assert buffer.offer(entries(1, 15, 1)) is OfferResult.NOT_CONSECUTIVE
    assert buffer.offer(entries(1, 10, 5)) is OfferResult.ACCEPTED
    assert buffer.offer(entries(1, 15, 1)) is OfferResult.ACCEPTED


def test_a_rereadable_topic_gives_up_cut_entries_under_pressure() -> None:
    """What is inside a part already makes room for new entries; what is not stays."""
    cost = 10 * (10 + ENTRY_OVERHEAD_BYTES)
    pool, buffer, pressed = make(2 * cost, rereadable=True, resume=Position(1, 9))
    first, second = entries(1, 10, 10), entries(1, 20, 10)
    assert buffer.offer(first) is OfferResult.ACCEPTED
    buffer.mark_cut(Position(1, 19))
    assert buffer.offer(second) is OfferResult.ACCEPTED
    assert buffer.offer(entries(1, 30, 10)) is OfferResult.ACCEPTED
    assert pressed == []
    assert buffer.span() == ((1, 20), (1, 39))
    assert buffer.offer(entries(1, 40, 10)) is OfferResult.FULL
    assert pressed == ["now"]
    assert pool.used_bytes == 2 * cost


def test_a_declined_offer_leaves_a_gap_that_the_source_fills() -> None:
    """Later pushes go on behind the declined ones; the gap is named, filled, and all comes out in order."""
    cost = 4 * (10 + ENTRY_OVERHEAD_BYTES)
    _, buffer, _ = make(2 * cost, rereadable=True, resume=Position(1, 9))
    first, declined, later = entries(1, 10, 4), entries(1, 14, 5), entries(1, 19, 2)
    assert buffer.offer(first) is OfferResult.ACCEPTED
    assert buffer.offer(declined) is OfferResult.FULL
    assert buffer.offer(later) is OfferResult.ACCEPTED
    assert buffer.gap(Position(1, 9)) == Missing(Position(1, 13), Position(1, 19))
    assert taken(buffer, Position(1, 9)) == list(first.payloads)
    buffer.mark_cut(Position(1, 13))
    for piece in (entries(1, 14, 2), entries(1, 16, 3)):
        assert buffer.fill(piece, Position(1, piece.first_entry_id - 1))
    assert taken(buffer, Position(1, 13)) == [*declined.payloads, *later.payloads]
    assert buffer.gap(Position(1, 13)) == Missing(Position(1, 20), None)


def test_a_gap_that_is_none_is_connected() -> None:
    """A push into an unknown topic may be its very first entry; the source says so, and the entries flow."""
    _, buffer, _ = make(rereadable=True)
    first = entries(5, 0, 4)
    assert buffer.offer(first) is OfferResult.ACCEPTED
    assert taken(buffer, START) == []
    buffer.connect(Missing(START, Position(5, 1)))
    assert taken(buffer, START) == []
    buffer.connect(buffer.gap(START))
    assert taken(buffer, START) == list(first.payloads)


def test_entries_behind_a_gap_give_way_to_what_fills_it() -> None:
    """A full buffer that cannot be used until a gap is filled drops the part behind the gap, never deadlocks."""
    cost = 4 * (10 + ENTRY_OVERHEAD_BYTES)
    _, buffer, _ = make(cost, rereadable=True)
    assert buffer.offer(entries(5, 100, 4)) is OfferResult.ACCEPTED
    assert buffer.gap(START) == Missing(START, Position(5, 100))
    assert taken(buffer, START) == []
    assert buffer.fill(entries(5, 0, 4), START)
    assert taken(buffer, START) == list(entries(5, 0, 4).payloads)
    assert buffer.gap(START) == Missing(Position(5, 3), None)


def test_pressure_comes_from_the_whole_pool() -> None:
    """One topic's cut entries make room for another's; the one that pins the most is asked to roll."""
    cost = 10 * (10 + ENTRY_OVERHEAD_BYTES)
    pool = BufferPool(3 * cost)
    pressed: list[str] = []
    one, two = (TailingBuffer(pool, resume=Position(1, 0), rereadable=True) for _ in range(2))
    holding(one, pool, pressed, "one")
    holding(two, pool, pressed, "two")
    assert one.offer(entries(1, 1, 20)) is OfferResult.ACCEPTED
    assert two.offer(entries(1, 1, 10)) is OfferResult.ACCEPTED
    assert two.offer(entries(1, 11, 10)) is OfferResult.FULL
    assert pressed == ["one"]
    one.mark_cut(Position(1, 20))
    assert two.offer(entries(1, 11, 10)) is OfferResult.ACCEPTED
    assert one.used_bytes == 0
    one.close()
    two.close()
    assert pool.used_bytes == 0


def test_pressure_lasts_until_a_topic_can_free_memory() -> None:
    """A segment that cannot end yet is of no use, however much it holds; of those that can, the largest is enough."""
    pool = BufferPool(6 * COST)
    pressed: list[str] = []
    holds = {"small": 1, "sealed": 3, "middle": 2, "empty": 0}
    buffers = {name: TailingBuffer(pool, resume=Position(1, 0), rereadable=True) for name in holds}
    for name, buffer in buffers.items():
        holding(buffer, pool, pressed, name, helps=name != "sealed")
    for name, batches in holds.items():
        for at in range(batches):
            assert buffers[name].offer(entries(1, 1 + 10 * at, 10)) is OfferResult.ACCEPTED
    assert buffers["empty"].offer(entries(1, 1, 1)) is OfferResult.FULL
    assert pressed == ["sealed", "middle"]


ENDS: dict[str, Callable[[TailingBuffer], object]] = {
    "committed": lambda buffer: buffer.release(Position(1, 0)),
    "given up": lambda buffer: buffer.restart(Position(1, 0)),
    "closed": lambda buffer: buffer.close(),
    "nothing comes": lambda buffer: buffer.let_others(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_one_at_a_time_may_take_more_than_there_is(end: Callable[[TailingBuffer], object]) -> None:
    """Segments that cannot end hold all memory: one of them gets what it lacks, batch by batch; then the next one."""
    pool = BufferPool(3 * COST)
    one, two, _ = (pinned(pool) for _ in range(3))
    rest = [entries(1, first, 10) for first in (11, 21, 31)]
    assert not one.fill(rest[0], Position(1, 10))
    one.starve()
    two.starve()
    assert one.fill(rest[0], Position(1, 10))
    assert not one.starving
    assert pool.overdrawn_bytes == COST
    assert not one.fill(rest[1], Position(1, 20))
    one.starve()
    assert one.fill(rest[1], Position(1, 20))
    assert not two.fill(rest[0], Position(1, 10))
    end(one)
    two.starve()
    for number, batch in enumerate(rest):
        assert two.fill(batch, Position(1, 10 * number + 10))
        two.starve()
    assert pool.overdrawn_bytes > 0
    one.starve()
    assert one.closed or not one.fill(rest[2], Position(1, 30))


def test_only_what_a_segment_lacks_may_exceed_the_memory() -> None:
    """A push that the source has as well is declined; asking alone takes nothing; what is behind a gap goes first."""
    pool = BufferPool(3 * COST)
    read, pushed, behind = pinned(pool), pinned(pool, rereadable=False), pinned(pool)
    for one in (read, pushed, behind):
        one.starve()
    assert not read.can_offer(COST)
    assert read.offer(entries(1, 11, 10)) is OfferResult.FULL
    assert pushed.can_offer(COST)
    assert behind.fill(entries(1, 11, 10), Position(1, 10))
    assert pool.overdrawn_bytes == COST
    assert pushed.offer(entries(1, 11, 10)) is OfferResult.FULL
    behind.close()
    assert pool.used_bytes == 2 * COST
    third = pinned(pool)
    assert pushed.offer(entries(1, 11, 10)) is OfferResult.ACCEPTED
    assert pool.overdrawn_bytes == COST
    pool.limit_bytes = 5 * COST
    assert third.offer(entries(5, 0, 10)) is OfferResult.ACCEPTED
    pushed.let_others()
    third.starve()
    assert third.fill(entries(1, 11, 10), Position(1, 10))
    assert third.span() == ((1, 1), (1, 20))
    assert pool.overdrawn_bytes == 0


def test_a_namespace_leaves_a_quarter_of_the_memory_to_others() -> None:
    """While there are others: all its topics together have three quarters, and alone it has everything."""
    pool, pressed, loud, quiet = BufferPool(100 * COST), list[str](), Flow(), Flow()
    topics = [of_namespace(pool, loud, pressed, f"loud {number}") for number in range(2)]
    other = of_namespace(pool, quiet, pressed, "quiet")
    assert topics[0].offer(entries(7, 0, 400)) is OfferResult.ACCEPTED
    assert fill_up(topics[1]) == 35
    assert not topics[0].can_offer(COST)
    assert 15 < fill_up(other) < 25
    other.close()
    assert topics[0].can_offer(25 * COST)


def test_a_namespace_whose_share_is_used_up_has_its_own_topics_seal_early() -> None:
    """Those of another one hold more, and their segments are not made small for it."""
    pool, pressed, loud, quiet = BufferPool(100 * COST), list[str](), Flow(), Flow()
    other = of_namespace(pool, quiet, pressed, "quiet")
    topic = of_namespace(pool, loud, pressed, "loud")
    assert other.offer(entries(7, 0, 500)) is OfferResult.ACCEPTED
    assert 30 < fill_up(topic) < 40
    assert pressed == ["loud"]
    assert not topic.can_offer(60 * COST)
    assert pressed == ["loud", "quiet"]


def test_an_entry_larger_than_all_memory_gets_into_a_segment_that_holds_others() -> None:
    """It cannot be alone there, as the segment cannot end before it."""
    pool = BufferPool(2 * COST)
    one = pinned(pool)
    large = entries(1, 11, 1, size=10 * COST)
    assert not one.fill(large, Position(1, 10))
    one.starve()
    assert one.fill(large, Position(1, 10))
    one.release(Position(1, 11))
    assert pool.used_bytes == 0


@pytest.mark.parametrize("end", ["let_others", "close"])
async def test_who_waits_for_room_is_told_when_it_may_be_exceeded(end: str) -> None:
    """One that starves is woken by itself alone, as its reader may go on now; all are when others may."""
    pool = BufferPool(2 * COST)
    one, two = pinned(pool), pinned(pool)
    async with asyncio.TaskGroup() as group:
        own, other = (group.create_task(buffer.wait_for_room()) for buffer in (one, two))
        await turn()
        one.starve()
        await asyncio.wait([own], timeout=PATIENCE_S)
        assert own.done()
        assert not other.done()
        assert one.fill(entries(1, 11, 10), Position(1, 10))
        await turn()
        assert not other.done()
        getattr(one, end)()
        await asyncio.wait([other], timeout=PATIENCE_S)
        assert other.done()


def test_a_closed_buffer_takes_nothing() -> None:
    """After close every offer is CLOSED and the memory is given back."""
    pool, buffer, _ = make()
    buffer.offer(entries(1, 0, 3))
    buffer.close()
    assert buffer.offer(entries(1, 3, 1)) is OfferResult.CLOSED
    assert not buffer.fill(entries(1, 3, 1), Position(1, 2))
    assert not buffer.can_offer(1)
    assert pool.used_bytes == 0


def test_read_serves_one_ledger_within_bounds() -> None:
    """A hot read starts exactly where asked, stops at its limits, and misses what is not held."""
    _, buffer, _ = make()
    buffer.offer(entries(1, 0, 6))
    buffer.offer(entries(2, 0, 6))
    assert buffer.read(Position(1, 2), Position(1, 4), 1 << 20) == entries(1, 0, 6).between(2, 4)
    assert buffer.read(Position(1, 4), None, 1 << 20) == entries(1, 0, 6).between(4, 5)
    assert buffer.read(Position(2, 0), Position(2, 5), 25) == entries(2, 0, 2)
    assert buffer.read(Position(2, 0), None, 1) == entries(2, 0, 1)
    assert buffer.read(Position(1, 6), None, 1 << 20) is None
    assert buffer.read(Position(0, 0), None, 1 << 20) is None
    buffer.release(Position(1, 5))
    assert buffer.read(Position(1, 2), None, 1 << 20) is None


def test_restart_pins_what_a_failed_segment_still_needs() -> None:
    """After a segment was given up its entries may not be evicted any more."""
    cost = 10 * (10 + ENTRY_OVERHEAD_BYTES)
    _, buffer, _ = make(cost, rereadable=True, resume=Position(1, 9))
    buffer.offer(entries(1, 10, 10))
    buffer.mark_cut(Position(1, 19))
    buffer.restart(Position(1, 9))
    assert buffer.offer(entries(1, 20, 1)) is OfferResult.FULL
    assert taken(buffer, Position(1, 9)) == list(entries(1, 10, 10).payloads)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["offer", "roll", "cut", "release", "refill"]), st.integers(1, 30)),
        max_size=60,
    ),
    limit=st.integers(2_500, 20_000),
)
def test_nothing_is_lost_or_doubled_whatever_happens(steps: list[tuple[str, int]], limit: int) -> None:
    """Against a model source: what is taken is the source's entries in order, and accounting returns to zero."""
    pool, buffer, _ = make(limit, rereadable=True, resume=Position(1, 0))
    source = [Position(1, 0)]
    consumed = [Position(1, 0)]
    ledger = 1

    def consume() -> None:
        for batch in buffer.take(consumed[-1], 1 << 30):
            for offset in range(len(batch.payloads)):
                position = Position(batch.ledger_id, batch.first_entry_id + offset)
                assert batch.payloads[offset] == f"{position}".ljust(10).encode()
                consumed.append(position)

    for step, number in steps:
        first = source[-1].entry_id + 1 if source[-1].ledger_id == ledger else 0
        if step == "offer":
            batch = entries(ledger, first, number)
            assert buffer.offer(batch) in {OfferResult.ACCEPTED, OfferResult.FULL}
            source += [Position(ledger, first + i) for i in range(number)]
        elif step == "roll" and source[-1].ledger_id == ledger:
            ledger += number
        elif step == "cut":
            consume()
            buffer.mark_cut(consumed[-1])
        elif step == "release":
            consume()
            buffer.release(consumed[-1])
        elif step == "refill":
            gap = buffer.gap(consumed[-1])
            missing = [one for one in source if one > gap.after and (gap.before is None or one < gap.before)]
            if missing:
                buffer.fill(entries(missing[0].ledger_id, missing[0].entry_id, 1), gap.after)
        consume()
        assert consumed == source[: len(consumed)]
        assert 0 <= buffer.evictable_bytes <= buffer.used_bytes == pool.used_bytes <= limit
    for position in source:
        assert buffer.first_after(position) == next((batch.first for batch in buffer.take(position, 1)), None)
    buffer.close()
    assert pool.used_bytes == 0


def test_a_commit_inside_a_batch_frees_its_committed_begin() -> None:
    """Small batches are stored joined; a segment that ends in the middle of one still gives its memory back."""
    pool, buffer, _ = make(rereadable=True, resume=Position(1, 0))
    for first in (1, 11, 21):
        buffer.offer(entries(1, first, 10))
    buffer.release(Position(1, 17))
    assert pool.used_bytes == buffer.used_bytes == 13 * (10 + ENTRY_OVERHEAD_BYTES)
    assert buffer.span() == ((1, 18), (1, 30))
    assert taken(buffer, Position(1, 17)) == list(entries(1, 18, 13).payloads)
    buffer.release(Position(1, 30))
    assert pool.used_bytes == buffer.evictable_bytes == 0


async def test_a_commit_wakes_whoever_waits_for_room_even_if_it_frees_nothing() -> None:
    """All that was committed had been evicted before: a waiting tailer must ask again, and so press again."""
    pool, buffer, _ = make(rereadable=True, resume=Position(1, 0))
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(pool.freed.wait())
        await turn()
        buffer.release(Position(1, 0))
        await waiting
    assert pool.used_bytes == 0


async def test_a_higher_limit_wakes_whoever_waits_for_room() -> None:
    """Settings that are read again count at once: nothing is freed, and there is room all the same."""
    pool, buffer, _ = make(limit=COST)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        waiting = group.create_task(pool.freed.wait())
        await turn()
        pool.follow(2 * COST)
        await waiting
    assert pool.admit(2 * COST, buffer)


async def test_a_restart_wakes_whoever_waits_for_room() -> None:
    """A buffer full of what lies behind the given up segment frees nothing by itself: its reader has to look again."""
    pool, buffer, _ = make(limit=10_000, rereadable=True)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(pool.freed.wait())
        await turn()
        buffer.restart(START)
        await turn()
        await turn()
        assert waiting.done()
        waiting.cancel()


def test_what_is_larger_than_the_budget_is_let_in_alone() -> None:
    """One entry may exceed a small budget; it passes by itself and nothing joins it."""
    _, buffer, _ = make(100)
    assert buffer.offer(entries(1, 0, 1, size=5000)) is OfferResult.ACCEPTED
    assert buffer.offer(entries(1, 1, 1)) is OfferResult.FULL
    buffer.release(Position(1, 0))
    assert buffer.offer(entries(1, 1, 1)) is OfferResult.ACCEPTED


def test_what_is_pushed_of_a_later_ledger_waits_for_the_source_to_say_that_it_is_next() -> None:
    """A broker may have left a ledger out, and only the source knows; without a source the push is all there is."""
    for rereadable in (True, False):
        _, buffer, _ = make(resume=Position(1, 4), rereadable=rereadable)
        assert buffer.offer(entries(3, 0, 2)) is OfferResult.ACCEPTED
        assert len(taken(buffer, Position(1, 4))) == (0 if rereadable else 2)


@pytest.mark.parametrize("rereadable", [False, True])
def test_offers_continue_behind_a_commit_that_is_beyond_the_last_of_them(rereadable: bool) -> None:
    """An earlier owner had taken more: who pushes is told so, and what is committed is not taken once more."""
    _, buffer, _ = make(resume=Position(1, 3), rereadable=rereadable)
    assert buffer.offer(entries(1, 4, 2)) is OfferResult.ACCEPTED
    buffer.release(Position(1, 9))
    assert buffer.last_offered == Position(1, 9)
    assert buffer.offer(entries(1, 6, 4)) is OfferResult.NOT_CONSECUTIVE
    assert buffer.offer(entries(1, 10, 1)) is OfferResult.ACCEPTED
