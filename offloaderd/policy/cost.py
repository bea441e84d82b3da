"""What offloading costs in requests, and in what a store charges for them: a model of how segments are written. Pure.

It follows the uploader step by step (`segment/upload.py`, `segment/complete.py`), and tests compare it with the
requests of a real upload. It leaves out rare requests (retries, a new owner that resumes an upload) and those that do
not depend on the size of segments (the listings of garbage collection).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from offloaderd.policy.prices import TABLE, ClassPrices
from offloaderd.policy.settings import Prices

GIB = 1024**3
HOUR_S = 3600.0
MONTH_S = 365.25 * 86_400 / 12

BLOCK_FRAME_BYTES = 128 + 4
"""Header and least padding of a block."""
ENTRY_FRAME_BYTES = 12
SCRUB_REQUEST_BYTES = 4 * 1024 * 1024
METADATA_WRITES = 3
"""Transactions on ZooKeeper for a segment of one part."""
METADATA_WRITES_WITH_UPLOAD = 4
"""Those for a segment of several parts, with one more for each part at most: parts of one topic that come within 0.2 s
share one."""


class Requests(NamedTuple):
    """Requests to the store by price: PUT (and POST, LIST), GET (and HEAD), and deletions."""

    puts: float = 0.0
    gets: float = 0.0
    deletes: float = 0.0

    def times(self, factor: float) -> "Requests":
        """Return a multiple of these."""
        return Requests(self.puts * factor, self.gets * factor, self.deletes * factor)

    def plus(self, other: "Requests") -> "Requests":
        """Return the sum."""
        return Requests(self.puts + other.puts, self.gets + other.gets, self.deletes + other.deletes)

    @property
    def all(self) -> float:
        """Their number."""
        return self.puts + self.gets + self.deletes

    def price(self, prices: Prices) -> float:
        """Return what the store charges for them."""
        charged = self.puts * prices.put_1000 + self.gets * prices.get_1000 + self.deletes * prices.delete_1000
        return charged / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How entries become objects; sizes in bytes, as in the settings of the same names. `kind` is `objects.kind`."""

    segment_bytes_max: int
    segment_age_max_s: float
    block_bytes: int
    part_bytes: int
    kind: str = "s3"
    copies: bool = False
    """Whether the objects are a mirror's: these are uploaded in parts even if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A number of topics, each with `bytes_per_s` of payload in entries of `entry_bytes` (more than 0)."""

    topics: float
    bytes_per_s: float
    entry_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The cost of all loads: requests and writes by the hour, money by the month."""

    topics: float
    gib_per_hour: float
    segments_per_hour: float
    metadata_writes: float
    write: Requests
    scrub: Requests
    requests_month: float
    """Price of the requests of a month."""
    stored_month: float
    """Price of storing for a month what one month writes."""
    stored_gib_month: float
    """What one month writes, in GiB."""
    scrubs_per_hour: float
    """Segments that are read again, of those of one month."""
    scrubbed_gib_month: float
    """What the scrub reads in a month of what one month writes, in GiB."""
    durable_s_max: float
    """Greatest age of an entry when its segment is sealed."""
    copy_reads: Requests
    """Requests to the first place that read each segment once, to copy it."""

    @property
    def requests(self) -> float:
        """All requests of an hour."""
        return self.write.all + self.scrub.all

    @property
    def requests_per_gib(self) -> float:
        """Requests for a GiB of payload; 0 without any."""
        return self.requests / self.gib_per_hour if self.gib_per_hour else 0.0

    @property
    def requests_per_topic_hour(self) -> float:
        """Requests for a topic in an hour; 0 without any."""
        return self.requests / self.topics if self.topics else 0.0

    @property
    def metadata_writes_per_s(self) -> float:
        """Transactions on ZooKeeper a second, at most."""
        return self.metadata_writes / HOUR_S


BESIDE = Requests(puts=3, gets=2)
"""Of those that write a segment: for index, manifest and head, which are not in the class of the data object."""
BESIDE_SCRUB = Requests(gets=2)
"""Of those that read one again."""


def class_costs(takes: Estimate, row: ClassPrices) -> tuple[float, float, float]:
    """Return what a month costs in a storage class: requests, storage, and what the scrub reads.

    Requests for index, manifest and head are at the price of the service's base class; their bytes are left out.
    """
    base = TABLE[f"{row.service}/{row.base}"].prices
    scrubs = takes.scrubs_per_hour
    beside = BESIDE.times(takes.segments_per_hour).plus(BESIDE_SCRUB.times(scrubs))
    of_data = takes.write.plus(takes.scrub).plus(beside.times(-1))
    requests = (of_data.price(row.prices) + beside.price(base)) * MONTH_S / HOUR_S
    stored = takes.stored_gib_month * row.prices.stored_gib_month
    return requests, stored, takes.scrubbed_gib_month * row.retrieval_gib


class CopyCosts(NamedTuple):
    """What the copies in a mirror cost a month: its requests, its storage, what reads there and traffic cost, and
    reading the segments once in their first place."""

    requests: float
    stored: float
    reads: float
    traffic: float
    first_reads: float


def copy_costs(
    there: Estimate, row: ClassPrices, first: Prices, traffic_gib: float, *, retrieval_gib: float = 0.0
) -> CopyCosts:
    """Return what copies cost in a storage class, with `there` for its kind of store, and in the first place.

    A copy takes the requests of a segment: a listing in place of the topic's head, and in Azure a GET more. The
    scrub reads it as well. `traffic_gib` is the price of a GiB that is sent there, or read from there, `retrieval_gib`
    that of a GiB that is read in the first place.
    """
    traffic = (there.stored_gib_month + there.scrubbed_gib_month) * traffic_gib
    first_reads = there.copy_reads.price(first) * MONTH_S / HOUR_S + there.stored_gib_month * retrieval_gib
    return CopyCosts(*class_costs(there, row), traffic, first_reads)


def _shape(payload_bytes: float, entry_bytes: float, cutting: Cutting) -> tuple[int, float]:
    """Return how many blocks a segment of entries of one size has, and the bytes of each."""
    framed = entry_bytes + ENTRY_FRAME_BYTES
    entries = max(1.0, payload_bytes / entry_bytes)
    in_block = max(1, int((cutting.block_bytes - BLOCK_FRAME_BYTES) // framed))
    return ceil(entries / in_block), BLOCK_FRAME_BYTES + min(entries, in_block) * framed


class SegmentRequests(NamedTuple):
    """Requests for one segment in a kind of store: of one part, which is put; of several, and those of each of them."""

    alone: Requests
    segment: Requests
    part: Requests = Requests(puts=1)


SEGMENT_REQUESTS = {
    "s3": SegmentRequests(Requests(puts=4, gets=3, deletes=1), Requests(puts=5, gets=3, deletes=1)),
    # An upload is marked by a blob, which is deleted; the list of blocks is read, and objects are deleted one by one.
    "azure": SegmentRequests(Requests(puts=4, gets=3, deletes=3), Requests(puts=5, gets=8, deletes=4)),
    # An upload and its parts are objects: looked for before each part, listed, composed, deleted. More than 32 parts
    # are composed in steps, which is left out here: a step is for 32 parts.
    # The generation of a topic's head is asked for before it is replaced.
    "gcs": SegmentRequests(
        Requests(puts=4, gets=4, deletes=3),
        Requests(puts=6, gets=4, deletes=4),
        Requests(puts=1, gets=1, deletes=1),
    ),
}
"""By `objects.kind`; any other kind has those of S3, and no price."""


def per_segment(payload_bytes: float, entry_bytes: float, cutting: Cutting) -> Requests:
    """Return the requests that write one segment of entries of one size and verify it, and delete it in the end.

    The upload is created and completed, unless one part is the object; index and manifest are put and read back, the
    topic's head is put; the data object's size is asked for behind its index. A part has whole blocks until it is as
    long as it should be.
    """
    of = SEGMENT_REQUESTS.get(cutting.kind, SEGMENT_REQUESTS["s3"])
    parts = parts_of(payload_bytes, entry_bytes, cutting)
    return of.alone if parts == 1 and not cutting.copies else of.segment.plus(of.part.times(parts))


def parts_of(payload_bytes: float, entry_bytes: float, cutting: Cutting) -> int:
    """Return how many parts a segment of entries of one size has."""
    blocks, block_bytes = _shape(payload_bytes, entry_bytes, cutting)
    return ceil(blocks / ceil(cutting.part_bytes / block_bytes))


def per_scrub(payload_bytes: float, entry_bytes: float, cutting: Cutting) -> Requests:
    """Return the requests that read one segment again: sizes, manifest and index, then whole blocks together."""
    blocks, block_bytes = _shape(payload_bytes, entry_bytes, cutting)
    return Requests(gets=4 + ceil(blocks / max(1, SCRUB_REQUEST_BYTES // block_bytes)))


def per_copy_read(payload_bytes: float, entry_bytes: float, cutting: Cutting) -> Requests:
    """Return the requests to the first place that copy one segment: index, manifest and each part."""
    return Requests(gets=2 + parts_of(payload_bytes, entry_bytes, cutting))


def segment_of(load: Load, cutting: Cutting) -> float:
    """Return the payload bytes of a topic's segment: it ends by size or by age, and has one entry at least."""
    by_age = max(load.entry_bytes, load.bytes_per_s * cutting.segment_age_max_s)
    return min(max(float(cutting.segment_bytes_max), load.entry_bytes), by_age)


def estimate(
    loads: Iterable[Load], cutting: Cutting, prices: Prices, *, scrub_interval_s: float | None = None
) -> Estimate:
    """Return the cost of loads. `scrub_interval_s` None: no scrub.

    The scrub counts for the segments of one month: once after the commit, and at every interval of one more month.
    """
    again = 1 + MONTH_S / scrub_interval_s if scrub_interval_s else 0.0
    topics = segments = bytes_per_s = stored_bytes_per_s = durable_s = metadata_writes = 0.0
    write = scrub = copy_reads = Requests()
    for load in loads:
        topics += load.topics
        if load.bytes_per_s <= 0:
            continue
        size = segment_of(load, cutting)
        count = load.topics * load.bytes_per_s * HOUR_S / size
        segments += count
        parts = parts_of(size, load.entry_bytes, cutting)
        metadata_writes += count * (METADATA_WRITES if parts == 1 else METADATA_WRITES_WITH_UPLOAD + parts)
        bytes_per_s += load.topics * load.bytes_per_s
        stored_bytes_per_s += load.topics * load.bytes_per_s * (1 + ENTRY_FRAME_BYTES / load.entry_bytes)
        write = write.plus(per_segment(size, load.entry_bytes, cutting).times(count))
        scrub = scrub.plus(per_scrub(size, load.entry_bytes, cutting).times(count * again))
        copy_reads = copy_reads.plus(per_copy_read(size, load.entry_bytes, cutting).times(count))
        durable_s = max(durable_s, min(cutting.segment_age_max_s, size / load.bytes_per_s))
    stored_gib = stored_bytes_per_s * MONTH_S / GIB
    return Estimate(
        topics=topics,
        gib_per_hour=bytes_per_s * HOUR_S / GIB,
        segments_per_hour=segments,
        metadata_writes=metadata_writes,
        write=write,
        scrub=scrub,
        requests_month=write.plus(scrub).price(prices) * MONTH_S / HOUR_S,
        stored_month=stored_gib * prices.stored_gib_month,
        stored_gib_month=stored_gib,
        scrubs_per_hour=segments * again,
        scrubbed_gib_month=stored_gib * again,
        durable_s_max=durable_s,
        copy_reads=copy_reads,
    )
