"""The metadata of the cluster that gets topics: what it has, and the writes of a mount.

Every write is repeatable: a node that an earlier try has written counts as written, and nothing of others is changed.
A mount raises the ids of new ledgers first, then writes the topics' lists, and the numbers of partitions last: a client
that finds a partitioned topic would have its brokers make lists of their own for partitions that have none yet.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from offloaderd.bookkeeper.metadata import Layout, decode_layout, decode_ledger, instance_path, layout_path
from offloaderd.core.aio import each
from offloaderd.core.errors import (
    Conflict,
    CorruptData,
    InvalidConfig,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Transient,
)
from offloaderd.core.model import DOMAIN, DRIVER, LEDGER_ID_MAX, TopicName, encode_local
from offloaderd.core.names.managed_ledgers import ROOT, partition_of
from offloaderd.core.names.patterns import TopicPattern, partitioned_topic
from offloaderd.ledgers.pulsar import managed_ledger
from offloaderd.ledgers.pulsar.managed_ledger import ManagedLedger
from offloaderd.metadata import nodes
from offloaderd.metadata.port import Create, Delete, MetadataStore, Step, parent
from offloaderd.mount.captured import AGES, RETENTION, is_mounted
from offloaderd.mount.lists import MOUNTED, encode_partitions, placeholder_of

TRIES = 5
HIGH_BITS = 32
"""Bits of a ledger's id below those of its node HOB-: see `placeholder`."""
EVICTION = "consumer_backlog_eviction"
"""The policy of a backlog's quota by which brokers acknowledge messages (BacklogQuota.RetentionPolicy)."""
PARTITIONS_MAX = 1000
"""A topic without partitions may be named like one, by a date for instance. A greater number is left to an operator."""


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo does with a topic. `why`: why it cannot be undone, or empty. `steps` delete all of it."""

    topic: TopicName
    ledgers: int
    why: str
    steps: tuple[Step, ...] = ()


class TargetCluster:
    """A Pulsar cluster by its ZooKeeper; `root` of `store` is that of the server.

    `ledgers_root` and `lists_root` are BookKeeper's node and that of the topics' lists.
    """

    def __init__(self, store: MetadataStore, *, ledgers_root: str, lists_root: str) -> None:
        self._store = store
        self._ledgers_root = ledgers_root.rstrip("/")
        self._lists_root = lists_root.rstrip("/")
        self._admin = self._lists_root.removesuffix(ROOT) + "/admin"
        self._ids = f"{self._ledgers_root}/idgen-long"

    async def check(self) -> None:
        """Raise InvalidConfig, Conflict or Transient unless topics can be mounted here."""
        if await nodes.node(self._store, instance_path(self._ledgers_root)) is None:
            raise Transient(
                f"no BookKeeper cluster below {self._ledgers_root} of this ZooKeeper",
                hint="correct bookkeeper.servers and bookkeeper.ledgers_root, or initialise the cluster",
            )
        layout = await self._layout()
        if layout not in {Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL}:
            raise InvalidConfig(
                f"BookKeeper's layout here is {layout}, whose ledger ids cannot be raised above those of the bucket",
                hint="initialise the cluster with the hierarchical layout, Pulsar's own",
            )
        path = managed_ledger.flag_path(self._lists_root)
        flag = await nodes.node(self._store, path)
        moved = managed_ledger.moved_reason(flag.value, path=path) if flag is not None else None
        if moved is not None:
            raise Conflict(moved, hint="mount topics where the cluster's brokers keep their metadata")

    async def _layout(self) -> Layout:
        path = layout_path(self._ledgers_root)
        found = await nodes.node(self._store, path)
        return decode_layout(found.value if found is not None else None, path=path)

    async def namespaces_to_make(self, namespaces: Iterable[str]) -> list[str]:
        """Return those of the namespaces (`tenant/name`) that the cluster lacks, in order.

        None where its policies are in a store of their own (configurationMetadataStoreUrl), which a mount does not see.
        """
        if not await self._store.children(f"{self._admin}/policies"):
            return []
        wanted = sorted(set(namespaces))
        found = await each(wanted, lambda name: nodes.node(self._store, f"{self._admin}/policies/{name}"))
        return [name for name, one in zip(wanted, found, strict=True) if one is None]

    async def clusters(self) -> list[str]:
        """Return the names of the clusters that this one knows, its own among them."""
        return [name for name in await self._store.children(f"{self._admin}/clusters") if name != "global"]

    async def make_namespace(self, name: str, tenant: bytes, policies: bytes) -> bool:
        """Create a namespace, and its tenant if it is missing; return False if others have made it meanwhile."""
        await self._put(f"{self._admin}/policies/{name.partition('/')[0]}", tenant)
        return await self._put(f"{self._admin}/policies/{name}", policies)

    async def namespace_hindrances(self, namespaces: Iterable[str]) -> dict[str, str]:
        """Return why topics of a namespace (`tenant/name`) would not last, for each where they would not.

        Its brokers delete the ledgers of a topic without subscriptions as its retention says, once they load it, and
        acknowledge what is older than other policies allow.
        """
        wanted = sorted(set(namespaces))
        found = dict(zip(wanted, await each(wanted, self._hindrance), strict=True))
        return {name: why for name, why in found.items() if why}

    async def _hindrance(self, namespace: str) -> str:
        path = f"{self._admin}/policies/{namespace}"
        found = await nodes.node(self._store, path)
        if found is None:
            return f"the cluster has no namespace {namespace}: pulsar-admin namespaces create {namespace}"
        try:
            policies = _json(found.value, path)
        except CorruptData as error:
            return str(error)
        retention = policies.get("retention_policies")
        if not isinstance(retention, dict) or any(retention.get(name) != limit for name, limit in RETENTION.items()):
            return (
                f"the retention of {namespace} is limited, so its brokers would delete mounted ledgers: "
                f"pulsar-admin namespaces set-retention {namespace} --time -1 --size -1"
            )
        acting = [name for name in AGES if policies.get(name)]
        if EVICTION in json.dumps(policies.get("backlog_quota_map")):
            acting.append("backlog_quota_map")
        if not acting:
            return ""
        return (
            f"brokers would acknowledge messages of {namespace}, or delete its subscriptions, because they are old "
            f"({', '.join(acting)}): take these policies away until consumers are back"
        )

    async def without_driver(self, namespaces: Iterable[str]) -> list[str]:
        """Return those of the namespaces (`tenant/name`) whose own policies do not name the driver, in order.

        Their brokers read what is mounted only if broker.conf names it, which a mount does not see.
        """
        wanted = sorted(set(namespaces))
        found = await each(wanted, lambda name: nodes.node(self._store, f"{self._admin}/policies/{name}"))
        return [
            name for name, one in zip(wanted, found, strict=True) if one is not None and not names_driver(one.value)
        ]

    async def placeholder(self, newest: int) -> int:
        """Return the id of placeholders: above the ledger id `newest` and below the ids of all later ledgers.

        New ids are `HOB << 32 | sequence`, by the greatest node HOB- below idgen-long, where there is one; the sequence
        has 31 bits (PulsarLedgerIdGenerator, LongZkLedgerIdGenerator). So no ledger ever has the id returned.
        Raises InvalidConfig where no id of 63 bits is above `newest`.
        """
        high = max((newest >> HIGH_BITS) + 1, await self._high())
        if high > LEDGER_ID_MAX >> HIGH_BITS:
            raise InvalidConfig(
                f"the bucket has a ledger {newest}, and new ids cannot be raised above it: they have 63 bits",
                hint="no cluster has such an id by itself: look whose objects these are (offloadctl explain)",
            )
        return (high << HIGH_BITS) - 1

    async def _high(self) -> int:
        """Return the greatest node of high bits that new ledgers' ids may have; 0 for short ids."""
        numbers = [name.removeprefix("HOB-") for name in await self._store.children(self._ids)]
        return max((int(one) for one in numbers if one.isascii() and one.isdecimal()), default=0)

    async def raise_ids(self, placeholder: int) -> bool:
        """Have all later ledgers get ids above a placeholder's; return whether that had to be written."""
        high = (placeholder + 1) >> HIGH_BITS
        if await self._high() >= high:
            return False
        await self._put(f"{self._ids}/HOB-{high:010d}", b"")
        return True

    async def ids_in_use(self, ledger_ids: Iterable[int]) -> set[int]:
        """Return those of the ledger ids that BookKeeper has ledgers of, by one listing for 10,000 neighbouring ids.

        A node has the four last digits of an id in its name, and the others in its folder (see `Layout.path`).
        """
        layout = await self._layout()
        paths = {layout.path(self._ledgers_root, one): one for one in ledger_ids}
        found = await nodes.below(self._store, sorted(set(map(parent, paths))))
        return {paths[path] for path in found if path in paths}

    async def _put(self, path: str, value: bytes, *below: Create) -> bool:
        """Create a node, with those below it at once, or find it as an earlier try has written it.

        Return False for another value.
        """
        if below:
            await self._put(parent(path), b"")
        for _ in range(TRIES):
            try:
                if below:
                    await self._store.transact([Create(path, value), *below])
                else:
                    await self._store.create(path, value)
            except OutcomeUnknown:
                continue
            except Conflict:
                found = await nodes.node(self._store, path)
                return found is not None and found.value == value
            return True
        raise Transient(f"the outcome of writing {path} stays unknown", hint="repeat the command")

    def _list(self, topic: TopicName) -> str:
        return f"{self._lists_root}/{topic.managed_ledger}"

    async def mounted_as(self, topic: TopicName) -> tuple[ManagedLedger, int] | None:
        """Return list and placeholder of a topic that is mounted; None where the cluster has no such topic.

        Raises Conflict for a topic that was not mounted, CorruptData, and InvalidConfig as `decode` does.
        """
        path = self._list(topic)
        found = await nodes.node(self._store, path)
        if found is None:
            return None
        listed = managed_ledger.decode(found.value, key=path)
        placeholder = placeholder_of(listed)
        if placeholder is None:
            raise Conflict(f"the cluster has a topic {topic} of its own", hint="only topics that it lacks are mounted")
        return listed, placeholder

    async def write(self, topic: TopicName, content: bytes, subscriptions: Mapping[str, bytes]) -> None:
        """Create the list of a topic with its subscriptions, all of it at once.

        Raises Conflict if another list is there, InvalidInput for more than a transaction holds.
        """
        path = self._list(topic)
        cursors = (Create(f"{path}/{encode_local(name)}", node) for name, node in sorted(subscriptions.items()))
        if not await self._put(path, content, *cursors):
            raise Conflict("the topic was made by others meanwhile; repeat the command")

    async def write_partitions(
        self, topics: Iterable[TopicName], captured: Callable[[TopicName], int] = lambda _: 0
    ) -> list[str]:
        """Create the partitioned topics of these partitions; return what prevents it for those where it is prevented.

        A topic gets as many partitions as were `captured`, and as the highest number shows: empty ones behind it left
        no trace among the segments.
        Where the cluster keeps policies in a store of its own (configurationMetadataStoreUrl), nothing is created.
        """
        counts: dict[TopicName, int] = {}
        for topic in topics:
            whole, partition = partitioned_topic(topic), partition_of(topic)
            if whole is not None and partition is not None:
                counts[whole] = max(counts.get(whole, 0), partition.number + 1)
        counts = {whole: max(count, captured(whole)) for whole, count in counts.items()}
        here = bool(await self._store.children(f"{self._admin}/policies")) if counts else False
        problems = []
        for whole, count in sorted(counts.items()):
            path = self._partitions(whole)
            found = await nodes.node(self._store, path)
            try:
                there = _partitions_of(found.value, path) if found is not None else 0
            except CorruptData as error:
                problems.append(str(error))
                continue
            if found is None and await nodes.node(self._store, self._list(whole)) is not None:
                problems.append(
                    f"{whole} is a topic without partitions here, so clients do not find its {count} partitions"
                )
                continue
            if found is None and here and count <= PARTITIONS_MAX and await self._put(path, encode_partitions(count)):
                there = count
            if not there:
                todo = f"pulsar-admin topics create-partitioned-topic {whole} -p {count}"
                problems.append(f"{whole} is to be made with {count} partitions: {todo}")
            elif there < count:
                todo = f"pulsar-admin topics update-partitioned-topic {whole} -p {count}"
                problems.append(f"{whole} has {there} partitions here, and {count} in the bucket: {todo}")
        return problems

    def _partitions(self, topic: TopicName) -> str:
        return f"{self._admin}/partitioned-topics/{topic.managed_ledger}"

    async def mounted(self, patterns: Sequence[TopicPattern]) -> list[TopicName]:
        """Return the topics that a pattern matches and that were mounted, or whose lists cannot be read, in order."""
        folders = [self._lists_root]
        for _ in ("tenant", "namespace"):
            folders = await nodes.below(self._store, folders)
        folders = [f"{folder}/{DOMAIN}" for folder in folders]
        lists = await each(folders, self._store.children)
        prefix = len(self._lists_root) + 1
        topics = [
            topic
            for folder, names in zip(folders, lists, strict=True)
            for name in names
            if (topic := _topic_of(f"{folder[prefix:]}/{name}")) is not None
        ]
        wanted = [topic for topic in topics if any(pattern.matches(topic) for pattern in patterns)]
        marked = await each(wanted, self._is_marked)
        return sorted(topic for topic, is_marked in zip(wanted, marked, strict=True) if is_marked)

    async def _is_marked(self, topic: TopicName) -> bool:
        """Whether a topic has the property of a mount, or a list that cannot be read and so may have it."""
        path = self._list(topic)
        found = await nodes.node(self._store, path)
        try:
            return found is not None and MOUNTED in managed_ledger.decode(found.value, key=path).properties
        except (CorruptData, InvalidConfig):
            return True

    async def plan_undo(self, topic: TopicName) -> Undone:
        """Return how a topic that was mounted is taken out again, or why it is not.

        Ledgers behind the placeholder are new ones. Those that are closed and empty are deleted with the list.
        """
        try:
            return await self._plan_undo(topic)
        except (CorruptData, InvalidConfig, NotFound) as error:
            return Undone(topic, 0, str(error))

    async def _plan_undo(self, topic: TopicName) -> Undone:
        path = self._list(topic)
        node = await self._store.get(path)
        found = managed_ledger.decode(node.value, key=path)
        placeholder = placeholder_of(found)
        if placeholder is None:
            return Undone(topic, 0, f"it is marked as mounted, and has ledgers that no mount has written: {path}")
        count = sum(one.ledger_id < placeholder for one in found.ledgers)
        steps: list[Step] = []
        used = []
        for name in await self._store.children(path):
            cursor = await self._store.get(f"{path}/{name}")
            if cursor.version or not is_mounted(cursor.value, path=f"{path}/{name}"):
                used.append(name)
            steps.append(Delete(f"{path}/{name}", cursor.version))
        if used:
            names = ", ".join(used[:3])
            why = f"it has subscriptions ({names}): delete them first, pulsar-admin topics unsubscribe"
            return Undone(topic, count, why)
        layout = await self._layout()
        steps.append(Delete(path, node.version))
        for one in found.ledgers:
            if one.ledger_id <= placeholder:
                continue
            at = layout.path(self._ledgers_root, one.ledger_id)
            stored = await nodes.node(self._store, at)
            state = decode_ledger(stored.value, path=at) if stored is not None else None
            if one.entries or one.offload is not None or (state is not None and state.confirmed_at_least >= 0):
                return Undone(topic, count, f"producers have written to it: ledger {one.ledger_id}")
            if stored is None or state is None:
                why = f"BookKeeper does not have its ledger {one.ledger_id}, which producers may have written to"
                return Undone(topic, count, f"{why}: load and unload it first")
            if not state.closed:
                why = f"its ledger {one.ledger_id} is open: unload it first, pulsar-admin topics unload"
                return Undone(topic, count, why)
            steps.append(Delete(at, stored.version))
        return Undone(topic, count, "", tuple(steps))

    async def undo(self, undone: Undone) -> Undone:
        """Take a topic out, all of it at once; returned with `why` if it has changed since. Raises Transient."""
        try:
            await self._store.transact(undone.steps)
        except Conflict as error:
            return replace(undone, why=f"it has changed meanwhile ({error}): repeat the command")
        except OutcomeUnknown:
            if await nodes.node(self._store, self._list(undone.topic)) is not None:
                raise
        return undone

    async def undo_partitions(self, patterns: Sequence[TopicPattern]) -> list[TopicName]:
        """Delete the partitioned topics that a mount has made and that have no partition left; return them."""
        root = f"{self._admin}/partitioned-topics"
        folders = [root]
        for _ in ("tenant", "namespace", "domain"):
            folders = await nodes.below(self._store, folders)
        lists = await each(folders, self._store.children)
        deleted = []
        for folder, names in zip(folders, lists, strict=True):
            if not folder.endswith(f"/{DOMAIN}"):
                continue
            others = await self._store.children(f"{self._lists_root}{folder.removeprefix(root)}")
            prefix = folder.removeprefix(root)[1:]
            parts = [one for name in others if (one := _topic_of(f"{prefix}/{name}")) is not None]
            left = set(map(partitioned_topic, parts))
            for name in names:
                topic = _topic_of(f"{prefix}/{name}")
                if topic is None or topic in left or not any(one.matches(topic) for one in patterns):
                    continue
                node = await self._store.get(f"{folder}/{name}")
                with suppress(CorruptData):  # no mount has written it
                    properties = _json(node.value, f"{folder}/{name}").get("properties")
                    if isinstance(properties, dict) and MOUNTED in properties:
                        await self._store.delete(f"{folder}/{name}", node.version)
                        deleted.append(topic)
        return sorted(deleted)


def _topic_of(managed_ledger_name: str) -> TopicName | None:
    """Return the topic of a node; None for a name that no topic has."""
    try:
        return TopicName.from_managed_ledger(managed_ledger_name)
    except InvalidInput:
        return None


def _partitions_of(content: bytes, path: str) -> int:
    """Return the number of partitions in a node. Raises CorruptData."""
    found = _json(content, path).get("partitions")
    if not isinstance(found, int):
        raise CorruptData(key=path, offset=0, expected="a number of partitions", found=content[:40])
    return found


def names_driver(policies: bytes) -> bool:
    """Whether policies of a namespace have its ledgers read by our driver."""
    try:
        found = json.loads(policies)["offload_policies"]["managedLedgerOffloadDriver"]
    except (ValueError, TypeError, KeyError):
        return False
    return bool(found == DRIVER)


def _json(content: bytes, path: str) -> Mapping[str, Any]:
    """Return the object in a node of Pulsar's policies. Raises CorruptData."""
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CorruptData(key=path, offset=0, expected="an object in JSON", found=content[:40])
    return found
