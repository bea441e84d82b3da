"""Ports of reading, and the context of one read."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from offloaderd.core.clock import Clock
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.core.read_options import ReadPriority
from offloaderd.core.retry import RetryPolicy
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy.policies import Effective
from offloaderd.read.plan import TopicView
from offloaderd.read.segments.reader import SegmentReader


class HotTier(Protocol):
    """The tailing buffers of the topics that this daemon owns. It answers at once, and None if unsure."""

    def read(self, topic: TopicName, first: Position, last: Position | None, max_bytes: int) -> EntryBatch | None:
        """Return entries of one ledger from `first` on (at least one), at most to `last`; None without `first`."""
        ...

    def range(self, topic: TopicName) -> tuple[Position, Position] | None:
        """Return the oldest and newest position held; there may be gaps between."""
        ...

    def next_after(self, topic: TopicName, position: Position) -> Position | None:
        """Return the position held that directly follows `position`, in its ledger or the next; None if unknown."""
        ...

    def changed(self, topic: TopicName) -> Awaitable[object]:
        """Return an awaitable that ends when the buffer may hold more; never, for another daemon's topic."""
        ...


class Maps(Protocol):
    """Access to topic maps."""

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return the present map; an unknown topic has an empty one. Raises Transient."""
        ...


class Policies(Protocol):
    """Access to effective policies."""

    async def of(self, topic: TopicName) -> Effective:
        """Return the effective policy of a topic. Raises Transient, CorruptData."""
        ...


class StoredMaps:
    """The maps of the metadata store, not cached."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Load the map."""
        return await catalog.load(self._store, topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """The context of one read: the tiers, a view of them all (`view`, up to a position), and the priority.

    `source` is None for a daemon that only sees what was pushed and offloaded. `view` raises Transient, `priority`
    TopicNotFound as well.
    """

    hot: HotTier
    source: LedgerSource | None
    segments: SegmentReader
    retry: RetryPolicy
    clock: Clock
    metrics: Metrics
    view: Callable[[TopicName, Position | None], Awaitable[TopicView]]
    priority: Callable[[TopicName], Awaitable[ReadPriority]]
