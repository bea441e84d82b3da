"""The places that a daemon stores in: a bucket and what every key begins with there; its own, and those of policies."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

IDENTIFYING = ("driver", "bucket", "directory", "prefix")
"""What of a driver's properties says where objects lie; the rest says how to get there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One bucket's prefix. `driver` is what a reader needs to find it, whatever the settings are then.

    A store that has no buckets has one named "".
    """

    driver: Mapping[str, str]

    @property
    def bucket(self) -> str:
        """Its bucket, as committed segments name it."""
        return self.driver.get("bucket", "")

    @property
    def prefix(self) -> str:
        """What every key begins with there."""
        return self.driver.get("prefix", "")

    def __str__(self) -> str:
        """Name it as a person does."""
        return f"bucket {self.bucket!r}, prefix {self.prefix!r}"


class Places:
    """All of them: first the daemon's own, where topics go whose policy names no other."""

    def __init__(self, home: Place, *others: Place) -> None:
        self.home = home
        self._all = (home, *others)

    def __iter__(self) -> Iterator[Place]:
        """Yield each, the daemon's own first."""
        return iter(self._all)

    @property
    def buckets(self) -> frozenset[str]:
        """Names of the buckets."""
        return frozenset(place.bucket for place in self._all)

    def find(self, bucket: str, prefix: str) -> Place | None:
        """Return the place of that name, None if it is not worked with."""
        return next((one for one in self._all if (one.bucket, one.prefix) == (bucket, prefix)), None)

    def of_bucket(self, bucket: str) -> Place | None:
        """Return the first place in a bucket, None if nothing there is worked with."""
        return next((one for one in self._all if one.bucket == bucket), None)

    def obstacle(self, driver: Mapping[str, str]) -> str:
        """Say why objects that were stored with these properties are out of reach; empty: they are not."""
        for place in self._all:
            if all(driver.get(name) == place.driver.get(name) for name in IDENTIFYING):
                return ""
        name = next(one for one in IDENTIFYING if driver.get(one) != self.home.driver.get(one))
        return f"it was begun with {name} {driver.get(name)!r}, this daemon works with {self.home.driver.get(name)!r}"
