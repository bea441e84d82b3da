"""Tracing from the settings to a collector: what is refused, what is sent, and that a collector may be away."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from pydantic import SecretStr

from offloaderd.core.errors import InvalidConfig
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.traces import NO_TRACES
from offloaderd.daemon.settings import Settings, check, rules
from offloaderd.daemon.settings.rules import broken_rules, is_installed
from offloaderd.daemon.settings.sections import DaemonSettings, TracingSettings, header_pairs
from offloaderd.daemon.telemetry import BATCH_SPANS_MAX, Telemetry
from offloaderd.daemon.topic_context import opened_traces
from offloaderd.objects.settings import ObjectsSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

REAL_TIME = "HTTP"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans, and keeps them and what came with them."""

    def __init__(self) -> None:
        self.address = ""
        self.names: list[str] = []
        self.trace_ids: set[bytes] = set()
        self.headers: dict[str, Any] = {}

    def Export(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802 - as generated
        """Keep them."""
        self.headers |= dict(context.invocation_metadata())
        spans = [one for each in request.resource_spans for scope in each.scope_spans for one in scope.spans]
        self.names += [one.name for one in spans]
        self.trace_ids |= {one.trace_id for one in spans}
        return trace_service_pb2.ExportTraceServiceResponse()


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a free port."""
    found = Collector()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(found, server)  # type: ignore[no-untyped-call]
        found.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield found
        finally:
            server.stop(None).wait()


def settings(**tracing: Any) -> Settings:  # noqa: ANN401 - the section's own fields
    """Return settings of a daemon that traces."""
    section = TracingSettings(**{"enabled": True, **tracing})
    return Settings(objects=ObjectsSettings(kind="filesystem"), tracing=section)


async def test_spans_reach_a_collector_with_the_headers_that_it_wants() -> None:
    """What ended is at the collector once the daemon has closed, in the segment's trace, with the secret header."""
    metrics, segment_id = Metrics(), UUID("2c2f8f6e-8d4f-4b8f-9f36-0d8a6a1f2b11")
    with collecting() as collector:
        wanted = settings(endpoint=collector.address, headers=SecretStr("Authorization=Bearer x=y, tenant=a"))
        async with opened_traces(wanted, metrics) as traces:
            with traces.segment(segment_id, topic="t") as trace, trace.step("open"):
                pass
    assert sorted(collector.names) == ["open", "segment"]
    assert collector.trace_ids == {segment_id.bytes}
    assert collector.headers["authorization"] == "Bearer x=y"
    assert collector.headers["tenant"] == "a"
    assert metrics.spans.labels(outcome="exported")._value.get() == 2


async def test_a_collector_that_is_away_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans end as fast as with one; what could not be sent is counted, and closing does not take for ever."""
    monkeypatch.setattr("offloaderd.daemon.telemetry.EXPORT_TIMEOUT_S", 1)
    metrics = Metrics()
    async with opened_traces(settings(endpoint="http://127.0.0.1:1"), metrics) as traces:
        for number in range(3):
            with traces.segment(UUID(int=number + 1)):
                pass
    assert metrics.spans.labels(outcome="ended")._value.get() == 3
    assert metrics.spans.labels(outcome="exported")._value.get() == 0
    assert metrics.spans.labels(outcome="failed")._value.get() == 3


def test_the_end_does_not_wait_for_a_collector_that_is_away() -> None:
    """With a full queue and a collector that refuses, closing tries once more at most, and counts all as failed."""
    metrics, tried = Metrics(), []

    class Refusing(SpanExporter):
        """Takes nothing."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            """Refuse."""
            tried.append(telemetry.closing)
            return SpanExportResult.FAILURE

    options = TracingSettings(endpoint="http://127.0.0.1:1", ratio=1.0)
    telemetry = Telemetry(options, DaemonSettings(id="d", cluster="c"), metrics.spans, Refusing())
    for number in range(BATCH_SPANS_MAX * 3):
        with telemetry.segment(UUID(int=number + 1)):
            pass
    telemetry.close()
    assert tried.count(True) <= 2
    assert metrics.spans.labels(outcome="failed")._value.get() == BATCH_SPANS_MAX * 3


async def test_off_is_nothing() -> None:
    """Without tracing.enabled there is nothing to send to."""
    async with opened_traces(settings(enabled=False), Metrics()) as traces:
        assert traces is NO_TRACES


async def test_authorities_that_cannot_be_read_are_one_clear_line(tmp_path: Path) -> None:
    """The error names the setting and the file, and says what to do."""
    wanted = settings(endpoint="https://127.0.0.1:1", ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(InvalidConfig, match=r"tracing\.ca_file .*none\.pem: No such file") as caught:
        async with opened_traces(wanted, Metrics()):
            pytest.fail("opened without its authorities")
    assert "PEM" in caught.value.hint


def test_a_missing_extra_is_a_mistake_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for and not installed: told with all other mistakes, with the command that installs it."""
    environ = {"OFFLOADERD__TRACING__ENABLED": "true", "OFFLOADERD__OBJECTS__KIND": "filesystem"}
    assert not check(None, environ).mistakes
    monkeypatch.setattr(rules, "TRACING_MODULES", ("no_such_module.at_all",))
    (mistake,) = check(None, environ).mistakes
    assert "pip install 'offloaderd[otel]'" in str(mistake)
    assert not check(None, environ | {"OFFLOADERD__TRACING__ENABLED": "false"}).mistakes
    assert not is_installed("no_such_module.at_all")
    assert not is_installed("no_such_module")
    assert is_installed("offloaderd.core.model")


@pytest.mark.parametrize(
    ("tracing", "words"),
    [
        ({"endpoint": ""}, "needs tracing.endpoint"),
        ({"endpoint": "http://collector.example:4317", "headers": "a=b"}, "in the clear"),
        ({"headers": "canary"}, "is not NAME=VALUE"),
        ({"headers": "a=canary,a=canary"}, "is not NAME=VALUE"),
    ],
)
def test_what_cannot_work_is_told(tracing: dict[str, str], words: str) -> None:
    """Every mistake is one line, and has no header in it."""
    (broken,) = broken_rules(settings(**tracing))
    assert words in broken.text
    assert "canary" not in broken.text


@pytest.mark.parametrize(
    "tracing", [{"endpoint": "https://collector.example:4317", "headers": "a=b"}, {"headers": "a=b"}, {}]
)
def test_what_works_is_left_alone(tracing: dict[str, str]) -> None:
    """Encrypted, on this machine, or without anything to hide."""
    assert broken_rules(settings(**tracing)) == []


def test_headers() -> None:
    """Names are as gRPC has them, values keep their equals signs; one that is malformed spoils them all."""
    assert header_pairs("A=b, c-d=e=f") == {"a": "b", "c-d": "e=f"}
    for bad in ("", "a", "a=", "=b", "a b=c", "a=b,", "a=b\nc", "a=b,A=c"):
        assert header_pairs(bad) == {}
