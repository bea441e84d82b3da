"""Topics and ledgers in ZooKeeper, cached while they are followed.

Rules: a value is cached only after its watch was set, and dropped when the watch fires; without a session it stays.
Absence counts only after the server has caught up with its leader. Metadata of closed ledgers is cached without a
watch: only its bookies can change, which shows when they fail.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import structlog

from offloaderd.bookkeeper.metadata import LedgerMetadata, decode_layout, decode_ledger, instance_path, layout_path
from offloaderd.bookkeeper.ports import Bookies, Znodes
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.aio import Tasks, each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, InvalidInput, NotFound, OffloaderError, Transient
from offloaderd.core.limits import Bounded
from offloaderd.core.model import DOMAIN, DOMAINS_NOT_COVERED, TopicName
from offloaderd.core.names import managed_ledgers as pulsar_names
from offloaderd.ledgers.pulsar import managed_ledger as pulsar
from offloaderd.ledgers.pulsar.internal_ledgers import InternalLedgers
from offloaderd.ledgers.pulsar.managed_ledger import ListedLedger, ManagedLedger
from offloaderd.metadata.port import Versioned

T = TypeVar("T")

log = structlog.get_logger(__name__)

CLOSED_MAX = 4096
"""Closed ledgers whose metadata is cached: those read last."""
PATHS_MAX = 1000
"""Cached paths of topics, and of ledgers: those of active ones, as those of thousands of idle ones take memory."""
ODD_NAMES_MAX = 1000
"""Names that Pulsar would not write: a warning for each, up to this many."""
REWATCH_S = 5.0


@dataclass(slots=True, eq=False)
class _Followed:
    """A watched node: the value since its watch last fired."""

    path: str
    changed: Callable[[], None]
    nodes: "Nodes"
    changes: int = 0
    known: bool = False
    value: Any = None
    """None: the node is known not to exist."""
    fired: bool = True
    """Whether the watch has to be set, again."""
    task: asyncio.Task[None] | None = field(init=False)
    """The task that sets the watch; None while it is set."""

    def __post_init__(self) -> None:
        self.task = self.nodes.start(self)

    def fire(self) -> None:
        """Set the watch again, as the node may have changed."""
        self.fired, self.known = True, False
        if self.task is None:
            with suppress(Closed):
                self.task = self.nodes.start(self)


@dataclass(slots=True, eq=False)
class Nodes:
    """Nodes by path."""

    znodes: Znodes
    background: Tasks
    clock: Clock
    _followed: dict[str, _Followed] = field(default_factory=dict)

    def follow(self, path: str, changed: Callable[[], None]) -> None:
        """Watch a node until `unfollow`; `changed` is called once at the beginning, then whenever it may differ."""
        self._followed[path] = _Followed(path, changed, self)

    def unfollow(self, path: str) -> None:
        """Stop watching a node; one that is not followed is no error."""
        followed = self._followed.pop(path, None)
        if followed is not None:
            if followed.task is not None:
                followed.task.cancel()
            self.znodes.disarm(path, followed.fire)

    async def get(self, path: str, decode: Callable[[Versioned], T], *, fresh: bool = False) -> T:
        """Return a node's decoded content; `fresh`: as it is now, not from the cache.

        Raises NotFound for certain, what `decode` raises, and what Znodes do.
        """
        followed = self._followed.get(path)
        if followed is not None and followed.known and not fresh:
            value: T | None = followed.value
        else:
            changes = followed.changes if followed is not None else 0
            value = await self._read(path, decode, fresh=fresh)
            if followed is not None and changes and followed.changes == changes:
                followed.value, followed.known = value, True
        if value is None:
            raise NotFound(f"there is no node {path}")
        return value

    async def _read(self, path: str, decode: Callable[[Versioned], T], *, fresh: bool) -> T | None:
        for synced in (False, True):
            if synced or fresh:
                await self.znodes.sync(path)
            try:
                return decode(await self.znodes.get(path))
            except NotFound:
                if fresh:
                    break
        return None

    def start(self, followed: _Followed) -> asyncio.Task[None]:
        """Start the task that sets the watch of a node. Raises Closed."""
        return self.background.start(self._watch(followed), name=f"watch {followed.path}")

    async def _watch(self, followed: _Followed) -> None:
        """Set a node's watch, and again while it fired meanwhile: there is no task while nothing happens."""
        failing = False
        while followed.fired:
            followed.fired = False
            try:
                await self.znodes.arm(followed.path, followed.fire)
            except Closed:
                return
            except OffloaderError as error:
                if not failing:
                    log.warning("source.watch_failed", path=followed.path, error=str(error))
                followed.known, followed.changes = False, 0
                failing = followed.fired = True
                await self.clock.sleep(REWATCH_S)
            else:
                failing = followed.known = False
                followed.changes += 1
                followed.changed()
        followed.task = None


def _value(node: Versioned) -> bytes:
    return node.value


def _managed(node: Versioned, path: str) -> ManagedLedger:
    return replace(pulsar.decode(node.value, key=path), listing=(node.created_ms, node.version))


def _metadata(node: Versioned, path: str) -> LedgerMetadata:
    """Read a ledger's node. Without a creation time of the writer, the node's is used, as in BookKeeper."""
    metadata = decode_ledger(node.value, path=path)
    return metadata if metadata.ctime_ms is not None else replace(metadata, ctime_ms=node.created_ms or None)


class Directory:
    """Topics and ledgers in ZooKeeper."""

    def __init__(self, znodes: Znodes, nodes: Nodes, options: BookkeeperSettings, bookies: Bookies) -> None:
        self.nodes = nodes
        self.internal = InternalLedgers(partial(self.ledger, fresh=True), bookies)
        """Reads the ledgers of cursors and schemas."""
        self._znodes = znodes
        self._ledgers_root = options.ledgers_root
        self._topics_root = options.managed_ledgers_root.rstrip("/")
        self._flag_path = pulsar.flag_path(options.managed_ledgers_root)
        self._path: Callable[[int], str] | None = None
        self._closed: Bounded[str, LedgerMetadata] = Bounded(CLOSED_MAX)
        self._odd: set[str] = set()
        self._following: set[str] = set()
        self._topic_path = lru_cache(PATHS_MAX)(self._path_of)

    def topic_path(self, topic: TopicName) -> str:
        """Return the path of a topic's list of ledgers; of a compaction, that of its cursor."""
        return self._topic_path(topic)

    def _path_of(self, topic: TopicName) -> str:
        compacted = pulsar_names.compacted_of(topic)
        if compacted is None:
            return f"{self._topics_root}/{topic.managed_ledger}"
        return f"{self._topics_root}/{compacted.managed_ledger}/{pulsar_names.COMPACTION_CURSOR}"

    async def ledger_path(self, ledger_id: int) -> str:
        """Return the path of a ledger's metadata, by the cluster's layout. Raises CorruptData, InvalidConfig."""
        if self._path is None:
            path = layout_path(self._ledgers_root)
            try:
                content = await self.nodes.get(path, _value)
            except NotFound:
                content = None
            layout = decode_layout(content, path=path)
            self._path = lru_cache(PATHS_MAX)(partial(layout.path, self._ledgers_root))
        return self._path(ledger_id)

    async def instance_id(self) -> str | None:
        """Return the id of this BookKeeper; None without one. It is read again after each change of session."""
        content = await self._cached(instance_path(self._ledgers_root))
        return content.decode("utf-8", errors="replace").strip() or None if content is not None else None

    async def migration(self) -> str | None:
        """Return why lists of ledgers may be out of date, as the cluster moves its metadata; else None."""
        flag = await self._cached(self._flag_path)
        return pulsar.moved_reason(flag, path=self._flag_path) if flag is not None else None

    async def _cached(self, path: str) -> bytes | None:
        """Return a node that changes rarely and is read often; None without one."""
        if path not in self._following:
            self._following.add(path)
            self.nodes.follow(path, lambda: None)
        try:
            return await self.nodes.get(path, _value)
        except NotFound:
            return None

    async def topic(self, topic: TopicName) -> ManagedLedger:
        """Return a topic's list of ledgers. Raises NotFound, CorruptData, and Transient as `_list` does."""
        try:
            return await self._list(topic)
        except NotFound:
            path = self.topic_path(topic)
            raise NotFound(f"unknown topic {topic}", hint=f"there is no node {path} in ZooKeeper") from None

    async def _list(self, topic: TopicName, *, fresh: bool = False) -> ManagedLedger:
        """Return a topic's list; a compaction's is the ledger that its cursor names.

        The cursor's newest position may get lost when its broker crashes. Until it cannot any more, the ledgers that
        the positions before it name are in the list too. Raises NotFound, CorruptData, and Transient for a cursor whose
        positions cannot be read.
        """
        path = self.topic_path(topic)
        if pulsar_names.compacted_of(topic) is None:
            return await self.nodes.get(path, partial(_managed, path=path), fresh=fresh)
        found = await self.internal.possible(lambda: self.nodes.get(path, _value, fresh=True), path=path)
        assert found is not None  # noqa: S101 - without a node there is NotFound
        positions, failure = found
        if failure is not None:
            raise Transient(f"cannot read which ledger the last compaction made, in {path}: {failure}") from failure
        named = {dict(one.numbers).get(pulsar_names.COMPACTED_LEDGER, -1) for one in positions} - {-1}
        return ManagedLedger(ledgers=tuple(ListedLedger(ledger_id=one, replaces=True) for one in sorted(named)))

    async def listed(self, topic: TopicName) -> list[int]:
        """Return the ids of a topic's list as it is now, after the server has caught up with its leader.

        Raises NotFound when the topic does not exist, Transient when the cluster has no topics at all: then this is
        another cluster's ZooKeeper, or another root. Raises CorruptData.
        """
        try:
            managed = await self._list(topic, fresh=True)
        except NotFound:
            if not await self._znodes.children(self._topics_root):
                raise Transient(
                    f"no topics at all below {self._topics_root}: this does not prove that {topic} was deleted",
                    hint="bookkeeper.servers or managed_ledgers_root may be another cluster's",
                ) from None
            raise
        return [listed.ledger_id for listed in managed.ledgers]

    async def ledger(self, ledger_id: int, *, fresh: bool = False) -> LedgerMetadata:
        """Return a ledger's metadata. Raises NotFound for one that was deleted, CorruptData."""
        path = await self.ledger_path(ledger_id)
        known = self._closed.get(path)
        if known is not None and not fresh:
            self._closed.move_to_end(path)
            return known
        try:
            metadata = await self.nodes.get(path, partial(_metadata, path=path), fresh=fresh)
        except NotFound:
            self._closed.pop(path, None)
            raise NotFound(f"ledger {ledger_id} is not in BookKeeper", hint="it has been deleted") from None
        if metadata.closed:
            self._closed[path] = metadata
        return metadata

    async def cursors(self, topic: TopicName) -> Sequence[str]:
        """Return the names of the topic's cursors, as written in ZooKeeper."""
        return await self._znodes.children(self.topic_path(topic))

    async def topics(self, tenant: str | None, namespace: str | None) -> list[TopicName]:
        """Return all topics, in name order, or those of a tenant or of its namespace."""
        names = await self._managed_ledgers(tenant, namespace, [DOMAIN])
        return sorted((topic for topic in map(self._named, names) if topic is not None), key=str)

    async def not_covered(self, tenant: str | None, namespace: str | None) -> list[str]:
        """Return the full names of topics of other domains, in order: all, or those of a tenant or namespace."""
        names = await self._managed_ledgers(tenant, namespace, DOMAINS_NOT_COVERED)
        return sorted(map(pulsar_names.full_name, names))

    async def _managed_ledgers(self, tenant: str | None, namespace: str | None, of_domains: Sequence[str]) -> list[str]:
        tenants = [tenant] if tenant is not None else await self._znodes.children(self._topics_root)
        found: list[str] = []
        for each_tenant in tenants:
            below = f"{self._topics_root}/{each_tenant}"
            namespaces = [namespace] if namespace is not None else await self._znodes.children(below)
            folders = [f"{each_tenant}/{one}/{domain}" for one in namespaces for domain in of_domains]
            lists = await each(folders, lambda folder: self._znodes.children(f"{self._topics_root}/{folder}"))
            found += [f"{folder}/{name}" for folder, names in zip(folders, lists, strict=True) for name in names]
        return found

    def _named(self, name: str) -> TopicName | None:
        """Return the topic of a managed ledger; None, and one warning, for a name that Pulsar would not write."""
        try:
            return pulsar_names.parse_topic_path(f"{pulsar_names.ROOT}/{name}")
        except InvalidInput as error:
            if name not in self._odd and len(self._odd) < ODD_NAMES_MAX:
                self._odd.add(name)
                log.warning("source.topic_skipped", managed_ledger=name, error=str(error))
            return None
