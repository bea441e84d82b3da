"""Where a query asks what is committed, in a form that costs its tasks nothing until they ask as well."""

from __future__ import annotations

import pickle
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offloaderd.daemon.settings import Settings


class Metadata(StrEnum):
    """Where it is asked what is committed."""

    ZOOKEEPER = "zookeeper"
    BUCKET = "bucket"
    """Every manifest in the bucket is read, and no ZooKeeper."""


def packed(settings: Settings, metadata: Metadata) -> bytes:
    """Return what a task needs of the settings."""
    needed = type(settings)(daemon=settings.daemon, metadata=settings.metadata, objects=settings.objects)
    return pickle.dumps((needed, metadata))


def unpacked(origin: bytes) -> tuple[Settings, Metadata]:
    """Return what `packed` has packed."""
    found: tuple[Settings, Metadata] = pickle.loads(origin)  # noqa: S301 - made by the driver of this query
    return found
