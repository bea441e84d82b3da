"""The hot tier for readers: what the tailing buffers of this daemon's topics hold at the moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from offloaderd.model import EntryBatch, Position, TopicName
    from offloaderd.offload.engine import Engine


class HotBuffers:
    """Answers at once and only what a buffer is sure of; a topic that is owned elsewhere has nothing here."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self, topic: TopicName, first: Position, last: Position | None, max_bytes: int) -> EntryBatch | None:
        """Return entries of one ledger from `first` on, at most to `last`; None when `first` is not held."""
        found = self._engine.find(topic)
        return found.buffer.read(first, last, max_bytes) if found else None

    def range(self, topic: TopicName) -> tuple[Position, Position] | None:
        """Return the oldest and newest position held; there may be gaps between."""
        found = self._engine.find(topic)
        return found.buffer.span() if found else None

    def next_after(self, topic: TopicName, position: Position) -> Position | None:
        """Return the position held that directly follows `position`, in its ledger or the next; None if unknown."""
        found = self._engine.find(topic)
        batches = found.buffer.take(position, 1) if found else []
        return batches[0].first if batches else None

    def changed(self, topic: TopicName) -> Awaitable[object]:
        """Return something that ends when the buffer may hold more, or when topics come and go."""
        found = self._engine.find(topic)
        return found.buffer.changed.wait() if found else self._engine.changed.wait()
