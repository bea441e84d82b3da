"""Rate limits of reading: bytes and requests per second, of the daemon and of each topic.

Rules: `wait` reserves a turn at once, so requests go in the order of their calls, and a cancelled one delays no other.
The size of an answer is estimated before and settled afterwards: a wrong estimate delays the next requests, but errors
never add up. A second's worth may go at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.clock import Clock
from offloaderd.core.limits import Bounded, TokenBucket
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName

TOPICS_MAX = 10_000
"""Topics with a bucket in memory; one that is idle for longer than its burst is equal to a new one."""


class Scope:
    """Bytes and requests of the daemon, or of one topic; a rate of 0 is no limit."""

    def __init__(self, name: str, bytes_per_s: float, requests_per_s: float, clock: Clock) -> None:
        self.name = name
        self._bytes = TokenBucket(bytes_per_s, clock)
        self._requests = TokenBucket(requests_per_s, clock)

    def reserve(self, expected_bytes: int) -> float:
        """Reserve one request; returns the seconds to wait for its turn."""
        return max(self._bytes.take(expected_bytes), self._requests.take(1))

    def settle(self, more_bytes: int) -> None:
        """Take the bytes of an answer beyond the expected ones; a negative number gives back."""
        self._bytes.take(more_bytes)

    def give_back(self, expected_bytes: int) -> None:
        """Undo a reservation whose request was never sent."""
        self.settle(-expected_bytes)
        self._requests.take(-1)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request's place in the queues."""

    scopes: Sequence[Scope]
    expected_bytes: int
    clock: Clock
    metrics: Metrics

    async def wait(self) -> None:
        """Return when the request may be sent. Cancelled, it takes nothing."""
        reserved: list[Scope] = []
        try:
            for scope in self.scopes:
                seconds = scope.reserve(self.expected_bytes)
                reserved.append(scope)
                if seconds > 0:
                    self.metrics.source_throttled_seconds.labels(scope=scope.name).inc(seconds)
                    await self.clock.sleep(seconds)
        except BaseException:
            for scope in reserved:
                scope.give_back(self.expected_bytes)
            raise

    def settle(self, actual_bytes: int) -> None:
        """Count the bytes of the answer; 0 when the request failed."""
        for scope in self.scopes:
            scope.settle(actual_bytes - self.expected_bytes)


class Limits:
    """All rate limits of the source."""

    def __init__(self, options: BookkeeperSettings, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._topics: Bounded[TopicName, Scope] = Bounded(TOPICS_MAX)
        self.follow(options)

    def follow(self, options: BookkeeperSettings) -> None:
        """Use these rates from now on; requests that wait keep their turns."""
        self._topic_rates = (options.topic_bytes_per_s, options.topic_requests_per_s)
        daemon = Scope("daemon", options.bytes_per_s, options.requests_per_s, self._clock)
        self._daemon = [daemon] if options.bytes_per_s or options.requests_per_s else []
        self._topics.clear()

    def turn(self, topic: TopicName, expected_bytes: int) -> Turn | None:
        """Return a request's place in the queues, None when nothing is limited."""
        scopes = [*self._of_topic(topic), *self._daemon]
        return Turn(scopes, expected_bytes, self._clock, self._metrics) if scopes else None

    def _of_topic(self, topic: TopicName) -> list[Scope]:
        if not any(self._topic_rates):
            return []
        scope = self._topics[topic] = self._topics.get(topic) or Scope("topic", *self._topic_rates, self._clock)
        return [scope]
