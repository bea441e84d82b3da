"""Waking those who watch a topic: coalesced, without polling, without missing a change."""

from collections.abc import AsyncGenerator

from offloaderd.core.aio.signal import Event
from offloaderd.core.errors import Closed
from offloaderd.core.model import TopicName


class Changes:
    """One wake-up per topic, shared by all its watchers; all calls are made on the event loop.

    A watcher holds the event that the next change will set, taken before its consumer looks at the topic: what
    happens while the consumer is busy has set it already when it comes back.
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
        """Wake everybody; they raise Closed."""
        self._closed = True
        for event in self._next.values():
            event.set()
        self._next.clear()

    async def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """Yield at once and after every change since the last time it was asked. Raises Closed."""
        while not self._closed:
            event = self._next.setdefault(topic, Event())
            yield
            await event.wait()
        raise Closed("the ledger store has been closed")
