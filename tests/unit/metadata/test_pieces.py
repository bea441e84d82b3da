"""A ledger of very many segments: its context in a node and pieces is the same map as in one node, whatever happens."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData, NewerRecord, Transient
from offloaderd.core.model import LedgerEnd, OffloadMethod, Position, TopicName
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import OffloadContext
from offloaderd.metadata import nodes, paths, pieces
from offloaderd.metadata.port import Replace, Versioned
from offloaderd.metadata.records import codec, context
from offloaderd.metadata.topic_map import conversion, merging, removal
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.testing.memory.metadata import MemoryMetadata, MemoryTree
from tests.unit.metadata.segments import carry_out, contexts_of, made

if TYPE_CHECKING:
    from offloaderd.metadata.port import Step

TOPIC = TopicName("public", "default", "orders")
SMALL = 400
"""Bytes of a piece in these tests: some four segments."""


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", SMALL)


def _path(ledger_id: int = 3) -> str:
    return paths.ledger(TOPIC, ledger_id)


def _cut(current: TopicMap) -> tuple[list[Step], TopicMap]:
    """Put every context in pieces that is large enough."""
    steps: list[Step] = []
    for ledger_id in current.contexts:
        more, current = current.in_pieces(ledger_id)
        steps += more
    return steps, current


def _many(segments: int, *, ledger: int = 3, entries: int = 2) -> TopicMap:
    """A ledger of so many segments, in one node."""
    current = TopicMap(TOPIC)
    for number in range(segments):
        _, current = current.with_commit(made(number + 1, (ledger, number * entries, number * entries + entries - 1)))
    return current


class _Twins:
    """The same topic twice: in single nodes, and in nodes that are put in pieces now and then."""

    def __init__(self) -> None:
        self.plain = self.pieced = TopicMap(TOPIC)
        self.nodes: dict[str, Versioned] = {}
        self.numbers = count(1)

    def filled(self, segments: int) -> None:
        """Commit so many segments of one entry, and look at what comes of all of them."""
        for _ in range(segments):
            segment = made(next(self.numbers), (5, 50 + len(self.plain.segments), 50 + len(self.plain.segments)))
            _, self.plain = self.plain.with_commit(segment)
            steps, self.pieced = self.pieced.with_commit(segment)
            carry_out(self.nodes, steps)
        self.check()

    def commit(self, length: int, *, behind: bool, over: bool) -> None:
        """Commit what comes behind the newest segment, or before the oldest; over the ledger's end if it may be."""
        segments = self.plain.segments
        if not segments:
            slices = [(5, 50, 49 + length)]
        elif behind:
            end = segments[-1].end
            slices = [(end.ledger_id, end.entry_id + 1, end.entry_id + length)]
            if end.ledger_id in self.plain.ends:
                slices = [(end.ledger_id + 1, 0, length)]
            elif over:
                slices.append((end.ledger_id + 1, 0, length))
        else:
            begin = segments[0].begin
            if begin.entry_id < length or self.plain.floor is not None:
                return
            slices = [(begin.ledger_id, begin.entry_id - length, begin.entry_id - 1)]
        segment = made(next(self.numbers), *slices)
        self._do(lambda known: known.with_commit(segment))

    def remove(self) -> None:
        """Take the oldest segment out; the newest stays."""
        if len(self.plain.segments) > 1:
            oldest = self.plain.segments[0]
            self._do(lambda known: removal.without_oldest(known, oldest, reason="r", now_ms=1))

    def mark(self) -> None:
        """Mark the oldest ledger deleted, and note that its source has it no more."""
        ledger_ids = [*self.plain.contexts][:1]
        self._do(lambda known: removal.mark_deleted(known, ledger_ids, now_ms=7))
        self._do(lambda known: removal.note_source_deleted(known, ledger_ids))

    def end(self) -> None:
        """Record that the newest ledger has ended."""
        if (newest := self.plain.offloaded) is not None:
            ends = {newest.ledger_id: LedgerEnd(newest.entry_id + 1, newest.ledger_id + 1)}
            self._do(lambda known: known.with_ends(ends))

    def merge(self, begin: int, length: int) -> None:
        """Make one segment of some that follow each other."""
        sources = self.plain.segments[begin : begin + length]
        if sources and not any(merging.obstacle(self.plain, one, {"bucket"}) for one in sources):
            goal = merging.goal_of(sources)
            merged = replace(made(next(self.numbers)), slices=goal.slices)
            self._do(lambda known: merging.with_merged(known, merged, now_ms=2))

    def cut(self) -> None:
        """Put contexts in pieces."""
        steps, self.pieced = _cut(self.pieced)
        carry_out(self.nodes, steps)
        self.check()

    def _do(self, edit: catalog.Edit) -> None:
        _, self.plain = edit(self.plain)
        steps, self.pieced = edit(self.pieced)
        carry_out(self.nodes, steps)
        self.check()

    def check(self) -> None:
        """Both are one map; the nodes hold the pieced one, and none of them has grown."""
        floor = self.nodes.get(paths.floor(TOPIC))
        assert TopicMap.build(TOPIC, contexts_of(TOPIC, self.nodes), (), floor) == self.pieced
        bare = [replace(one, contexts={}) for one in (self.plain, self.pieced)]
        assert bare[0] == bare[1]
        assert self.plain.contexts.keys() == self.pieced.contexts.keys()
        for ledger_id, stored in self.pieced.contexts.items():
            whole = pieces.joined(self.plain.contexts[ledger_id], _path(ledger_id))
            assert pieces.joined(stored, _path(ledger_id)) == whole
            assert context.encode(pieces.joined(stored, _path(ledger_id))) == self.plain.contexts[ledger_id].value
            if stored.pieces:
                table = 20 * len(stored.pieces)
                assert len(stored.value) <= 2 * SMALL + table + 60
                assert max(len(one.value) for one in stored.pieces.values()) <= 2 * SMALL


OPERATIONS = st.one_of(
    st.tuples(st.just("commit"), st.integers(1, 4), st.booleans(), st.booleans()),
    st.tuples(st.just("commit"), st.integers(1, 2), st.just(True), st.just(False)),
    st.tuples(st.just("merge"), st.integers(0, 30), st.integers(1, 12)),
    st.tuples(st.sampled_from(["remove", "remove", "mark", "end", "cut", "cut"])),
)


@given(st.integers(0, 60), st.lists(OPERATIONS, max_size=40))
def test_a_context_in_pieces_is_the_same_map_whatever_happens_to_it(before: int, operations: list[tuple]) -> None:  # type: ignore[type-arg]
    """Commits at both ends, removals, ends, marks, merges and cuts in any order; each node stays small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_BYTES", SMALL)
        twins = _Twins()
        twins.filled(before)
        for name, *drawn in operations:
            match name, drawn:
                case "commit", [length, behind, over]:
                    twins.commit(length, behind=behind, over=over)
                case "merge", [begin, length]:
                    twins.merge(begin, length)
                case _:
                    getattr(twins, name)()


def test_a_commit_to_a_context_in_pieces_writes_its_newest_segments_alone() -> None:
    """And a removal its oldest ones; so neither costs more the more segments there are."""
    _, current = _cut(_many(200))
    steps, after = current.with_commit(made(900, (3, 400, 401)))
    assert [step.path for step in steps] == [_path()]
    steps, _ = removal.without_oldest(after, after.segments[0], reason="r", now_ms=1)
    changed = [step for step in steps if step.path.startswith(_path())]
    assert len(changed) == 2
    assert changed[-1].path == _path()


def test_a_ledger_becomes_one_object_out_of_pieces() -> None:
    """A conversion takes them all away, in the one transaction."""
    _, current = _many(100).with_ends({3: LedgerEnd(200, 4)})
    _, current = current.with_commit(made(900, (4, 0, 3)))
    held: dict[str, Versioned] = {
        _path(one): Versioned(kept.value, kept.version) for one, kept in current.contexts.items()
    }
    steps, current = _cut(current)
    carry_out(held, steps)
    assert len(held) > 10
    whole = replace(made(901, (3, 0, 199)), method=OffloadMethod.LEDGER_BASED)
    steps, after = conversion.with_whole(current, whole, now_ms=5)
    carry_out(held, steps)
    assert TopicMap.build(TOPIC, contexts_of(TOPIC, held)) == after
    assert [path for path in held if path.startswith(f"{_path()}/")] == []


@pytest.mark.parametrize("length", [1, 2])
def test_segments_at_the_edges_of_pieces_are_exchanged_like_any_other(length: int) -> None:
    """Segments of one entry begin and end where their piece does: each is merged, and each removed, where it is."""
    twins = _Twins()
    for _ in range(30):
        twins.commit(length, behind=True, over=False)
    twins.cut()
    assert len(twins.pieced.contexts[5].pieces) > 3
    for begin in reversed(range(29)):
        twins.merge(begin, 1)
    for _ in range(29):
        twins.remove()


def test_a_new_piece_has_a_number_that_no_other_has() -> None:
    """Also once the oldest pieces are gone: as many as there are then is the number of one that is there."""
    twins = _Twins()
    for _ in range(30):
        twins.commit(1, behind=True, over=False)
    twins.cut()
    first = min(twins.pieced.contexts[5].pieces)
    while first in twins.pieced.contexts[5].pieces:
        twins.remove()
    before = set(twins.pieced.contexts[5].pieces)
    while twins.pieced.contexts[5].pieces.keys() == before:
        twins.commit(1, behind=True, over=False)
    assert twins.pieced.contexts[5].pieces.keys() > before


def test_a_release_that_knows_no_pieces_refuses_the_node() -> None:
    """It never takes it for a ledger with fewer segments: the format says so, and goes when the pieces have gone."""
    _, current = _cut(_many(30))
    value = current.contexts[3].value
    assert OffloadContext.FromString(value).format == context.FORMAT_PIECES
    with pytest.raises(NewerRecord):
        codec.parse(OffloadContext, value, _path())
    for segment in current.segments[:-1]:
        _, current = removal.without_oldest(current, segment, reason="r", now_ms=1)
    assert not OffloadContext.FromString(current.contexts[3].value).HasField("format")


@pytest.mark.parametrize("damage", ["gone", "other", "gap"])
def test_pieces_that_are_not_as_the_context_says_are_corrupt(damage: str) -> None:
    """One that is missing, or holds other entries, or begins too late: nothing is taken for the whole ledger."""
    _, current = _cut(_many(30))
    stored = current.contexts[3]
    one, two, *_ = stored.pieces
    changed = {
        "gone": {number: piece for number, piece in stored.pieces.items() if number != two},
        "other": {**stored.pieces, two: stored.pieces[one]},
        "gap": {**stored.pieces, one: Versioned(_many(1).contexts[3].value, 0)},
    }[damage]
    with pytest.raises(CorruptData, match=rf"ledgers/3/{one if damage == 'gap' else two} "):
        TopicMap.build(TOPIC, {3: replace(stored, pieces=changed)})


class _Busy(MemoryMetadata):
    """A store where somebody removes the oldest segment whenever a piece is about to be read."""

    current = TopicMap(TOPIC)
    removals = 0

    async def get(self, path: str) -> Versioned:
        if self.removals and path.rpartition("/")[0] == _path():
            self.removals -= 1
            steps, self.current = removal.without_oldest(self.current, self.current.segments[0], reason="r", now_ms=1)
            await self.transact(steps)
        return await super().get(path)


async def _busy() -> _Busy:
    store = _Busy(MemoryTree())
    for folder in paths.folders(TOPIC):
        await store.create(folder, b"")
    current = _many(60)
    await store.create(_path(), current.contexts[3].value)
    steps, store.current = _cut(replace(current, contexts={3: replace(current.contexts[3], version=0)}))
    await store.transact(steps)
    return store


async def test_pieces_are_never_read_by_halves() -> None:
    """A context is read again when its node has changed: while that stays the same, so do its pieces."""
    store = await _busy()
    for removals in (1, 5):
        store.removals = removals
        stored = await nodes.stored_context(store, _path())
        assert stored == store.current.contexts[3]
        store.removals = removals
        assert await catalog.load(store, TOPIC) == store.current
    store.removals = 1000
    with pytest.raises(Transient, match="changes faster"):
        await nodes.stored_context(store, _path())


async def test_a_context_that_was_deleted_and_made_again_is_not_taken_from_memory() -> None:
    """Its node counts its versions anew: the same version may be of another context, with other pieces."""
    store = await _busy()
    stored = await nodes.stored_context(store, _path())
    assert stored is not None
    assert await nodes.stored_context(store, _path(), stored) is stored
    assert await nodes.stored_context(store, _path(), replace(stored, value=stored.value + b"x")) == stored
    assert await nodes.stored_context(store, _path(), replace(stored, version=stored.version + 1)) == stored


async def test_every_change_of_a_piece_moves_the_version_of_the_context() -> None:
    """Also one in the middle, so two who change the same context never both win."""
    _, current = _cut(_many(60))
    middle = current.segments[20:22]
    merged = replace(made(900), slices=merging.goal_of(middle).slices)
    _, current = current.with_commit(made(901, (4, 0, 1)))
    steps, _ = merging.with_merged(current, merged, now_ms=1)
    assert any(isinstance(step, Replace) and step.path == _path() for step in steps)
    assert Position(3, 40) == middle[0].begin
