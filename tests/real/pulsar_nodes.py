"""Pulsar's list of a topic's ledgers as its broker writes it, in every compression: the reverse of what we read."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Literal

import cramjam

from offloaderd.format.pb.pulsar import ml_data_formats_pb2 as pb
from offloaderd.ledgers.pulsar.managed_ledger import MAGIC
from offloaderd.metadata.records.context import split_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from offloaderd.ledgers.pulsar.managed_ledger import ListedLedger, ManagedLedger, PulsarOffload

Compression = Literal["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"]


def zlib_unfinished(data: bytes) -> bytes:
    """Compress as Pulsar does: flushed, and never finished."""
    stream = zlib.compressobj()
    return stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)


COMPRESSORS: Mapping[Compression, Callable[[bytes], bytes]] = {
    "NONE": bytes,
    "LZ4": lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    "ZLIB": zlib_unfinished,
    "ZSTD": lambda data: bytes(cramjam.zstd.compress(data)),
    "SNAPPY": lambda data: bytes(cramjam.snappy.compress_raw(data)),
}


def compressed(data: bytes, kind: Compression, declared: int | None = None) -> bytes:
    """Return a node with a head and this content; `declared` lies about its size."""
    head = pb.ManagedLedgerInfoMetadata(
        compressionType=pb.CompressionType.Value(kind),
        uncompressedSize=len(data) if declared is None else declared,
    ).SerializeToString()
    return MAGIC + len(head).to_bytes(4, "big") + head + COMPRESSORS[kind](data)


def encode(value: ManagedLedger, compression: Compression | None = None) -> bytes:
    """Return the node of a managed ledger; without a compression it has no head either."""
    message = pb.ManagedLedgerInfo()
    for ledger in value.ledgers:
        _add(message, ledger)
    if value.terminated_at is not None:
        message.terminatedPosition.ledgerId, message.terminatedPosition.entryId = value.terminated_at
    for key, text in value.properties.items():
        message.properties.add(key=key, value=text)
    data = message.SerializeToString()
    return data if compression is None else compressed(data, compression)


def _add(message: pb.ManagedLedgerInfo, ledger: ListedLedger) -> None:
    """A ledger that is not closed is listed with timestamp 0, and without entries and size."""
    info = message.ledgerInfo.add(ledgerId=ledger.ledger_id, timestamp=ledger.closed_at_ms or 0)
    if ledger.entries is not None:
        info.entries = ledger.entries
    if ledger.size_bytes is not None:
        info.size = ledger.size_bytes
    if ledger.offload is not None:
        info.offloadContext.complete = ledger.offload.complete
        info.offloadContext.bookkeeperDeleted = ledger.offload.bookkeeper_deleted
        for _ in range(ledger.offload.segments):
            info.offloadContext.offloadSegment.add(complete=True)
        _add_object(info.offloadContext, ledger.offload)
    for key, text in ledger.properties.items():
        info.properties.add(key=key, value=text)


def _add_object(context: pb.OffloadContext, offload: PulsarOffload) -> None:
    """What a broker says of a whole ledger in an object of its own."""
    if offload.object_id is not None:
        context.uidMsb, context.uidLsb = split_uuid(offload.object_id)
    if offload.offloaded_ms:
        context.timestamp = offload.offloaded_ms
    if offload.driver:
        context.driverMetadata.name = offload.driver
        for key, text in offload.properties.items():
            context.driverMetadata.properties.add(key=key, value=text)
