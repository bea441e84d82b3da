"""Waiting for changes of a topic: one watcher for each followed topic, shared by its followers."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

import structlog

from offloaderd.core.aio import Tasks
from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.ledgers.port import LedgerSource
from offloaderd.read.ports import HotTier

TICK_S = 1.0
"""Interval of signals for changes without a notification (another daemon's commit)."""

log = structlog.get_logger(__name__)


class ChangeSignal:
    """Counts possible changes of one topic."""

    def __init__(self) -> None:
        self.count = 0
        self.followers = 0
        self.tasks: list[asyncio.Task[None]] = []
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Count a change and wake all followers."""
        self.count += 1
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def after(self, seen: int) -> int:
        """Return the count once it is greater than `seen`, a count from before the last view."""
        while self.count <= seen:
            await self._event.wait()
        return self.count


@dataclass(slots=True, eq=False, kw_only=True)
class ChangeSignals:
    """The signals of all followed topics."""

    hot: HotTier
    source: LedgerSource | None
    clock: Clock
    loader: Tasks
    _topics: dict[TopicName, ChangeSignal] = field(default_factory=dict)

    @contextmanager
    def following(self, topic: TopicName) -> Iterator[ChangeSignal]:
        """Give the topic's signal; the watch ends with the last follower. Raises Closed."""
        change_signal = self._topics.get(topic)
        if change_signal is None:
            change_signal = ChangeSignal()
            self._watch(topic, change_signal)
            self._topics[topic] = change_signal
        change_signal.followers += 1
        try:
            yield change_signal
        finally:
            change_signal.followers -= 1
            if not change_signal.followers:
                del self._topics[topic]
                for task in change_signal.tasks:
                    task.cancel()

    def _watch(self, topic: TopicName, change_signal: ChangeSignal) -> None:
        def start(work: Coroutine[None, None, None], what: str) -> None:
            change_signal.tasks.append(self.loader.start(work, name=f"follow {topic}: {what}"))

        start(self._tick(change_signal), "tick")
        start(self._watch_hot(topic, change_signal), "buffer")
        if self.source is not None:
            start(self._watch_source(self.source, topic, change_signal), "source")

    async def _tick(self, change_signal: ChangeSignal) -> None:
        while True:
            await self.clock.sleep(TICK_S)
            change_signal.notify()

    async def _watch_hot(self, topic: TopicName, change_signal: ChangeSignal) -> None:
        while True:
            await self.hot.changed(topic)
            change_signal.notify()

    async def _watch_source(self, source: LedgerSource, topic: TopicName, change_signal: ChangeSignal) -> None:
        while True:
            try:
                async with aclosing(source.watch(topic)) as changes:
                    async for _ in changes:
                        change_signal.notify()
            except OffloaderError as error:
                log.warning("source.watch_failed", topic=str(topic), error=str(error))
            await self.clock.sleep(TICK_S)
