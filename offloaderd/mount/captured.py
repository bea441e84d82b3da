"""What mounted topics get out of a capture: subscriptions, properties, partitions, and their namespaces. Pure.

A position of a capture is at most as new as the capture, and what was acknowledged later is delivered again. Where the
mount ends before a position, the subscription goes on at the end of what came up.
"""

import json
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from offloaderd.capture.records import Capture, Kind, cursor_of, schema_of
from offloaderd.core.errors import CorruptData, InvalidConfig, InvalidInput
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.managed_ledgers import COMPACTION_CURSOR
from offloaderd.ledgers.pulsar.cursors import Cursor, decode_node, encode_node
from offloaderd.ledgers.pulsar.schemas import Schema
from offloaderd.mount.lists import INDEX, MOUNTED
from offloaderd.mount.plan import MountPlan

REPLICATOR = "pulsar.repl."
"""Begin of the names of replicators' cursors (replicatorPrefix in broker.conf)."""
UNLIMITED = -1
RETENTION = {"retentionTimeInMinutes": UNLIMITED, "retentionSizeInMB": UNLIMITED}


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
                left_out[name] = "its compacted ledger is lost: compact the topic again"
            elif name.startswith(REPLICATOR):
                left_out[name] = "it is a replicator's: set up the replication again"
            else:
                try:
                    found[name] = encode_node(fitted(cursor_of(value), plan))
                except (InvalidInput, ValueError) as error:
                    left_out[name] = str(error)
        return Subscriptions(nodes=found, left_out=left_out)

    def properties(self, topic: TopicName) -> dict[str, str]:
        """Return the properties of a topic, without those that a list of a mount has of its own."""
        found = self._properties.get(str(topic), {})
        return {str(name): str(text) for name, text in found.items() if name not in {MOUNTED, INDEX}}

    def partitions(self, topic: TopicName) -> int:
        """Return the number of partitions of a partitioned topic; 0 where it is not known."""
        found = self._partitions.get(str(topic))
        count = found.get("partitions") if isinstance(found, dict) else None
        return count if isinstance(count, int) else 0

    def schemas(self, topic: TopicName) -> dict[int, Schema]:
        """Return the versions of a topic's schema, by number. Raises InvalidInput for one that cannot be read."""
        found = self._schemas.get(str(topic), {})
        return {int(version): schema_of(value) for version, value in found.items() if version.isdecimal()}

    def policies(self, namespace: str, clusters: Collection[str]) -> bytes:
        """Return the node of a namespace in a cluster with these clusters' names: retention has no limit at first."""
        found = dict(self.namespaces[namespace])
        found["replication_clusters"] = _here(found.get("replication_clusters"), clusters)
        found["retention_policies"] = RETENTION
        return json.dumps(found).encode()

    def tenant(self, tenant: str, clusters: Collection[str]) -> bytes:
        """Return the node of a tenant."""
        found = self._tenants.get(tenant)
        found = dict(found) if isinstance(found, dict) else {"adminRoles": []}
        found["allowedClusters"] = _here(found.get("allowedClusters"), clusters)
        return json.dumps(found).encode()

    def retention_todo(self, namespace: str) -> str:
        """Return how the retention of a namespace becomes what it was."""
        found = self.namespaces[namespace].get("retention_policies")
        if found == RETENTION:
            return ""
        command = f"pulsar-admin namespaces remove-retention {namespace}"
        if isinstance(found, dict):
            minutes, mib = found.get("retentionTimeInMinutes"), found.get("retentionSizeInMB")
            command = f"pulsar-admin namespaces set-retention {namespace} --time {minutes}m --size {mib}M"
        return f"{namespace} was made with unlimited retention; once its consumers go on: {command}"


def _here(names: Any, clusters: Collection[str]) -> list[str]:  # noqa: ANN401 - JSON
    """Return those of the clusters that there are; all of them where none of the captured ones is."""
    known = [name for name in names if name in clusters] if isinstance(names, list) else []
    return sorted(known or clusters)


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
        texts=(*((name, text) for name, text in cursor.texts if name != MOUNTED), (MOUNTED, "true")),
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
