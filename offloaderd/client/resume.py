"""Rules for reopening a broken stream: at which daemon, after which pause, and when to give up.

After a daemon was lost, stops or ended a long call, the stream is reopened until `resume_s` have passed without
progress. Failures that a daemon reports (the bucket is unreachable, too many readers) are retried only if the stream
has worked before: at the first request the caller gets the error. The same holds for a token from a file that expired
during a stream.
"""

from offloaderd.client.channel import Connection
from offloaderd.client.errors import TimedOut, Unreachable
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, OffloaderError, Transient, Unauthenticated
from offloaderd.core.retry import doubled
from offloaderd.protocol.errors import CallTooLong

RESUME_S = 60.0
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0
LOST = (Unreachable, Closed, CallTooLong)


class Resume:
    """The retries of one stream. `resume_s` 0: none; None: without end."""

    def __init__(self, client: Connection, clock: Clock, resume_s: float | None) -> None:
        self._client = client
        self._clock = clock
        self._resume_s = resume_s
        self._address = client.address
        self._begun = False
        self._since_s: float | None = None
        self._pauses = 0

    def worked(self) -> None:
        """Record progress."""
        self._begun, self._since_s, self._pauses = True, None, 0

    def opening(self) -> None:
        """Record the daemon at which the stream is opened."""
        self._address = self._client.address

    async def after(self, error: OffloaderError) -> None:
        """Pause, and move to another daemon if it was lost. Raises `error` if it is final or lasts too long."""
        lost = isinstance(error, LOST)
        if isinstance(error, TimedOut) or not (lost or (self._begun and self._passes(error))):
            raise error
        await self.pause(error)
        if lost:
            try:
                await self._client.move(self._address)
            except Unreachable:
                return  # the next try says so, and is counted

    def _passes(self, error: OffloaderError) -> bool:
        """Whether an error of a stream that has worked may end soon; an expired token may have been replaced."""
        return isinstance(error, Transient) or (self._client.renewed and type(error) is Unauthenticated)

    async def pause(self, error: OffloaderError) -> None:
        """Pause. Raises `error` when no progress was made for too long."""
        now_s = self._clock.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        if self._resume_s is not None and now_s - self._since_s >= self._resume_s:
            raise error
        self._pauses += 1
        await self._clock.sleep(self._clock.jitter(doubled(PAUSE_FIRST_S, PAUSE_MAX_S, self._pauses)))
