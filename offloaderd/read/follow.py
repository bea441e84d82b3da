"""Waiting for news of a topic: one watcher for each topic that somebody follows, however many do."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

import structlog

from offloaderd.errors import OffloaderError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from offloaderd.clock import Clock
    from offloaderd.ledgers.port import LedgerSource
    from offloaderd.model import TopicName
    from offloaderd.read.ports import HotTier
    from offloaderd.tasks import Tasks

TICK_S = 1.0
"""News that nobody tells of (another daemon's commit) are looked for this often."""

log = structlog.get_logger(__name__)


class News:
    """Counts what may have changed in one topic."""

    def __init__(self) -> None:
        self.count = 0
        self.followers = 0
        self.tasks: list[asyncio.Task[None]] = []
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Something may have changed: wake all who wait."""
        self.count += 1
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def after(self, seen: int) -> int:
        """Return the count once it is greater than `seen`, a count that was taken before looking."""
        while self.count <= seen:
            await self._event.wait()
        return self.count


class Newsroom:
    """The News of all topics that are followed at the moment."""

    def __init__(self, *, hot: HotTier, source: LedgerSource | None, clock: Clock, loader: Tasks) -> None:
        self._hot = hot
        self._source = source
        self._clock = clock
        self._loader = loader
        self._topics: dict[TopicName, News] = {}

    @contextmanager
    def following(self, topic: TopicName) -> Iterator[News]:
        """Give the topic's news; watching ends with the last follower. Raises Closed."""
        news = self._topics.get(topic)
        if news is None:
            news = News()
            self._watch(topic, news)
            self._topics[topic] = news
        news.followers += 1
        try:
            yield news
        finally:
            news.followers -= 1
            if not news.followers:
                del self._topics[topic]
                for task in news.tasks:
                    task.cancel()

    def _watch(self, topic: TopicName, news: News) -> None:
        def start(work: Coroutine[None, None, None], what: str) -> None:
            news.tasks.append(self._loader.start(work, name=f"follow {topic}: {what}"))

        start(self._tick(news), "tick")
        start(self._watch_hot(topic, news), "buffer")
        if self._source is not None:
            start(self._watch_source(self._source, topic, news), "source")

    async def _tick(self, news: News) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            news.tell()

    async def _watch_hot(self, topic: TopicName, news: News) -> None:
        while True:
            await self._hot.changed(topic)
            news.tell()

    async def _watch_source(self, source: LedgerSource, topic: TopicName, news: News) -> None:
        while True:
            try:
                async with aclosing(source.watch(topic)) as changes:
                    async for _ in changes:
                        news.tell()
            except OffloaderError as error:
                log.warning("source.watch_failed", topic=str(topic), error=str(error))
            await self._clock.sleep(TICK_S)
