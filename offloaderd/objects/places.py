"""The places that a daemon stores in, each a bucket and a key prefix: its own, and those of policies."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from offloaderd.objects.stored_as import PLAIN, StoredAs

IDENTIFYING = ("driver", "bucket", "directory", "prefix")
"""The properties of a driver that locate objects; the others describe the access."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One bucket's prefix; the bucket of a directory may be named "". `driver` locates it without the settings.

    `stored_as` is how a topic's new segments are stored there; `storage_class` and `tags` say so for topics whose
    policy does not.
    """

    driver: Mapping[str, str]
    stored_as: StoredAs = PLAIN
    storage_class: str = ""
    tags: str = ""

    @property
    def bucket(self) -> str:
        """The bucket's name in committed segments."""
        return self.driver.get("bucket", "")

    @property
    def service(self) -> Mapping[str, str]:
        """What places of one service have in common."""
        return {name: value for name, value in self.driver.items() if name not in {"bucket", "prefix"}}

    @property
    def prefix(self) -> str:
        """The begin of every key."""
        return self.driver.get("prefix", "")

    def __str__(self) -> str:
        return f"bucket {self.bucket!r}, prefix {self.prefix!r}"


class Places:
    """All places: first the daemon's own, for topics whose policy names no other."""

    def __init__(self, home: Place, *others: Place) -> None:
        self.home = home
        self._all = (home, *others)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._all)

    @property
    def buckets(self) -> frozenset[str]:
        """Names of the buckets."""
        return frozenset(place.bucket for place in self._all)

    def find(self, bucket: str, prefix: str) -> Place | None:
        """Return the place with this bucket and prefix, None if the daemon does not use it."""
        return next((one for one in self._all if (one.bucket, one.prefix) == (bucket, prefix)), None)

    def of_bucket(self, bucket: str) -> Place | None:
        """Return the first place in a bucket, None if the daemon does not use the bucket."""
        return next((one for one in self._all if one.bucket == bucket), None)

    def obstacle(self, driver: Mapping[str, str]) -> str:
        """Return why objects stored with these properties are not accessible; empty if they are."""
        for place in self._all:
            if all(driver.get(name) == place.driver.get(name) for name in IDENTIFYING):
                return ""
        near = self.of_bucket(driver.get("bucket", "")) or self.home
        name = next(one for one in IDENTIFYING if driver.get(one) != near.driver.get(one))
        return f"it was begun with {name} {driver.get(name)!r}, this daemon works with {near.driver.get(name)!r}"
