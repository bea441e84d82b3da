"""The buckets of one service that a store works with: its own, and those of the other places."""

from collections.abc import Callable
from typing import ClassVar, Self

from offloaderd.core.errors import BucketMissing
from offloaderd.objects.settings import ObjectsSettings


class Buckets:
    """Base of a store over one bucket that knows the stores of the others. Call `_open_others` in the constructor."""

    bucket_word: ClassVar[str] = "bucket"
    same_access: ClassVar[str] = "the service and the keys are the same"
    """When a bucket can be one of `objects.places`, for a hint."""

    _options: ObjectsSettings
    _others: dict[str, Self]

    def _open_others(self, make: Callable[[ObjectsSettings], Self]) -> None:
        """Make the stores of the other buckets, each from settings that name that bucket and no places."""
        names = sorted(self._options.all_places.buckets - {self._options.bucket})
        self._others = {name: make(self._options.model_copy(update={"bucket": name, "places": ""})) for name in names}

    def at(self, bucket: str) -> Self:
        """See SegmentStore."""
        if bucket == self._options.bucket:
            return self
        try:
            return self._others[bucket]
        except KeyError:
            raise BucketMissing(
                f"{self.bucket_word} {bucket!r} is none of those that are worked with: {', '.join(self.buckets)}",
                hint=f"name it in objects.places, if {self.same_access}",
            ) from None

    @property
    def buckets(self) -> tuple[str, ...]:
        """Names of all buckets that `at` knows, its own first."""
        return (self._options.bucket, *self._others)
