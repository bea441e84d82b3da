"""The stores, opened by the settings for one command or job. Nothing waits here: what is away is an error."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd import wiring
from offloaderd.metadata.zookeeper import ZooKeeperStore
from offloaderd.metrics import Metrics
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.objects.s3 import S3Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.clock import Clock
    from offloaderd.config import Settings
    from offloaderd.objects.port import SegmentStore


@asynccontextmanager
async def open_objects(settings: Settings, clock: Clock) -> AsyncIterator[SegmentStore]:
    """Open the bucket. Raises what its first request raises."""
    options = settings.objects
    store: FilesystemStore | S3Store
    if options.kind == "filesystem":
        store = FilesystemStore(Path(options.directory), clock)
    else:
        store = S3Store(wiring.s3_options(settings), Metrics(), clock)
    async with store:
        yield store


def metadata_store(settings: Settings) -> ZooKeeperStore:
    """Return the metadata store; entering it raises Transient when no server answers."""
    options = settings.metadata
    return ZooKeeperStore(
        options.servers,
        f"{options.root}/{settings.daemon.cluster}",
        session_timeout_s=options.session_timeout_s,
        connect_timeout_s=options.connect_timeout_s,
        security=wiring.zookeeper_security(settings),
    )
