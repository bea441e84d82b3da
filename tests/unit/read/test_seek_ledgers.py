"""Seeking through ledgers that brokers offloaded themselves, and on into what offloaderd has."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import Position
from offloaderd.core.read_options import Goal, SeekKind, Tier
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.read import broker_ledgers as ledger_object
from offloaderd.read import search as seek_source
from offloaderd.read.search import key_of
from offloaderd.read.seek import Unseekable, seek
from offloaderd.segment.prefix_totals import past_of
from tests.unit.broker_objects import BrokerLedger
from tests.unit.read.build import TOPIC, Piece, make_read_rig, put_segment
from tests.unit.read.seek_topics import NOW, message, noted
from tests.unit.read.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.committed import CommittedSegment
    from tests.unit.read.build import ReadRig


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small object have many pieces."""
    monkeypatch.setattr(ledger_object, "PIECE_BYTES", 400)


async def put_ledger(rig: ReadRig, ledger_id: int, payloads: Sequence[bytes], index_every: int) -> CommittedSegment:
    """Store a ledger as a broker does, and return the segment as which it is adopted."""
    one = BrokerLedger(
        topic=TOPIC, ledger_id=ledger_id, object_id=uuid.UUID(int=ledger_id), payloads=payloads, index_every=index_every
    )
    await one.put(rig.store)
    return one.adopted


async def mixed(index_every: int) -> tuple[ReadRig, dict[Position, bytes]]:
    """Return a topic: two ledgers of a broker, PIP-70 from the second on, one of ours, one that only the source has."""
    ledgers: dict[int, list[bytes]] = {}
    clock, index = NOW, -1
    for ledger_id in (1, 3, 4, 7):
        payloads = []
        for number in range(60):
            clock += (0, 1, 300)[number * 7 % 3]
            time = clock + number * 389 % 1500
            index += 2
            payloads.append(message(time) if ledger_id == 1 else noted(time, index))
        ledgers[ledger_id] = payloads
    shelf = Shelf()
    shelf.put(7, ledgers[7], closed=False)
    rig = make_read_rig(source=shelf)
    theirs = [await put_ledger(rig, number, ledgers[number], index_every) for number in (1, 3)]
    past = past_of(TopicMap(TOPIC, tuple(theirs)), Position(4, 0), {}, None)
    assert past.entries == 120
    pieces = [Piece(4, 0, ledgers[4])]
    ours = await put_segment(rig.store, pieces, segment_id=uuid.UUID(int=4), surveyed=True, past=past)
    rig.map.segments = [*theirs, ours]
    return rig, {Position(number, entry): data for number, held in ledgers.items() for entry, data in enumerate(held)}


@pytest.mark.parametrize("index_every", [0, 7])
async def test_a_topic_of_all_formats_is_searched_as_one(index_every: int) -> None:
    """By time, index and sequence: what is found is what a look at every entry finds."""
    rig, entries = await mixed(index_every)
    async with rig.reader:
        for kind in (SeekKind.TIME, SeekKind.INDEX):
            keys = {position: key_of(Goal(kind, 0), data) for position, data in entries.items()}
            values = {key + off for key in list(keys.values())[::11] if key is not None for off in (0, 1)}
            for value in sorted(values | {0}):
                wanted = next((position for position, key in keys.items() if key is not None and key >= value), None)
                found = await seek(rig.reader, TOPIC, Goal(kind, value))
                assert (found.hit.position if found.hit else None) == wanted, (kind, value)
        for number, position in list(enumerate(entries))[::13]:
            hit = (await seek(rig.reader, TOPIC, Goal(SeekKind.SEQUENCE, number))).hit
            assert hit is not None
            assert (hit.position, hit.sequence) == (position, number)
            assert hit.tier is (Tier.SOURCE if position.ledger_id == 7 else Tier.OBJECTS)
        assert (await seek(rig.reader, TOPIC, Goal(SeekKind.SEQUENCE, 240))).hit is None


async def test_a_dense_index_makes_seeks_read_little() -> None:
    """The index says where entries are: a few of them, and what lies behind the last one before the goal, are read."""
    rig, entries = await mixed(index_every=7)
    position = Position(3, 30)
    goal = Goal(SeekKind.INDEX, key_of(Goal(SeekKind.INDEX, 0), entries[position]) or 0)
    rig.map.segments = rig.map.segments[1:]
    async with rig.reader:
        found = await seek(rig.reader, TOPIC, goal)
    assert found.hit is not None
    assert found.hit.position == position
    assert found.cost.get_bytes < 0.4 * sum(len(data) for at, data in entries.items() if at.ledger_id == 3)


async def test_a_ledger_without_any_index_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is passed over, and said if nothing is found."""
    monkeypatch.setattr(seek_source, "BLANK_MAX", 10)
    rig, entries = await mixed(index_every=0)
    async with rig.reader:
        found = await seek(rig.reader, TOPIC, Goal(SeekKind.INDEX, 0))
        assert found.hit is not None
        assert found.hit.position == Position(3, 0)
        assert found.cost.get_bytes < sum(len(data) for at, data in entries.items() if at.ledger_id == 1)
        with pytest.raises(Unseekable):
            await seek(rig.reader, TOPIC, Goal(SeekKind.INDEX, 10**6))
