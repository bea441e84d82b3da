"""Construction of the object store from the settings, for the daemon, commands and jobs."""

from pathlib import Path
from typing import TypeAlias

from offloaderd.core.clock import Clock
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.objects.request import RequestMetrics
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings

BucketStore: TypeAlias = FilesystemStore | S3Store


def bucket_store(objects: ObjectsSettings, clock: Clock, metrics: RequestMetrics | None = None) -> BucketStore:
    """Return the store of the daemon's own bucket, with access to the other buckets. No request is sent yet."""
    if objects.kind == "filesystem":
        return FilesystemStore(Path(objects.directory), clock)
    return S3Store(objects, metrics, clock)


async def check_places(objects: ObjectsSettings, store: BucketStore) -> None:
    """Check that every place exists and is accessible. Raises BucketMissing, Denied, NoSpace, Transient."""
    for place in objects.all_places:
        await store.at(place.bucket).check()
