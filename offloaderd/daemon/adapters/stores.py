"""The stores that the settings name: made here for the daemon, for commands and for jobs. Nothing waits here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from offloaderd.daemon.adapters import options as wiring
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects.filesystem.store import FilesystemStore
from offloaderd.objects.s3.store import S3Store

if TYPE_CHECKING:
    from offloaderd.core.clock import Clock
    from offloaderd.daemon.settings import Settings
    from offloaderd.metadata.port import SessionObserver
    from offloaderd.objects.s3.request import RequestMetrics

BucketStore: TypeAlias = FilesystemStore | S3Store


def bucket_store(settings: Settings, clock: Clock, metrics: RequestMetrics | None = None) -> BucketStore:
    """Return the store of the daemon's own bucket, which has the others; entering it sends nothing yet."""
    objects = settings.objects
    if objects.kind == "filesystem":
        return FilesystemStore(Path(objects.directory), clock)
    return S3Store(wiring.s3_options(settings), metrics, clock)


async def check_places(settings: Settings, store: BucketStore) -> None:
    """See whether every place is there and ours to use. Raises BucketMissing, Denied, NoSpace, Transient."""
    for place in wiring.places(settings):
        await store.at(place.bucket).check()


def metadata_store(settings: Settings, observer: SessionObserver = lambda _: None) -> ZooKeeperStore:
    """Return the metadata store; entering it raises Transient when no server answers.

    `observer` hears of every change of the session's state.
    """
    options = settings.metadata
    return ZooKeeperStore(
        options.servers,
        f"{options.root}/{settings.daemon.cluster}",
        session_timeout_s=options.session_timeout_s,
        connect_timeout_s=options.connect_timeout_s,
        observer=observer,
        security=wiring.zookeeper_security(settings),
    )
