"""Notification of a topic's watchers: coalesced, without polling, without a missed change."""

from collections.abc import AsyncGenerator

from offloaderd.core.aio.signal import Event
from offloaderd.core.errors import Closed
from offloaderd.core.model import TopicName


class Changes:
    """One event for each topic, shared by its watchers; all calls are made on the event loop.

    A watcher takes the event of the next change before its consumer reads the topic: a change during that read has set
    it already.
    """

    def __init__(self) -> None:
        self._next: dict[TopicName, Event] = {}
        self._closed = False

    def notify(self, topic: TopicName) -> None:
        """Wake the topic's watchers."""
        event = self._next.pop(topic, None)
        if event is not None:
            event.set()

    def close(self) -> None:
        """Wake all watchers, which raise Closed."""
        self._closed = True
        for event in self._next.values():
            event.set()
        self._next.clear()

    async def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """Yield at once and after every change since the last yield. Raises Closed."""
        while not self._closed:
            event = self._next.setdefault(topic, Event())
            yield
            await event.wait()
        raise Closed("the ledger store has been closed")
