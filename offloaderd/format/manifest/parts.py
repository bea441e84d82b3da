"""The parts of a manifest as messages: blocks, ledgers, losses, ends, and the totals of earlier entries.

Records of open segments in the metadata store use the same messages.
"""

from collections.abc import Iterable
from typing import Literal, TypeAlias

from offloaderd.core.model import LedgerEnd, Loss, Position
from offloaderd.format.chunks import packed, unpacked
from offloaderd.format.parsing import filled, halves, value_of
from offloaderd.format.pb.storage import manifest_pb2 as pb
from offloaderd.format.pulsar.entry_time import Survey
from offloaderd.format.v2.blocks import BLOCK_HEADER_BYTES, PAD_BYTES_MIN
from offloaderd.format.values import BlockInfo, Broken, Past

_Number: TypeAlias = Literal[
    "first_broker_timestamp", "last_broker_timestamp", "first_index", "last_index",
    "time_min", "time_max", "index_max", "first_publish_time",
]  # fmt: skip


def block_to_message(block: BlockInfo) -> pb.SegmentBlock:
    """Return the message of a block."""
    return pb.SegmentBlock(
        ledger_id=block.ledger_id,
        first_entry_id=block.first_entry_id,
        entry_count=block.entry_count,
        offset=block.offset,
        length=block.length,
        crc32c=block.crc32c,
        sparse_entry=[entry for entry, _ in block.sparse],
        sparse_at=[at for _, at in block.sparse],
        first_broker_timestamp=block.first_broker_timestamp,
        last_broker_timestamp=block.last_broker_timestamp,
        first_index=block.first_index,
        last_index=block.last_index,
        time_min=block.survey.time_min if block.survey else None,
        time_max=block.survey.time_max if block.survey else None,
        untimed=block.survey.untimed if block.survey else None,
        index_max=block.survey.index_max if block.survey else None,
        first_publish_time=block.first_publish_time,
        head_bytes=None if block.head_bytes == BLOCK_HEADER_BYTES else block.head_bytes,
        pad_bytes=None if block.pad_bytes == PAD_BYTES_MIN else block.pad_bytes,
        chunk_crc32c=unpacked(block.chunks),
    )


def past_to_message(past: Past) -> pb.SegmentPast:
    """Return the message of the totals before a segment."""
    return filled(pb.SegmentPast, past, **halves("since", past.since))


def loss_to_message(loss: Loss) -> pb.SegmentLoss:
    """Return the message of a lost range."""
    return filled(pb.SegmentLoss, loss, **halves("after", loss.after), **halves("before", loss.before))


def end_to_message(ledger_id: int, end: LedgerEnd) -> pb.SegmentLedgerEnd:
    """Return the message of a ledger's end."""
    return filled(pb.SegmentLedgerEnd, end, ledger_id=ledger_id)


def block_from_message(message: pb.SegmentBlock) -> BlockInfo:
    """Read a block. Raises Broken."""
    return BlockInfo(
        ledger_id=message.ledger_id,
        first_entry_id=message.first_entry_id,
        entry_count=message.entry_count,
        offset=message.offset,
        length=message.length,
        crc32c=message.crc32c,
        sparse=_pairs(message.sparse_entry, message.sparse_at),
        first_broker_timestamp=_optional(message, "first_broker_timestamp"),
        last_broker_timestamp=_optional(message, "last_broker_timestamp"),
        first_index=_optional(message, "first_index"),
        last_index=_optional(message, "last_index"),
        survey=_survey_from_message(message),
        first_publish_time=_optional(message, "first_publish_time"),
        head_bytes=message.head_bytes if message.HasField("head_bytes") else BLOCK_HEADER_BYTES,
        pad_bytes=message.pad_bytes if message.HasField("pad_bytes") else PAD_BYTES_MIN,
        chunks=packed(message.chunk_crc32c),
    )


def _survey_from_message(message: pb.SegmentBlock) -> Survey | None:
    if not message.HasField("untimed"):
        return None
    least, greatest = _optional(message, "time_min"), _optional(message, "time_max")
    return Survey(least, greatest, message.untimed, _optional(message, "index_max"))


def past_from_message(message: pb.SegmentPast) -> Past:
    """Read the totals before a segment."""
    return value_of(Past, message, since=Position(message.since_ledger_id, message.since_entry_id))


def loss_from_message(message: pb.SegmentLoss) -> Loss:
    """Read a lost range."""
    after = Position(message.after_ledger_id, message.after_entry_id)
    before = Position(message.before_ledger_id, message.before_entry_id)
    return value_of(Loss, message, after=after, before=before)


def end_from_message(message: pb.SegmentLedgerEnd) -> tuple[int, LedgerEnd]:
    """Read a ledger's end, with the ledger's id."""
    return message.ledger_id, value_of(LedgerEnd, message)


def _optional(message: pb.SegmentBlock, field: _Number) -> int | None:
    """Return a field's number, None if the field is not set."""
    value: int = getattr(message, field)
    return value if message.HasField(field) else None


def _pairs(entries: Iterable[int], ats: Iterable[int]) -> tuple[tuple[int, int], ...]:
    try:
        return tuple(zip(entries, ats, strict=True))
    except ValueError:
        raise Broken("as many sparse positions as sparse entries", "others") from None
