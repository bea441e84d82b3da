"""Topics to seek in: drawn ones, spread over all tiers as an offloader would have left them, and their entries."""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from offloaderd.core.model import EntryBatch, LedgerInfo, Position
from offloaderd.core.read_options import DISORDER_MS, Goal, SeekKind
from offloaderd.format import manifest_bytes
from offloaderd.format.pb.pulsar.messages_pb2 import MessageMetadata
from offloaderd.format.pulsar import broker_entry
from offloaderd.format.pulsar.entry_time import EntryTime, time_of
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import keys
from offloaderd.read.search import key_of
from offloaderd.segment.prefix_totals import past_behind, past_of
from tests.unit.read.build import PREFIX, TOPIC, Piece, make_read_rig, put_segment
from tests.unit.read.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.format.manifest import Past, SegmentManifest
    from offloaderd.metadata.committed import CommittedSegment
    from tests.unit.read.build import ReadRig

NOW = 1_700_000_000_000


def message(publish_ms: int) -> bytes:
    """Return an entry of a broker that notes nothing."""
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=publish_ms).SerializeToString()
    return b"\x0e\x01abcd" + len(metadata).to_bytes(4, "big") + metadata + b"data"


def noted(broker_ms: int | None, index: int | None = None, publish_ms: int = 5) -> bytes:
    """Return an entry of a broker with PIP-70."""
    return broker_entry.encode_head(broker_timestamp=broker_ms, index=index) + message(publish_ms)


def cut(entry: bytes) -> list[bytes]:
    """Return an entry with its broker's head cut short, with one larger than the entry, and with an unknown field."""
    size = entry[5]
    unknown = entry[:5] + bytes([size + 2]) + entry[6 : 6 + size] + b"\x1a\x00" + entry[6 + size :]
    return [entry[:9], b"\x0e\x02\x00\x01\x00\x00" + entry[6:], unknown]


@dataclass
class Entry:
    """One entry of a drawn topic; `number` counts all entries that there ever were."""

    position: Position
    payload: bytes
    number: int


@dataclass
class Topic:
    """A drawn topic: its entries, where segments end (exclusive numbers), and who has what.

    Segments hold entries [cuts[0], cuts[-1]); of `old` ones the manifests are of an older version. The first `removed`
    segments were deleted again. The source has lost the ledgers that end before number `trimmed`, up to which all is
    or was in segments. The buffer has the entries from `hot` on, and those from `unlisted` on nobody else.
    """

    entries: list[Entry]
    cuts: list[int]
    old: list[bool]
    removed: int
    trimmed: int
    hot: int
    unlisted: int
    block_entries: int

    def kept(self) -> list[Entry]:
        """What can be read."""
        low = self.cuts[self.removed] if len(self.cuts) > 1 else 0
        source = self.in_source()
        return [one for one in self.entries if one.position in source or one.number >= min(low, self.hot)]

    def in_source(self) -> set[Position]:
        """What the source lists."""
        held = {one.position.ledger_id for one in self.entries[self.trimmed :]}
        gone = {one.position.ledger_id for one in self.entries} - held
        return {
            one.position for one in self.entries if one.number < self.unlisted and one.position.ledger_id not in gone
        }


@st.composite
def topics(draw: st.DrawFn, *, orderly: bool, old: bool) -> Topic:
    """Draw a topic; `orderly` keeps to the disorder that is allowed where nothing is surveyed."""
    entries: list[Entry] = []
    clock, index, ledger_id = NOW, -1, 1
    for size in draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)):
        for entry_id in range(size):
            clock += draw(st.sampled_from([0, 0, 1, 700, 5000]))
            time = clock + draw(st.integers(0, DISORDER_MS if orderly else 20_000))
            index += draw(st.integers(1, 3))
            kinds = [message(time), noted(time), noted(time, index), noted(None, index, publish_ms=time), b"raw"]
            payload = draw(st.sampled_from([*kinds, *cut(noted(time, index))]))
            entries.append(Entry(Position(ledger_id, entry_id), payload, len(entries)))
        ledger_id += draw(st.integers(1, 3))
    count = len(entries)
    cuts = sorted(draw(st.sets(st.integers(0, count), max_size=6)))
    segments = max(0, len(cuts) - 1)
    end = cuts[-1] if segments else 0
    removed = draw(st.integers(0, max(0, segments - 1)))
    hot = draw(st.integers(cuts[removed] if segments else 0, count))
    return Topic(
        entries=entries,
        cuts=cuts,
        old=[old and draw(st.booleans()) for _ in range(segments)],
        removed=removed,
        trimmed=draw(st.integers(cuts[0], end)) if segments and cuts[0] == 0 else 0,
        hot=hot,
        unlisted=draw(st.integers(max(hot, end), count)),
        block_entries=draw(st.integers(1, 4)),
    )


async def furnish(topic: Topic) -> ReadRig:
    """Put a drawn topic into segments, source and buffer, as an offloader would have left it there."""
    shelf = Shelf()
    rig = make_read_rig(source=shelf)
    by_ledger: dict[int, list[bytes]] = defaultdict(list)
    for one in topic.entries:
        by_ledger[one.position.ledger_id].append(one.payload)
    infos = {
        ledger_id: LedgerInfo(ledger_id=ledger_id, closed=True, entries=len(held), size_bytes=1)
        for ledger_id, held in by_ledger.items()
    }
    segments: list[CommittedSegment] = []
    behind: Past | None = None
    for (first, end), is_old in zip(pairwise(topic.cuts), topic.old, strict=True):
        past = past_of(TopicMap(TOPIC, tuple(segments)), topic.entries[first].position, infos, behind)
        pieces = pieces_of(topic.entries[first:end])
        segment_id = uuid.UUID(int=first + 1)
        segments.append(
            await put_segment(
                rig.store,
                pieces,
                segment_id=segment_id,
                block_entries=topic.block_entries,
                surveyed=not is_old,
                past=None if is_old else past,
            )
        )
        behind = past_behind(await manifest_of(rig, segment_id))
    rig.map.segments = segments[topic.removed :]
    listed = topic.in_source()
    for ledger_id, held in by_ledger.items():
        some = [data for entry_id, data in enumerate(held) if Position(ledger_id, entry_id) in listed]
        if some:
            shelf.put(ledger_id, some, closed=ledger_id != max(one.ledger_id for one in listed))
    follows = topic.entries[topic.hot - 1].position if topic.hot else None
    for piece in pieces_of(topic.entries[topic.hot :]):
        batch = EntryBatch(piece.ledger_id, piece.first_entry_id, piece.payloads)
        rig.hot.add(batch, follows)
        follows = batch.last
    return rig


async def manifest_of(rig: ReadRig, segment_id: uuid.UUID) -> SegmentManifest:
    """Read a manifest back."""
    key = keys.SegmentKeys(PREFIX, segment_id).manifest
    return manifest_bytes.decode(await rig.store.get(key), key=key)


def pieces_of(entries: Sequence[Entry]) -> list[Piece]:
    """Return consecutive entries ledger by ledger."""
    found: dict[int, list[Entry]] = defaultdict(list)
    for one in entries:
        found[one.position.ledger_id].append(one)
    return [
        Piece(ledger_id, some[0].position.entry_id, [one.payload for one in some]) for ledger_id, some in found.items()
    ]


def expected(topic: Topic, goal: Goal) -> tuple[Position, EntryTime] | None:
    """Look at every entry."""
    for one in topic.kept():
        key = one.number if goal.kind is SeekKind.SEQUENCE else key_of(goal, one.payload)
        if key is not None and key >= goal.value:
            return one.position, time_of(one.payload)
    return None


def goals(topic: Topic, kind: SeekKind) -> list[Goal]:
    """Return every goal that could make a difference."""
    if kind is SeekKind.SEQUENCE:
        values = set(range(len(topic.entries) + 2))
    else:
        found = {key_of(Goal(kind, 0), one.payload) for one in topic.entries}
        values = {key + off for key in found if key is not None for off in (-1, 0, 1)} | {0, 2**64 - 1}
    return [Goal(kind, value) for value in sorted(values) if value >= 0]
