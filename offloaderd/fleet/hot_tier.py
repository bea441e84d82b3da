"""Views of this daemon's topics for readers: tailing buffers, maps and policies."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from offloaderd.core.errors import IdentityRefused, Transient
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.fleet.engine import Engine
from offloaderd.metadata import identity
from offloaderd.metadata.records.identity import Refusal
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy.policies import Effective

T = TypeVar("T")

ANSWERS_S = 1.0
"""How long the metadata store may take for a topic whose last map this daemon has."""


class HotBuffers:
    """Tailing buffers. Answers at once, only with entries in a buffer; topics of other daemons have none here."""

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
        return found.buffer.first_after(position) if found else None

    def changed(self, topic: TopicName) -> Awaitable[object]:
        """Return an awaitable that ends when the buffer may hold more, or when topics come or leave."""
        found = self._engine.find(topic)
        return found.buffer.changed.wait() if found else self._engine.changed.wait()


class ReadableMaps:
    """Maps for reads: the committed one, or the last known one while the metadata store does not answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return the committed map, or the last known one of a topic without its claim. Raises Transient."""
        last = self._engine.last_map(topic)
        return await _or_held(lambda: self._engine.topic_map(topic), last.map if last is not None else None)

    async def source_refused(self, topic: TopicName) -> IdentityRefused | None:
        """Return why nothing of the topic's source may be read, from its owner if that is here. Raises Transient."""
        found = self._engine.find(topic)
        if found is not None:
            return identity.source_refused(found.identity.refusals)

        async def stored() -> tuple[Refusal, ...]:
            return (await identity.load(self._engine.context.metadata, topic)).record.refusals

        last, was_ours = self._engine.last_refusals(topic), self._engine.last_map(topic) is not None
        return identity.source_refused(await _or_held(stored, (lambda: last) if was_ours else None))


class ReadablePolicies:
    """Policies for reads: the stored one, or the one applied here while the metadata store does not answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def of(self, topic: TopicName) -> Effective:
        """Return the policy of a topic. Raises Transient."""
        held = self._engine.held_policy(topic)
        return await _or_held(lambda: self._engine.book.of(topic), (lambda: held) if held is not None else None)


async def _or_held(ask: Callable[[], Awaitable[T]], held: Callable[[], T] | None) -> T:
    """Return the answer of the metadata store, or the `held` value if it does not answer in time.

    Without a `held` value there is no time limit. Raises Transient then.
    """
    try:
        async with asyncio.timeout(ANSWERS_S if held is not None else None):
            return await ask()
    except (TimeoutError, Transient):
        if held is None:
            raise
        return held()
