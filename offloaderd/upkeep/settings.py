"""Settings of what is done for stored segments: retention, grants, collection, scrubbing."""

from typing import Literal

from pydantic import Field

from offloaderd.core.model import TierRetention
from offloaderd.core.section import Bytes, Seconds, Section

DAY_S = 86_400


class RetentionSettings(Section):
    """How long the tier keeps topics whose policy does not say it."""

    kind: TierRetention = TierRetention.KEEP
    """keep: for ever; what brokers trim by their retention stays readable here. follow: as long as the list of the
    topic's ledgers in Pulsar has the ledger. limited: up to age_s or size_bytes. A segment goes as a whole, oldest
    first, when all its ledgers may go."""

    age_s: Seconds = Field(default=0.0, ge=0)
    """Of limited; 0 is no limit. A segment goes when it was offloaded longer ago than this, by this machine's clock and
    by the store's. The newest segment and what the source still has stay."""

    size_bytes: Bytes = Field(default=0, ge=0)
    """Of limited; 0 is no limit. The oldest segments of a topic go while its data objects together are larger than
    this."""

    follow_lag_s: Seconds = Field(default=3600.0, ge=0, le=30 * DAY_S)
    """Of follow: how long a ledger must have been missing from Pulsar's list before its copy is deleted. Of limited:
    how long limits that were set by a policy (those of this file hold at once) must have stood before segments go by
    them. Both are counted by what the topic's owner has seen itself, so they begin anew when the topic is claimed
    again: what goes may go later, never earlier. It is the time in which an operator can stop it after a mistake, at
    the source or in a policy."""

    reader_grace_s: Seconds = Field(default=3600.0, ge=0, le=30 * DAY_S)
    """How long the objects of a segment stay that has left its topic: merged, converted, rolled back, or deleted by
    retention or by hand. Readers that were sent to it before, such as tasks of Spark, find it meanwhile. It is paid for
    as long; what a rewrite replaces is there twice. A topic that sleeps deletes it when it wakes next, an hour later at
    most; that of a topic that nobody works on goes with a collection, once it is older than gc.grace_s as well."""

    interval_s: Seconds = Field(default=600.0, gt=0, le=DAY_S)
    """How often each topic is looked at. What an operator marks deleted leaves the topic at once."""


class GrantSettings(Section):
    """Permission for the source to delete ledgers whose copy was verified."""

    enabled: bool = True
    """Verify the copy of every ledger that is closed and offloaded, and publish the result as a grant in the metadata
    store. Without grants the embedded store keeps all ledgers."""

    delete_source: bool = True
    """Let the embedded store delete ledgers by grant. BookKeeper's ledgers are deleted by its brokers alone, whatever
    is set here."""

    deletion_lag_s: Seconds = Field(default=14_400.0, ge=0, le=365 * DAY_S)
    """How long after its offloading a ledger stays at the source all the same, as Pulsar's
    managedLedgerOffloadDeletionLagMs: readers near the end of the topic read faster from there."""

    readback: bool = False
    """Read all data of a ledger from the bucket and compare every block's checksum before granting. Else size and
    existence of the data are asked of the store, and index and manifest are read. Costs one GET of every byte."""

    interval_s: Seconds = Field(default=300.0, gt=0, le=DAY_S)
    """How often each topic is looked at for ledgers to verify or delete."""


class GcSettings(Section):
    """Deleting what nobody refers to: bucket and open uploads against the metadata of all topics."""

    mode: Literal["delete", "report", "off"] = "delete"
    """What the daemon does by itself. delete: collect. report: say in log and metrics what would be deleted. off:
    nothing; offloadctl gc works in any mode. A failure in the middle of an upload or a delete is the only source of
    garbage, so there is little of it, but it is paid for until it is deleted."""

    interval_s: Seconds = Field(default=21_600.0, ge=60, le=30 * 86_400)
    """How often. Each time lists the whole prefix and reads the metadata of all topics three times or more; one daemon
    does it for the cluster."""

    grace_s: Seconds = Field(default=86_400.0, ge=0, le=365 * 86_400)
    """What is younger stays, by the store's own clock. What is safe to delete does not depend on it; it is the time in
    which an operator who sees something wrong can set gc.mode to off."""


class ScrubSettings(Section):
    """Reading what is stored again and again, to hear of bit rot before a reader does."""

    enabled: bool = True
    """Whether each owner reads its topics' segments whole at an interval. Bits rot in any store; who looks only when an
    entry is needed looks too late, for the source has deleted it by then."""

    interval_s: Seconds = Field(default=7 * 86_400.0, ge=60, le=5 * 365 * 86_400)
    """How long after a segment was verified it is due again. What is damaged is looked at every hour."""

    first_after_s: Seconds = Field(default=3600.0, ge=0, le=365 * 86_400)
    """How long after its commit a segment is read whole for the first time; before the source may delete it
    (grants.deletion_lag_s), if the rate allows."""

    bytes_per_s: Bytes = Field(default=8 * 1024 * 1024, ge=1024)
    """The most that a daemon reads for it. 8 MiB/s are 4.6 TiB in a week; requests of up to 4 MiB, so two or three a
    second."""
