"""Segments, buffers and clocks for the tests of reading: small, deterministic, and made with the real encoders."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import google_crc32c

from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import EntryBatch, Gap, Loss, Position, TopicName
from offloaderd.core.retry import RetryPolicy
from offloaderd.format import manifest_bytes, v2
from offloaderd.format.chunks import checksums, sparse_positions
from offloaderd.format.manifest import BlockInfo, LedgerPart, Past, SegmentManifest
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import LedgerInfo
from offloaderd.format.pulsar.entry_time import block_times
from offloaderd.format.v1_and_v2 import IndexEntry
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.records.deletion import Floor
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import keys
from offloaderd.policy.policies import Effective, Level, OffloadPolicies, Origin, effective
from offloaderd.read.reader import ReadOptions, TopicReader
from offloaderd.read.segments import SegmentOptions
from offloaderd.testing.memory.objects import MemoryStore
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offloaderd.core.entries import Entries
    from offloaderd.core.read_options import ReadPriority, Tier
    from offloaderd.ledgers.port import LedgerSource
    from offloaderd.metadata.records.history import HistoryPlan
    from offloaderd.objects.port import ObjectReader, ObjectStore

TOPIC = TopicName("public", "default", "orders")
PREFIX = "p/"


class FastClock(LoopClock):
    """Sleeps a thousandth of what is asked; remembers every pause; ids in order."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._ids = 0

    async def sleep(self, seconds: float) -> None:
        """Give the loop a short turn."""
        self.pauses.append(seconds)
        await asyncio.sleep(seconds / 1000)  # noqa: TID251 - this is the clock

    def jitter(self, seconds: float) -> float:
        """No chance here."""
        return seconds

    def uuid(self) -> uuid.UUID:
        """Return the next id."""
        self._ids += 1
        return uuid.UUID(int=self._ids)


@dataclass
class Piece:
    """What a segment holds of one ledger; `closed` with the ledger's entries, None for one that is open."""

    ledger_id: int
    first_entry_id: int
    payloads: Sequence[bytes]
    closed: int | None = None

    @property
    def last_entry_id(self) -> int:
        """Id of the last entry."""
        return self.first_entry_id + len(self.payloads) - 1


def encode_pieces(
    pieces: Sequence[Piece], block_entries: int, *, preamble: bool, surveyed: bool = False, chunk_bytes: int = 0
) -> tuple[bytearray, list[BlockInfo], list[v2.LedgerIndex]]:
    """Encode a data object; returns it with its blocks and index groups."""
    data = bytearray(v2.PREAMBLE if preamble else b"")
    blocks: list[BlockInfo] = []
    groups: list[v2.LedgerIndex] = []
    for piece in pieces:
        entries: list[IndexEntry] = []
        for at in range(0, len(piece.payloads), block_entries):
            payloads = piece.payloads[at : at + block_entries]
            first = piece.first_entry_id + at
            encoded = b"".join(v2.encode_block(piece.ledger_id, first, payloads).chunks)
            entries.append(IndexEntry(first, len(blocks) + 1, len(data)))
            crc32c, chunks = checksums(encoded, 0, len(encoded), chunk_bytes or len(encoded))
            blocks.append(
                BlockInfo(
                    ledger_id=piece.ledger_id,
                    first_entry_id=first,
                    entry_count=len(payloads),
                    offset=len(data),
                    length=len(encoded),
                    crc32c=crc32c,
                    sparse=sparse_positions(map(len, payloads), 128, chunk_bytes) if chunks else (),
                    chunks=chunks,
                    **(block_times(payloads)._asdict() if surveyed else {}),
                )
            )
            data += encoded
        info = LedgerInfo(ledgerId=piece.ledger_id, entries=piece.last_entry_id + 1, timestamp=0).SerializeToString()
        groups.append(v2.LedgerIndex(piece.ledger_id, info, tuple(entries)))
    return data, blocks, groups


def part_of(piece: Piece) -> LedgerPart:
    """Describe a piece as the manifest does."""
    size = sum(map(len, piece.payloads))
    return LedgerPart(
        ledger_id=piece.ledger_id,
        first_entry_id=piece.first_entry_id,
        last_entry_id=piece.last_entry_id,
        payload_bytes=size,
        closed=piece.closed is not None,
        ledger_entries=piece.last_entry_id + 1 if piece.closed is None else piece.closed,
        ledger_bytes=size,
        closed_ms=0 if piece.closed is None else 1,
    )


async def put_segment(
    store: ObjectStore,
    pieces: Sequence[Piece],
    *,
    segment_id: uuid.UUID,
    block_entries: int = 3,
    topic: TopicName = TOPIC,
    preamble: bool = False,
    surveyed: bool = False,
    past: Past | None = None,
    chunk_bytes: int = 0,
) -> CommittedSegment:
    """Store a segment's three objects and return what a commit would say of it."""
    data, blocks, groups = encode_pieces(
        pieces, block_entries, preamble=preamble, surveyed=surveyed, chunk_bytes=chunk_bytes
    )
    parts = [part_of(piece) for piece in pieces]
    index = v2.encode_index(len(data), groups)
    manifest = SegmentManifest(
        segment_id=segment_id,
        managed_ledger=topic.managed_ledger,
        cluster="test",
        epoch=1,
        assigned_ms=1,
        sealed_ms=2,
        data_bytes=len(data),
        preamble_bytes=len(v2.PREAMBLE) if preamble else 0,
        index_bytes=len(index),
        index_crc32c=google_crc32c.value(index),
        ledgers=tuple(parts),
        blocks=tuple(blocks),
        software_version="test",
        past=past,
        chunk_bytes=chunk_bytes if any(block.chunks for block in blocks) else 0,
    )
    await store.put(keys.SegmentKeys(PREFIX, segment_id).data, bytes(data))
    await store.put(keys.SegmentKeys(PREFIX, segment_id).index, index)
    await store.put(keys.SegmentKeys(PREFIX, segment_id).manifest, manifest_bytes.encode(manifest))
    slices = tuple(
        LedgerSlice(part.ledger_id, part.first_entry_id, part.last_entry_id, part.payload_bytes) for part in parts
    )
    return CommittedSegment(
        segment_id=segment_id,
        slices=slices,
        object_bytes=len(data),
        assigned_ms=1,
        offloaded_ms=2,
        bucket="bucket",
        prefix=PREFIX,
    )


@dataclass
class Map:
    """Maps and policies that a test sets."""

    segments: list[CommittedSegment] = field(default_factory=list)
    enabled: bool = False
    priority: ReadPriority | None = None
    looks: int = 0
    losses: tuple[Loss, ...] = ()
    history: HistoryPlan | None = None
    gaps: tuple[Gap, ...] = ()
    base: Floor | None = None

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return the segments as they are now."""
        self.looks += 1
        await asyncio.sleep(0)  # noqa: TID251 - a real store takes a turn
        known = TopicMap(topic, tuple(self.segments), losses=self.losses, history=self.history, gaps=self.gaps)
        return replace(known, base=self.base)

    def expire(self, count: int) -> None:
        """Delete the oldest segments, as retention does."""
        end, self.segments = self.segments[count - 1].end, self.segments[count:]
        self.base = Floor(position=end, end=None, deleted_ms=1, segments=count, object_bytes=1, reason="age")

    async def of(self, topic: TopicName) -> Effective:
        """Return the policy if the topic is enabled."""
        said = OffloadPolicies(read_priority=self.priority if self.enabled else None)
        return effective([Level(Origin.TOPIC, said)], known=self.enabled)


class Hot:
    """A buffer of whole ledgers' runs. `follows` says which position each run directly follows, if that is known."""

    def __init__(self) -> None:
        self.runs: list[tuple[Position | None, EntryBatch]] = []
        self._changed = asyncio.Event()

    def add(self, batch: EntryBatch, follows: Position | None = None) -> None:
        """Hold one more run, behind the others."""
        self.runs.append((follows, batch))
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    def clear(self) -> None:
        """Forget everything."""
        self.runs.clear()

    def read(self, topic: TopicName, first: Position, last: Position | None, max_bytes: int) -> EntryBatch | None:
        """See HotTier."""
        for _, batch in self.runs:
            if batch.first <= first <= batch.last:
                end = batch.last_entry_id
                if last is not None and last.ledger_id == batch.ledger_id:
                    end = min(end, last.entry_id)
                found = batch.between(first.entry_id, end)
                keep, size = 0, 0
                while keep < len(found.payloads) and (not keep or size + len(found.payloads[keep]) <= max_bytes):
                    size += len(found.payloads[keep])
                    keep += 1
                return found.between(found.first_entry_id, found.first_entry_id + keep - 1)
        return None

    def range(self, topic: TopicName) -> tuple[Position, Position] | None:
        """See HotTier."""
        return (self.runs[0][1].first, self.runs[-1][1].last) if self.runs else None

    def next_after(self, topic: TopicName, position: Position) -> Position | None:
        """See HotTier."""
        following = Position(position.ledger_id, position.entry_id + 1)
        for follows, batch in self.runs:
            if batch.first <= following <= batch.last:
                return following
            if follows == position:
                return batch.first
        return None

    async def changed(self, topic: TopicName) -> None:
        """See HotTier."""
        await self._changed.wait()


@dataclass
class ReadRig:
    """A TopicReader with everything that it reads from. Enter `reader` before use."""

    store: MemoryStore
    map: Map
    hot: Hot
    metrics: Metrics
    clock: FastClock
    reader: TopicReader


def make_read_rig(
    *,
    source: LedgerSource | None = None,
    objects: ObjectReader | None = None,
    store: MemoryStore | None = None,
    cache_bytes: int = 1 << 20,
    read_ahead_bytes: int = 1 << 16,
    batch_bytes: int = 1 << 20,
) -> ReadRig:
    """Put a reader together over an empty bucket."""
    clock = FastClock()
    store = store or MemoryStore(clock)
    metrics = Metrics()
    found, hot = Map(), Hot()
    options = ReadOptions(
        batch_bytes=batch_bytes,
        segments=SegmentOptions(
            cache_bytes=cache_bytes,
            tables_bytes=1 << 20,
            read_ahead_bytes=read_ahead_bytes,
            retry=RetryPolicy(tries_max=3, pause_s=0.1, pause_max_s=0.2),
        ),
    )
    reader = TopicReader(
        maps=found,
        policies=found,
        objects=objects or store,
        source=source,
        hot=hot,
        clock=clock,
        metrics=metrics,
        options=options,
    )
    return ReadRig(store, found, hot, metrics, clock, reader)


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Return what entry `ledger_id:entry_id` holds in all tests; lengths vary and include 0."""
    return f"{ledger_id}:{entry_id};".encode() * (entry_id % 4)


def payloads(ledger_id: int, first: int, last: int) -> list[bytes]:
    """Return the payloads of a run of entries."""
    return [payload(ledger_id, entry_id) for entry_id in range(first, last + 1)]


def flat(batches: Sequence[Entries]) -> list[tuple[int, int, bytes]]:
    """Return ledger, entry and payload of each entry in the order in which they came."""
    return [
        (batch.ledger_id, entry_id, data)
        for batch in batches
        for entry_id, data in enumerate(batch.payloads, batch.first_entry_id)
    ]


async def turns(count: int = 1) -> None:
    """Give the loop some turns, so that others can do what needs no time."""
    for _ in range(count):
        await asyncio.sleep(0)  # noqa: TID251 - takes no time


async def for_ever() -> None:
    """Return never; ends by being cancelled."""
    await asyncio.Event().wait()


def sample(metrics: Metrics, name: str, labels: Mapping[str, str] | None = None) -> float:
    """Return a metric's value, 0 when it has none."""
    return metrics.registry.get_sample_value(name, dict(labels or {})) or 0.0


async def collect(rig: ReadRig, **what: Any) -> tuple[list[tuple[int, int, bytes]], list[Tier]]:  # noqa: ANN401
    """Read a range; returns its entries and the tiers that gave them, each named once in a row."""
    batches: list[Entries] = []
    tiers: list[Tier] = []
    async with aclosing(rig.reader.read(TOPIC, **what)) as found:
        async for batch, tier in found:
            batches.append(batch)
            if tiers[-1:] != [tier]:
                tiers.append(tier)
    return flat(batches), tiers


def run(ledger_id: int, first: int, last: int) -> list[tuple[int, int, bytes]]:
    """Return what entries of one ledger hold."""
    return [(ledger_id, entry, payload(ledger_id, entry)) for entry in range(first, last + 1)]
