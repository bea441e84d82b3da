"""Settings of segments and of their objects."""

from typing import Literal

from pydantic import Field

from offloaderd.core.section import Bytes, Seconds, Section

KiB, MiB, GiB = 1024, 1024**2, 1024**3


class OffloadSettings(Section):
    """How entries become segments. A topic's policy may set other limits."""

    segment_bytes_max: Bytes = Field(default=1 * GiB, ge=1)
    """Seal a segment at this size (PIP-76 maxSizePerOffloadSegmentMbytes). Large enough that a topic's metadata stays
    small, small enough to be read again after a crash in seconds."""

    segment_age_max_s: Seconds = Field(default=600.0, gt=0)
    """Seal a segment this long after its first entry (PIP-76 maxOffloadSegmentRolloverTimeMinutes): for about that
    time new entries are in the source alone. A shorter time means more and smaller objects."""

    segment_age_min_s: Seconds = Field(default=0.0, ge=0)
    """Do not seal a segment by size before this age (PIP-76 minOffloadSegmentRolloverTimeMinutes). 0: seal it as soon
    as the size is reached."""

    suspend_after_s: Seconds = Field(default=60.0, ge=0, le=86_400)
    """Suspend a topic after this time without any activity: it then takes less than half of the memory, and wakes at
    the next activity. 0: never."""

    block_bytes: Bytes = Field(default=1 * MiB, ge=4 * KiB, le=1 * GiB)
    """Approximate size of a block, the unit that is recorded, and that sequential reads fetch, check and cache. A cold
    read of one entry fetches 64 or 128 KiB of a block. It fetches the whole block if an older version stored it, or if
    a crash came between storing it and sealing its segment."""

    part_bytes: Bytes = Field(default=8 * MiB, ge=64 * KiB, le=5 * GiB)
    """Size of a multipart part. S3 demands 5 MiB or more and at most 10,000 parts. 8 MiB keeps a connection busy and is
    cheap to send again."""

    parts_in_flight_max: int = Field(default=4, ge=1, le=1000)
    """Parts of one segment that are uploaded at the same time. More parts help only with a distant store."""

    preamble: bool = False
    """Begin data objects with four pad bytes, so that Pulsar's own reader can read segments that start inside a ledger.
    Off: objects are exactly as in PIP-76."""

    verify: Literal["head", "readback"] = "head"
    """How a segment is verified before its commit. head: size and checksum as the store reports them. readback: every
    byte is read again and checked, which doubles the traffic."""


class LedgerBasedSettings(Section):
    """Whole ledgers in objects as Pulsar writes them (PIP-17), for topics whose policy has the method ledger-based."""

    block_bytes: Bytes = Field(default=64 * MiB, ge=5 * MiB, le=1024 * MiB)
    """Size of a block (Pulsar's s3ManagedLedgerOffloadMaxBlockSizeInBytes). A block is written and read in pieces of
    offload.block_bytes, so a larger one takes no more memory. With the same size as in Pulsar objects are equal to
    Pulsar's."""

    dense_index: bool = False
    """Whether the index lists every piece of a block instead of the block alone. Pulsar's own reader then finds an
    entry with one request, where it otherwise reads from the begin of the block; but the index is no longer equal to
    Pulsar's."""


class UploadSettings(Section):
    """Parallel uploads of all topics together."""

    concurrency_max: int = Field(default=16, ge=1, le=1000)
    """Parts of all topics that are uploaded to a service at the same time. The number is lowered when the store answers
    503 SlowDown, and raised again step by step. 16 parts of 8 MiB fill memory.upload_bytes; parts beyond
    objects.connections_max wait for a connection."""
