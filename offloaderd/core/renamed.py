"""Names that this release has changed, by the old name; each is accepted, or shown beside the new one, for one release.

docs/upgrade.md has the same table for users. Each release empties these.
"""

EVENTS = {
    "segment.continued": "segment.resumed",
    "segment.past_unknown": "segment.prefix_totals_unknown",
    "segment.sealed_again": "segment.resealed",
    "topic.asleep": "topic.suspended",
    "topic.returned": "topic.handover_failed",
    "topic.leaving": "topic.handover_started",
    "topic.entries_maybe_lost": "topic.entries_possibly_lost",
    "daemon.told": "daemon.registration_updated",
    "daemon.unseen": "daemon.registration_unknown",
    "daemon.cut_short": "daemon.stop_forced",
    "damage.not_looked_into": "damage.not_inspected",
    "offload.asked": "offload.requested",
    "source.bell_broken": "source.long_poll_failed",
    "source.broker_not_asked": "source.broker_query_failed",
    "source.ledger_gone": "source.ledger_deleted",
    "spill.thrown_away": "spill.discarded",
    "trash.left": "trash.blocked",
    "trash.gone": "trash.already_deleted",
    "grant.gone": "grant.already_deleted",
    "grant.forgotten": "grant.deleted",
    "ledger.kept": "ledger.delete_refused",
    "ledger.not_kept": "grant.not_revoked",
    "ledger.kept_for_damage": "grant.revoked_for_damage",
    "retention.list_not_believed": "retention.list_implausible",
    "place.of_another": "place.foreign",
    "backfill.segment_hindered": "backfill.segment_failed",
    "backfill.draft_left": "backfill.draft_not_deleted",
    "backfill.plan_left": "backfill.plan_not_released",
    "backfill.writer_left": "backfill.writer_not_deleted",
    "backfill.read_again": "backfill.change_retried",
    "backfill.taken_up": "backfill.segment_resumed",
    "conversion.hindered": "conversion.write_failed",
    "conversion.taken_up": "conversion.resumed",
    "credentials.read_again": "credentials.reloaded",
    "bookie.answers_again": "bookie.recovered",
    "rollback.ledger_gone": "rollback.ledger_dropped",
    "rebuild.broker_object_left_out": "rebuild.broker_object_skipped",
    "log.level_fell_back": "log.level_reset",
    "metadata.client_died": "metadata.client_failed",
    "grants.owner_not_told": "grants.owner_not_notified",
    "grants.told_already": "grants.already_notified",
    "data.read_again": "data.read_retried",
}
"""Log events: a line has its old name as `event_was`."""

LOG_MODULES = {
    "config": "daemon.settings",
    "doctor": "daemon.doctor",
    "ledgers.bookkeeper": "bookkeeper",
    "offload": "topic",
    "pages": "daemon.status_page",
    "rpc": "api",
}
"""Packages in `log.levels` and `offloadctl log-level`. `offload` was split into six; most of its lines come from
topic."""

METRICS = {
    "offloaderd_topics_asleep": "offloaderd_topics_suspended",
    "offloaderd_segments_continued_total": "offloaderd_segments_resumed_total",
    "offloaderd_trash_left": "offloaderd_trash_blocked",
    "offloaderd_history_left_entries": "offloaderd_history_remaining_entries",
    "offloaderd_history_left_bytes": "offloaderd_history_remaining_bytes",
    "offloaderd_rollback_left_ledgers": "offloaderd_rollback_remaining_ledgers",
    "offloaderd_grpc_identity_most": "offloaderd_grpc_identity_highest",
    "offloaderd_selection_expressions_most": "offloaderd_selection_expressions_highest",
    "offloaderd_metadata_open": "offloaderd_metadata_world_writable",
    "offloaderd_s3_requests_total": "offloaderd_objects_requests_total",
    "offloaderd_s3_request_duration_seconds": "offloaderd_objects_request_duration_seconds",
    "offloaderd_s3_throttles_total": "offloaderd_objects_throttles_total",
    "offloaderd_s3_bytes_total": "offloaderd_objects_bytes_total",
    "offloaderd_s3_requests_in_flight": "offloaderd_objects_requests_in_flight",
}
"""Metrics: exposed under both names, the old one marked as deprecated in its help text."""

SETTINGS = {
    "grpc.insecure_elsewhere": "grpc.allow_unauthenticated",
    "bookkeeper.quiet_poll_s": "bookkeeper.long_poll_s",
    "offload.sleep_after_s": "offload.suspend_after_s",
    "placement.keep_s": "placement.cooldown_s",
    "retention.readers_s": "retention.reader_grace_s",
    "scrub.first_s": "scrub.first_after_s",
}
"""Settings: read under the old name with a warning that has the new one."""
