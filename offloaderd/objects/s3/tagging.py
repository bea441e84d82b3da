"""Storage class and tags of new objects in one bucket, as parameters of S3's requests.

Tags are for the bill, and no bytes wait for them: where the right to set them is missing (s3:PutObjectTagging), or the
service refuses them, the object is stored without. Tags are tried again after `TRY_AGAIN_S`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Denied, Expired, InvalidInput, OffloaderError, Transient
from offloaderd.objects.s3.errors import is_not_implemented
from offloaderd.objects.stored_as import TAGS_HINT, StoredAs

T = TypeVar("T")
log = structlog.get_logger(__name__)

TRY_AGAIN_S = 600.0


class Tagging:
    """Sends classes and tags to one bucket; `refused` has the error of the last tags, empty while they are taken."""

    def __init__(self, bucket: str, clock: Clock) -> None:
        self.refused = ""
        self._bucket = bucket
        self._clock = clock
        self._refused_s = 0.0

    async def send(self, stored_as: StoredAs, send: Callable[[dict[str, Any]], Awaitable[T]]) -> T:
        """Return the answer of `send`, which takes the library's parameters. Raises its errors."""
        plain = {"StorageClass": stored_as.storage_class} if stored_as.storage_class else {}
        if not stored_as.tags or self._waits():
            return await send(plain)
        try:
            answer = await send({**plain, "Tagging": urlencode(stored_as.tags, quote_via=quote)})
        except Expired:
            raise
        except (Denied, InvalidInput, Transient) as error:
            if isinstance(error, Transient) and not is_not_implemented(error.__cause__):
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
        log.warning("s3.tags_refused", bucket=self._bucket, error=error.message, hint=TAGS_HINT)
