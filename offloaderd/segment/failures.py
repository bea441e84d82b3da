"""The failing requests of a topic: why and since when it stalls, and whether the store answers at all.

A request that is retried is one failure for as long as it fails, whatever else succeeds meanwhile: a part that cannot
be stored delays its segment, even if the parts beside it are stored.
"""

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import (
    BucketMissing,
    Denied,
    Expired,
    IdentityRefused,
    NoSpace,
    NotFound,
    OffloaderError,
    Throttled,
    Transient,
)
from offloaderd.core.model import TopicName
from offloaderd.core.retry import until_answered

T = TypeVar("T")

log = structlog.get_logger(__name__)

METADATA = "metadata"
ELSEWHERE = frozenset({"", "source", "adoption", METADATA})
"""Names of failures that are no requests to the store."""

STALLED_TRIES = 5
"""Failures in a row of a transient kind after which a topic counts as stalled."""


_CLASSES: tuple[tuple[type[OffloaderError], str], ...] = (
    (Throttled, "throttled"),
    (Transient, "transient"),
    (Expired, "expired"),
    (Denied, "denied"),
    (NoSpace, "no_space"),
    (BucketMissing, "bucket_missing"),
    (NotFound, "not_found"),
    (IdentityRefused, "identity"),
)
"""The first match counts, so narrow classes come first."""


def error_class(error: OffloaderError) -> str:
    """Return the class of an error for metric labels, of a bounded number."""
    return next((name for kind, name in _CLASSES if isinstance(error, kind)), "other")


@dataclass(slots=True)
class Failure:
    """One request that fails and is retried; `since_ms` is wall time."""

    error: OffloaderError
    since_ms: int
    since_s: float
    tries: int = 1

    @property
    def stalls(self) -> bool:
        """Whether it stalls the topic: at once, unless it may pass by itself."""
        return self.tries >= STALLED_TRIES or not isinstance(self.error, Transient)


class FailureTracker:
    """The failing requests of a topic; `changed` is called after each change."""

    def __init__(self, topic: TopicName, clock: Clock, changed: Callable[[], None]) -> None:
        self._topic = topic
        self._clock = clock
        self._changed = changed
        self._failing: dict[Hashable, Failure] = {}
        self._logged = False

    @property
    def worst(self) -> Failure | None:
        """The oldest failure, of those that stall the topic if any does."""
        return min(self._failing.values(), key=lambda one: (not one.stalls, one.since_s), default=None)

    @property
    def stalled(self) -> Failure | None:
        """The failure that stalls the topic, None while it runs."""
        worst = self.worst
        return worst if worst is not None and worst.stalls else None

    @property
    def outage(self) -> Failure | None:
        """The oldest failure of a request to the store that stalls the topic."""
        stalling = [one for what, one in self._failing.items() if what not in ELSEWHERE and one.stalls]
        return min(stalling, key=lambda one: one.since_s, default=None)

    @property
    def error(self) -> OffloaderError | None:
        """The present error, whether or not it stalls the topic."""
        return self.worst.error if self.worst is not None else None

    @property
    def count(self) -> int:
        """Its failures in a row."""
        return self.worst.tries if self.worst is not None else 0

    def record(self, error: OffloaderError, what: Hashable = "") -> None:
        """Note that `what` failed and is tried again; without `what` it ends with the next success of any request.

        The ledger source is "source"; every other name is a request to the store.
        """
        known = self._failing.get(what)
        if known is None:
            self._failing[what] = Failure(error, self._clock.wall_ms(), self._clock.monotonic())
        else:
            known.error = error
            known.tries += 1
        self._log()
        self._changed()

    def clear(self, what: Hashable = "") -> None:
        """Note that `what` worked, or is not needed any more."""
        ended = [self._failing.pop(one, None) for one in (what, "")]
        if any(ended):
            self._log(ended=next(filter(None, ended)))
            self._changed()

    async def until_answered(self, ask: Callable[[], Awaitable[T]], what: Hashable, *passes: type[OffloaderError]) -> T:
        """Repeat a request until it is answered, or raises an error that is not Transient or is one of `passes`."""
        try:
            return await until_answered(
                self._clock, ask, passes=(Transient, *passes), on_error=lambda error: self.record(error, what)
            )
        finally:
            self.clear(what)

    def _log(self, *, ended: Failure | None = None) -> None:
        """Log when a stall begins and when it ends."""
        stalled = self.stalled
        if stalled is not None and not self._logged:
            self._logged = True
            log.error(
                "topic.stalled",
                topic=str(self._topic),
                error_class=error_class(stalled.error),
                error=str(stalled.error),
                since_ms=stalled.since_ms,
            )
        elif stalled is None and self._logged and ended is not None:
            self._logged = False
            lasted_s = round(self._clock.monotonic() - ended.since_s, 3)
            log.info("topic.recovered", topic=str(self._topic), stalled_s=lasted_s)


LATELY_S = 5.0
"""Time after an answered upload in which a failed probe does not count."""


class StoreReach:
    """The result of the last probe; `failure` is None while the store answers, or before the first probe."""

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self._worked_s: float | None = None

    def probed(self, error: OffloaderError | None, clock: Clock) -> None:
        """Note a probe; `error` None: it was answered. A refusal proves nothing about other buckets of the store.

        A store that throttles has answered; an upload that it never accepts is a failure of its own.
        """
        now_s, known = clock.monotonic(), self.failure
        lately = self._worked_s is not None and now_s - self._worked_s < LATELY_S
        if lately or not isinstance(error, Transient) or isinstance(error, Throttled):
            self.failure = None
        elif known is None:
            self.failure = Failure(error, clock.wall_ms(), now_s)
        else:
            known.error = error

    def worked(self, clock: Clock) -> None:
        """Note that a request of an upload was answered."""
        self.failure, self._worked_s = None, clock.monotonic()
