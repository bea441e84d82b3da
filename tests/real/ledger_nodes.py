"""A ledger's metadata as its writers put it into ZooKeeper, in all three versions: the reverse of what we read.

Every change is a compare-and-set, as all clients of BookKeeper do it: who comes second gets a Conflict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from google.protobuf import text_format

from offloaderd.bookkeeper.metadata import CLOSED, HEAD, IN_RECOVERY_ENTRY, LedgerMetadata, LedgerState, decode_ledger
from offloaderd.format.pb.bookkeeper.data_formats_pb2 import LedgerMetadataFormat

if TYPE_CHECKING:
    from offloaderd.bookkeeper.metadata import Layout
    from offloaderd.metadata.port import MetadataStore


@dataclass(slots=True)
class LedgerNode:
    """The node of one ledger: what it says, and the version to compare with at the next change."""

    ledger_id: int
    path: str
    metadata: LedgerMetadata
    version: int
    store: MetadataStore

    async def change(self, **changes: Any) -> None:  # noqa: ANN401 - any field of the metadata
        """Write the metadata with some fields changed. Raises Conflict when somebody else changed it, NotFound."""
        metadata = replace(self.metadata, **changes)
        self.version = await self.store.replace(self.path, encode(metadata), self.version)
        self.metadata = metadata

    async def delete(self) -> None:
        """Delete the node, which is all that deleting a ledger is: bookies collect the entries later."""
        await self.store.delete(self.path)


@dataclass(frozen=True, slots=True)
class LedgerNodes:
    """The nodes of a cluster's ledgers."""

    store: MetadataStore
    layout: Layout
    root: str

    async def create(self, ledger_id: int, metadata: LedgerMetadata) -> LedgerNode:
        """Make the node of a new ledger. Raises Conflict when there is one."""
        path = self.layout.path(self.root, ledger_id)
        await self.store.create(path, encode(metadata))
        return LedgerNode(ledger_id, path, metadata, 0, self.store)

    async def read(self, ledger_id: int) -> LedgerNode:
        """Return the node of a ledger that anybody has made. Raises NotFound."""
        path = self.layout.path(self.root, ledger_id)
        node = await self.store.get(path)
        return LedgerNode(ledger_id, path, decode_ledger(node.value, path=path), node.version, self.store)


def encode(metadata: LedgerMetadata) -> bytes:
    """Return the node of a ledger in the version that the metadata names."""
    forms = {1: _version_1, 2: _version_2, 3: _version_3}
    return HEAD + b"%d\n" % metadata.format_version + forms[metadata.format_version](metadata)


def _version_1(metadata: LedgerMetadata) -> bytes:
    """Lines; ack quorum, digest type and password are not kept."""
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(metadata.length_bytes or 0)]
    lines += ["\t".join((str(part.first_entry_id), *part.bookies)) for part in metadata.ensembles]
    if metadata.state is not LedgerState.OPEN:
        last = metadata.last_entry_id if metadata.closed else IN_RECOVERY_ENTRY
        lines.append(f"{last}\t{CLOSED}")
    return "\n".join(lines).encode()


def _version_2(metadata: LedgerMetadata) -> bytes:
    return text_format.MessageToString(_message(metadata)).encode()


def _version_3(metadata: LedgerMetadata) -> bytes:
    data = _message(metadata).SerializeToString()
    length = len(data)
    out = bytearray()
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*out, length]) + data


def _message(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    """Unless it is closed a ledger says last entry -1 and length 0, as the Java client does."""
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        ackQuorumSize=metadata.ack_quorum,
        length=metadata.length_bytes or 0,
        lastEntryId=-1 if metadata.last_entry_id is None else metadata.last_entry_id,
        state=LedgerMetadataFormat.State.ValueType(metadata.state.value),
        password=metadata.password,
    )
    if metadata.digest_type is not None:
        message.digestType = LedgerMetadataFormat.DigestType.ValueType(metadata.digest_type)
    if metadata.ctime_ms is not None:
        message.ctime = metadata.ctime_ms
    for part in metadata.ensembles:
        message.segment.add(firstEntryId=part.first_entry_id, ensembleMember=part.bookies)
    for key, value in metadata.custom.items():
        message.customMetadata.add(key=key, value=value)
    return message
