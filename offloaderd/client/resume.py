"""When a stream that broke is opened again: who is asked, after which pause, and when to give up.

A daemon that was lost, is going away or ended a long call is no reason to give up before `resume_s` have passed without
progress. What a daemon says of its own troubles (the bucket is away, too many readers) is waited for only when the
stream has worked before: whoever asks for the first time should hear of it. So is a token that ended during a stream,
where it comes from a file.
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
    """The patience of one stream. `resume_s` 0: none; None: no end."""

    def __init__(self, client: Connection, clock: Clock, resume_s: float | None) -> None:
        self._client = client
        self._clock = clock
        self._resume_s = resume_s
        self._address = client.address
        self._begun = False
        self._since_s: float | None = None
        self._pauses = 0

    def worked(self) -> None:
        """Note progress."""
        self._begun, self._since_s, self._pauses = True, None, 0

    def opening(self) -> None:
        """Note whom the stream is opened at."""
        self._address = self._client.address

    async def after(self, error: OffloaderError) -> None:
        """Pause, and move on if the daemon was lost. Raises `error` when it is final, or was met for too long."""
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
        """Whether what a stream met that has worked may be over soon; a token that ended may have been replaced."""
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
