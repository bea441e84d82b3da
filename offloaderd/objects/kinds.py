"""The kinds of object stores, as far as settings and records depend on them; `opening.py` opens them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from offloaderd.objects.port import ANY_PARTS, S3_PARTS, PartRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of store.

    `driver` is its name in committed segments; `located` names the further settings of `objects` that records keep.
    `extra` is what pip has to install for it. A directory has no buckets.
    """

    driver: str
    located: tuple[str, ...]
    parts: PartRules
    has_buckets: bool = True
    extra: str = ""


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "s3": Kind(driver="s3", located=("region", "endpoint"), parts=S3_PARTS),
        "gcs": Kind(driver="google-cloud-storage", located=("endpoint",), parts=ANY_PARTS, extra="gcs"),
        "azure": Kind(
            driver="azureblob",
            located=("azure_account", "endpoint"),
            parts=PartRules(bytes_min=1, number_max=50_000),  # blocks of a blob, each of any size up to 4,000 MiB
            extra="azure",
        ),
        "filesystem": Kind(driver="filesystem", located=("directory",), parts=ANY_PARTS, has_buckets=False),
    }
)
"""By `objects.kind`."""

_BROKER_DRIVERS = {name: (name,) for name in ("google-cloud-storage", "azureblob")}


def broker_drivers(driver: str) -> tuple[str, ...]:
    """Return the names of Pulsar's own drivers for stores with this `driver`, in lower case; the usual one first."""
    return _BROKER_DRIVERS.get(driver, ("aws-s3", "s3"))
