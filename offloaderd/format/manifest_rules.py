"""The rules that every manifest has to meet (FORMAT.md, section 4.3), checked at each write and each read.

They need only the manifest; checksums decide whether the data object agrees with it.
"""

from uuid import UUID

from offloaderd.core.entries import framed_bytes
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import ENTRY_ID_MAX, LEDGER_ID_MAX, START, Loss, OffloadMethod, Position, TopicName
from offloaderd.format.chunks import CHECKSUM_BYTES, chunk_count
from offloaderd.format.manifest import BlockInfo, Broken, LedgerPart, SegmentManifest
from offloaderd.format.v1 import INDEX_HEADER as V1_INDEX_HEADER
from offloaderd.format.v1_and_v2 import INDEX_ENTRY
from offloaderd.format.v2 import BLOCK_HEADER_BYTES, GROUP_HEAD, INDEX_HEADER, PAD_BYTES_MIN, PREAMBLE


def canonical_uuid(text: str) -> UUID:
    """Read a UUID in its canonical spelling, lower case with hyphens. Raises Broken."""
    try:
        value = UUID(text)
    except ValueError:
        raise Broken("a UUID as segment id", ascii(text[:40])) from None
    if str(value) != text:
        raise Broken(f"segment id {value}", ascii(text[:50]))
    return value


def check(manifest: SegmentManifest) -> None:
    """Check all rules. Raises Broken at the first violation."""
    try:
        TopicName.from_managed_ledger(manifest.managed_ledger)
    except InvalidInput:
        name = ascii(manifest.managed_ledger[:80])
        raise Broken("TENANT/NAMESPACE/persistent/TOPIC as managed ledger", name) from None
    if manifest.preamble_bytes not in {0, len(PREAMBLE)}:
        raise Broken(f"a preamble of 0 or {len(PREAMBLE)} bytes", manifest.preamble_bytes)
    if not manifest.blocks:
        raise Broken("at least one block", "none")
    if manifest.method is OffloadMethod.LEDGER_BASED:
        _check_whole_ledger(manifest)
    _check_blocks(manifest)
    _check_ledgers(manifest)
    index_bytes = _index_bytes_min(manifest)
    if manifest.index_bytes < index_bytes:
        raise Broken(f"an index of at least {index_bytes} bytes", manifest.index_bytes)
    _check_losses(manifest)
    _check_ends(manifest)
    _check_past(manifest)


def _index_bytes_min(manifest: SegmentManifest) -> int:
    if manifest.method is OffloadMethod.LEDGER_BASED:
        return V1_INDEX_HEADER.size + INDEX_ENTRY.size * sum(block.head_bytes > 0 for block in manifest.blocks)
    return INDEX_HEADER.size + GROUP_HEAD.size * len(manifest.ledgers) + INDEX_ENTRY.size * len(manifest.blocks)


def _check_whole_ledger(manifest: SegmentManifest) -> None:
    """Check that a whole-ledger object holds one closed ledger from entry 0 to its last, without a preamble."""
    part = manifest.ledgers[0] if len(manifest.ledgers) == 1 else None
    if part is None or not part.closed or (part.first_entry_id, part.last_entry_id + 1) != (0, part.ledger_entries):
        shown = ", ".join(
            f"{part.ledger_id}:{part.first_entry_id} to {part.last_entry_id} of {part.ledger_entries} entries"
            for part in manifest.ledgers[:3]
        )
        raise Broken("one closed ledger, all of it", f"{len(manifest.ledgers)} ledgers, {shown}")
    if manifest.preamble_bytes:
        raise Broken("no preamble in a ledger's object", manifest.preamble_bytes)


def _check_edges(number: int, block: BlockInfo, before: BlockInfo | None, *, whole_ledger: bool) -> None:
    """Check header and padding of a block. In a whole-ledger object, runs inside a block have neither."""
    if not whole_ledger:
        if block.head_bytes != BLOCK_HEADER_BYTES or block.pad_bytes < PAD_BYTES_MIN:
            raise Broken(f"a header of {BLOCK_HEADER_BYTES} bytes, and padding, in block {number}", block.head_bytes)
        return
    begins = before is None or before.pad_bytes > 0
    if block.head_bytes != BLOCK_HEADER_BYTES and (begins or block.head_bytes):
        raise Broken(f"a header of {BLOCK_HEADER_BYTES} bytes before run {number}", block.head_bytes)


def _check_blocks(manifest: SegmentManifest) -> None:
    """Check that blocks follow each other without a gap, in the data object and in each ledger's entry ids."""
    offset = manifest.preamble_bytes
    before: BlockInfo | None = None
    for number, block in enumerate(manifest.blocks):
        if block.offset != offset:
            raise Broken(f"block {number} at offset {offset}", block.offset)
        _check_block(number, block)
        if block.chunks:
            _check_chunks(number, block, manifest.chunk_bytes)
        _check_edges(number, block, before, whole_ledger=manifest.method is OffloadMethod.LEDGER_BASED)
        if before is not None and block.ledger_id < before.ledger_id:
            raise Broken(f"block {number} of ledger {before.ledger_id} or a later one", block.ledger_id)
        if before is not None and block.ledger_id == before.ledger_id:
            wanted = before.last_entry_id + 1
            if block.first_entry_id != wanted:
                raise Broken(f"block {number} from entry {wanted} on", block.first_entry_id)
        offset += block.length
        before = block
    if manifest.chunk_bytes and not any(block.chunks for block in manifest.blocks):
        raise Broken("no length of chunks, which no block has", manifest.chunk_bytes)
    if offset != manifest.data_bytes:
        raise Broken(f"blocks up to the end of the data object at {manifest.data_bytes}", offset)


def _check_block(number: int, block: BlockInfo) -> None:
    if not 0 <= block.ledger_id <= LEDGER_ID_MAX:
        raise Broken(f"ledger id of block {number} from 0 to {LEDGER_ID_MAX}", block.ledger_id)
    if block.entry_count < 1:
        raise Broken(f"at least one entry in block {number}", block.entry_count)
    if not 0 <= block.first_entry_id <= block.last_entry_id <= ENTRY_ID_MAX:
        raise Broken(f"entry ids of block {number} from 0 to {ENTRY_ID_MAX}", block.first_entry_id)
    if block.payload_bytes < 0:
        least = block.length - block.payload_bytes
        raise Broken(f"length of block {number} of at least {least}", block.length)
    entries_end = block.length - block.pad_bytes
    entry_before, at_before = 0, block.head_bytes
    for entry, at in block.sparse:
        if not entry_before < entry < block.entry_count:
            expected = f"sparse entry of block {number} from {entry_before + 1} to {block.entry_count - 1}"
            raise Broken(expected, entry)
        low = at_before + framed_bytes(0, entry - entry_before)
        high = entries_end - framed_bytes(0, block.entry_count - entry)
        if not low <= at <= high:
            raise Broken(f"sparse position of block {number} from {low} to {high}", at)
        entry_before, at_before = entry, at
    _check_survey(number, block)


def _check_chunks(number: int, block: BlockInfo, chunk_bytes: int) -> None:
    """Check that the chunks cover the block, and that each sparse position is the first in its chunk."""
    if not 0 < chunk_bytes < block.length:
        raise Broken(f"chunks of 1 to {block.length - 1} bytes in block {number}", chunk_bytes)
    count = chunk_count(block.length, chunk_bytes)
    if len(block.chunks) != CHECKSUM_BYTES * count:
        raise Broken(f"{count} chunks of block {number}", len(block.chunks) // CHECKSUM_BYTES)
    entry, at = 0, block.head_bytes
    for following, begin in (*block.sparse, (block.entry_count, block.length)):
        end = (at // chunk_bytes + 1) * chunk_bytes
        # Entries between two positions begin in the chunk of the former, or a position would be missing.
        if at + framed_bytes(0, following - entry - 1) >= end:
            raise Broken(
                f"a sparse position of block {number} for entries from byte {end} on", f"{following} after {entry}"
            )
        if following < block.entry_count and begin < end:
            raise Broken(f"the next sparse position of block {number} from byte {end} on", begin)
        entry, at = following, begin


def _check_survey(number: int, block: BlockInfo) -> None:
    """Check that times and indexes of the first and the last entry are within those of the whole block."""
    survey = block.survey
    if survey is None:
        if block.first_publish_time is not None:
            raise Broken(f"no publish time of block {number}, which says nothing of its times", "one")
        return
    times = (survey.time_min, survey.time_max)
    if not 0 <= survey.untimed <= block.entry_count:
        raise Broken(f"at most {block.entry_count} entries of block {number} without a time", survey.untimed)
    if (times == (None, None)) != (survey.untimed == block.entry_count) or times.count(None) == 1:
        raise Broken(f"least and greatest time of block {number} if an entry has one", times)
    if survey.time_min is not None and survey.time_max is not None:
        low, high = survey.time_min, survey.time_max
        for time in (high, block.first_time, block.last_broker_timestamp):
            if time is not None and not low <= time <= high:
                raise Broken(f"times of block {number} from {low} to {high}", time)
    elif block.first_time is not None or block.last_broker_timestamp is not None:
        raise Broken(f"no time in block {number}, whose entries have none", block.first_time)
    if None not in (block.first_publish_time, block.first_broker_timestamp):
        raise Broken(f"one time of the first entry of block {number}", "two")
    for index in (block.first_index, block.last_index):
        if index is not None and (survey.index_max is None or index > survey.index_max):
            raise Broken(f"indexes of block {number} up to {survey.index_max}", index)


def _check_ledgers(manifest: SegmentManifest) -> None:
    """Check that the ledgers are those of the blocks, in the same order, with the same first and last entries."""
    blocks: dict[int, list[BlockInfo]] = {}
    for block in manifest.blocks:
        blocks.setdefault(block.ledger_id, []).append(block)
    found = [part.ledger_id for part in manifest.ledgers]
    if found != list(blocks):
        shown = ", ".join(map(str, found[:8])) + (" and more" if len(found) > 8 else "")
        raise Broken("one entry for each of the ledgers that the blocks hold, in their order", shown)
    for part in manifest.ledgers:
        _check_part(part, blocks[part.ledger_id])


def _check_part(part: LedgerPart, blocks: list[BlockInfo]) -> None:
    name = f"ledger {part.ledger_id}"
    first, last = blocks[0].first_entry_id, blocks[-1].last_entry_id
    if (part.first_entry_id, part.last_entry_id) != (first, last):
        raise Broken(f"entries {first} to {last} of {name}", f"{part.first_entry_id} to {part.last_entry_id}")
    payload_bytes_max = sum(block.payload_bytes for block in blocks)
    if not 0 <= part.payload_bytes <= payload_bytes_max:
        raise Broken(f"payload of {name} of at most {payload_bytes_max} bytes", part.payload_bytes)
    if part.ledger_entries <= last:
        raise Broken(f"at least {last + 1} entries in the whole of {name}", part.ledger_entries)


def _check_losses(manifest: SegmentManifest) -> None:
    """Check that losses ascend, end before the segment's end, and hold none of its entries.

    A loss may end at a ledger's first entry while the next one begins in an earlier ledger. They share no entry: the
    end of history and the begin of the live part were both lost.
    """
    before = least = START
    for loss in manifest.losses:
        if loss.after != START and not _possible(loss.after):
            raise Broken("a loss that begins at a position, or at the front of the topic", loss.after)
        if loss.after < least and (least.entry_id or not before < loss.after < Position(least.ledger_id, 0)):
            raise Broken(f"losses that ascend, the next from {least} on", loss.after)
        if not (_possible(loss.before) and loss.after < loss.before <= manifest.range.end):
            raise Broken(f"a loss from {loss.after} to a later position, up to {manifest.range.end}", loss.before)
        _check_apart(loss, manifest.ledgers)
        before, least = loss.after, loss.before


def _check_apart(loss: Loss, parts: tuple[LedgerPart, ...]) -> None:
    for part in parts:
        first, last = Position(part.ledger_id, part.first_entry_id), Position(part.ledger_id, part.last_entry_id)
        if first < loss.before and last > loss.after:
            raise Broken(f"entries {first} to {last} not to be lost", f"a loss {loss}")


def _check_ends(manifest: SegmentManifest) -> None:
    """Check that ends ascend by ledger, up to the segment's last, and are not before the segment's entries."""
    held = {part.ledger_id: part.last_entry_id + 1 for part in manifest.ledgers}
    least, last = 0, manifest.ledgers[-1].ledger_id
    for ledger_id, end in manifest.ends:
        if not least <= ledger_id <= last:
            raise Broken(f"the end of a ledger from {least} to {last}", ledger_id)
        if not held.get(ledger_id, 0) <= end.entries <= ENTRY_ID_MAX:
            raise Broken(f"at least {held.get(ledger_id, 0)} entries at the end of ledger {ledger_id}", end.entries)
        if end.next_ledger_id is not None and not ledger_id < end.next_ledger_id <= LEDGER_ID_MAX:
            raise Broken(f"a ledger behind {ledger_id} as the next one", end.next_ledger_id)
        least = ledger_id + 1


def _check_past(manifest: SegmentManifest) -> None:
    """Check that the totals of earlier entries do not begin behind the segment's begin."""
    past, begin = manifest.past, manifest.range.begin
    if past is None:
        return
    if not (_possible(past.since) and past.since <= begin):
        raise Broken(f"times before the segment to be known from a position up to {begin}", past.since)
    if past.since == begin and (past.time_max is not None or past.index_max is not None):
        raise Broken(f"no time before {begin}, where what is known begins", past.time_max)


def _possible(position: Position) -> bool:
    return 0 <= position.ledger_id <= LEDGER_ID_MAX and 0 <= position.entry_id <= ENTRY_ID_MAX
