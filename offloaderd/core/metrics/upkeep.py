"""Metrics of garbage collection, deletions here and at the source, the scrub, and the rewrite as whole ledgers."""

from collections.abc import Mapping

from offloaderd.core.metrics.families import Families, counter, gauge, topic_gauge
from offloaderd.core.model import RefusalKind

GC_ALARMS = ("uncovered", "unknown_topic", "unreadable", "missing", "wrong_size")


class UpkeepMetrics(Families):
    """The metrics of the upkeep of what is stored."""

    gc_runs = counter(
        "Collections of garbage by outcome. A failed one stops deleting; the log says why. Look when two fail in a "
        "row.",
        outcome=("ok", "failed"),
    )
    gc_objects = counter(
        "Objects and uploads that collections found, by action. deleted. delete: would have been deleted, but gc.mode "
        "is report. failed: the deletion failed. keep: too young, or not ours. alarm: see offloaderd_gc_alarms.",
        action=("deleted", "delete", "failed", "keep", "alarm"),
    )
    gc_orphan_bytes = gauge(
        "Bytes of objects without a reference, as the last collection found them before it deleted any. Look when it "
        "keeps growing: something leaves segments unfinished."
    )
    gc_alarms = gauge(
        "What the last collection found and may not repair: objects of committed segments that are missing or have "
        "another length, and segments in no map that have the only copy of their entries. Page when it is not 0; "
        "offloadctl gc lists them.",
        kind=GC_ALARMS,
    )
    gc_last_complete_timestamp_seconds = gauge(
        "When this daemon last completed a collection; 0 before the first. Take the newest of all daemons: one "
        "collects for all."
    )

    segments_removed = counter(
        "Segments that left their topic, by reason. ledgers_deleted: all their ledgers are marked deleted. age, size: "
        "the topic's retention is limited.",
        reason=("ledgers_deleted", "age", "size"),
    )
    trash_emptied = counter("Segments whose objects were deleted, committed ones and failed attempts.")
    trash_waiting = topic_gauge(
        "Segments whose deletion is decided and whose objects may still exist, those of trash_blocked included. Each "
        "waits for retention.reader_grace_s at least. Only rising: see delete_failures or trash_blocked."
    )
    trash_blocked = topic_gauge(
        "Segments whose objects this daemon should delete and cannot: they are in another bucket, or the record "
        "contradicts the topic. Look when it is not 0; the log says which."
    )
    delete_failures = counter("Failed tries to delete decided segments; each is repeated. Look when it keeps rising.")
    mirror_lag_entries = topic_gauge(
        "Entries of committed segments that have no copy in the mirror of the topic's policy yet; no series without a "
        "mirror."
    )
    mirror_lag_bytes = topic_gauge("Bytes of the data objects of the same segments.")
    mirror_lag_seconds = topic_gauge(
        "Seconds since the oldest of the same segments was offloaded; 0 when all have a copy. Look when it keeps "
        "growing: offloadctl status TOPIC has the error."
    )
    mirror_waiting_ledgers = topic_gauge(
        "Closed ledgers that stay at their source because the policy demands the mirror (mirror_required) and a "
        "segment of them has no copy there yet; up to 100 are counted. 0 where it is not demanded."
    )
    mirror_copies = counter(
        "Copies of segments in mirrors by outcome. ok: verified and recorded. failed: an error; it is tried again.",
        outcome=("ok", "failed"),
    )
    mirror_parts = counter(
        "Parts of copies by outcome. sent. kept: an earlier owner had stored it.", outcome=("sent", "kept")
    )
    mirror_bytes = counter("Bytes of the parts of copies, those that were kept included.")
    unnamed_place_segments = topic_gauge(
        "Segments of the topic in buckets that the settings do not name, by their copies there. only: no copy is in a "
        "named place, so the ledger source at best has the entries. first: the first copy is there, the mirror is "
        "named. mirror: the second copy is there. No series without any. Page when only is not 0: offloadctl doctor "
        "names place and topics.",
        copy=("only", "first", "mirror"),
    )
    unnamed_place_bytes = topic_gauge("Bytes of the data objects of the same copies.", copy=("only", "first", "mirror"))
    identity_refusals = topic_gauge(
        "1 for each reason why nothing of the topic is deleted or granted: its metadata, bucket or source may be of "
        "another history. Page when it is not 0: offloadctl status says what was found and what to do.",
        kind=tuple(RefusalKind),
    )
    identity_places_refused = gauge(
        "Places (bucket and prefix) of this daemon that another deployment with the same cluster name uses. Page when "
        "it is not 0: nothing is collected there; the log names the other one."
    )
    grants = counter("Ledgers whose copy was verified, so that the source may delete them after the deletion lag.")
    grant_checked_bytes = counter("Bytes read from the bucket to verify copies before the source may delete.")
    source_delete_denied = counter(
        "Complete ledgers that may not be deleted from the source, by what is wrong with their copy. Page when "
        "missing_object, size, corrupt or gap rise: an object of a committed segment is damaged. mirror: the "
        "policy demands a copy in the mirror that is not there yet.",
        reason=(
            "not_offloaded",
            "missing_object",
            "size",
            "corrupt",
            "gap",
            "bucket",
            "mirror",
            "revoked",
            "unreachable",
            "no_space",
        ),
    )
    damaged_ledgers = topic_gauge(
        "Ledgers of the topic whose grant is revoked because their copy in the bucket was found damaged. Page when it"
        " is not 0: offloadctl ledgers list TOPIC names them. It falls when an operator allows the grant again."
    )
    damaged_copies = counter(
        "Times that this daemon found the copy of a ledger damaged, by a read, a verification, a broker's check or "
        "the scrub. The ledger's grant is revoked. Page when it rises."
    )
    source_ledgers_deleted = counter("Ledgers that the embedded store deleted because their copy was verified.")

    scrub_bytes = counter(
        "Bytes that the scrub has read. Its rate is at most scrub.bytes_per_s; 0 for days while there are segments: "
        "look whether scrub.enabled is off."
    )
    scrub_objects = counter(
        "Objects that the scrub has checked, by result. unreachable: the store did not answer.",
        result=("sound", "damaged", "unreachable"),
    )
    scrub_damaged_segments = topic_gauge(
        "Segments of the topic that the last check by the scrub found damaged. Page when it is not 0: offloadctl "
        "verify TOPIC says what is wrong. A repair shows within an hour."
    )
    scrub_last_complete_timestamp_seconds = topic_gauge(
        "The oldest time at which one of the topic's segments was last verified (or committed); 0 without segments. "
        "Older than scrub.interval_s by days: raise scrub.bytes_per_s."
    )

    rollback_ledgers = counter(
        "Ledgers that were rewritten as objects of their own, verified and exchanged for their segments."
    )
    rollback_bytes = counter("Payload bytes of the ledgers that were rewritten.")
    rollback_failures = counter(
        "Ledgers that could not be rewritten and stay in their segments, by reason. unreadable: the bucket does not "
        "hold what was committed. upload: the object could not be stored, or did not read back as it was sent. Look "
        "when it grows: offloadctl rollback plan TOPIC names them.",
        reason=("unreadable", "upload"),
    )
    rollback_remaining_ledgers = topic_gauge(
        "Ledgers that are still to be rewritten by the topic's order; 0 without one."
    )

    bucket_listed_timestamp_seconds = gauge(
        "When the last complete listing of the bucket began, in a daemon that only reads; 0 in any other. Look when it "
        "is older than some read.listing_s: new topics and deletions are not seen, and the log says why."
    )
    bucket_listing_seconds = gauge("Duration of the last complete listing of the bucket, in a daemon that only reads.")
    bucket_topics = gauge("Topics with segments in the bucket, in a daemon that only reads.")
    bucket_segments = gauge("Segments of these topics that can be read.")
    bucket_gaps = gauge(
        "Ranges of these topics that no readable segment holds. Look when it is not 0: offloadctl status names them."
    )

    def show_collection(
        self, outcome: str, actions: Mapping[str, int], finds: Mapping[str, int], rubbish_bytes: int
    ) -> None:
        """Count one collection; a failed one is counted with its findings so far, which are incomplete."""
        self.gc_runs.labels(outcome=outcome).inc()
        for action, count in actions.items():
            self.gc_objects.labels(action=action).inc(count)
        if outcome == "ok":
            self.gc_orphan_bytes.set(rubbish_bytes)
            for kind in GC_ALARMS:
                self.gc_alarms.labels(kind=kind).set(finds.get(kind, 0))
