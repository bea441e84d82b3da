"""Looking at the blocks of a data object: is every byte what was written, and what its manifest says of it?"""

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from offloaderd.core.errors import CorruptData
from offloaderd.format.chunks import chunk_checksums, sparse_positions, unpacked
from offloaderd.format.pulsar.entry_time import block_times
from offloaderd.format.values import BlockInfo, SegmentManifest
from offloaderd.format.verify import BlockRun, decode_verified_block
from offloaderd.objects.retrying import RetryingReader
from offloaderd.upkeep.verify.flaws import Flaw, Kind, corrupt


class Run(NamedTuple):
    """What was found of neighbouring blocks; `whole`: the object reaches to their end."""

    flaws: list[Flaw]
    whole: bool
    payload_bytes: Counter[int]


async def look_at_run(looker: RetryingReader, blocks: BlockRun, key: str, manifest: SegmentManifest) -> Run:
    """Read neighbouring blocks with one request, and check them; with flaws once more, as `objects.whole.sure` does.

    Raises what the store raises.
    """
    run = await _looked_at(looker, blocks, key, manifest)
    return await _looked_at(looker, blocks, key, manifest) if run.flaws else run


async def _looked_at(looker: RetryingReader, blocks: BlockRun, key: str, manifest: SegmentManifest) -> Run:
    async with looker.piece(key, blocks.offset, blocks.length) as data:
        return _check_run(data, blocks.blocks, key, manifest)


def _check_run(data: bytes, blocks: Sequence[BlockInfo], key: str, manifest: SegmentManifest) -> Run:
    """Check neighbouring blocks."""
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
    """Compare what seeks go by with the entries; older versions wrote down less of it."""
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
    """Compare what single entries are read by with a block that is sound as a whole, and has these `chunks`."""
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
    """Return a block's entries in words."""
    return f"{block.ledger_id}:{block.first_entry_id} to {block.ledger_id}:{block.last_entry_id}"
