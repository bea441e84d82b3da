"""What a mount writes: the list of a topic's ledgers, and the number of a topic's partitions. Pure.

Each ledger is listed as a broker lists one that it has offloaded and deleted from BookKeeper (MLDataFormats:
`complete`, `bookkeeperDeleted`), so that stock brokers read it through their driver. The id that stands for the
broker's attempt says how many entries the list gives the ledger (`mounted_id`): it may have never been closed.

A broker opens the last ledger of a list in BookKeeper, and drops it from the list if BookKeeper does not have it
(ManagedLedgerImpl.initialize). So the last one is a placeholder without entries, of an id that nothing else gets.
"""

import json
import zlib
from collections.abc import Mapping
from types import MappingProxyType

from offloaderd.core.model import DRIVER
from offloaderd.core.names.managed_ledgers import mounted_id
from offloaderd.format.pb.pulsar import ml_data_formats_pb2 as pb
from offloaderd.ledgers.pulsar.managed_ledger import HEAD_BYTES, MAGIC, ManagedLedger
from offloaderd.mount.plan import MountedLedger, MountPlan

MOUNTED = "offloaderd.mounted"
"""Property of a topic that was mounted: the id of the placeholder. All ledgers before it are in the bucket."""
INDEX = "index"
"""Property by which brokers continue the message index of PIP-70 (ManagedLedgerInterceptorImpl)."""
ID_DIGITS = 19
"""Digits of the greatest id of a ledger."""
PLAIN_BYTES_MAX = 512 * 1024
"""Longer lists are compressed: a node of ZooKeeper has 1 MiB at most."""


def encode_list(
    plan: MountPlan, *, placeholder: int, index_max: int | None, properties: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """Return the node of a topic's list; `index_max` is the index of its last message, None if it has none.

    `properties` are those that the topic had.
    """
    own = {MOUNTED: str(placeholder)} | ({} if index_max is None else {INDEX: str(index_max)})
    closed_ms = plan.ledgers[-1].last.offloaded_ms
    message = pb.ManagedLedgerInfo(
        ledgerInfo=[
            *map(_ledger, plan.ledgers),
            pb.LedgerInfo(ledgerId=placeholder, entries=0, size=0, timestamp=closed_ms),
        ],
        properties=_pairs({**properties, **own}),
    )
    content = message.SerializeToString(deterministic=True)
    if len(content) <= PLAIN_BYTES_MAX:
        return content
    head = pb.ManagedLedgerInfoMetadata(compressionType=pb.ZLIB, uncompressedSize=len(content)).SerializeToString()
    return MAGIC + len(head).to_bytes(HEAD_BYTES - len(MAGIC), "big") + head + zlib.compress(content)


def placeholder_of(found: ManagedLedger) -> int | None:
    """Return the placeholder of a list that a mount has written, whether or not it is still there; else None.

    The property alone proves nothing, since users may set it: all ledgers before it have to be in the tier alone.
    """
    text = found.properties.get(MOUNTED, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= ID_DIGITS):
        return None
    placeholder = int(text)
    before = [one.offload for one in found.ledgers if one.ledger_id < placeholder]
    gone = all(one is not None and one.complete and one.bookkeeper_deleted for one in before)
    return placeholder if gone else None


def difference(found: ManagedLedger, placeholder: int, plan: MountPlan) -> str:
    """Return how a mounted list differs from a plan; empty if it does not, or lacks what its brokers have trimmed."""
    listed = {one.ledger_id: one.entries or 0 for one in found.ledgers if one.ledger_id < placeholder}
    first = min(listed, default=placeholder)
    planned = {one.ledger_id: one.entries for one in plan.ledgers if first <= one.ledger_id < placeholder}
    for ledger_id in sorted(listed | planned):
        there, here = listed.get(ledger_id, 0), planned.get(ledger_id, 0)
        if there != here:
            return (
                f"it is mounted with {there} entries of ledger {ledger_id}, and this mount would give it {here}: "
                "offloaderd mount undo, then apply"
            )
    return ""


def _ledger(one: MountedLedger) -> pb.LedgerInfo:
    """Return a ledger of the list; one that a broker has offloaded itself under the driver and the id of its broker."""
    last = one.last
    properties = {"bucket": last.bucket} if last.foreign else {"driver": DRIVER, "bucket": last.bucket}
    object_id = (last.segment_id if last.foreign else mounted_id(one.entries)).bytes
    return pb.LedgerInfo(
        ledgerId=one.ledger_id,
        entries=one.entries,
        size=one.size_bytes,
        timestamp=last.offloaded_ms,
        offloadContext=pb.OffloadContext(
            uidMsb=int.from_bytes(object_id[:8], "big", signed=True),
            uidLsb=int.from_bytes(object_id[8:], "big", signed=True),
            complete=True,
            bookkeeperDeleted=True,
            timestamp=last.offloaded_ms,
            driverMetadata=pb.OffloadDriverMetadata(name=last.driver, properties=_pairs(properties)),
        ),
    )


def _pairs(properties: Mapping[str, str]) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=value) for key, value in properties.items()]


def encode_partitions(count: int) -> bytes:
    """Return the node of a partitioned topic (PartitionedTopicMetadata), marked as that of a mount."""
    return json.dumps({"partitions": count, "deleted": False, "properties": {MOUNTED: "true"}}).encode()
