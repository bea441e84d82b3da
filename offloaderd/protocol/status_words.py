"""A daemon's status as text: the same for `offloadctl status` and the status page."""

from offloaderd.core import humanize as words
from offloaderd.protocol.message_json import position_of
from offloaderd.protocol.v1 import admin_pb2, history_pb2, read_pb2

POSITIONS = ("first", "confirmed", "offloaded", "buffered_first", "buffered_last")


def daemon_facts(found: admin_pb2.StatusResponse) -> list[tuple[str, str]]:
    """Return the lines about the daemon."""
    used, budget = words.size(found.memory_used_bytes), words.size(found.memory_budget_bytes)
    lines = [
        ("daemon", f"{found.daemon_id} {found.version}, {found.state} since {words.moment(found.started_ms)} UTC"),
        ("memory", f"{used} of {budget}"),
    ]
    lines += [(one.name, "up" if one.up else down_text(one)) for one in found.dependencies]
    return [*lines, *(("ALARM", text) for text in found.alarms)]


def down_text(one: admin_pb2.StatusResponse.Dependency) -> str:
    """Return since when a dependency does not answer, and its last error."""
    since = f" since {words.moment(one.since_ms)} UTC" if one.since_ms else ""
    return f"DOWN{since}: {one.message or 'no reason given'}"


def topic_facts(one: admin_pb2.TopicStatus, positions: read_pb2.LastPositionsResponse | None) -> list[tuple[str, str]]:
    """Return the lines about one topic."""
    segment = "none"
    if one.open_segment_id:
        entries = words.plural(one.open_segment_entries, "entry", "entries")
        continued = ", continued" if one.open_segment_continued else ""
        segment = (
            f"{one.open_segment_id} ({entries}, {words.size(one.open_segment_bytes)}, "
            f"{words.age(one.open_segment_age_s)} old{continued})"
        )
    lines = [
        ("topic", one.topic),
        ("state", one.state + (", asleep" if one.asleep else f": {one.stalled_reason}" if one.stalled_reason else "")),
        ("owner", f"{one.owner or '-'} (epoch {one.epoch})" + (f": {one.placement}" if one.placement else "")),
        *([("PAUSED", f"since {words.moment(one.paused_ms)} UTC by {one.paused_by}")] if one.paused_ms else []),
        *[("REFUSED", refusal_text(refusal)) for refusal in one.refusals],
        *([("DAMAGED", damage_text(one))] if one.damaged_ledgers else []),
        *outage_facts(one),
        *([("method", one.method)] if one.method else []),
        ("lag", lag_text(one)),
        ("open segment", segment),
        ("buffer", words.size(one.buffer_bytes)),
        ("segments", words.number(one.segments_committed)),
    ]
    if one.HasField("history"):
        lines.append(("history", history_text(one.history)))
    if one.edge:
        lines.append(("live edge", edge_text(one)))
    lines += [("LOST" if loss.entries else "MAYBE LOST", loss_text(loss)) for loss in one.losses]
    if positions is not None:
        labels = ("oldest", "confirmed", "offloaded", "buffered from", "buffered to")
        lines += [(label, position_of(positions, field) or "-") for label, field in zip(labels, POSITIONS, strict=True)]
    return lines


def lag_text(one: admin_pb2.TopicStatus) -> str:
    """Return the lag of a topic as text, as far as it is known."""
    if one.lag_unknown:
        return "unknown: " + (
            "the ledger source did not answer" if one.stalled_reason else "its owner has not looked at the source yet"
        )
    if not one.lag_entries:
        return "none"
    entries = words.plural(one.lag_entries, "entry", "entries")
    age = "of unknown age" if one.lag_age_unknown else f"oldest {words.age(one.lag_seconds)} ago"
    return f"{entries}, {words.size(one.lag_bytes)}, {age}"


def lag_cells(one: admin_pb2.TopicStatus) -> tuple[str, str, str]:
    """Return entries, bytes and age of the lag for a table; an unknown value is a question mark."""
    if one.lag_unknown:
        return "?", "?", "?"
    age = "?" if one.lag_age_unknown else words.age(one.lag_seconds)
    return words.number(one.lag_entries), words.size(one.lag_bytes), age if one.lag_entries else "-"


def outage_facts(one: admin_pb2.TopicStatus) -> list[tuple[str, str]]:
    """Return since when a topic stalls, and its unprotected entries, if any."""
    lines = []
    if one.stalled_since_ms:
        since = words.moment(one.stalled_since_ms)
        lines.append(("stalled since", f"{since} UTC ({one.stalled_class or 'other'}); outage policy: {one.outage}"))
    if one.unprotected_since_ms:
        entries, size = words.plural(one.unprotected_entries, "entry", "entries"), words.size(one.unprotected_bytes)
        spilled = f", {words.size(one.spilled_bytes)} of it on this daemon's disk" if one.spilled_bytes else ""
        since = words.moment(one.unprotected_since_ms)
        lines.append(("NOT PROTECTED", f"{entries}, {size}{spilled}, since {since} UTC"))
    return lines


def refusal_text(one: admin_pb2.IdentityRefusal) -> str:
    """Return the finding of a refusal, and what to do."""
    since = words.moment(one.since_ms)
    return f"{one.kind} since {since} UTC: {one.found}; nothing of the topic is deleted or granted. To do: {one.hint}"


def damage_text(one: admin_pb2.TopicStatus) -> str:
    """Return the ledgers whose copy is damaged, and what follows from it."""
    named = ", ".join(map(str, one.damaged_ledgers))
    return f"the copies of ledgers {named}; their grants are revoked: see offloadctl ledgers list {one.topic}"


def history_text(one: history_pb2.HistorySummary) -> str:
    """Return the rest of a topic's history as text, and what it means for new entries."""
    left = f"{words.plural(one.left_entries, 'entry', 'entries')}, {words.size(one.left_bytes)} left"
    whose = "for the daemon" if one.worker == "daemon" else "for a backfill job"
    live = "WAIT until it is done" if one.live_waits else "are offloaded beside it"
    text = f"{left} {whose} before {position_of(one, 'boundary')}; new entries {live}"
    return f"{text}; hindered: {one.error}" if one.error else text


def edge_text(one: admin_pb2.TopicStatus) -> str:
    """Return how the newest entry is known, and the entries hidden behind it."""
    known = {
        "exact": "exact",
        "next write": "known from the entries alone: what a quiet writer had in flight shows with its next entry",
        "explicit LAC": "told by the writer at an interval (explicit LAC)",
        "admin API": "told by the broker's admin API when the topic went quiet",
    }.get(one.edge, one.edge)
    hidden = f"; {words.plural(one.hidden_entries, 'entry', 'entries')} not known to be confirmed"
    return f"{known}{hidden if one.hidden_entries else ''}; looked {words.age(one.looked_age_s)} ago"


def loss_text(loss: admin_pb2.LostRange) -> str:
    """Return the entries that were deleted before they could be offloaded, as text."""
    after = position_of(loss, "after")
    entries = words.plural(loss.entries, "entry", "entries")
    lost = f"at least {entries}" if loss.entries else "nobody can tell whether any"
    where = f"after {after} and before" if after else "before"
    return f"{lost} {where} {position_of(loss, 'before')}, noticed {words.moment(loss.noticed_ms)} UTC"
