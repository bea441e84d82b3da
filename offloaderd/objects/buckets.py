"""The buckets that a store works with: its own, those of the other places of its service, and those of other services.

`at` finds each by its name, which no two of them share: a committed segment names its bucket alone.
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import ClassVar, Protocol, Self, cast

from offloaderd.core.errors import BucketMissing, InvalidConfig
from offloaderd.objects.failures import in_section
from offloaderd.objects.port import SegmentStore
from offloaderd.objects.settings import ServiceSettings


class BucketStore(SegmentStore, Protocol):
    """An adapter: a SegmentStore over one bucket that knows the stores of others; an async context manager."""

    @property
    def section(self) -> str:
        """The table of the settings that it was opened by."""

    @property
    def has_clock(self) -> bool:
        """Whether the times of objects are of a clock other than this machine's."""

    @property
    def stores(self) -> Mapping[str, "BucketStore"]:
        """The stores of all buckets that `at` knows by name, its own first."""

    def at(self, bucket: str) -> "BucketStore":
        """See ObjectReader."""

    def join(self, service: "BucketStore") -> None:
        """Know the buckets of another service as well; their stores are opened and closed with this one."""

    async def open(self) -> None:
        """Prepare the access to this bucket alone, without a request. Raises InvalidConfig."""

    async def close(self) -> None:
        """Close the connections to this bucket alone; later calls raise Closed."""

    async def __aenter__(self) -> Self:
        """Prepare the access to all buckets, without a request. Raises InvalidConfig."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""

    async def check(self) -> None:
        """Make one small request. Raises BucketMissing, Denied, NoSpace and Transient with a remedy."""

    def __str__(self) -> str:
        """Return where the objects are."""


class Buckets:
    """Base of an adapter, a BucketStore, with what concerns the other buckets."""

    bucket_word: ClassVar[str] = "bucket"
    same_access: ClassVar[str] = "the service and the keys are the same"
    """When a bucket can be one of `objects.places`, for a hint."""

    def __init__(self, bucket: str, section: str) -> None:
        self.bucket = bucket
        self.section = section
        self._others: dict[str, BucketStore] = {}

    def _add_places(self, options: ServiceSettings, make: Callable[[ServiceSettings], BucketStore]) -> None:
        """Make the stores of the service's other buckets, each from settings with that place alone."""
        for place in options.own_places:
            if place.bucket not in self.stores:
                self._others[place.bucket] = make(options.alone(place.bucket, place.prefix))

    @property
    def stores(self) -> Mapping[str, BucketStore]:
        """See BucketStore."""
        return {self.bucket: cast("BucketStore", self), **self._others}

    def at(self, bucket: str) -> BucketStore:
        """See SegmentStore."""
        if bucket == self.bucket:
            return cast("BucketStore", self)
        try:
            return self._others[bucket]
        except KeyError:
            raise BucketMissing(
                f"the settings do not name {self.bucket_word} {bucket!r}, only {', '.join(map(repr, self.stores))}",
                hint=f"name it in objects.places, if {self.same_access}, else in a table of objects.services, and "
                "restart; `offloadctl doctor` says how much lies there",
            ) from None

    def join(self, service: BucketStore) -> None:
        """See BucketStore."""
        self._others |= service.stores

    async def __aenter__(self) -> Self:
        """See BucketStore."""
        for store in self.stores.values():
            try:
                await store.open()
            except InvalidConfig as error:
                await self.__aexit__(None, None, None)
                message, hint = (in_section(text, store.section) for text in (error.message, error.hint))
                raise InvalidConfig(message, hint=hint) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See BucketStore."""
        for store in self.stores.values():
            await store.close()
