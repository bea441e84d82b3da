"""A daemon's status as JSON, and rates of topics: the same for `offloadctl status`, `offloadctl top` and the page."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from offloaderd.protocol.message_json import as_json, picked
from offloaderd.protocol.v1 import admin_pb2


class Rate(NamedTuple):
    """Entries of a topic that go into segments, in entries and payload bytes a second."""

    entries_per_s: float
    bytes_per_s: float


class Taken(Protocol):
    """The entries of a topic taken under one claim, by its status or the status's message."""

    @property
    def topic(self) -> object:
        """The topic, or its name."""

    @property
    def epoch(self) -> int:
        """The epoch, 0 for none."""

    @property
    def taken_entries(self) -> int:
        """Entries in segments, including the open one."""

    @property
    def taken_bytes(self) -> int:
        """Their payload bytes."""


class Rates(dict[str, Rate]):
    """Rates by topic between the last two samples, for topics that were in both under one claim."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: dict[str, tuple[int, int, int]] = {}
        self._at_s = 0.0

    def look(self, topics: Iterable[Taken], now_s: float) -> None:
        """Take a sample and set every topic's rate; topics that are not in it are dropped."""
        before, seconds = self._taken, now_s - self._at_s
        self._taken = {str(one.topic): (one.epoch, one.taken_entries, one.taken_bytes) for one in topics}
        self._at_s = now_s
        self.clear()
        for name, (epoch, entries, size) in self._taken.items():
            last = before.get(name)
            if last is not None and last[0] == epoch and epoch and seconds > 0:
                self[name] = Rate((entries - last[1]) / seconds, (size - last[2]) / seconds)


def daemon_json(found: admin_pb2.StatusResponse) -> dict[str, object]:
    """Return the daemon as JSON."""
    names = ("id=daemon_id", "version", "state", "started_ms", "memory_used_bytes", "memory_budget_bytes")
    return picked(found, *names, "dependencies", "alarms", kept=("daemon_id", "version", "state", "started_ms"))


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
        "open_segment": opened if one.open_segment_id else None,
        **picked(one, "buffer_bytes", "segments_committed", "edge", "hidden_entries"),
        "looked_age_s": one.looked_age_s,
        **picked(one, "method", "taken_entries", "taken_bytes"),
        "losses": [as_json(loss, kept=("noticed_ms",), nullable=("entries",)) for loss in one.losses],
    }


def rated_json(one: admin_pb2.TopicStatus, rate: Rate | None) -> dict[str, object]:
    """Return a topic with its rates as JSON; null while they are unknown."""
    return {
        **topic_json(one),
        "taken_entries_per_s": round(rate.entries_per_s, 3) if rate is not None else None,
        "taken_bytes_per_s": round(rate.bytes_per_s, 3) if rate is not None else None,
    }
