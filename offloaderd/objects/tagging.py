"""Tags of new objects in one bucket.

Tags are for the bill, and no bytes wait for them: where the right to set them is missing, or the service refuses them,
the object is stored without. Tags are tried again after `TRY_AGAIN_S`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Denied, Expired, InvalidInput, OffloaderError, Transient
from offloaderd.objects.stored_as import TAGS_HINT, StoredAs

T = TypeVar("T")
log = structlog.get_logger(__name__)

TRY_AGAIN_S = 600.0


class Tagging:
    """Sends tags to one bucket; `refused` has the error of the last tags, empty while they are taken.

    `is_unknown` tells an error of a service that does not know tags from one that passes.
    """

    def __init__(self, bucket: str, clock: Clock, is_unknown: Callable[[Transient], bool] = lambda _: False) -> None:
        self.refused = ""
        self._bucket = bucket
        self._clock = clock
        self._is_unknown = is_unknown
        self._refused_s = 0.0

    async def send(self, stored_as: StoredAs, send: Callable[[StoredAs], Awaitable[T]]) -> T:
        """Return the answer of `send`, which is called again without tags if they are refused. Raises its errors."""
        plain = replace(stored_as, tags={})
        if not stored_as.tags or self._waits():
            return await send(plain)
        try:
            answer = await send(stored_as)
        except Expired:
            raise
        except (Denied, InvalidInput, Transient) as error:
            if isinstance(error, Transient) and not self._is_unknown(error):
                raise
            answer = await send(plain)
            self._note(error)
        else:
            self.refused = ""
        return answer

    def _waits(self) -> bool:
        return bool(self.refused) and self._clock.monotonic() - self._refused_s < TRY_AGAIN_S

    def _note(self, error: OffloaderError) -> None:
        """Note that an object was stored without its tags, which were the only reason for its refusal."""
        self.refused, self._refused_s = error.message, self._clock.monotonic()
        log.warning("tags.refused", bucket=self._bucket, error=error.message, hint=TAGS_HINT)
