"""Settings of how entries become segments, and segments objects."""

from typing import Literal

from pydantic import Field

from offloaderd.core.section import Bytes, Seconds, Section

KiB, MiB, GiB = 1024, 1024**2, 1024**3


class OffloadSettings(Section):
    """How entries become segments; a topic's policy may say otherwise for its rolling."""

    segment_bytes_max: Bytes = Field(default=1 * GiB, ge=1)
    """Roll at this size (PIP-76 maxSizePerOffloadSegmentMbytes). Large enough that a topic's metadata stays small,
    small enough to be read back after a crash in seconds."""

    segment_age_max_s: Seconds = Field(default=600.0, gt=0)
    """Roll this long after the first entry (PIP-76 maxOffloadSegmentRolloverTimeMinutes): an upper bound on what only
    the source holds. Shorter means more and smaller objects."""

    segment_age_min_s: Seconds = Field(default=0.0, ge=0)
    """Do not roll by size before this age (PIP-76 minOffloadSegmentRolloverTimeMinutes). 0: roll as soon as the size is
    reached."""

    suspend_after_s: Seconds = Field(default=60.0, ge=0, le=86_400)
    """Suspend a topic that has been idle for so long: it takes less than half of the memory then, and wakes with the
    next entry, read or call. 0: never."""

    block_bytes: Bytes = Field(default=1 * MiB, ge=4 * KiB, le=1 * GiB)
    """Soft size of a block, the unit that is recorded, and fetched, checked and cached by whoever reads on. A cold read
    of one entry fetches 64 or 128 KiB of it; all of it where it was stored before a crash by another process than the
    one that sealed its segment, or by an older version."""

    part_bytes: Bytes = Field(default=8 * MiB, ge=64 * KiB, le=5 * GiB)
    """Size of a multipart part; S3 wants 5 MiB or more and takes 10,000. 8 MiB fills a connection and is cheap to send
    again."""

    parts_in_flight_max: int = Field(default=4, ge=1, le=1000)
    """Parts of one segment uploaded at the same time. More helps only over long lines."""

    preamble: bool = False
    """Begin data objects with four pad bytes, so that Pulsar's own reader manages segments that start inside a ledger.
    Off: objects are exactly as PIP-76 says."""

    verify: Literal["head", "readback"] = "head"
    """What is done before a commit. head: size and checksum as the store reports them. readback: every byte is read
    again and checked, which doubles the traffic."""


class LedgerBasedSettings(Section):
    """Whole ledgers in objects as Pulsar writes them (PIP-17), for topics whose policy has the method ledger-based."""

    block_bytes: Bytes = Field(default=64 * MiB, ge=5 * MiB, le=1024 * MiB)
    """Size of a block (Pulsar's s3ManagedLedgerOffloadMaxBlockSizeInBytes). A block is written and read in runs of
    offload.block_bytes, so it takes no memory; equal sizes give objects equal to Pulsar's."""

    dense_index: bool = False
    """Whether the index lists every run of a block and not the block alone. Pulsar's own reader then finds an entry
    with one request where it otherwise reads from the block's begin; the index is no longer equal to one that Pulsar
    writes."""


class UploadSettings(Section):
    """How hard the store is driven by all topics together."""

    concurrency_max: int = Field(default=16, ge=1, le=1000)
    """Parts of all topics on their way at the same time. The store lowers this by answering 503 SlowDown, and it is
    raised again step by step. 16 parts of 8 MiB are memory.upload_bytes; more than objects.connections_max only wait
    for connections."""
