"""Metrics of deletions: deleted here, allowed at the source, and reasons against either."""

from offloaderd.core.metrics.families import Families, counter, gauge, topic_gauge
from offloaderd.core.refusals import RefusalKind

REMOVAL_REASONS = ("ledgers_deleted", "age", "size")
DENIED_REASONS = (
    "not_offloaded",
    "missing_object",
    "size",
    "corrupt",
    "gap",
    "bucket",
    "revoked",
    "unreachable",
    "no_space",
)


REFUSAL_KINDS = tuple(RefusalKind)


class RetentionMetrics(Families):
    """The metrics of deletions."""

    segments_removed = counter(
        "Segments that left their topic, by reason. ledgers_deleted: all their ledgers are marked deleted. age, size: "
        "the topic's retention is limited.",
        reason=REMOVAL_REASONS,
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
    identity_refusals = topic_gauge(
        "1 for each reason why nothing of the topic is deleted or granted: its metadata, bucket or source may be of "
        "another history. Page when it is not 0: offloadctl status says what was found and what to do.",
        kind=REFUSAL_KINDS,
    )
    identity_places_refused = gauge(
        "Places (bucket and prefix) of this daemon that another deployment with the same cluster name uses. Page when "
        "it is not 0: nothing is collected there; the log names the other one."
    )
    grants = counter("Ledgers whose copy was verified, so that the source may delete them after the deletion lag.")
    grant_checked_bytes = counter("Bytes read from the bucket to verify copies before the source may delete.")
    source_delete_denied = counter(
        "Complete ledgers that may not be deleted from the source, by what is wrong with their copy. Page when "
        "missing_object, size, corrupt or gap rise: an object of a committed segment is damaged.",
        reason=DENIED_REASONS,
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
