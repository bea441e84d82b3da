"""What mounted topics get out of a capture: subscriptions, properties, partitions, and their namespaces. Pure.

A position of a capture is at most as new as the capture, and what was acknowledged later is delivered again. Where the
mount ends before a position, the subscription goes on at the end of what came up.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from offloaderd.capture.records import Capture, Kind, cursor_of, schema_of
from offloaderd.core.errors import CorruptData, InvalidConfig, InvalidInput
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.managed_ledgers import COMPACTION_CURSOR, DEDUPLICATION_CURSOR
from offloaderd.ledgers.pulsar.cursors import Cursor, decode_node, encode_node
from offloaderd.ledgers.pulsar.schemas import Schema
from offloaderd.mount.lists import INDEX, MOUNTED
from offloaderd.mount.plan import MountPlan

REPLICATOR = "pulsar.repl."
"""Begin of the names of replicators' cursors (replicatorPrefix in broker.conf)."""
INTERNAL = "#pulsar.internal."
"""Begin of the names of the brokers' own properties of a subscription (ManagedCursor): ids of ledgers with delayed
messages. Here these are of no ledger or of another one, by which brokers would delete it; the messages are found anew.
"""
MIGRATED = "migrated"
RETENTION = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
"""The retention of a namespace that keeps everything."""
AGES = ("message_ttl_in_seconds", "subscription_expiration_time_minutes")
"""Limits of a namespace by which brokers act on the age of messages and subscriptions."""
FIRST = {**dict.fromkeys(AGES, 0), "backlog_quota_map": {}}
"""Policies of a namespace as a mount sets them, so that none acts: its brokers would acknowledge entries, and delete
subscriptions, that are old only because the cluster was away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriptions:
    """The nodes of a topic's subscriptions by their names, and why others do not come up, by theirs."""

    nodes: Mapping[str, bytes]
    left_out: Mapping[str, str]


NONE = Subscriptions(nodes={}, left_out={})


class Captured:
    """A capture, by topic and namespace."""

    def __init__(self, capture: Capture) -> None:
        self.taken_ms = capture.taken_ms
        self.problems = capture.problems
        self._subscriptions = capture.about(Kind.SUBSCRIPTION)
        self._schemas = capture.about(Kind.SCHEMA)
        self._properties = dict(capture.of(Kind.PROPERTIES))
        self._partitions = dict(capture.of(Kind.PARTITIONS))
        self._tenants = dict(capture.of(Kind.TENANT))
        self.namespaces = {
            name: value
            for name, value in capture.of(Kind.NAMESPACE)
            if isinstance(value, dict) and not value.get("deleted")
        }

    def subscriptions(self, plan: MountPlan) -> Subscriptions:
        """Return the subscriptions of a topic, fitted to what comes up of it."""
        found: dict[str, bytes] = {}
        left_out: dict[str, str] = {}
        for name, value in self._subscriptions.get(str(plan.topic), {}).items():
            if name == COMPACTION_CURSOR:
                left_out[name] = "its compacted ledger does not come up: compact the topic again"
            elif name.startswith(REPLICATOR):
                left_out[name] = "it is a replicator's: set up the replication again"
            else:
                try:
                    cursor = cursor_of(value)
                    here = fitted(cursor, plan)
                    if name == DEDUPLICATION_CURSOR and here.mark_delete < cursor.mark_delete:
                        left_out[name] = "it knows entries that do not come up, and producers may send them again"
                        continue
                    found[name] = encode_node(here)
                except (InvalidInput, ValueError) as error:
                    left_out[name] = str(error)
        return Subscriptions(nodes=found, left_out=left_out)

    def properties(self, topic: TopicName) -> dict[str, str]:
        """Return the properties of a topic, without those that a list of a mount has of its own.

        Nor does it get the one by which brokers send its clients to another cluster (ManagedLedgerImpl.asyncMigrate).
        """
        found = self._properties.get(str(topic), {})
        return {str(name): str(text) for name, text in found.items() if name not in {MOUNTED, INDEX, MIGRATED}}

    def partitions(self, topic: TopicName) -> int:
        """Return the number of partitions of a partitioned topic; 0 where it is not known."""
        found = self._partitions.get(str(topic))
        count = found.get("partitions") if isinstance(found, dict) else None
        return count if isinstance(count, int) else 0

    def schemas(self, topic: TopicName) -> dict[int, Schema]:
        """Return the versions of a topic's schema, by number. Raises InvalidInput for one that cannot be read."""
        found = self._schemas.get(str(topic), {})
        return {int(version): schema_of(value) for version, value in found.items() if version.isdecimal()}

    def policies(self, namespace: str, cluster: str) -> bytes:
        """Return the node of a namespace in a cluster of this name: retention and other limits have none at first.

        It is replicated to no other cluster. Brokers delete the topics of a namespace that lacks their own cluster
        (PersistentTopic.checkReplication).
        """
        found = dict(self.namespaces[namespace])
        found |= {name: value for name, value in FIRST.items() if found.get(name)}
        found |= {"retention_policies": RETENTION, "replication_clusters": [cluster]}
        if found.get("allowed_clusters"):
            found["allowed_clusters"] = [cluster]
        return json.dumps(found).encode()

    def tenant(self, tenant: str, cluster: str) -> bytes:
        """Return the node of a tenant in a cluster of this name."""
        found = self._tenants.get(tenant)
        found = dict(found) if isinstance(found, dict) else {"adminRoles": []}
        return json.dumps({**found, "allowedClusters": [cluster]}).encode()

    def later(self, namespace: str) -> list[str]:
        """Return how the policies of a namespace become what they were."""
        found = self.namespaces[namespace]
        commands = []
        retention = found.get("retention_policies")
        if isinstance(retention, dict) and retention != RETENTION:
            minutes, mib = retention.get("retentionTimeInMinutes"), retention.get("retentionSizeInMB")
            commands.append(f"set-retention {namespace} --time {minutes}m --size {mib}M")
        elif retention != RETENTION:
            commands.append(f"remove-retention {namespace}")
        if ttl := found.get("message_ttl_in_seconds"):
            commands.append(f"set-message-ttl {namespace} --messageTTL {ttl}")
        if minutes := found.get("subscription_expiration_time_minutes"):
            commands.append(f"set-subscription-expiration-time {namespace} --time {minutes}")
        quotas = found.get("backlog_quota_map")
        for kind, quota in quotas.items() if isinstance(quotas, dict) else ():
            if not isinstance(quota, dict):
                continue
            limits = f"--limit {quota.get('limitSize')} --limitTime {quota.get('limitTime')}"
            commands.append(f"set-backlog-quota {namespace} {limits} --policy {quota.get('policy')} --type {kind}")
        return [f"once the consumers of {namespace} go on: pulsar-admin namespaces {one}" for one in commands]


def fitted(cursor: Cursor, plan: MountPlan) -> Cursor:
    """Return a cursor over the ledgers of a plan, marked as that of a mount.

    All that it has acknowledged of them stays so, and nothing else is.
    """
    entries = {one.ledger_id: one.entries for one in plan.ledgers}
    ids = sorted(entries)
    mark_delete = _fitted(cursor.mark_delete, ids, entries)

    def ranges() -> Iterator[tuple[Position, Position]]:
        for after, last in cursor.acknowledged:
            begin = after if after.ledger_id in entries else Position(last.ledger_id, -1)
            end = _fitted(last, ids, entries)
            if last.ledger_id in entries and max(begin, mark_delete) < end:
                yield begin, end

    return replace(
        cursor,
        mark_delete=mark_delete,
        acknowledged=tuple(ranges()),
        batches=tuple(
            (at, words)
            for at, words in cursor.batches
            if at > mark_delete and 0 <= at.entry_id < entries.get(at.ledger_id, 0)
        ),
        texts=(
            *((name, text) for name, text in cursor.texts if name != MOUNTED and not name.startswith(INTERNAL)),
            (MOUNTED, "true"),
        ),
    )


def is_mounted(node: bytes, *, path: str) -> bool:
    """Whether a mount has written the node of a subscription."""
    try:
        return (MOUNTED, "true") in decode_node(node, path=path).cursor.texts
    except (CorruptData, InvalidConfig):
        return False


def _fitted(position: Position, ids: list[int], entries: Mapping[int, int]) -> Position:
    """Return the last position of the ledgers that is not above another one, or that before the first entry."""
    index = bisect_right(ids, position.ledger_id) - 1
    if index < 0:
        return Position(ids[0], -1)
    ledger_id = ids[index]
    last = entries[ledger_id] - 1
    return Position(ledger_id, min(position.entry_id, last) if ledger_id == position.ledger_id else last)
