"""The life of segments as traces: each step once, under the segment's own id, whoever works on it; off, nothing."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from offloaderd.core.errors import NotFound
from offloaderd.core.model import Position
from offloaderd.core.traces import NO_STEP, NO_TRACES
from offloaderd.daemon.settings.sections import DaemonSettings, TracingSettings
from offloaderd.daemon.telemetry import Telemetry
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.rigs.lives import life, until_recorded
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, until_offloaded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

STEPS = {"segment": 1, "open": 1, "seal": 1, "complete": 1, "verify": 1, "commit": 1}


class Seen:
    """All spans that were sent."""

    def __init__(self, rig: Rig, ratio: float) -> None:
        self.exporter = InMemorySpanExporter()
        options = TracingSettings(endpoint="http://127.0.0.1:1", ratio=ratio)
        self.telemetry = Telemetry(options, DaemonSettings(id="d", cluster="c"), rig.metrics.spans, self.exporter)
        self.count = rig.metrics.spans

    def spans(self) -> list[ReadableSpan]:
        """Return what was sent until now."""
        self.telemetry.flush()
        return list(self.exporter.get_finished_spans())

    def traces(self) -> dict[UUID, list[ReadableSpan]]:
        """Return the spans of each trace, by the segment that its id names."""
        found: dict[UUID, list[ReadableSpan]] = {}
        for span in self.spans():
            found.setdefault(UUID(int=span.context.trace_id), []).append(span)
        return found


@contextmanager
def traced(rig: Rig, ratio: float = 1.0) -> Iterator[Seen]:
    """Have a rig traced."""
    seen = Seen(rig, ratio)
    rig.traces = seen.telemetry
    try:
        yield seen
    finally:
        seen.telemetry.close()


def facts(span: ReadableSpan) -> dict[str, Any]:
    """Return a span's attributes without their prefix."""
    return {name.removeprefix("offloaderd."): value for name, value in (span.attributes or {}).items()}


async def everything_offloaded(rig: Rig) -> None:
    """Append 300 entries of 100 bytes, and have them all offloaded."""
    assert rig.ledgers is not None
    await rig.ledgers.append(TOPIC, payloads(300))
    async with rig.engine() as engine:
        topic = await enabled(engine)
        target = await topic.request_roll()
        assert target is not None
        await until_offloaded(topic, target)


async def test_a_segment_is_one_trace_with_all_its_steps() -> None:
    """Opened, parts, sealed, completed, verified, committed: each a span under one root, which has what it became."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=200)
    with traced(rig) as seen:
        await everything_offloaded(rig)
        ((segment_id, spans),) = seen.traces().items()
    assert Counter(span.name for span in spans if span.name != "part") == STEPS
    (root,) = [span for span in spans if span.name == "segment"]
    assert root.parent is None
    assert all(span.parent.span_id == root.context.span_id for span in spans if span is not root and span.parent)
    assert all(root.start_time <= span.start_time <= span.end_time <= root.end_time for span in spans)  # type: ignore[operator]
    assert all(span.status.status_code is StatusCode.UNSET for span in spans)
    told = facts(root)
    assert told["segment_id"] == str(segment_id)
    assert told["topic"] == str(TOPIC)
    assert (told["begin"], told["end"]) == ("0:0", str(Position(1, 99)))
    assert (told["entries"], told["payload_bytes"], told["ledgers"]) == (300, 30_000, 2)
    assert (told["reason"], told["method"], told["epoch"], told["continued"]) == ("manual", "streaming", 1, False)
    parts = sorted((facts(span) for span in spans if span.name == "part"), key=lambda one: one["part_number"])
    assert [one["part_number"] for one in parts] == list(range(1, told["parts"] + 1))
    assert sum(one["bytes"] for one in parts) == told["object_bytes"]
    assert root.resource.attributes["service.instance.id"] == "d"
    assert seen.count.labels(outcome="ended")._value.get() == len(spans)
    assert seen.count.labels(outcome="exported")._value.get() == len(spans)


def led_to(rig: Rig) -> dict[str, set[tuple[tuple[str, str], ...]]]:
    """Return the labels of all exemplars, by the histogram that has them."""
    found: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for family in rig.metrics.view().collect():
        for sample in family.samples:
            if sample.exemplar is not None:
                found.setdefault(family.name, set()).add(tuple(sample.exemplar.labels.items()))
    return found


LEADING = {
    "offloaderd_time_to_durable_seconds",
    "offloaderd_upload_part_duration_seconds",
    "offloaderd_metadata_commit_duration_seconds",
}


async def test_histograms_lead_to_the_trace_of_a_segment() -> None:
    """A value that was observed for a segment carries its id, and that of its trace."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    with traced(rig) as seen:
        await everything_offloaded(rig)
        (segment_id,) = seen.traces()
    labels = ("segment_id", str(segment_id)), ("trace_id", segment_id.hex)
    assert led_to(rig) == {name: {labels} for name in LEADING}


async def test_histograms_name_no_trace_of_a_segment_that_has_none() -> None:
    """Without traces, and where a segment is not sampled, an exemplar has the segment's id alone."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    await everything_offloaded(rig)
    assert led_to(rig).keys() == LEADING
    assert {name for labels in led_to(rig).values() for one in labels for name, _ in one} == {"segment_id"}
    with traced(rig, ratio=0.25) as seen:
        ids = [UUID(int=quarter << 126 | 1) for quarter in range(4)]
        assert [len(seen.telemetry.exemplar(one)) for one in ids] == [2, 1, 1, 1]


async def test_a_segment_that_fails_says_by_what_and_not_a_word_more() -> None:
    """The class of the error is in the trace of the attempt; its message, which might hold anything, is not."""
    rig, faults = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600)), Faults()
    rig.objects = FaultyStore(MemoryStore(rig.clock, part_bytes_min=1), faults)
    rig.ledgers = memory_ledgers(rig.clock)
    faults.fail("upload_part", NotFound("canary-message"), times=1)
    with traced(rig) as seen:
        await everything_offloaded(rig)
        found = seen.traces()
    assert len(found) == 2
    failed, good = sorted(found.values(), key=lambda spans: spans[-1].end_time or 0)
    roots = [span for span in failed if span.name == "segment"]
    assert [facts(span)["error.type"] for span in roots] == ["SegmentFailed"]
    assert roots[0].status.status_code is StatusCode.ERROR
    assert "commit" in {span.name for span in good}
    assert "commit" not in {span.name for span in failed}
    assert "canary" not in "".join(span.to_json() for span in seen.spans())


async def test_a_segment_that_changes_owners_stays_one_trace() -> None:
    """The next owner's spans are in the same trace, under a root of their own that says so."""
    rig = Rig(policy=RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=3600))
    rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=250)
    async with rig.engine("setup") as engine:
        await enabled(engine)
    await rig.ledgers.append(TOPIC, payloads(700))
    with traced(rig) as seen:
        async with life(rig, "one"):
            attempt = await until_recorded(rig, lambda attempt: len(attempt.parts) >= 2)
        async with rig.engine("two") as engine:
            topic = await offloader_of(engine)
            target = await topic.request_roll()
            assert target is not None
            await until_offloaded(topic, target)
        spans = seen.traces()[attempt.segment_id]
    roots = sorted((span for span in spans if span.name == "segment"), key=lambda span: span.end_time or 0)
    assert [facts(span)["continued"] for span in roots] == [False, True]
    assert facts(roots[0])["error.type"] == "CancelledError"
    assert facts(roots[1])["epoch"] > facts(roots[0])["epoch"]
    assert "error.type" not in facts(roots[1])


async def test_every_owner_chooses_the_same_segments() -> None:
    """Which of them are traced follows from their ids: at a ratio of a half some are, by every daemon the same ones."""
    rig = Rig()
    ids = [rig.clock.uuid() for _ in range(400)]
    with traced(rig, 0.5) as one, traced(rig, 0.5) as other:
        chosen = [[seen.telemetry.segment(one) is not NO_TRACES for one in ids] for seen in (one, other)]
    assert chosen[0] == chosen[1]
    assert 100 < sum(chosen[0]) < 300
    with traced(rig, 0.0) as none:
        assert all(none.telemetry.segment(one) is NO_TRACES for one in ids)


async def test_off_it_does_nothing() -> None:
    """Without traces a step is one shared object that does nothing, and a segment's trace is another."""
    rig = Rig()
    trace = rig.traces.segment(rig.clock.uuid(), topic="t")
    assert trace is NO_TRACES
    assert trace.step("part", part_number=1) is trace.step("seal") is NO_STEP
    with trace as entered, entered.step("x"):
        entered.say(a=1)
    assert entered is NO_TRACES


def test_off_the_library_is_not_even_loaded() -> None:
    """The daemon's modules import nothing of OpenTelemetry."""
    script = (
        "import sys, offloaderd.daemon.daemon; "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
