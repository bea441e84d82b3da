"""The kinds of object stores, as far as settings and records depend on them; `opening.py` opens them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from offloaderd.objects.port import ANY_PARTS, S3_PARTS, PartRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of store.

    `driver` is its name in committed segments; `located` names the further settings of `objects` that records keep.
    `extra` is what pip has to install for it. A directory has no buckets. `no_bucket` is found in names that no bucket
    has, `bucket_rule` says so.
    """

    driver: str
    located: tuple[str, ...]
    parts: PartRules
    has_buckets: bool = True
    extra: str = ""
    no_bucket: str = r"(?!)"
    bucket_rule: str = ""


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "s3": Kind(
            driver="s3",
            located=("region", "endpoint"),
            parts=S3_PARTS,
            no_bucket=r"_|\.\.|\.-|-\.|^xn--|^\d+\.\d+\.\d+\.\d+$",
            bucket_rule="S3 has none with an underscore, a dot beside a dot or dash, or xn-- first; no IP address",
        ),
        "gcs": Kind(
            driver="google-cloud-storage",
            located=("endpoint",),
            parts=ANY_PARTS,
            extra="gcs",
            no_bucket=r"\.\.|\.-|-\.|^goog|google|^\d+\.\d+\.\d+\.\d+$",
            bucket_rule="Google has none with google in it, goog first, or a dot beside a dot or dash; no IP address",
        ),
        "azure": Kind(
            driver="azureblob",
            located=("azure_account", "endpoint"),
            parts=PartRules(bytes_min=1, number_max=50_000),  # blocks of a blob, each of any size up to 4,000 MiB
            extra="azure",
            no_bucket=r"[._]|--",
            bucket_rule="Azure has none with a dot, an underscore or a double dash",
        ),
        "filesystem": Kind(driver="filesystem", located=("directory",), parts=ANY_PARTS, has_buckets=False),
    }
)
"""By `objects.kind`."""

_BROKER_DRIVERS = {name: (name,) for name in ("google-cloud-storage", "azureblob")}


def broker_drivers(driver: str) -> tuple[str, ...]:
    """Return the names of Pulsar's own drivers for stores with this `driver`, in lower case; the usual one first."""
    return _BROKER_DRIVERS.get(driver, ("aws-s3", "s3", "aliyun-oss"))
