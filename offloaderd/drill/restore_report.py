"""The result of a drill of a restore for people, for programs, and for node_exporter."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from prometheus_client import write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from offloaderd import __version__
from offloaderd.core.errors import InvalidInput
from offloaderd.core.metrics.drills import RestoreDrillMetrics
from offloaderd.core.units import age, moment, number, plural, size
from offloaderd.drill.restore import Counts, Found, Reading, TopicResult, Wish

CLUSTER = "pulsar_cluster"
LAST_SUCCESS = "offloaderd_restore_drill_last_success_timestamp_seconds"
READ = {
    Reading.NONE: "nothing was read: that entries are as they were written is not shown",
    Reading.ENDS: "the first and the last entry of each ledger in each segment, with their checksums",
    Reading.ALL: "every entry, with its checksum",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Numbers of what would come up. `messages` is None unless everything was read: no manifest has their number."""

    topics: int
    topics_failed: int
    partitioned_topics: int
    ledgers: int
    entries: int
    messages: int | None
    payload_bytes: int
    entries_left_out: int
    subscriptions: int
    entries_read: int
    payload_bytes_read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """The report of a drill of `cluster` in `bucket`; `captured_ms` is the time of the capture that was used."""

    cluster: str
    bucket: str
    wish: Wish
    found: Found
    captured_ms: int | None = None

    def totals(self) -> "Totals":
        """Return the numbers of what would come up, and of what was read."""
        topics = [one for one in self.found.topics if one.comes_up]
        read = _sum(one.read for one in self.found.topics)
        return Totals(
            topics=len(topics),
            topics_failed=len(self.found.failed),
            partitioned_topics=self.found.partitioned_topics,
            ledgers=sum(one.ledgers for one in topics),
            entries=sum(one.entries for one in topics),
            messages=_sum(one.read for one in topics).messages if self.wish.reading is Reading.ALL else None,
            payload_bytes=sum(one.payload_bytes for one in topics),
            entries_left_out=sum(one.entries_left_out for one in topics),
            subscriptions=sum(one.subscriptions for one in topics),
            entries_read=read.entries,
            payload_bytes_read=read.payload_bytes,
        )

    def document(self) -> dict[str, object]:
        """Return the report as JSON."""
        found = self.found
        return {
            "sound": found.sound,
            "started_ms": found.started_ms,
            "version": __version__,
            "cluster": self.cluster,
            "bucket": self.bucket,
            "read": self.wish.reading.value,
            "at_gap": self.wish.at_gap.value,
            "captured_ms": self.captured_ms,
            **asdict(self.totals()),
            "system_topics_left_out": found.system_topics,
            "seconds": {name: round(seconds, 3) for name, seconds in found.seconds.items()},
            "topic_results": [_row(one) for one in found.topics],
            "to_do": list(found.to_do),
            "unread": list(found.unread),
        }

    def markdown(self) -> str:
        """Return the report as Markdown."""
        found, totals = self.found, self.totals()
        verdict = "Every topic would come up." if found.sound else "NOT EVERYTHING WOULD COME UP: see below."
        messages = "not counted, as entries may hold several; --read all counts them"
        facts = {
            "topics that would come up": f"{number(totals.topics)} of {number(len(found.topics))}, with those of "
            f"{plural(totals.partitioned_topics, 'partitioned topic')}",
            "ledgers": number(totals.ledgers),
            "entries": f"{number(totals.entries)}, {size(totals.payload_bytes)} of payload",
            "messages": number(totals.messages) if totals.messages is not None else messages,
            "entries of these topics that would stay in the bucket": number(totals.entries_left_out),
            "subscriptions": self._subscriptions(totals.subscriptions),
            "read": READ[self.wish.reading],
            "read in all": f"{plural(totals.entries_read, 'entry', 'entries')}, {size(totals.payload_bytes_read)}",
            "time": self._times(),
        }
        failures = [f"{one.topic}: {why}" for one in found.failed for why in one.why]
        left_out = [
            f"{one.topic}: {name}: {why}" for one in found.topics for name, why in one.subscriptions_left_out.items()
        ]
        if found.system_topics:
            facts["topics of Pulsar itself, which are never mounted"] = number(found.system_topics)
        return "\n".join([
            f"# Drill of a restore: {self.cluster}",
            "",
            f"{moment(found.started_ms)} UTC, offloaderd {__version__}, bucket {self.bucket}. {verdict}",
            "",
            *(f"- {name}: {text}" for name, text in facts.items()),
            *_section("Topics that would not come up", failures),
            *_section("Unread in the bucket, of whatever topic", found.unread),
            *_section("To do besides", found.to_do),
            *_section("Subscriptions that would not come up", left_out),
            *_section(
                "Damaged, and read from the copy in the mirror",
                [f"{one.topic}: {text}" for one in found.topics for text in one.damaged],
            ),
            "",
        ])  # fmt: skip

    def _subscriptions(self, count: int) -> str:
        if self.captured_ms is None:
            return "none, as no capture was used"
        return f"{number(count)}, as the capture of {moment(self.captured_ms)} has them"

    def _times(self) -> str:
        seconds = self.found.seconds
        parts = ", ".join(f"{name} {age(spent)}" for name, spent in seconds.items())
        return f"{age(sum(seconds.values()))} ({parts}); the lists were written into memory, not into ZooKeeper"


def _row(one: TopicResult) -> Mapping[str, object]:
    return {
        "topic": str(one.topic),
        "comes_up": one.comes_up,
        "why": list(one.why),
        "ledgers": one.ledgers,
        "entries": one.entries,
        "payload_bytes": one.payload_bytes,
        "begin": str(one.begin) if one.begin is not None else None,
        "end": str(one.end) if one.end is not None else None,
        "entries_left_out": one.entries_left_out,
        "losses": len(one.losses),
        "subscriptions": one.subscriptions,
        "subscriptions_left_out": dict(one.subscriptions_left_out),
        "entries_read": one.read.entries,
        "damaged": list(one.damaged),
    }


def _section(heading: str, lines: Iterable[str]) -> list[str]:
    rows = [f"- {' '.join(line.split())}" for line in lines]
    return ["", f"## {heading}", "", *rows] if rows else []


def _sum(counts: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(Counts(), *counts, strict=True)))


def last_success(path: Path, cluster: str) -> float:
    """Return when the last drill succeeded, by the file of an earlier one; 0 if none did.

    Raises InvalidInput for a place where no such file can be, or another file, which is not replaced.
    """
    if not path.parent.is_dir():
        raise InvalidInput(f"{path.parent} is no directory", hint="name a file in the directory of the collector")
    try:
        families = list(text_string_to_metric_families(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return 0.0
    except ValueError as error:
        raise InvalidInput(
            f"{path} is no file of metrics: {error}", hint="it is replaced, so name one of its own"
        ) from None
    samples = [sample for family in families for sample in family.samples]
    return max(
        (one.value for one in samples if one.name == LAST_SUCCESS and one.labels.get(CLUSTER) == cluster), default=0.0
    )


def write_metrics(path: Path, cluster: str, found: Found | None, *, now_s: float, succeeded_s: float) -> None:
    """Replace the file of metrics. `found` None: the drill was broken off; `succeeded_s`: `last_success` before it."""
    metrics = RestoreDrillMetrics()
    sound = found is not None and found.sound
    labels = {CLUSTER: cluster}
    metrics.restore_drill_last_run_timestamp_seconds.labels(**labels).set(now_s)
    metrics.restore_drill_last_success_timestamp_seconds.labels(**labels).set(now_s if sound else succeeded_s)
    metrics.restore_drill_success.labels(**labels).set(sound)
    if found is not None:
        failed = len(found.failed)
        for outcome, count in (("sound", len(found.topics) - failed), ("failed", failed)):
            metrics.restore_drill_topics.labels(**labels, outcome=outcome).set(count)
        for part, seconds in found.seconds.items():
            metrics.restore_drill_duration_seconds.labels(**labels, part=part).set(seconds)
    write_to_textfile(str(path), metrics.registry)
