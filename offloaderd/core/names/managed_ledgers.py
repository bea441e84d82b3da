"""Pulsar's nodes for topics' lists of ledgers in ZooKeeper, and the names of Pulsar's own topics.

A node is `/managed-ledgers/<tenant>/<namespace>/persistent/<encoded local name>`; its children are cursors. A partition
is a topic with a node of its own. Names of the first version, with a cluster in them, are not supported.

The ledger that a compaction of a topic makes is in no list of ledgers: the cursor `__compaction` names it. Here it is a
ledger of a topic of its own, `<topic>/__compaction`, whose list is that one ledger. No topic of Pulsar has such a name:
local names have no slash.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import TopicName, decode_local

ROOT = "/managed-ledgers"
COMPACTION_CURSOR = "__compaction"
COMPACTED_LEDGER = "CompactedTopicLedger"
"""Property of the compaction's cursor: id of the compacted ledger (Compactor.COMPACTED_TOPIC_LEDGER_PROPERTY)."""
DEDUPLICATION_CURSOR = "pulsar.dedup"
"""Its position has the last sequence id of each producer up to there (PersistentTopic, MessageDeduplication)."""
MANAGED_LEDGER_KEY = "pulsar/managed-ledger"
COMPACTED_TOPIC_KEY = "pulsar/compactedTopic"
SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
"""Property of a shadow topic (PIP-180): ManagedLedgerConfig.PROPERTY_SOURCE_TOPIC_KEY."""

_MOUNTED = bytes.fromhex("6f66666c6472 8001")
_MOUNTED_BITS = 62

_PARTITION = re.compile(r"(?P<name>.+)-partition-(?P<number>0|[1-9][0-9]{0,9})", re.DOTALL)
_SYSTEM_TENANTS = {
    "pulsar": "the brokers' own tenant: heartbeats, transactions, load balancing",
    "sla-monitor": "monitoring of brokers",
}
_EVENTS = "__change_events"
_TRANSACTIONS = "__transaction_"
_PENDING_ACK = "__transaction_pending_ack"
_COORDINATOR = "transaction_coordinator_assign"


class Partition(NamedTuple):
    """One partition of a partitioned topic, with the topic's local name."""

    name: str
    number: int


def mounted_id(entries: int) -> UUID:
    """Return the id by which a list of a mount names a ledger of so many entries, in place of a broker's attempt.

    It is of version 8 (RFC 9562: freely made), and those of brokers are random ones, of version 4.
    """
    if not 0 < entries < 1 << _MOUNTED_BITS:
        raise InvalidInput(f"a ledger of {entries} entries cannot be mounted")
    return UUID(bytes=_MOUNTED + (1 << 63 | entries).to_bytes(8, "big"))


def mounted_entries(object_id: UUID) -> int | None:
    """Return the number of entries that a list of a mount gives a ledger by this id; None for a broker's attempt."""
    if object_id.bytes[:8] != _MOUNTED:
        return None
    return int.from_bytes(object_id.bytes[8:], "big") & ((1 << _MOUNTED_BITS) - 1)


def topic_path(topic: TopicName) -> str:
    """Return the path of a topic's list of ledgers."""
    return f"{ROOT}/{topic.managed_ledger}"


def parse_topic_path(path: str) -> TopicName:
    """Return the topic of a path. Raises InvalidInput for any other path, and for a spelling other than Pulsar's."""
    root, _, name = path.partition(f"{ROOT}/")
    parts = name.split("/")
    if root or len(parts) != 4 or parts[2] != "persistent":
        raise InvalidInput(f"{path!r} is not the node of a managed ledger")
    topic = TopicName.parse(f"persistent://{parts[0]}/{parts[1]}/{decode_local(parts[3])}")
    if topic_path(topic) != path:
        raise InvalidInput(f"{path!r} is not how Pulsar spells the node of {topic}")
    return topic


def full_name(managed_ledger: str) -> str:
    """Return the full name of a managed ledger's topic, in any domain; an undecodable local name stays encoded."""
    tenant, namespace, domain, local = managed_ledger.split("/")
    with suppress(InvalidInput):
        local = decode_local(local)
    return f"{domain}://{tenant}/{namespace}/{local}"


def partition_of(topic: TopicName) -> Partition | None:
    """Return topic and number of a partition from its name; None for any other topic."""
    found = _PARTITION.fullmatch(topic.local)
    return Partition(found["name"], int(found["number"])) if found else None


def shadow_source(topic: TopicName, properties: Mapping[str, str]) -> TopicName | None:
    """Return the topic whose ledgers a shadow topic with these properties reads; None for any other topic.

    A partition reads the partition of the same number (BrokerService.fetchTopicPropertiesAsync).
    """
    source, partition = None, partition_of(topic)
    with suppress(InvalidInput):
        source = TopicName.parse(properties[SHADOW_SOURCE]) if properties.get(SHADOW_SOURCE) else None
    if source is None or partition is None or partition_of(source) is not None:
        return source
    return replace(source, local=f"{source.local}-partition-{partition.number}")


def system_reason(topic: TopicName) -> str | None:
    """Return why a topic is Pulsar's own and not the users'; None for a topic of users."""
    if topic.tenant in _SYSTEM_TENANTS:
        return _SYSTEM_TENANTS[topic.tenant]
    if compacted_of(topic) is not None:
        return "what compaction has made of another topic"
    partition = partition_of(topic)
    name = partition.name if partition else topic.local
    if name == _EVENTS:
        return "changes of topic policies"
    if name.startswith(_TRANSACTIONS) or name == _COORDINATOR:
        return "logs and snapshots of transactions"
    if name.endswith(_PENDING_ACK):
        return "acknowledgements of open transactions"
    return None


def compacted_of(topic: TopicName) -> TopicName | None:
    """Return the topic whose compacted ledger is offloaded under this name; None for any other topic."""
    name, slash, cursor = topic.local.rpartition("/")
    return replace(topic, local=name) if slash and name and cursor == COMPACTION_CURSOR else None


def is_compacted(cursors: Iterable[str]) -> bool:
    """Whether Pulsar compacts a topic, by the children of the topic's node."""
    return COMPACTION_CURSOR in map(decode_local, cursors)


def misplaced_ledger(custom: Mapping[str, bytes], topic: TopicName) -> str | None:
    """Return why a ledger with this custom metadata cannot be one of the topic's; None if it can.

    Compaction, cursors and schemas have ledgers of their own. Metadata of other programs are ignored.
    """
    compacted = compacted_of(topic)
    expected = b"managed-ledger" if compacted is None else b"compacted-ledger"
    component = custom.get("component", expected)
    if component != expected:
        return f"it is a {component.decode(errors='replace')}, not a {expected.decode().replace('-', ' ')}"
    if compacted is not None:
        made_of = custom.get(COMPACTED_TOPIC_KEY, str(compacted).encode())
        return None if made_of == str(compacted).encode() else f"it is made of {made_of.decode(errors='replace')}"
    if "pulsar/cursor" in custom:
        return f"it is of the cursor {custom['pulsar/cursor'].decode(errors='replace')!r}"
    owner = custom.get(MANAGED_LEDGER_KEY)
    if owner is not None and owner != topic.managed_ledger.encode():
        return f"it is of the managed ledger {owner.decode(errors='replace')}"
    return None
