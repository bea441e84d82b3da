"""Verification of one segment: its three objects exist, agree, and hold the bytes that were written.

Only the manifest's own checksum is trusted. Sizes come from the store. The index is compared with the manifest, each
block with its checksum, and the manifest of a committed segment with the map. All flaws are found, not only the first.

A ledger that a broker has offloaded itself has two objects without checksums or manifest. They must agree with each
other and with what was adopted; entries are checked by their framing.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from offloaderd.core.aio import each
from offloaderd.core.entries import ENTRY_HEAD, ENTRY_OVERHEAD_BYTES, FramedEntries
from offloaderd.core.errors import CorruptData
from offloaderd.core.model import Loss, OffloadMethod, TopicName
from offloaderd.format import manifest_bytes, v1, v2
from offloaderd.format.chunks import chunk_checksums, sparse_positions, unpacked
from offloaderd.format.manifest import BlockInfo, LedgerPart, SegmentManifest
from offloaderd.format.pulsar.entry_time import block_times
from offloaderd.format.v1 import BlockScan, BlockSpan, LedgerObjectIndex, block_spans, decode_index
from offloaderd.format.verify import BlockRun, check_index, decode_verified_block, runs
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.objects import keys
from offloaderd.objects.keys import SegmentKeys
from offloaderd.objects.retrying import RetryingReader
from offloaderd.upkeep.flaws import Flaw, Kind, Level, corrupt, noted

CHUNK_BYTES = 4 << 20
"""Size of one request; a larger block is read alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A segment to check. With `committed` its manifest has to match what was committed of `topic`.

    `losses` are those of the map; the manifest has to have those before and within the segment.
    """

    bucket: str
    keys: SegmentKeys
    cluster: str
    topic: TopicName | None = None
    committed: CommittedSegment | None = None
    losses: Sequence[Loss] = ()

    @classmethod
    def of(cls, segment: CommittedSegment, topic: TopicName, cluster: str, losses: Sequence[Loss] = ()) -> "Target":
        """Return a committed segment as a target."""
        bucket, keys_ = segment.bucket, segment.keys
        return cls(bucket=bucket, keys=keys_, cluster=cluster, topic=topic, committed=segment, losses=losses)


@dataclass(slots=True)
class Tables:
    """Result of reading the tables. `manifest` is None when it cannot be read or is another segment's."""

    manifest: SegmentManifest | None = None
    flaws: list[Flaw] = field(default_factory=list)


async def check_tables(reader: RetryingReader, target: Target) -> Tables:
    """Check manifest, index and size of the data; a broker's index and size. Raises as the store, except NotFound."""
    found, reader, manifest = Tables(), reader.at(target.bucket), None
    if target.committed is not None and target.committed.foreign:
        found.flaws = await check_broker_objects(reader, target.committed)
    else:
        manifest = await load_manifest(reader, target, found)
        if any(flaw.kind is Kind.FOREIGN for flaw in found.flaws):
            return found
        found.manifest = manifest
        await _data(reader, target, manifest, found)
        await _index(reader, target, manifest, found)
    topic = target.topic or (TopicName.from_managed_ledger(manifest.managed_ledger) if manifest else None)
    entries = str(manifest.range) if manifest else ""
    found.flaws = [
        replace(flaw, topic=topic, segment_id=target.keys.segment_id, entries=flaw.entries or entries)
        for flaw in found.flaws
    ]
    return found


async def load_manifest(reader: RetryingReader, target: Target, found: Tables) -> SegmentManifest | None:
    """Return the segment's manifest; None if it cannot be used, with the flaws added to `found`."""
    key, manifest = target.keys.manifest, None
    with noted(found.flaws, key, Kind.MANIFEST):
        data_bytes = target.committed.object_bytes if target.committed is not None else None
        decode = partial(manifest_bytes.decode, key=key, data_bytes=data_bytes)
        manifest = await reader.at(target.bucket).table(decode, key)
    if manifest is None:
        return None
    wrong = _identity(target, manifest)
    found.flaws += wrong
    return None if any(flaw.kind is Kind.IDENTITY for flaw in wrong) else manifest


def _identity(target: Target, manifest: SegmentManifest) -> list[Flaw]:
    """Compare the manifest with its key, cluster and topic, and with what was committed."""
    key = target.keys.manifest
    if manifest.segment_id != target.keys.segment_id:
        expected, held = f"segment {target.keys.segment_id}", f"segment {manifest.segment_id}"
        return [Flaw(kind=Kind.IDENTITY, key=key, expected=expected, found=held)]
    if manifest.cluster != target.cluster:
        kind = Kind.FOREIGN if target.committed is None else Kind.IDENTITY
        return [Flaw(kind=kind, key=key, expected=f"cluster {target.cluster}", found=f"cluster {manifest.cluster}")]
    if target.topic is not None and manifest.managed_ledger != target.topic.managed_ledger:
        expected = target.topic.managed_ledger
        return [Flaw(kind=Kind.IDENTITY, key=key, expected=expected, found=manifest.managed_ledger)]
    if target.committed is None:
        return []
    flaws = differences(target.committed, manifest.ledgers, manifest.data_bytes, key)
    return flaws + unrecorded(target.committed, manifest, target.losses, key)


async def _data(reader: RetryingReader, target: Target, manifest: SegmentManifest | None, found: Tables) -> None:
    key = target.keys.data
    committed = target.committed
    wanted = manifest.data_bytes if manifest else committed.object_bytes if committed else None
    size_bytes = await _head(reader, key, found)
    if size_bytes is not None and wanted is not None and size_bytes != wanted:
        offset = min(size_bytes, wanted)
        expected, held = f"{wanted} bytes", f"{size_bytes} bytes"
        found.flaws.append(Flaw(kind=Kind.SIZE, key=key, offset=offset, expected=expected, found=held))


async def _index(reader: RetryingReader, target: Target, manifest: SegmentManifest | None, found: Tables) -> None:
    """Compare the index with the manifest; without a manifest only its format is checked."""
    key = target.keys.index
    if await _head(reader, key, found) is None:
        return
    decode: Callable[[bytes], object]
    if manifest is not None:
        decode = partial(check_index, manifest=manifest, key=key)
    else:
        decode = partial(v1.decode_index if target.keys.ledger_id is not None else v2.decode_index, key=key)
    with noted(found.flaws, key, Kind.INDEX):
        await reader.table(decode, key)


async def _head(reader: RetryingReader, key: str, found: Tables) -> int | None:
    """Return an object's size, None when it is missing; Pulsar's readers refuse one without its labels."""
    info = None
    with noted(found.flaws, key, Kind.LABELS):
        info = await reader.head(key)
    if info is None:
        return None
    version = info.metadata.get(keys.FORMAT_VERSION_KEY)
    if version != keys.FORMAT_VERSION:
        expected = f"user metadata {keys.FORMAT_VERSION_KEY}={keys.FORMAT_VERSION}"
        found.flaws.append(Flaw(kind=Kind.LABELS, key=key, expected=expected, found=version or "none"))
    return info.size_bytes


async def check_headers(reader: RetryingReader, target: Target, manifest: SegmentManifest) -> list[Flaw]:
    """Read the header of every block and the head of its first entry. Raises as the store."""
    key, reader = target.keys.data, reader.at(target.bucket)
    lengths = _block_lengths(manifest)

    async def check(block: BlockInfo) -> list[Flaw]:
        def of(data: bytes) -> None:
            if block.head_bytes:
                _check_header(data, block, lengths[block.offset], key, manifest.method)
            _check_first_entry(data, block, key)

        try:
            await reader.checked(key, block.offset, block.head_bytes + ENTRY_HEAD.size, of)
        except CorruptData as error:
            return [corrupt(Kind.HEADER, error, entries=entries_of(block))]
        return []

    gone: list[Flaw] = []
    flaws: list[Flaw] = []
    with noted(gone, key, Kind.HEADER, entries=str(manifest.range)):
        flaws = [flaw for found in await each(manifest.blocks, check) for flaw in found]
        flaws += await _preamble(reader, key, manifest)
    return _named(gone or flaws, target, manifest)


def _block_lengths(manifest: SegmentManifest) -> dict[int, int]:
    """Return the length that the header at each offset must have: that of all runs up to the next header."""
    lengths: dict[int, int] = {}
    begin = 0
    for block in manifest.blocks:
        begin = block.offset if block.head_bytes else begin
        lengths[begin] = block.offset + block.length - begin
    return lengths


def _check_header(data: bytes, block: BlockInfo, length: int, key: str, method: OffloadMethod) -> None:
    """Raise CorruptData unless the data begins with the header of the block, or of the first run of its ledger."""
    if method is OffloadMethod.LEDGER_BASED:
        whole = v1.decode_header(data, key=key, at=block.offset)
        said = (whole.block_bytes, block.ledger_id, whole.first_entry_id)
    else:
        header = v2.decode_header(data, key=key, at=block.offset)
        said = (header.block_bytes, header.ledger_id, header.first_entry_id)
    if said != (length, block.ledger_id, block.first_entry_id):
        expected = f"a block of {length} bytes from {block.ledger_id}:{block.first_entry_id} on"
        held = f"one of {said[0]} bytes from {said[1]}:{said[2]} on"
        raise CorruptData(key=key, offset=block.offset, expected=expected, found=held)


def _check_first_entry(data: bytes, block: BlockInfo, key: str) -> None:
    at = block.offset + block.head_bytes
    if len(data) < block.head_bytes + ENTRY_HEAD.size:
        raise CorruptData(key=key, offset=at, expected="an entry", found="the end of the object")
    _, entry_id = ENTRY_HEAD.unpack_from(data, block.head_bytes)
    if entry_id != block.first_entry_id:
        raise CorruptData(key=key, offset=at + 4, expected=f"entry id {block.first_entry_id}", found=entry_id)


async def _preamble(reader: RetryingReader, key: str, manifest: SegmentManifest) -> list[Flaw]:
    if not manifest.preamble_bytes:
        return []

    def of(data: bytes) -> None:
        if data != v2.PREAMBLE:
            raise CorruptData(key=key, offset=0, expected=f"padding {v2.PREAMBLE.hex(' ')}", found=data.hex(" "))

    try:
        await reader.checked(key, 0, manifest.preamble_bytes, of)
    except CorruptData as error:
        return [corrupt(Kind.BLOCK, error)]
    return []


async def check_inside(
    reader: RetryingReader, target: Target, tables: Tables, level: Level, *, start: int = 0
) -> AsyncGenerator[tuple[int, list[Flaw]], None]:
    """Check the data behind the tables at a level. Yields and raises as `check_blocks`."""
    manifest = tables.manifest
    if any(flaw.kind is Kind.MISSING and flaw.key == target.keys.data for flaw in tables.flaws):
        return
    if target.committed is not None and target.committed.foreign:
        if level is Level.FULL and not tables.flaws:
            yield 0, await check_broker_entries(reader, target.committed)
    elif manifest is not None and level is Level.HEADERS:
        yield 0, await check_headers(reader, target, manifest)
    elif manifest is not None and level is Level.FULL:
        async with aclosing(check_blocks(reader, target, manifest, start=start)) as steps:
            async for step in steps:
                yield step


async def check_blocks(
    reader: RetryingReader, target: Target, manifest: SegmentManifest, *, start: int = 0, chunk_bytes: int = CHUNK_BYTES
) -> AsyncGenerator[tuple[int, list[Flaw]], None]:
    """Read blocks from `start` on; yield how many are done, and the flaws. Raises as the store, except NotFound."""
    key, blocks, reader = target.keys.data, manifest.blocks, reader.at(target.bucket)
    payload_bytes: Counter[int] = Counter()
    sound, at = True, start
    gone: list[Flaw] = []
    with noted(gone, key, Kind.BLOCK, entries=str(manifest.range)):
        if start == 0 and (flaws := await _preamble(reader, key, manifest)):
            yield 0, _named(flaws, target, manifest)
        for run in runs(blocks[start:], chunk_bytes):
            looked = await check_run(reader, run, key, manifest)
            payload_bytes.update(looked.payload_bytes)
            at = at + len(run.blocks) if looked.whole else len(blocks)
            sound = sound and not looked.flaws
            yield at, _named(looked.flaws, target, manifest)
            if not looked.whole:
                break
    if gone:
        yield len(blocks), _named(gone, target, manifest)
    elif sound and start == 0:
        yield at, _named(_sums(manifest, payload_bytes, target.keys.manifest), target, manifest)


def _sums(manifest: SegmentManifest, payload_bytes: Counter[int], key: str) -> list[Flaw]:
    return [
        Flaw(
            kind=Kind.MANIFEST,
            key=key,
            expected=f"{payload_bytes[part.ledger_id]} payload bytes of ledger {part.ledger_id}, which the blocks hold",
            found=f"{part.payload_bytes}",
        )
        for part in manifest.ledgers
        if part.payload_bytes != payload_bytes[part.ledger_id]
    ]


def _named(flaws: Sequence[Flaw], target: Target, manifest: SegmentManifest) -> list[Flaw]:
    topic = TopicName.from_managed_ledger(manifest.managed_ledger)
    return [replace(flaw, topic=topic, segment_id=target.keys.segment_id) for flaw in flaws]


def unrecorded(committed: CommittedSegment, manifest: SegmentManifest, losses: Sequence[Loss], key: str) -> list[Flaw]:
    """Return a flaw for each loss of the map, before and within a segment, that its manifest lacks."""
    said = {(loss.after, loss.before) for loss in manifest.losses}
    return [
        Flaw(kind=Kind.LOSSES, key=key, expected=f"the loss between {loss.after} and {loss.before}", found="none")
        for loss in losses
        if committed.begin <= loss.before <= committed.end and (loss.after, loss.before) not in said
    ]


def differences(
    committed: CommittedSegment, parts: Sequence[LedgerPart] | Sequence[LedgerSlice], data_bytes: int, key: str
) -> list[Flaw]:
    """Return where a manifest differs from the map; the map may have dropped the segment's first ledgers."""
    flaws = []
    if not committed.is_run_of(parts):
        held = ", ".join(
            f"{part.ledger_id}:{part.first_entry_id} to {part.ledger_id}:{part.last_entry_id}" for part in parts
        )
        flaws.append(Flaw(kind=Kind.MAP, key=key, expected=f"entries {committed.range}", found=f"entries {held}"))
    if committed.object_bytes != data_bytes:
        expected, found = f"a data object of {committed.object_bytes} bytes", f"one of {data_bytes} bytes"
        flaws.append(Flaw(kind=Kind.MAP, key=key, expected=expected, found=found))
    return flaws


class Run(NamedTuple):
    """Result of neighbouring blocks; `whole`: the object reaches to their end."""

    flaws: list[Flaw]
    whole: bool
    payload_bytes: Counter[int]


async def check_run(reader: RetryingReader, blocks: BlockRun, key: str, manifest: SegmentManifest) -> Run:
    """Read neighbouring blocks with one request and check them; with flaws once more. Raises as the store."""
    run = await _read_run(reader, blocks, key, manifest)
    return await _read_run(reader, blocks, key, manifest) if run.flaws else run


async def _read_run(reader: RetryingReader, blocks: BlockRun, key: str, manifest: SegmentManifest) -> Run:
    async with reader.piece(key, blocks.offset, blocks.length) as data:
        return _check_run(data, blocks.blocks, key, manifest)


def _check_run(data: bytes, blocks: Sequence[BlockInfo], key: str, manifest: SegmentManifest) -> Run:
    flaws: list[Flaw] = []
    payload_bytes: Counter[int] = Counter()
    for block in blocks:
        at = block.offset - blocks[0].offset
        if at + block.length > len(data):
            end = blocks[0].offset + len(data)
            held = "the end of the object"
            entries = f"{entries_of(block)} and all behind it"
            flaws.append(Flaw(kind=Kind.SIZE, key=key, offset=end, expected="more blocks", found=held, entries=entries))
            return Run(flaws, whole=False, payload_bytes=payload_bytes)
        try:
            batch = decode_verified_block(data[at : at + block.length], block, key=key, method=manifest.method)
        except CorruptData as error:
            flaws.append(corrupt(Kind.BLOCK, error, entries=entries_of(block)))
        else:
            payload_bytes[block.ledger_id] += batch.payload_bytes()
            flaws += _check_times(block, batch.payloads, key)
            if block.chunks:
                chunks = chunk_checksums(data, at, block.length, manifest.chunk_bytes)
                flaws += _check_chunks(block, chunks, batch.payloads, manifest.chunk_bytes, key)
    return Run(flaws, whole=True, payload_bytes=payload_bytes)


def _check_times(block: BlockInfo, payloads: Sequence[bytes], key: str) -> list[Flaw]:
    """Compare the manifest's times and indexes, by which seeks work, with the entries; older versions have fewer."""
    told = block_times(payloads)
    if block.survey is None:
        told = told._replace(survey=None, first_publish_time=None)
    differing = [name for name, value in told._asdict().items() if getattr(block, name) != value]
    expected = ", ".join(f"{name} {getattr(told, name)}" for name in differing)
    held = ", ".join(f"{name} {getattr(block, name)}" for name in differing)
    flaw = Flaw(kind=Kind.TIMES, key=key, offset=block.offset, expected=expected, found=held, entries=entries_of(block))
    return [flaw] if differing else []


def _check_chunks(
    block: BlockInfo, chunks: Sequence[int], payloads: Sequence[bytes], chunk_bytes: int, key: str
) -> list[Flaw]:
    """Compare the manifest's chunks, by which single entries are read, with a sound block that has these `chunks`."""
    sparse = sparse_positions(map(len, payloads), block.head_bytes, chunk_bytes)
    wrong = [
        (block.offset + number * chunk_bytes, f"a chunk with checksum {told:08x}", f"{held:08x}")
        for number, (told, held) in enumerate(zip(chunks, unpacked(block.chunks), strict=True))
        if told != held
    ]
    pairs = zip_longest(sparse, block.sparse, fillvalue="none")
    wrong += [(block.offset, f"first entry of a chunk {told}", f"{held}") for told, held in pairs if told != held][:1]
    return [
        Flaw(kind=Kind.CHUNKS, key=key, offset=offset, expected=expected, found=found, entries=entries_of(block))
        for offset, expected, found in wrong
    ]


def entries_of(block: BlockInfo) -> str:
    """Return a block's entries as a text."""
    return f"{block.ledger_id}:{block.first_entry_id} to {block.ledger_id}:{block.last_entry_id}"


PIECE_BYTES = 1 << 20


async def check_broker_objects(reader: RetryingReader, segment: CommittedSegment) -> list[Flaw]:
    """Check the index and the size of the data. Raises as the store, except NotFound."""
    where, reader = segment.keys, reader.at(segment.bucket)
    flaws: list[Flaw] = []
    with noted(flaws, where.index, Kind.INDEX):
        await _adopted_index(reader, segment)
    with noted(flaws, where.data, Kind.SIZE):
        size = (await reader.head(where.data)).size_bytes
        if size != segment.object_bytes:
            said = f"{segment.object_bytes} bytes"
            flaws.append(Flaw(kind=Kind.SIZE, key=where.data, expected=said, found=f"{size} bytes"))
    return flaws


async def check_broker_entries(reader: RetryingReader, segment: CommittedSegment) -> list[Flaw]:
    """Read all data, a piece at a time, up to the first flaw of each block. Raises as `check_broker_objects`."""
    flaws, reader = [], reader.at(segment.bucket)
    index = await _adopted_index(reader, segment)
    for span in block_spans(index):
        scan = _scan(segment, span)
        try:
            while not scan.done:
                await _step(reader, segment, scan, span.end)
        except CorruptData as error:
            flaws.append(corrupt(Kind.BLOCK, error, entries=f"{scan.next_entry_id} to {span.last_entry_id}"))
    return flaws


async def find_broker_entry(reader: RetryingReader, segment: CommittedSegment, entry_id: int) -> tuple[int, int]:
    """Return the offset of an entry's payload in the data, and its length. Raises NotFound and CorruptData."""
    reader = reader.at(segment.bucket)
    index = await _adopted_index(reader, segment)
    span = next(one for one in reversed(block_spans(index)) if one.first_entry_id <= entry_id)
    scan = _scan(segment, span)
    while (found := await _step(reader, segment, scan, span.end)).last_entry_id < entry_id:
        pass
    one = found.between(entry_id, entry_id)
    return one.at + one.start + ENTRY_OVERHEAD_BYTES, one.payload_bytes()


def _scan(segment: CommittedSegment, span: BlockSpan) -> BlockScan:
    return BlockScan(span, ledger_id=segment.begin.ledger_id, key=segment.keys.data)


async def _step(reader: RetryingReader, segment: CommittedSegment, scan: BlockScan, end: int) -> FramedEntries:
    async with reader.piece(segment.keys.data, scan.wanted_at, min(PIECE_BYTES, end - scan.wanted_at)) as data:
        if not data:
            raise CorruptData(
                key=segment.keys.data, offset=scan.wanted_at, expected=f"an object of {end} bytes", found="its end"
            )
        return scan.feed(data)


async def _adopted_index(reader: RetryingReader, segment: CommittedSegment) -> LedgerObjectIndex:
    """Read an index and compare it with what was adopted. Raises NotFound, CorruptData."""
    key = segment.keys.index
    index = await reader.table(partial(decode_index, key=key), key)
    found = (index.data_bytes, index.ledger().lastEntryId)
    wanted = (segment.object_bytes, segment.end.entry_id)
    if found != wanted:
        expected = f"{wanted[0]} bytes of data up to entry {wanted[1]}"
        raise CorruptData(key=key, offset=8, expected=expected, found=f"{found[0]} bytes up to entry {found[1]}")
    return index
