"""What reading needs of the rest of the daemon, as narrow Protocols, with defaults that ask the metadata store.

`ReadContext` is what one read is given of them.
"""

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
from offloaderd.policy.merge import Effective
from offloaderd.read.plan import TopicView
from offloaderd.read.segments.reader import SegmentReader


class HotTier(Protocol):
    """The tailing buffers of the topics that this daemon owns. It answers at once, and only what it is sure of."""

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
        """Return something that ends when the buffer may hold more; never, for a topic that is not here."""
        ...


class Maps(Protocol):
    """Where the committed segments of a topic are known."""

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return what is committed now; an unknown topic has an empty map. Raises Transient."""
        ...


class Policies(Protocol):
    """Where it is known what holds for a topic."""

    async def of(self, topic: TopicName) -> Effective:
        """Return what holds for a topic, and whether anybody ever spoke of it. Raises Transient, CorruptData."""
        ...


class StoredMaps:
    """Maps as the metadata store holds them, nothing cached."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Load the map."""
        return await catalog.load(self._store, topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """What one read works with: the tiers, how to look at all of them (`view`, up to a position), and the priority.

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
