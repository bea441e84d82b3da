"""What is deleted here, what may be deleted at the source, and what keeps either from happening."""

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
    """The part of the metrics that is about deleting."""

    segments_removed = counter(
        "Segments taken out of their topic, by why: ledgers_deleted (all their ledgers are marked deleted), age or "
        "size (the topic's retention is limited).",
        reason=REMOVAL_REASONS,
    )
    trash_emptied = counter("Segments, committed ones and abandoned tries, whose objects have been deleted.")
    trash_waiting = topic_gauge(
        "Segments whose deletion is decided and whose objects may still be there, those that are left included. Each "
        "waits for retention.reader_grace_s at least; where it only rises, delete_failures or trash_blocked say why."
    )
    trash_blocked = topic_gauge(
        "Segments whose objects should be deleted and cannot be by this daemon: they lie in another bucket, or the "
        "record contradicts the topic. Look when it is not 0; the log says which."
    )
    delete_failures = counter("Failed tries to delete decided segments; each is repeated. Look when it keeps rising.")
    identity_refusals = topic_gauge(
        "1 for each reason why nothing of the topic is deleted or granted: its metadata, bucket or source may be of "
        "another history. Page when it is not 0: offloadctl status says what was found and what to do.",
        kind=REFUSAL_KINDS,
    )
    identity_places_refused = gauge(
        "Places (bucket and prefix) of this daemon in which another deployment of the same cluster name works. Page "
        "when it is not 0: nothing is collected there; the log says who it is."
    )
    grants = counter("Ledgers whose copy was verified, so that the source may delete them after the deletion lag.")
    grant_checked_bytes = counter("Bytes read from the bucket to verify copies before the source may delete.")
    source_delete_denied = counter(
        "Ledgers that were complete and got no permission to be deleted from the source, by what was wrong with their"
        " copy. Page when missing_object, size, corrupt or gap rise: an object of a committed segment is bad.",
        reason=DENIED_REASONS,
    )
    damaged_ledgers = topic_gauge(
        "Ledgers of the topic whose grant is revoked because their copy in the bucket was found damaged. Page when it"
        " is not 0: offloadctl ledgers list TOPIC names them. It falls when an operator allows the grant again."
    )
    damaged_copies = counter(
        "Ledgers whose copy this daemon found damaged, by a read, a verification, a broker's check or the scrub, each"
        " time that it did. Their grants are revoked. Page when it rises."
    )
    source_ledgers_deleted = counter("Ledgers that the embedded store deleted because their copy was verified.")
