"""Construction of the object store from the settings, for the daemon, commands and jobs.

The library of a kind is imported when a store of that kind is opened: some are extras.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol, Self, TypeAlias

from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidConfig
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.objects.kinds import KINDS
from offloaderd.objects.port import SegmentStore
from offloaderd.objects.request import RequestMetrics
from offloaderd.objects.settings import ObjectsSettings


class BucketStore(SegmentStore, Protocol):
    """An adapter: a SegmentStore over one bucket, and the others at the same service; an async context manager."""

    @property
    def has_clock(self) -> bool:
        """Whether the times of objects are of a clock other than this machine's."""

    def at(self, bucket: str) -> "BucketStore":
        """See ObjectReader."""

    async def __aenter__(self) -> Self:
        """Prepare the access, without a request. Raises InvalidConfig."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""

    async def check(self) -> None:
        """Make one small request. Raises BucketMissing, Denied, NoSpace and Transient with a remedy."""

    def __str__(self) -> str:
        """Return where the objects are."""


Open: TypeAlias = Callable[[ObjectsSettings, Clock, RequestMetrics | None], BucketStore]


def bucket_store(objects: ObjectsSettings, clock: Clock, metrics: RequestMetrics | None = None) -> BucketStore:
    """Return the store of the daemon's own bucket, with access to the other buckets. No request is sent yet.

    Raises InvalidConfig for a kind whose library is not installed.
    """
    try:
        return _OPEN[objects.kind](objects, clock, metrics)
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f'objects.kind = "{objects.kind}" needs the library {error.name}, which is not installed',
            hint=f"pip install 'offloaderd[{KINDS[objects.kind].extra}]'",
        ) from error


async def check_places(objects: ObjectsSettings, store: BucketStore) -> None:
    """Check that every place exists and is accessible. Raises BucketMissing, Denied, NoSpace, Transient."""
    for place in objects.all_places:
        await store.at(place.bucket).check()


def _s3(objects: ObjectsSettings, clock: Clock, metrics: RequestMetrics | None) -> BucketStore:
    from offloaderd.objects.s3.store import S3Store  # noqa: PLC0415 - who stores elsewhere need not load it

    return S3Store(objects, metrics, clock)


def _azure(objects: ObjectsSettings, clock: Clock, metrics: RequestMetrics | None) -> BucketStore:
    from offloaderd.objects.azure.store import AzureStore  # noqa: PLC0415 - its library is an extra

    return AzureStore(objects, metrics, clock)


def _gcs(objects: ObjectsSettings, clock: Clock, metrics: RequestMetrics | None) -> BucketStore:
    from offloaderd.objects.gcs.store import GcsStore  # noqa: PLC0415 - its library is an extra

    return GcsStore(objects, metrics, clock)


def _filesystem(objects: ObjectsSettings, clock: Clock, _: RequestMetrics | None) -> BucketStore:
    return FilesystemStore(Path(objects.directory), clock)


_OPEN: Mapping[str, Open] = MappingProxyType({"s3": _s3, "azure": _azure, "gcs": _gcs, "filesystem": _filesystem})
"""By `objects.kind`, as KINDS."""
