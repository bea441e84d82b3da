"""Ports of reading."""

from collections.abc import Awaitable
from typing import Protocol

from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy.policies import Effective


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
