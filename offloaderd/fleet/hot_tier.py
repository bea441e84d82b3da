"""The hot tier for readers: what the tailing buffers of this daemon's topics hold at the moment."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from offloaderd.core.errors import IdentityRefused, Transient
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.fleet.engine import Engine
from offloaderd.metadata import identity
from offloaderd.metadata.records.identity import Refusal
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy.merge import Effective

T = TypeVar("T")

ANSWERS_S = 1.0
"""How long the metadata store may take to answer for a topic of which this daemon knows the last map."""


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


class ReadableMaps:
    """Maps for reads: committed, and also what this daemon last knew of a topic while the metadata store is away."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return what is committed; what was last known for a topic that sleeps or lost its claim. Raises Transient."""
        last = self._engine.last_map(topic)
        return await _or_held(lambda: self._engine.topic_map(topic), last.map if last is not None else None)

    async def source_refused(self, topic: TopicName) -> IdentityRefused | None:
        """Return why nothing of the topic's source is to be read: by its owner if that is here. Raises Transient."""
        found = self._engine.find(topic)
        if found is not None:
            return identity.source_refused(found.identity.refusals)

        async def stored() -> tuple[Refusal, ...]:
            return (await identity.load(self._engine.context.metadata, topic)).record.refusals

        last, was_ours = self._engine.last_refusals(topic), self._engine.last_map(topic) is not None
        return identity.source_refused(await _or_held(stored, (lambda: last) if was_ours else None))


class ReadablePolicies:
    """Policies for reads: those that are stored, and what this daemon holds to while the metadata store is away."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def of(self, topic: TopicName) -> Effective:
        """Return what holds for a topic; what this daemon works by if nobody can look. Raises Transient."""
        held = self._engine.held_policy(topic)
        return await _or_held(lambda: self._engine.book.of(topic), (lambda: held) if held is not None else None)


async def _or_held(ask: Callable[[], Awaitable[T]], held: Callable[[], T] | None) -> T:
    """Return what the metadata store says, or what this daemon holds if that does not answer in time.

    With nothing `held` it has all the time that it takes. Raises Transient then.
    """
    try:
        async with asyncio.timeout(ANSWERS_S if held is not None else None):
            return await ask()
    except (TimeoutError, Transient):
        if held is None:
            raise
        return held()
