"""Settings of retention, grants, garbage collection, the scrub and the mirror."""

from typing import Annotated, Literal

from pydantic import Field

from offloaderd.core.model import TierRetention
from offloaderd.core.section import Bytes, Seconds, Section, Shape
from offloaderd.policy.policies import FIELDS

DAY_S = 86_400
MirrorPlace = Annotated[str, Field(pattern=rf"^{FIELDS['mirror'].shape}$"), Shape(FIELDS["mirror"].form)]


class RetentionSettings(Section):
    """How long the tier keeps segments of topics whose policy does not set it."""

    kind: TierRetention = TierRetention.KEEP
    """keep: for ever; ledgers that brokers delete by their retention stay readable here. follow: as long as Pulsar's
    list of the topic's ledgers has the ledger. limited: up to age_s or size_bytes. A segment is deleted as a whole,
    oldest first, when all its ledgers may be deleted."""

    age_s: Seconds = Field(default=0.0, ge=0)
    """For kind = limited; 0: no limit. A segment is deleted when it was offloaded longer ago than this, both by this
    machine's clock and by the store's. The newest segment, and what the source still has, are kept."""

    size_bytes: Bytes = Field(default=0, ge=0)
    """For kind = limited; 0: no limit. The oldest segments of a topic are deleted while its data objects together are
    larger than this."""

    follow_lag_s: Seconds = Field(default=3600.0, ge=0, le=30 * DAY_S)
    """With follow: how long a ledger must be missing from Pulsar's list before its copy is deleted. With limited: how
    long limits set by a policy must have stood before segments are deleted by them (limits of this file hold at once).
    In this time an operator can correct a mistake at the source or in a policy. The topic's owner counts both from what
    it has seen itself, so the time begins anew with each claim: deletions may be later, never earlier."""

    reader_grace_s: Seconds = Field(default=3600.0, ge=0, le=30 * DAY_S)
    """How long the objects of a segment stay after the segment left its topic because it was merged, converted, rolled
    back or deleted. Readers that began before, such as tasks of Spark, still find them. The storage is paid for as
    long; a rewritten segment is stored twice meanwhile. A suspended topic deletes them when it is resumed, an hour
    later at most. For a topic without an owner the collection of garbage deletes them, once they are older than
    gc.grace_s as well."""

    interval_s: Seconds = Field(default=600.0, gt=0, le=DAY_S)
    """How often each topic is checked. What an operator marks deleted leaves the topic at once."""


class GrantSettings(Section):
    """Permission for the source to delete ledgers whose copy was verified."""

    enabled: bool = True
    """Verify the copy of every ledger that is closed and offloaded, and publish the result as a grant in the metadata
    store. Without grants the embedded store keeps all ledgers."""

    delete_source: bool = True
    """Let the embedded store delete ledgers by grant. BookKeeper's ledgers are deleted by its brokers alone, whatever
    is set here."""

    deletion_lag_s: Seconds = Field(default=14_400.0, ge=0, le=365 * DAY_S)
    """How long a ledger stays at the source after it was offloaded, as Pulsar's managedLedgerOffloadDeletionLagMs:
    readers near the end of the topic read faster from there."""

    readback: bool = False
    """Read all data of a ledger from the bucket and compare every block's checksum before granting. Off: the store is
    asked for size and existence of the data, and index and manifest are read. On costs one GET of every byte."""

    interval_s: Seconds = Field(default=300.0, gt=0, le=DAY_S)
    """How often each topic is checked for ledgers to verify or delete."""


class GcSettings(Section):
    """Deletion of objects and open uploads to which no record of any topic refers."""

    mode: Literal["delete", "report", "off"] = "delete"
    """What the daemon does by itself. delete: collect. report: show in log and metrics what would be deleted. off:
    nothing; offloadctl gc works in any mode. Garbage comes only from failures in the middle of an upload or a delete,
    so there is little of it, but it is paid for until it is deleted."""

    interval_s: Seconds = Field(default=21_600.0, ge=60, le=30 * 86_400)
    """How often garbage is collected. Each time lists the whole prefix and reads the metadata of all topics three times
    or more; one daemon does it for the cluster."""

    grace_s: Seconds = Field(default=86_400.0, ge=0, le=365 * 86_400)
    """Objects that are younger, by the store's own clock, are kept. Safety does not depend on it: in this time an
    operator who sees a mistake can set gc.mode to off."""


class ScrubSettings(Section):
    """Regular reads of everything that is stored, to find damage before a reader does."""

    enabled: bool = True
    """Whether each owner reads its topics' segments whole at an interval. Data decays in any store. Damage that is
    found only when an entry is needed is found too late: by then the source has deleted the entry."""

    interval_s: Seconds = Field(default=7 * 86_400.0, ge=60, le=5 * 365 * 86_400)
    """How long after its last verification a segment is read again. Damaged segments are checked every hour."""

    first_after_s: Seconds = Field(default=3600.0, ge=0, le=365 * 86_400)
    """How long after its commit a segment is read whole for the first time: before the source may delete it
    (grants.deletion_lag_s), if scrub.bytes_per_s allows."""

    bytes_per_s: Bytes = Field(default=8 * 1024 * 1024, ge=1024)
    """The most that a daemon reads for the scrub. 8 MiB/s are 4.6 TiB in a week; a request is up to 4 MiB, so there are
    two or three a second."""


class MirrorSettings(Section):
    """The second copy of each segment, in another place."""

    place: MirrorPlace = Field(default="", examples=["pulsar-offload-eu/topics/"])
    """Mirror of topics whose policy names none: one of objects.places, or of another service, as BUCKET/PREFIX. Empty:
    no second copy."""

    required: bool = False
    """Let the source delete a ledger only once every segment of it has its copy in the mirror, for topics whose policy
    does not say. While the mirror is away, ledgers stay at the source. Needs mirror.place."""

    bytes_per_s: Bytes = Field(default=0, ge=0)
    """The most that a daemon copies; 0: as much as the mirror takes. Copies use half of the memory for uploads at most,
    and only what live segments leave of it."""
