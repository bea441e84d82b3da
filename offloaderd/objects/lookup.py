"""Asking for an object that may not be there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.core.errors import BucketMissing, NotFound

if TYPE_CHECKING:
    from offloaderd.objects.port import ObjectInfo, ObjectReader


async def head(objects: ObjectReader, key: str) -> ObjectInfo | None:
    """Return what is known of an object, None when it is not there. Raises BucketMissing: that is no missing object."""
    try:
        return await objects.head(key)
    except BucketMissing:
        raise
    except NotFound:
        return None
