"""Differences between two settings of a daemon, and which of them it can apply while it runs.

The identity of a daemon, its stores and how they are reached, and sizes of blocks and parts are fixed at the start: a
change would hold for one part of the running work and not for the other. Limits, intervals, grants and log levels are
applied. `LIVE` lists them; docs/settings.md is generated with it.
"""

from dataclasses import dataclass
from typing import Any

from offloaderd.core.errors import InvalidConfig
from offloaderd.daemon.settings.fields import all_settings, section_types, shown
from offloaderd.daemon.settings.rules import broken_rules
from offloaderd.daemon.settings.sections import Settings

LIVE = frozenset({
    "access.audit_reads",
    "access.calls_per_s", "access.grants", "access.identity_calls_max", "access.identity_readers_max",
    "access.namespace_expressions_max", "access.namespace_topics_max", "access.tenant_namespaces_max",
    "access.token_audience", "access.token_audience_claim", "access.token_claim",
    "access.token_leeway_s", "access.token_public_alg", "access.token_public_alg_previous", "access.token_public_key",
    "access.token_public_key_previous", "access.token_secret_key", "access.token_secret_key_previous",
    "bookkeeper.bytes_per_s", "bookkeeper.requests_per_s", "bookkeeper.topic_bytes_per_s",
    "bookkeeper.topic_requests_per_s", "gc.grace_s", "gc.interval_s", "gc.mode", "grants.deletion_lag_s",
    "grants.interval_s", "grants.readback", "grpc.call_s_max", "grpc.calls_max", "grpc.send_s_max", "log.level",
    "log.levels", "memory.buffer_bytes", "memory.upload_bytes", "offload.parts_in_flight_max",
    "offload.segment_age_max_s", "offload.segment_age_min_s", "offload.segment_bytes_max", "offload.suspend_after_s",
    "offload.verify", "outage.policy", "placement.grace_s", "placement.handover_s", "placement.handovers_max",
    "placement.impaired_s", "placement.cooldown_s", "placement.settle_s", "read.batch_bytes", "read.priority",
    "read.readers_max", "retention.age_s", "retention.follow_lag_s", "retention.interval_s", "retention.kind",
    "retention.size_bytes", "scrub.bytes_per_s", "scrub.first_after_s", "scrub.interval_s", "shutdown.drain_s",
    "tls.reload_s", "upload.concurrency_max",
})  # fmt: skip
"""Keys of the settings that a running daemon follows; all others need a restart."""


@dataclass(frozen=True, slots=True)
class Change:
    """A changed setting; `old` and `new` as in the settings file, secrets masked."""

    key: str
    old: str
    new: str

    @property
    def needs_restart(self) -> bool:
        """Whether it takes effect with the next start only."""
        return self.key not in LIVE


def changes(old: Settings, new: Settings) -> tuple[Change, ...]:
    """Return every setting whose value differs, in the order of the settings file."""
    found = []
    for setting in all_settings():
        before, after = (getattr(getattr(one, setting.section), setting.name) for one in (old, new))
        if before != after:
            found.append(Change(setting.key, shown(setting, before), shown(setting, after)))
    return tuple(found)


def followed(old: Settings, new: Settings) -> Settings:
    """Return the old settings with the new values of those in LIVE.

    Raises InvalidConfig if these break a rule with an old value that only a restart would change.
    """
    sections: dict[str, Any] = {}
    for name, kind in section_types().items():
        before, after = getattr(old, name), getattr(new, name)
        source = {field: after if f"{name}.{field}" in LIVE else before for field in kind.model_fields}
        given = {field for field, one in source.items() if field in one.model_fields_set}
        values = {field: getattr(one, field) for field, one in source.items()}
        sections[name] = kind.model_construct(given, **values)
    merged = Settings(**sections, renamed=new.renamed)
    if broken := broken_rules(merged):
        raise InvalidConfig(
            "\n  ".join(
                ["what takes effect at once does not go with what needs a restart:", *(one.text for one in broken)]
            ),
            hint="restart the daemon to change all of it together",
        )
    return merged
