"""The map of a topic against a naive model that knows every entry, and how it is loaded while others commit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import Conflict, CorruptData, InvalidInput, Transient
from offloaderd.core.model import HistoryOrder, LedgerEnd, Loss, Position, SegmentRange, TopicName
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.pieces import StoredContext
from offloaderd.metadata.port import Create, Replace, Versioned
from offloaderd.metadata.records import context
from offloaderd.metadata.records.context import LedgerContext, LedgerSegment
from offloaderd.metadata.records.history import HistoryPlan, Worker
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map import removal
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy.records import TopicPolicy, encode_policy
from offloaderd.policy.store import enabled_topics, topic_policies
from offloaderd.testing.memory.metadata import MemoryMetadata, MemoryTree
from tests.unit.metadata.segments import carry_out, contexts_of, made

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.committed import CommittedSegment

TOPIC = TopicName("public", "default", "orders")


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[CommittedSegment], list[int]]:
    """Segments over a topic's ledgers, some entries at the start perhaps never offloaded, and an order to commit in.

    The order is the natural one, or one in which a later part came first and what is before it backwards.
    """
    gaps = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    ledger_ids = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    start = draw(st.integers(0, 4))
    entries = [
        Position(ledger_id, entry)
        for index, ledger_id in enumerate(ledger_ids)
        for entry in range(0 if index else start, (0 if index else start) + draw(st.integers(1, 6)))
    ]
    cuts = sorted(draw(st.sets(st.integers(1, len(entries)), max_size=5)) | {len(entries)})
    segments = []
    for number, (low, high) in enumerate(zip([0, *cuts[:-1]], cuts, strict=True), start=1):
        held = entries[low:high]
        slices = [
            (ledger_id, min(ids), max(ids))
            for ledger_id in ledger_ids
            if (ids := [entry.entry_id for entry in held if entry.ledger_id == ledger_id])
        ]
        segments.append(made(number, *slices))
    turn = draw(st.integers(0, len(segments) - 1))
    order = list(range(len(segments)))
    return segments, order[turn:] + order[:turn][::-1]


def _naive(segments: Sequence[CommittedSegment]) -> list[tuple[Position, CommittedSegment]]:
    """Every entry with its segment, in order."""
    return sorted(
        (
            (Position(part.ledger_id, entry), segment)
            for segment in segments
            for part in segment.slices
            for entry in range(part.first_entry_id, part.last_entry_id + 1)
        ),
        key=lambda pair: pair[0],
    )


@given(histories())
def test_the_map_answers_as_a_list_of_all_entries_would(
    history: tuple[list[CommittedSegment], list[int]],
) -> None:
    """find, after, offloaded and segments agree with the model after every commit, and so does a rebuilt map."""
    segments, order = history
    current = TopicMap(TOPIC)
    nodes: dict[str, Versioned] = {}
    done: list[CommittedSegment] = []
    for index in order:
        before = (current.segments, dict(current.contexts))
        steps, following = current.with_commit(segments[index])
        assert (current.segments, dict(current.contexts)) == before
        carry_out(nodes, steps)
        contexts = contexts_of(TOPIC, nodes)
        current = following
        done.append(segments[index])
        model = _naive(done)
        assert current.contexts == contexts
        assert current == TopicMap.build(TOPIC, contexts)
        assert list(current.segments) == sorted(done, key=lambda segment: segment.begin)
        assert current.offloaded == model[-1][0]
        for ledger in range(max(contexts) + 2):
            for entry in range(12):
                position = Position(ledger, entry)
                holding = dict(model).get(position)
                later = [segment for at, segment in model if at > position and segment is not holding]
                assert current.find(position) == holding
                assert current.after(position) == (later[0] if later else None)


def test_an_empty_map_knows_nothing() -> None:
    """A topic without segments has no offloaded position and finds nothing."""
    empty = TopicMap(TOPIC)
    assert empty.offloaded is None
    assert empty.find(Position(0, 0)) is None
    assert empty.after(Position(0, 0)) is None
    assert TopicMap.build(TOPIC, {}) == empty


def test_a_segment_knows_its_range_and_sizes() -> None:
    """Range, entries and payload bytes sum over all slices."""
    segment = made(1, (3, 5, 9), (7, 0, 1))
    assert segment.range == SegmentRange(Position(3, 5), Position(7, 1))
    assert segment.entries == 7
    assert segment.payload_bytes == 7


def test_a_commit_creates_new_contexts_and_replaces_known_ones() -> None:
    """One step a touched ledger: replace at the version known, create where there is none."""
    _, first = TopicMap(TOPIC).with_commit(made(1, (3, 0, 9)))
    steps, second = first.with_commit(made(2, (3, 10, 12), (4, 0, 5)))
    assert isinstance(steps[0], Replace)
    assert (steps[0].path, steps[0].version) == (paths.ledger(TOPIC, 3), 0)
    assert isinstance(steps[1], Create)
    assert (steps[1].path, steps[1].ephemeral) == (paths.ledger(TOPIC, 4), False)
    assert [second.contexts[ledger].version for ledger in (3, 4)] == [1, 0]


@pytest.mark.parametrize(
    "segment",
    [
        made(9, (3, 11, 12)),
        made(9, (3, 1, 2)),
        made(9, (3, 12, 20)),
        made(9, (5, 1, 1)),
        made(9, (5, 6, 7)),
    ],
    ids=lambda segment: str(segment.range),
)
def test_a_gap_inside_a_ledger_is_refused(segment: CommittedSegment) -> None:
    """A commit that would leave entries between two segments of one ledger never becomes a transaction."""
    current = TopicMap(TOPIC)
    for known in (made(1, (3, 4, 9)), made(2, (5, 3, 4))):
        _, current = current.with_commit(known)
    with pytest.raises(Conflict, match="gap in ledger"):
        current.with_commit(segment)


@pytest.mark.parametrize(
    "segment",
    [
        made(9, (3, 4, 9)),
        made(9, (3, 9, 12)),
        made(9, (3, 0, 4)),
        made(9, (2, 0, 1), (3, 0, 20)),
        made(9, (2, 0, 1), (6, 0, 0)),
        made(9, (5, 0, 3)),
    ],
    ids=lambda segment: str(segment.range),
)
def test_an_overlap_is_refused(segment: CommittedSegment) -> None:
    """A commit of entries that are committed already, or around them, never becomes a transaction."""
    current = TopicMap(TOPIC)
    for known in (made(1, (3, 4, 9)), made(2, (5, 3, 4))):
        _, current = current.with_commit(known)
    with pytest.raises(Conflict, match="overlaps"):
        current.with_commit(segment)


def test_a_segment_is_committed_once() -> None:
    """The same id at another range is refused as well."""
    _, current = TopicMap(TOPIC).with_commit(made(1, (3, 0, 9)))
    with pytest.raises(Conflict, match="already part"):
        current.with_commit(made(1, (3, 10, 12)))


@pytest.mark.parametrize(
    "slices", [(), ((3, 5, 4),), ((3, -1, 4),), ((3, 0, 4), (3, 0, 2)), ((4, 0, 4), (3, 0, 2)), ((3, 0, 4), (4, 1, 2))]
)
def test_slices_that_are_no_segment_are_refused(slices: tuple[tuple[int, int, int], ...]) -> None:
    """Nothing, reversed entries, a ledger twice, ledgers out of order, a later ledger not from its start."""
    with pytest.raises(InvalidInput):
        TopicMap(TOPIC).with_commit(made(1, *slices))


def test_foreign_fields_of_a_context_survive_a_commit() -> None:
    """A commit rewrites the node of a ledger without losing what another program put there."""
    _, current = TopicMap(TOPIC).with_commit(made(1, (3, 0, 9)))
    foreign = b"\xfa\x7f\x03new"
    nodes = {3: StoredContext(current.contexts[3].value + foreign, 4)}
    steps, _ = TopicMap.build(TOPIC, nodes).with_commit(made(2, (3, 10, 11)))
    assert isinstance(steps[0], Replace)
    assert foreign in steps[0].value
    assert steps[0].version == 4


def _node(*segments: CommittedSegment, ledger: int) -> StoredContext:
    """A context that holds each segment's slice of one ledger, with no check of the whole."""
    held = [
        LedgerSegment(
            segment_id=segment.segment_id,
            begin_entry_id=part.first_entry_id,
            end_entry_id=part.last_entry_id,
            assigned_ms=segment.assigned_ms,
            offloaded_ms=segment.offloaded_ms,
            object_bytes=segment.object_bytes,
            payload_bytes=part.payload_bytes,
            properties={"bucket": segment.bucket, "prefix": segment.prefix},
        )
        for segment in segments
        for part in segment.slices
        if part.ledger_id == ledger
    ]
    return StoredContext(context.encode(LedgerContext(segments=tuple(held))), 0)


def test_contexts_that_contradict_each_other_are_corrupt() -> None:
    """A segment in two pieces, one that differs between ledgers, and one that goes on in mid-ledger are told."""
    whole, other = made(1, (3, 0, 4), (7, 0, 2)), made(2, (5, 0, 1))
    sound = {3: _node(whole, ledger=3), 7: _node(whole, ledger=7)}
    assert TopicMap.build(TOPIC, sound).segments == (whole,)
    two_pieces = {**sound, 5: _node(other, ledger=5)}
    differing = {3: sound[3], 7: _node(replace(whole, object_bytes=9), ledger=7)}
    late = {3: sound[3], 7: _node(made(1, (7, 1, 2)), ledger=7)}
    twice = {3: _node(whole, made(1, (3, 5, 6)), ledger=3)}
    for contexts in (two_pieces, differing, late, twice):
        with pytest.raises(CorruptData, match=paths.ledgers(TOPIC)):
            TopicMap.build(TOPIC, contexts)


async def test_a_loaded_map_is_what_was_committed() -> None:
    """Through a store and back: transact the steps, load, compare, for a topic of several ledgers."""
    store = MemoryTree().connect()
    assert await catalog.load(store, TOPIC) == TopicMap(TOPIC)
    await store.create(paths.ledgers(TOPIC), b"")
    current = TopicMap(TOPIC)
    for segment in (made(1, (3, 2, 9), (10, 0, 4)), made(2, (10, 5, 6)), made(3, (10, 7, 7), (11, 0, 0))):
        steps, current = current.with_commit(segment)
        await store.transact(steps)
    assert await catalog.load(store, TOPIC) == current


async def test_a_stray_node_among_the_contexts_is_corrupt() -> None:
    """A name that is no ledger id is told with its path."""
    store = MemoryTree().connect()
    await store.create(f"{paths.ledgers(TOPIC)}/007", b"")
    with pytest.raises(CorruptData, match="ledgers/007"):
        await catalog.load(store, TOPIC)


class _Busy(MemoryMetadata):
    """A store where somebody commits the next segment right after the listing, `commits` times."""

    commits = 0
    current = TopicMap(TOPIC)

    async def children(self, path: str) -> Sequence[str]:
        names = await super().children(path)
        if self.commits > 0 and path == paths.ledgers(TOPIC):
            self.commits -= 1
            number = len(self.current.segments) + 1
            begin = self.current.offloaded or Position(1, -1)
            ledger = begin.ledger_id
            segment = made(number, (ledger, begin.entry_id + 1, begin.entry_id + 2), (ledger + 1, 0, 1))
            steps, self.current = self.current.with_commit(segment)
            await self.transact(steps)
        return names


async def test_a_commit_during_the_load_never_shows_by_halves() -> None:
    """The map is that of one moment: a segment over two ledgers is there with both slices."""
    store = _Busy(MemoryTree())
    await store.create(paths.ledgers(TOPIC), b"")
    for _ in range(3):
        store.commits = 1
        found = await catalog.load(store, TOPIC)
        assert all(len(segment.slices) == 2 for segment in found.segments)
    assert await catalog.load(store, TOPIC) == store.current


class _Deleting(MemoryMetadata):
    """A store where a ledger's context is deleted right after the listing."""

    async def children(self, path: str) -> Sequence[str]:
        names = await super().children(path)
        if "5" in names:
            await self.delete(f"{path}/5")
        return names


async def test_a_context_that_vanishes_during_the_load_is_left_out() -> None:
    """The other ledgers are loaded as if it had never been there."""
    store = _Deleting(MemoryTree())
    await store.create(paths.ledger(TOPIC, 3), _node(made(1, (3, 0, 4)), ledger=3).value)
    await store.create(paths.ledger(TOPIC, 5), _node(made(2, (5, 0, 4)), ledger=5).value)
    assert (await catalog.load(store, TOPIC)).segments == (made(1, (3, 0, 4)),)


async def test_a_map_that_never_stands_still_is_given_up() -> None:
    """Loading ends with Transient when every pass finds something else."""
    store = _Busy(MemoryTree())
    await store.create(paths.ledgers(TOPIC), b"")
    store.commits = 1
    await store.children(paths.ledgers(TOPIC))
    store.commits = 1000
    with pytest.raises(Transient, match="change faster"):
        await catalog.load(store, TOPIC)


async def test_topics_are_listed_by_their_policies() -> None:
    """Enabled topics in order; disabled ones in the policies alone; bare folders and foreign nodes nowhere."""
    store = MemoryTree().connect()
    assert await enabled_topics(store) == []
    names = ["persistent://a/b/z", "persistent://a/b/c d/e", "persistent://a/a/off", "persistent://b/b/bare"]
    last, first, off, bare = map(TopicName.parse, names)
    for topic, enabled in ((last, True), (first, True), (off, False)):
        await store.create(paths.policy(topic), encode_policy(TopicPolicy(enabled=enabled)))
    await store.create(paths.ledgers(bare), b"")
    await store.create("/topics/a/b/persistent/not encoded/policy", b"")
    await store.create("/topics/a/b/non-persistent/x/policy", b"")
    assert await enabled_topics(store) == [first, last]
    assert await topic_policies(store) == {
        first: TopicPolicy(enabled=True),
        last: TopicPolicy(enabled=True),
        off: TopicPolicy(enabled=False),
    }


async def test_a_broken_policy_is_told_and_hides_no_other() -> None:
    """A policy that cannot be read comes as its error, with its path; the other topics come as they are."""
    store = MemoryTree().connect()
    other = TopicName.parse("other")
    await store.create(paths.policy(TOPIC), b"\xff\xff")
    await store.create(paths.policy(other), encode_policy(TopicPolicy(enabled=True)))
    policies = await topic_policies(store)
    broken = policies.pop(TOPIC)
    assert isinstance(broken, CorruptData)
    assert broken.key == paths.policy(TOPIC)
    assert policies == {other: TopicPolicy(enabled=True)}
    assert await enabled_topics(store) == [other]


async def _stored() -> MemoryMetadata:
    """A store with the topic's folders."""
    store = MemoryTree().connect()
    for folder in paths.folders(TOPIC):
        await store.create(folder, b"")
    return store


async def test_ends_are_recorded_with_the_commit_that_reaches_them() -> None:
    """Only for ledgers that are offloaded to their end; a later commit adds what was not known before."""
    store = await _stored()
    steps, first = TopicMap(TOPIC).with_commit(
        made(1, (3, 0, 9), (4, 0, 4)), {3: LedgerEnd(10, 4), 4: LedgerEnd(6, None), 8: LedgerEnd(1, None)}
    )
    await store.transact(steps)
    assert first.ends == {3: LedgerEnd(10, 4)}
    assert await catalog.load(store, TOPIC) == first
    steps, second = first.with_commit(made(2, (4, 5, 5)), {4: LedgerEnd(6, None)})
    await store.transact(steps)
    assert second.ends == {3: LedgerEnd(10, 4), 4: LedgerEnd(6, None)}
    steps, third = second.with_ends({3: LedgerEnd(10, 4), 4: LedgerEnd(6, 7)})
    await store.transact(steps)
    assert [step.path for step in steps] == [paths.ledger(TOPIC, 4)]
    assert third.ends == {3: LedgerEnd(10, 4), 4: LedgerEnd(6, 7)}
    assert await catalog.load(store, TOPIC) == third
    assert third.with_ends({4: LedgerEnd(6, 7)})[0] == []
    assert third.with_ends({4: LedgerEnd(6, None)})[0] == []


async def test_a_wider_loss_takes_in_the_ones_within_it() -> None:
    """Readers always see one range that says all; others stay as they are."""
    store = await _stored()
    current = TopicMap(TOPIC)
    other = Loss(Position(20, 0), Position(30, 0), 2, 5)
    nested = [Loss(Position(3, 7), Position(5, 0), 4, 1), Loss(Position(3, 7), Position(6, 0), 3, 2)]
    for loss in (*nested, other, Loss(Position(3, 4), Position(6, 0), 3, 9)):
        steps, current = current.with_loss(loss)
        await store.transact(steps)
        assert await catalog.load(store, TOPIC) == current
    whole = Loss(Position(3, 4), Position(6, 0), 10, 9)
    assert current.losses == (whole, other)
    assert [whole.holds(Position(3, entry)) for entry in (4, 5)] == [False, True]
    assert not any(loss.holds(Position(6, 0)) for loss in current.losses)
    assert [loss for loss in current.losses if loss.holds(Position(5, 99))] == [whole]


async def test_losses_that_are_merged_while_they_are_read_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the listing and the reads the listed losses give way to a wider one: the read sees that one."""
    store = await _stored()
    steps, narrow = TopicMap(TOPIC).with_loss(Loss(Position(3, 7), Position(5, 0), 4, 1))
    await store.transact(steps)
    merging, wider = narrow.with_loss(Loss(Position(3, 7), Position(6, 0), 3, 2))
    children = store.children

    async def merged_behind(path: str) -> Sequence[str]:
        names = await children(path)
        if path == paths.losses(TOPIC) and merging:
            await store.transact(merging)
            merging.clear()
        return names

    monkeypatch.setattr(store, "children", merged_behind)
    found = tuple(await nodes.losses(store, TOPIC))
    assert found == wider.losses == (Loss(Position(3, 7), Position(6, 0), 7, 2),)


@pytest.mark.parametrize("listing", [1, 2])
async def test_a_loss_and_the_segment_that_ends_it_are_of_one_moment(
    monkeypatch: pytest.MonkeyPatch, listing: int
) -> None:
    """A commit right before the losses are listed: the map has its segment, and never neither that nor the loss."""
    store = await _stored()
    steps, lost = TopicMap(TOPIC).with_loss(Loss(Position(3, 4), Position(6, 0), 0, 1))
    await store.transact(steps)
    steps, before = lost.with_commit(made(1, (3, 0, 4)))
    await store.transact(steps)
    committing, after = before.with_commit(made(2, (3, 5, 9), (4, 0, 9), (5, 0, 9)))
    children, count = store.children, 0

    async def committed_before(path: str) -> Sequence[str]:
        nonlocal count
        if path == paths.losses(TOPIC):
            count += 1
            if count == listing:
                for _ in range(50):  # the other nodes of this pass are read
                    await asyncio.sleep(0)  # noqa: TID251 - gives the loop a turn, measures no time
                await store.transact(committing)
        return await children(path)

    monkeypatch.setattr(store, "children", committed_before)
    found = await catalog.load(store, TOPIC)
    assert (found.segments, found.losses) == (after.segments, after.losses)


async def test_the_deletion_of_all_is_not_taken_for_a_topic_without_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor is read right before the deletion, the list of ledgers right after it: the map has the floor."""
    store = await _stored()
    segment = made(1, (3, 0, 4))
    steps, before = TopicMap(TOPIC).with_commit(segment)
    await store.transact(steps)
    deleting, after = removal.without_oldest(before, segment, reason="age", now_ms=1)
    children, left = store.children, [deleting]

    async def deleted_before(path: str) -> Sequence[str]:
        if path == paths.ledgers(TOPIC) and left:
            for _ in range(50):  # the other nodes of this pass are read
                await asyncio.sleep(0)  # noqa: TID251 - gives the loop a turn, measures no time
            await store.transact(left.pop())
        return await children(path)

    monkeypatch.setattr(store, "children", deleted_before)
    found = await catalog.load(store, TOPIC)
    assert (found.segments, found.floor) == (after.segments, after.floor)


async def test_losses_that_change_without_end_are_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is listed and never found is an error that can be retried, not a topic without losses."""
    store = await _stored()

    async def gone(_: str) -> Sequence[str]:
        return ["6"]

    monkeypatch.setattr(store, "children", gone)
    with pytest.raises(Transient, match="losses changes faster than it can be read"):
        await nodes.losses(store, TOPIC)


async def test_what_turns_up_after_all_is_lost_no_more() -> None:
    """Noticed too early, since a broker still pushed some of it: neither a wider loss nor a commit trips over that."""
    store = await _stored()
    early, late = Loss(Position(3, 4), Position(6, 0), 0, 1), Loss(Position(3, 7), Position(6, 0), 0, 2)
    steps, current = TopicMap(TOPIC).with_loss(early)
    await store.transact(steps)
    steps, narrowed = current.with_loss(late)
    await store.transact(steps)
    assert (await catalog.load(store, TOPIC)).losses == narrowed.losses == (late,)
    for slices, left in (
        ([(3, 0, 9)], (Loss(Position(3, 9), Position(6, 0), 0, 2),)),
        ([(4, 0, 9)], (Loss(Position(4, 9), Position(6, 0), 0, 2),)),
        ([(3, 0, 7), (6, 0, 3)], (late,)),
    ):
        again = await _stored()
        await again.transact(TopicMap(TOPIC).with_loss(late)[0])
        steps, after = narrowed.with_commit(made(1, *slices))
        await again.transact(steps)
        assert (await catalog.load(again, TOPIC)).losses == after.losses == left


TWO_OF_A_LEDGER = [
    (Loss(Position(3, 9), Position(5, 0), 1, 1), Loss(Position(5, 10), Position(5, 20), 9, 2)),
    (Loss(Position(5, 10), Position(5, 20), 9, 2), Loss(Position(5, 30), Position(5, 40), 9, 1)),
    (Loss(Position(5, 30), Position(5, 40), 9, 1), Loss(Position(5, 10), Position(5, 20), 9, 2)),
]


@pytest.mark.parametrize("losses", TWO_OF_A_LEDGER)
@pytest.mark.parametrize("again", [False, True])
async def test_a_ledger_may_have_lost_entries_twice(losses: tuple[Loss, Loss], *, again: bool) -> None:
    """Neither is written over the other, nor keeps it from being recorded; each is changed where it lies."""
    store, current = await _stored(), TopicMap(TOPIC)
    for loss in losses:
        steps, current = current.with_loss(loss)
        await store.transact(steps)
        current = await catalog.load(store, TOPIC) if again else current
    assert current.losses == tuple(sorted(losses))
    assert await catalog.load(store, TOPIC) == current
    steps, after = current.with_commit(made(1, (5, 0, 50)))
    await store.transact(steps)
    assert after.losses == (await catalog.load(store, TOPIC)).losses


PLAN = HistoryPlan(
    boundary=5, first=3, last=Position(4, 9), order=HistoryOrder.ALONGSIDE, worker=Worker.DAEMON,
    planned_ms=1, epoch=1, daemon_id="d", entries=10, payload_bytes=1,
)  # fmt: skip


async def test_the_loss_of_what_is_live_does_not_wait_for_that_of_history() -> None:
    """Both end where the same ledger begins, and each is told: that of history, and that of what follows it."""
    store, plan = await _stored(), PLAN
    of_history, live = Loss(Position(3, 9), Position(7, 0), 10, 1), Loss(Position(4, 9), Position(7, 0), 3, 2)
    current = TopicMap(TOPIC, history=plan)
    for loss in (of_history, live):
        steps, current = current.with_loss(loss)
        await store.transact(steps)
    found = replace(await catalog.load(store, TOPIC), history=plan)
    assert found.losses == current.losses == (of_history, live)
    assert found.loss_names == current.loss_names == {live: "7-0"}
    steps, shorter = found.with_commit(made(1, (5, 0, 9)))
    assert shorter.loss_names == {live._replace(after=Position(5, 9), entries=0): "7-0"}, (
        "what is left of it is where it was"
    )
    wider = live._replace(before=Position(8, 0))
    steps, current = found.with_loss(wider)
    await store.transact(steps)
    assert [step.path for step in steps] == [paths.loss(TOPIC, "7-0"), paths.loss(TOPIC, "8")]
    assert (current.losses, current.loss_names) == ((of_history, wider._replace(entries=6)), {})
    assert (await catalog.load(store, TOPIC)).losses == current.losses


async def test_a_loss_before_the_first_segment_is_one_as_well() -> None:
    """The front of a topic is written as the position before the first."""
    store = await _stored()
    steps, current = TopicMap(TOPIC).with_loss(Loss(Position(-1, -1), Position(6, 0), 0, 9))
    await store.transact(steps)
    assert await catalog.load(store, TOPIC) == current
    assert str(current.losses[0]) == "before 6:0"


@pytest.mark.parametrize("value", [b"\xff", b"", b"\x08\x05\x18\x05"], ids=["garbage", "empty", "reversed"])
async def test_a_damaged_loss_is_told(value: bytes) -> None:
    """A loss that cannot be read must not be taken for none."""
    store = MemoryTree().connect()
    await store.create(paths.loss(TOPIC, "6"), value)
    with pytest.raises(CorruptData, match="losses/6"):
        await catalog.load(store, TOPIC)


def test_a_recorded_end_must_be_where_the_segments_end() -> None:
    """Else the node was changed by someone else, and readers would skip entries."""
    segment = LedgerSegment(
        segment_id=UUID(int=5), begin_entry_id=0, end_entry_id=4, assigned_ms=1, offloaded_ms=2, object_bytes=9,
        payload_bytes=9,
    )  # fmt: skip
    node = context.encode(LedgerContext(segments=(segment,), end=LedgerEnd(6, None)))
    with pytest.raises(CorruptData, match="end at 6 entries"):
        context.decode(node, path="x")
