"""What ZooKeeper knows of topics and ledgers, read and, while somebody follows it, remembered.

    nodes.follow(path, changed)               # its value is kept from now on, and `changed` called when it may differ
    await nodes.get(path, decode)             # from memory while it is followed and nothing changed, else read

Rules: a value is remembered only after its watch was set, and forgotten as soon as the watch says anything; without a
session it stays what it was. Nothing is concluded from an absence before the server has caught up with its leader.
Metadata of closed ledgers is remembered without a watch: only its bookies can change, which shows when they fail.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import structlog

from offloaderd.bookkeeper.background import Background
from offloaderd.bookkeeper.metadata import ledger as ledger_metadata
from offloaderd.bookkeeper.metadata.layout import decode_layout, instance_path, layout_path
from offloaderd.bookkeeper.metadata.ledger import LedgerMetadata
from offloaderd.bookkeeper.ports import Znodes
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core import domains
from offloaderd.core.aio.each import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, InvalidInput, NotFound, OffloaderError, Transient
from offloaderd.core.limits import Bounded
from offloaderd.core.model import TopicName
from offloaderd.core.names import managed_ledgers as pulsar_names
from offloaderd.ledgers.pulsar import managed_ledger as pulsar
from offloaderd.ledgers.pulsar.managed_ledger import ManagedLedger
from offloaderd.metadata.port import Versioned

T = TypeVar("T")

log = structlog.get_logger(__name__)

CLOSED_MAX = 4096
"""Closed ledgers whose metadata is remembered: those read last."""
PATHS_MAX = 10_000
"""Paths that are not spelt anew at every look."""
ODD_NAMES_MAX = 1000
"""So many names that Pulsar would not write are warned of, each once."""
REWATCH_S = 5.0


class _Followed:
    """A node that is watched: what was read since its watch last fired."""

    __slots__ = ("_watch", "changed", "changes", "fired", "known", "path", "task", "value")

    def __init__(
        self, path: str, changed: Callable[[], None], watch: "Callable[[_Followed], asyncio.Task[None]]"
    ) -> None:
        self.path = path
        self.changed = changed
        self._watch = watch
        self.changes = 0
        self.known = False
        self.value: Any = None
        """None: the node is known not to exist."""
        self.fired = True
        """Whether the watch has to be set, again."""
        self.task: asyncio.Task[None] | None = watch(self)
        """What sets it; None while it is set."""

    def fire(self) -> None:
        """The node may have changed, and nothing else may be told of it: set the watch again."""
        self.fired = True
        if self.task is None:
            with suppress(Closed):
                self.task = self._watch(self)


class Nodes:
    """Nodes by path."""

    def __init__(self, znodes: Znodes, background: Background, clock: Clock) -> None:
        self._znodes = znodes
        self._background = background
        self._clock = clock
        self._followed: dict[str, _Followed] = {}

    def follow(self, path: str, changed: Callable[[], None]) -> None:
        """Watch a node until `unfollow`; `changed` is called once at the beginning, then whenever it may differ."""
        self._followed[path] = _Followed(path, changed, self._start)

    def unfollow(self, path: str) -> None:
        """Watch a node no longer; one that is not followed is no error."""
        followed = self._followed.pop(path, None)
        if followed is not None:
            if followed.task is not None:
                followed.task.cancel()
            self._znodes.disarm(path, followed.fire)

    async def get(self, path: str, decode: Callable[[Versioned], T], *, fresh: bool = False) -> T:
        """Return a node's decoded content; `fresh`: as it is now, whatever is remembered.

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
                await self._znodes.sync(path)
            try:
                return decode(await self._znodes.get(path))
            except NotFound:
                if fresh:
                    break
        return None

    def _start(self, followed: _Followed) -> asyncio.Task[None]:
        return self._background.start(self._watch(followed), name=f"watch {followed.path}")

    async def _watch(self, followed: _Followed) -> None:
        """Set a node's watch, and again for as long as it fired meanwhile: there is no task while nothing happens."""
        failing = False
        while followed.fired:
            followed.fired = False
            try:
                await self._znodes.arm(followed.path, followed.fire)
            except Closed:
                return
            except OffloaderError as error:
                if not failing:
                    log.warning("source.watch_failed", path=followed.path, error=str(error))
                followed.known, followed.changes = False, 0
                failing = followed.fired = True
                await self._clock.sleep(REWATCH_S)
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
    """Read a ledger's node. Where its writer left out when it was made, the node's time stands in, as in BookKeeper."""
    metadata = ledger_metadata.decode(node.value, path=path)
    return metadata if metadata.ctime_ms is not None else replace(metadata, ctime_ms=node.created_ms or None)


class Directory:
    """Topics and ledgers as ZooKeeper has them."""

    def __init__(self, znodes: Znodes, nodes: Nodes, options: BookkeeperSettings) -> None:
        self.nodes = nodes
        self._znodes = znodes
        self._ledgers_root = options.ledgers_root
        self._topics_root = options.managed_ledgers_root.rstrip("/")
        self._flag_path = pulsar.flag_path(options.managed_ledgers_root)
        self._path: Callable[[int], str] | None = None
        self._closed: Bounded[str, LedgerMetadata] = Bounded(CLOSED_MAX)
        self._odd: set[str] = set()
        self._following: set[str] = set()
        self._topic_path = lru_cache(PATHS_MAX)(lambda topic: f"{self._topics_root}/{topic.managed_ledger}")

    def topic_path(self, topic: TopicName) -> str:
        """Return the path of a topic's list of ledgers."""
        return self._topic_path(topic)

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
        """Return the id of this BookKeeper, None where it has none. It is read again after each change of session."""
        content = await self._kept(instance_path(self._ledgers_root))
        return content.decode("utf-8", errors="replace").strip() or None if content is not None else None

    async def migration(self) -> str | None:
        """Say why lists of ledgers may be out of date: the cluster moves its metadata, or has moved it."""
        flag = await self._kept(self._flag_path)
        return pulsar.moved_reason(flag, path=self._flag_path) if flag is not None else None

    async def _kept(self, path: str) -> bytes | None:
        """Return a node that rarely changes and is asked for often; None where there is none."""
        if path not in self._following:
            self._following.add(path)
            self.nodes.follow(path, lambda: None)
        try:
            return await self.nodes.get(path, _value)
        except NotFound:
            return None

    async def topic(self, topic: TopicName) -> ManagedLedger:
        """Return a topic's list of ledgers. Raises NotFound, CorruptData."""
        path = self.topic_path(topic)
        try:
            return await self.nodes.get(path, partial(_managed, path=path))
        except NotFound:
            raise NotFound(f"unknown topic {topic}", hint=f"there is no node {path} in ZooKeeper") from None

    async def listed(self, topic: TopicName) -> list[int]:
        """Return the ids of a topic's list as it is now, after the server has caught up with its leader.

        Raises NotFound when the topic does not exist, Transient when the cluster has no topics at all: then this is
        another cluster's ZooKeeper, or another root. Raises CorruptData.
        """
        path = self.topic_path(topic)
        try:
            managed = await self.nodes.get(path, partial(_managed, path=path), fresh=True)
        except NotFound:
            if not await self._znodes.children(self._topics_root):
                raise Transient(
                    f"there are no topics at all below {self._topics_root}, so nobody can say that {topic} was deleted",
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
        """Return the names of the topic's cursors, as they are spelt in ZooKeeper."""
        return await self._znodes.children(self.topic_path(topic))

    async def topics(self, tenant: str | None, namespace: str | None) -> list[TopicName]:
        """Return all topics, in name order, or those of a tenant or of its namespace."""
        names = await self._managed_ledgers(tenant, namespace, [domains.TAKEN])
        return sorted((topic for topic in map(self._named, names) if topic is not None), key=str)

    async def not_covered(self, tenant: str | None, namespace: str | None) -> list[str]:
        """Return the names of all topics of domains that are not taken, in order, or of those of a place."""
        names = await self._managed_ledgers(tenant, namespace, domains.NOT_COVERED)
        return sorted(map(pulsar_names.full_name, names))

    async def _managed_ledgers(self, tenant: str | None, namespace: str | None, of_domains: Sequence[str]) -> list[str]:
        """Return the names of managed ledgers as they are spelt in ZooKeeper."""
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
