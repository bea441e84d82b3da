"""Construction of the object store from the settings, for the daemon, commands and jobs.

The library of a kind is imported when a store of that kind is opened: some are extras.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidConfig
from offloaderd.objects.buckets import BucketStore
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.objects.kinds import KINDS
from offloaderd.objects.request import RequestMetrics
from offloaderd.objects.settings import ServiceSettings

Open: TypeAlias = Callable[[ServiceSettings, Clock, RequestMetrics | None], BucketStore]


def bucket_store(objects: ServiceSettings, clock: Clock, metrics: RequestMetrics | None = None) -> BucketStore:
    """Return the store of the daemon's own bucket, which knows those of all other places. No request is sent yet.

    Raises InvalidConfig for a kind whose library is not installed.
    """
    first, *others = (_service_store(service, clock, metrics) for service in objects.every_service)
    for other in others:
        first.join(other)
    return first


def _service_store(service: ServiceSettings, clock: Clock, metrics: RequestMetrics | None) -> BucketStore:
    try:
        return _OPEN[service.kind](service, clock, metrics)
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f'{service.section}.kind = "{service.kind}" needs the library {error.name}, which is not installed',
            hint=f"pip install 'offloaderd[{KINDS[service.kind].extra}]'",
        ) from error


async def check_places(service: ServiceSettings, store: BucketStore) -> None:
    """Check that every place of one service exists and is accessible.

    Raises BucketMissing, Denied, NoSpace, Transient.
    """
    for place in service.own_places:
        await store.at(place.bucket).check()


def _s3(objects: ServiceSettings, clock: Clock, metrics: RequestMetrics | None) -> BucketStore:
    from offloaderd.objects.s3.store import S3Store  # noqa: PLC0415 - who stores elsewhere need not load it

    return S3Store(objects, metrics, clock)


def _azure(objects: ServiceSettings, clock: Clock, metrics: RequestMetrics | None) -> BucketStore:
    from offloaderd.objects.azure.store import AzureStore  # noqa: PLC0415 - its library is an extra

    return AzureStore(objects, metrics, clock)


def _gcs(objects: ServiceSettings, clock: Clock, metrics: RequestMetrics | None) -> BucketStore:
    from offloaderd.objects.gcs.store import GcsStore  # noqa: PLC0415 - its library is an extra

    return GcsStore(objects, metrics, clock)


def _filesystem(objects: ServiceSettings, clock: Clock, _: RequestMetrics | None) -> BucketStore:
    name = objects.own_places[0].bucket
    return FilesystemStore(Path(objects.directory), clock, bucket=name, section=objects.section)


_OPEN: Mapping[str, Open] = MappingProxyType({"s3": _s3, "azure": _azure, "gcs": _gcs, "filesystem": _filesystem})
"""By `objects.kind`, as KINDS."""
