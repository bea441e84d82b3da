"""A daemon's status as JSON and as text, and rates of topics: the same for `offloadctl` and the status page."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from offloaderd.core import units as words
from offloaderd.core.model import between
from offloaderd.protocol.conversion import as_json, picked, position_of
from offloaderd.protocol.v1 import admin_pb2, history_pb2, inspect_pb2, read_pb2


class Rate(NamedTuple):
    """Entries of a topic that go into segments, in entries and payload bytes a second."""

    entries_per_s: float
    bytes_per_s: float


Taken = Mapping[str, tuple[int, int, int]]
"""Epoch (0 for none), and entries and payload bytes in segments under it, the open one included, by topic."""


class Rates(dict[str, Rate]):
    """Rates by topic between the last two samples, for topics that were in both under one claim."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: Taken = {}
        self._at_s = 0.0

    def look(self, taken: Taken, now_s: float, woken: Taken | None = None) -> None:
        """Take a sample and set every topic's rate; topics that are not in it are dropped.

        `woken` has what the last sample would have had of topics that it left out.
        """
        before, seconds = {**(woken or {}), **self._taken}, now_s - self._at_s
        self._taken, self._at_s = taken, now_s
        self.clear()
        for name, (epoch, entries, size) in taken.items():
            last = before.get(name)
            if last is not None and last[0] == epoch and epoch and seconds > 0:
                self[name] = Rate((entries - last[1]) / seconds, (size - last[2]) / seconds)


def daemon_json(found: admin_pb2.StatusResponse) -> dict[str, object]:
    """Return the daemon as JSON."""
    names = ("id=daemon_id", "version", "state", "started_ms", "memory_used_bytes", "memory_budget_bytes")
    return picked(
        found, *names, "dependencies", "alarms", "bucket", kept=("daemon_id", "version", "state", "started_ms")
    )


def topic_json(one: admin_pb2.TopicStatus) -> dict[str, object]:
    """Return a topic's status as JSON; a missing value is null."""
    unprotected = {
        "entries": one.unprotected_entries,
        "bytes": one.unprotected_bytes,
        "since_ms": one.unprotected_since_ms,
        **picked(one, "spilled_entries", "spilled_bytes"),
    }
    opened = {
        "segment_id": one.open_segment_id,
        "entries": one.open_segment_entries,
        "bytes": one.open_segment_bytes,
        "age_s": one.open_segment_age_s,
        "continued": one.open_segment_continued,
    }
    lag = {
        "lag_entries": None if one.lag_unknown else one.lag_entries,
        "lag_bytes": None if one.lag_unknown else one.lag_bytes,
        "lag_seconds": None if one.lag_age_unknown else one.lag_seconds,
    }
    return {
        **picked(one, "topic", "state", "asleep", "stalled_reason", "stalled_class", "stalled_since_ms", "outage"),
        "unprotected": unprotected if one.unprotected_since_ms else None,
        **picked(one, "owner", "placement"),
        "paused": {"since_ms": one.paused_ms, "by": one.paused_by} if one.paused_ms else None,
        **picked(one, "epoch", "damaged_ledgers", "refusals", "confirmed", "offloaded", "history"),
        **lag,
        "mirror": _mirror_json(one.mirror) if one.HasField("mirror") else None,
        "open_segment": opened if one.open_segment_id else None,
        **picked(one, "buffer_bytes", "segments_committed", "edge", "hidden_entries"),
        "looked_age_s": one.looked_age_s,
        **picked(one, "method", "taken_entries", "taken_bytes"),
        "losses": [as_json(loss, kept=("noticed_ms",), nullable=("entries",)) for loss in one.losses],
        **picked(one, "gaps", "unnamed"),
    }


def tables_json(found: admin_pb2.StatusResponse) -> dict[str, object] | None:
    """Return the declared tables of the cluster as JSON; None from a daemon that does not say."""
    if not found.HasField("tables"):
        return None
    return picked(found.tables, "failure", "declarations", "not_shown")


def table_lines(found: admin_pb2.StatusResponse) -> list[str]:
    """Return what is wrong with the declared tables, a line each."""
    said = found.tables
    lines = [f"tables UNKNOWN: {said.failure}"] if said.failure else []
    lines += [f"tables {one.name}: {one.failure}" for one in said.declarations if one.failure]
    return [*lines, *([f"and {words.number(said.not_shown)} more: offloadctl tables list"] if said.not_shown else [])]


MIRROR = (
    "place",
    "bucket",
    "prefix",
    "lag_segments",
    "lag_entries",
    "lag_bytes",
    "lag_seconds",
    "segments",
    "failure",
    "required",
)


def _mirror_json(one: admin_pb2.MirrorSummary) -> dict[str, object]:
    """Return the copies of a topic as JSON."""
    kept = {name: getattr(one, name) for name in (*MIRROR, "required")}
    return {**kept, "failing_since_ms": one.failing_since_ms, "waiting_ledgers": list(one.waiting_ledgers)}


def rated_json(one: admin_pb2.TopicStatus, rate: Rate | None) -> dict[str, object]:
    """Return a topic with its rates as JSON; null while they are unknown."""
    return {
        **topic_json(one),
        "taken_entries_per_s": round(rate.entries_per_s, 3) if rate is not None else None,
        "taken_bytes_per_s": round(rate.bytes_per_s, 3) if rate is not None else None,
    }


READ_ONLY = "read-only"
"""State of the topics of a daemon that only reads."""

POSITIONS = ("first", "confirmed", "offloaded", "buffered_first", "buffered_last")


def daemon_facts(found: admin_pb2.StatusResponse) -> list[tuple[str, str]]:
    """Return the lines about the daemon."""
    used, budget = words.size(found.memory_used_bytes), words.size(found.memory_budget_bytes)
    lines = [
        ("daemon", f"{found.daemon_id} {found.version}, {found.state} since {words.moment(found.started_ms)} UTC"),
        ("memory", f"{used} of {budget}"),
    ]
    lines += [(one.name, "up" if one.up else _down_text(one)) for one in found.dependencies]
    if found.HasField("bucket"):
        lines.append(("bucket", _bucket_text(found.bucket)))
    return [*lines, *(("ALARM", text) for text in found.alarms)]


def _bucket_text(one: admin_pb2.BucketListing) -> str:
    text = f"{words.plural(one.topics, 'topic', 'topics')}, {words.plural(one.segments, 'segment', 'segments')}, "
    text += f"{words.plural(one.gaps, 'gap', 'gaps')}, listed {words.moment(one.listed_ms)} UTC"
    return f"{text}; the last listing FAILED: {one.failure}" if one.failure else text


def _down_text(one: admin_pb2.StatusResponse.Dependency) -> str:
    since = f" since {words.moment(one.since_ms)} UTC" if one.since_ms else ""
    return f"DOWN{since}: {one.message or 'no reason given'}"


def topic_facts(one: admin_pb2.TopicStatus, positions: read_pb2.LastPositionsResponse | None) -> list[tuple[str, str]]:
    """Return the lines about one topic."""
    if one.state == READ_ONLY:
        return [*_read_only_facts(one), *_position_facts(positions)]
    damage = f"the copies of ledgers {', '.join(map(str, one.damaged_ledgers))}; their grants are revoked"
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
        (
            "state",
            one.state + (", suspended" if one.asleep else f": {one.stalled_reason}" if one.stalled_reason else ""),
        ),
        ("owner", f"{one.owner or '-'} (epoch {one.epoch})" + (f": {one.placement}" if one.placement else "")),
        *([("PAUSED", pause_text(one))] if one.paused_ms else []),
        *[("REFUSED", refusal_text(refusal)) for refusal in one.refusals],
        *([("DAMAGED", f"{damage}: see offloadctl ledgers list {one.topic}")] if one.damaged_ledgers else []),
        *[("NOT NAMED", f"{there.bucket}/{there.prefix}: {unnamed_text(there)}") for there in one.unnamed],
        *_outage_facts(one),
        *([("method", one.method)] if one.method else []),
        ("lag", _lag_text(one)),
        *([("mirror", mirror_text(one.mirror))] if one.HasField("mirror") else []),
        ("open segment", segment),
        ("buffer", words.size(one.buffer_bytes)),
        ("segments", words.number(one.segments_committed)),
    ]
    if one.HasField("history"):
        lines.append(("history", history_text(one.history)))
    if one.edge:
        lines.append(("live edge", _edge_text(one)))
    lines += [("LOST" if loss.entries else "POSSIBLY LOST", _loss_text(loss)) for loss in one.losses]
    return [*lines, *_position_facts(positions)]


def _position_facts(positions: read_pb2.LastPositionsResponse | None) -> list[tuple[str, str]]:
    labels = ("oldest", "confirmed", "offloaded", "buffered from", "buffered to")
    if positions is None:
        return []
    return [(label, position_of(positions, field) or "-") for label, field in zip(labels, POSITIONS, strict=True)]


def _read_only_facts(one: admin_pb2.TopicStatus) -> list[tuple[str, str]]:
    """Return the lines about a topic of a daemon that only reads."""
    return [
        ("topic", one.topic),
        ("state", one.state),
        ("segments", words.number(one.segments_committed)),
        *[("LOST" if loss.entries else "POSSIBLY LOST", _loss_text(loss)) for loss in one.losses],
        *[("GAP", _gap_text(gap)) for gap in one.gaps],
    ]


def _gap_text(gap: admin_pb2.EntryGap) -> str:
    after, before = position_of(gap, "after"), position_of(gap, "before")
    return f"{between(after, before)}: {gap.reason}"


def _lag_text(one: admin_pb2.TopicStatus) -> str:
    if one.lag_unknown and one.stalled_reason:
        return "unknown: the ledger source did not answer"
    if one.lag_unknown:
        return "unknown: its owner has not read the source yet"
    if not one.lag_entries:
        return "none"
    entries = words.plural(one.lag_entries, "entry", "entries")
    age = "of unknown age" if one.lag_age_unknown else f"oldest {words.age(one.lag_seconds)} ago"
    return f"{entries}, {words.size(one.lag_bytes)}, {age}"


def mirror_text(one: admin_pb2.MirrorSummary) -> str:
    """Return the place of a topic's copies, their lag, and the present error as text."""
    waiting = ", ".join(map(str, one.waiting_ledgers))
    waits = f"; the SOURCE KEEPS ledgers {waiting} until their copies are there (mirror_required)" if waiting else ""
    place = one.place or (f"{one.bucket}/{one.prefix}" if one.bucket else "")  # an older daemon does not send it
    if not place:
        return f"none, and the policy demands one (mirror_required): no ledger is granted{waits}"
    text = f"{place}, {words.plural(one.segments, 'copy', 'copies')}, "
    if not one.lag_segments:
        return f"{text}all there{waits}"
    behind = f"{words.plural(one.lag_segments, 'segment', 'segments')} behind ("
    behind += f"{words.plural(one.lag_entries, 'entry', 'entries')}, {words.size(one.lag_bytes)}, "
    behind += f"oldest {words.age(one.lag_seconds)} ago)"
    failure = f"; FAILS since {words.moment(one.failing_since_ms)} UTC: {one.failure}" if one.failure else ""
    return f"{text}{behind}{failure}{waits}"


class _Unnamed(Protocol):
    """What lies in a place that the settings do not name; see admin_pb2.UnnamedPlace."""

    @property
    def segments(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def only_segments(self) -> int: ...
    @property
    def copies(self) -> int: ...
    @property
    def copy_bytes(self) -> int: ...


def unnamed_text(one: _Unnamed) -> str:
    """Return what lies in a place that the settings do not name, and what of it has no copy elsewhere."""
    first = f"{words.plural(one.segments, 'segment', 'segments')} ({words.size(one.segment_bytes)})"
    copies = f"{words.plural(one.copies, 'mirror copy', 'mirror copies')} ({words.size(one.copy_bytes)})"
    held = " and ".join(text for text, count in ((first, one.segments), (copies, one.copies)) if count)
    only = words.plural(one.only_segments, "segment has", "segments have")
    return f"{held}; {only} no copy elsewhere: UNREADABLE but from the ledger source" if one.only_segments else held


def lag_cells(one: admin_pb2.TopicStatus) -> tuple[str, str, str]:
    """Return entries, bytes and age of the lag for a table; an unknown value is a question mark."""
    if one.lag_unknown:
        return "?", "?", "?"
    age = "?" if one.lag_age_unknown else words.age(one.lag_seconds)
    return words.number(one.lag_entries), words.size(one.lag_bytes), age if one.lag_entries else "-"


def _outage_facts(one: admin_pb2.TopicStatus) -> list[tuple[str, str]]:
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


def history_text(one: history_pb2.HistorySummary) -> str:
    """Return the rest of a topic's history as text, and what it means for new entries."""
    left = f"{words.plural(one.left_entries, 'entry', 'entries')}, {words.size(one.left_bytes)} left"
    whose = "for the daemon" if one.worker == "daemon" else "for a backfill job"
    live = "WAIT until it is done" if one.live_waits else "are offloaded beside it"
    text = f"{left} {whose} before {position_of(one, 'boundary')}; new entries {live}"
    return f"{text}; failed: {one.error}" if one.error else text


def pause_text(one: admin_pb2.TopicStatus) -> str:
    """Return since when a topic stands still, and by whom or by which quota."""
    return f"since {words.moment(one.paused_ms)} UTC by {one.paused_by}"


def _edge_text(one: admin_pb2.TopicStatus) -> str:
    known = {
        "exact": "exact",
        "next write": "known from the entries alone, as during traffic: what a quiet writer had in flight shows "
        "with its next entry, or by the admin API",
        "explicit LAC": "reported by the writer at an interval (explicit LAC)",
        "admin API": "reported by the broker's admin API when the topic became idle",
    }.get(one.edge, one.edge)
    hidden = f"; {words.plural(one.hidden_entries, 'entry', 'entries')} not known to be confirmed"
    return f"{known}{hidden if one.hidden_entries else ''}; read {words.age(one.looked_age_s)} ago"


def _loss_text(loss: admin_pb2.LostRange) -> str:
    where = between(position_of(loss, "after"), position_of(loss, "before"))
    entries = words.plural(loss.entries, "entry", "entries")
    lost = f"at least {entries}" if loss.entries else "it is unknown whether any"
    return f"{lost} {where}, noticed {words.moment(loss.noticed_ms)} UTC"


HOLDERS = {"buffer": "buffer", "source": "source", "place": "bucket", "table": "table"}
"""Words before the names of holders; a missing range has its kind alone."""


def holder_label(one: inspect_pb2.LayoutResponse.Holder) -> str:
    """Return what a holder is called in a layout."""
    return " ".join(filter(None, (HOLDERS.get(one.kind, one.kind), one.name)))


def holder_words(one: inspect_pb2.LayoutResponse.Holder) -> str:
    """Return the extents of a holder as words, with its lag and what is wrong."""
    ends, missing = "", one.kind not in HOLDERS
    if one.extents:
        begin, end = position_of(one.extents[0], "begin"), position_of(one.extents[-1], "end")
        ends = between(begin, end) if missing else f"{begin} to {end}"
    ranges = f"{len(one.extents):,} ranges, {ends}" if len(one.extents) > 1 else ends
    counted = words.plural(one.entries, "entry", "entries") if one.entries else "unknown number" if ends else "nothing"
    if one.entries and missing and not all(extent.entries for extent in one.extents):
        counted = f"at least {counted}"
    lag = f"{words.age(one.lag_s)} behind" if one.HasField("lag_s") and one.lag_s else ""
    said = ", ".join(filter(None, (ranges, counted if ends or not one.problem else "", lag)))
    return "; ".join(filter(None, (said, one.problem)))
