"""Whether the store answers at all, for all topics of a daemon: known long before the first upload has given up.

A request for a part has a minute or more to be answered, and five of them are made before a topic counts as stalled by
its own. The small requests of the daemon's probes tell within seconds.
"""

from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError, Throttled, Transient
from offloaderd.segment.failures import Failure

LATELY_S = 5.0
"""A store that answered an upload within this time works, whatever a probe says that took as long to give up."""


class StoreReach:
    """What the last probe found; `failure` is None while the store answers, or nobody has asked."""

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self._worked_s: float | None = None

    def probed(self, error: OffloaderError | None, clock: Clock) -> None:
        """Note a probe, None: it was answered. A refusal tells nothing of other buckets of the same store.

        A store that asks for fewer requests has answered; uploads that it never takes are troubles of their own.
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
