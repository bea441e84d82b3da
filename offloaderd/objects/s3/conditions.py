"""Conditional writes: an object is replaced only if it is the one that is meant (If-Match), or put only where none is.

Services that speak S3 check this in the moment in which they carry the request out, however late that is. One that
does not know it either stores the object all the same, or says so (501); then it is not asked for it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from offloaderd.core.errors import BucketMissing, Conflict, NotFound, Transient
from offloaderd.objects.s3.errors import is_not_implemented

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from offloaderd.objects.port import ObjectInfo

log = structlog.get_logger(__name__)


class Conditions:
    """What one bucket's service is asked to check."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._known = True

    async def put(
        self, key: str, if_etag: str | None, put: Callable[[dict[str, Any]], Awaitable[ObjectInfo]]
    ) -> ObjectInfo:
        """Have an object put under a condition, see ObjectStore; `put` takes parameters of the library."""
        if if_etag is None or not self._known:
            return await put({})
        try:
            return await put({"IfMatch": f'"{if_etag}"'} if if_etag else {"IfNoneMatch": "*"})
        except BucketMissing:
            raise
        except NotFound as error:
            raise Conflict(f"{key} is not there any more: {error}") from error
        except Transient as error:
            if not is_not_implemented(error.__cause__):
                raise
            self._known = False
            log.warning(
                "s3.no_conditions",
                bucket=self._bucket,
                error=str(error),
                hint="docs/how-it-works.md says what is not promised without conditional writes",
            )
            return await put({})
