"""List prices of storage services by storage class, as data: for comparisons, not for a bill.

All are US dollars of one region each, first tier, without traffic out of the region, discounts and taxes. Each table
names the page to compare it with, and a date; "not verified" means that nobody has compared it with that page. `scrub`
and readers pay `retrieval_gib` for each GiB that they read. A class with `days_min` charges for so many days at least,
whenever a segment is deleted or rewritten.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from offloaderd.policy.settings import Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPrices:
    """What one storage class of a service costs; data objects are in it, index, manifest and head in the `base`."""

    service: str
    storage_class: str
    prices: Prices
    base: str
    retrieval_gib: float = 0.0
    days_min: int = 0

    @property
    def name(self) -> str:
        """`SERVICE/CLASS`, as commands take it."""
        return f"{self.service}/{self.storage_class}"

    @property
    def kind(self) -> str:
        """The service's `objects.kind`."""
        return "s3" if self.service == "aws" else self.service


@dataclass(frozen=True, slots=True)
class Source:
    """The page with the prices of a service, and of when ours are."""

    region: str
    date: str
    url: str


SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "aws": Source("us-east-1", "about 2025-01, not verified", "https://aws.amazon.com/s3/pricing/"),
        "azure": Source(
            "Microsoft's sample prices, LRS",
            "2025-05",
            "https://learn.microsoft.com/azure/storage/blobs/blob-storage-estimate-costs#sample-prices",
        ),
        "gcs": Source("us-central1", "about 2025-01, not verified", "https://cloud.google.com/storage/pricing"),
    }
)
"""Prices change: look yours up, and write them into the section `prices`."""


def _row(
    service: str, storage_class: str, base: str, *money: float, retrieval: float = 0.0, days: int = 0
) -> ClassPrices:
    """Return a row; `money` is for a thousand PUT, a thousand GET, and a GiB for a month. Deletions are free."""
    put_1000, get_1000, stored = money
    prices = Prices(put_1000=put_1000, get_1000=get_1000, delete_1000=0.0, stored_gib_month=stored)
    return ClassPrices(
        service=service, storage_class=storage_class, prices=prices, base=base, retrieval_gib=retrieval, days_min=days
    )


_ROWS = (
    _row("aws", "STANDARD", "STANDARD", 0.005, 0.0004, 0.023),
    _row("aws", "STANDARD_IA", "STANDARD", 0.01, 0.001, 0.0125, retrieval=0.01, days=30),
    _row("aws", "ONEZONE_IA", "STANDARD", 0.01, 0.001, 0.01, retrieval=0.01, days=30),
    _row("aws", "GLACIER_IR", "STANDARD", 0.02, 0.01, 0.004, retrieval=0.03, days=90),
    _row("azure", "Hot", "Hot", 0.0055, 0.00044, 0.0208),
    _row("azure", "Cool", "Hot", 0.01, 0.001, 0.0115, retrieval=0.01, days=30),
    _row("azure", "Cold", "Hot", 0.018, 0.01, 0.0045, retrieval=0.03, days=90),
    _row("gcs", "STANDARD", "STANDARD", 0.005, 0.0004, 0.02),
    _row("gcs", "NEARLINE", "STANDARD", 0.01, 0.001, 0.01, retrieval=0.01, days=30),
    _row("gcs", "COLDLINE", "STANDARD", 0.02, 0.01, 0.004, retrieval=0.02, days=90),
    _row("gcs", "ARCHIVE", "STANDARD", 0.05, 0.05, 0.0012, retrieval=0.05, days=365),
)
TABLE: Mapping[str, ClassPrices] = MappingProxyType({row.name: row for row in _ROWS})
"""By `SERVICE/CLASS`. INTELLIGENT_TIERING is left out: what it costs depends on who reads what."""
