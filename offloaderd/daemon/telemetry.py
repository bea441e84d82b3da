"""Segments as traces of OpenTelemetry: the only module that imports it, and only loaded where tracing is switched on.

The id of a trace is that of its segment. A segment that changes owners is one trace with a root span for each owner.
Whether a segment is traced follows from its id, so all owners decide alike. Spans wait in a bounded queue and a thread
of the SDK sends them; the daemon never waits for a collector.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

import grpc
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context
from prometheus_client import Counter

from offloaderd import __version__
from offloaderd.core.errors import InvalidConfig
from offloaderd.core.traces import NO_TRACES, Fact, SegmentTrace
from offloaderd.daemon.settings.sections import DaemonSettings, TracingSettings, header_pairs

QUEUE_SPANS_MAX = 4096
BATCH_SPANS_MAX = 512
EXPORT_TIMEOUT_S = 3
VALUE_CHARS_MAX = 1024
IDS = 1 << 32


class Telemetry:
    """Traces of OpenTelemetry; `spans` counts spans by outcome. Closed by its owner."""

    def __init__(
        self, options: TracingSettings, ours: DaemonSettings, spans: Counter, exporter: SpanExporter | None = None
    ) -> None:
        """Prepare to send; the collector need not be there. Raises InvalidConfig for authorities it cannot read."""
        self._ids = _SegmentIds()
        self._exporter = _Counted(exporter or _exporter(options), spans)
        self._threshold = round(options.ratio * IDS)
        about = {SERVICE_NAME: "offloaderd", SERVICE_VERSION: __version__, SERVICE_INSTANCE_ID: ours.id}
        about["offloaderd.cluster"] = ours.cluster
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(about),
            shutdown_on_exit=False,
            id_generator=self._ids,
            span_limits=SpanLimits(max_attribute_length=VALUE_CHARS_MAX),
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(self._exporter, max_queue_size=QUEUE_SPANS_MAX, max_export_batch_size=BATCH_SPANS_MAX)
        )
        self._tracer = self._provider.get_tracer("offloaderd", __version__)
        self.spans = spans

    def segment(self, segment_id: UUID, **facts: Fact) -> SegmentTrace:
        """Return the trace of a segment; it does nothing if the segment is not sampled."""
        if not self._sampled(segment_id):
            return NO_TRACES
        return _Trace(self._tracer, self._ids, self.spans, segment_id, facts)

    def exemplar(self, segment_id: UUID) -> dict[str, str]:
        """Return the segment's id, and that of its trace if it is sampled."""
        traced = {"trace_id": segment_id.hex} if self._sampled(segment_id) else {}
        return {**NO_TRACES.exemplar(segment_id), **traced}

    def _sampled(self, segment_id: UUID) -> bool:
        return segment_id.int >> 96 < self._threshold

    @property
    def closing(self) -> bool:
        """Whether `close` was called."""
        return self._exporter.ending

    def flush(self) -> None:
        """Send the waiting spans. Blocks for as long as an export may take."""
        self._provider.force_flush(EXPORT_TIMEOUT_S * 1000)

    def close(self) -> None:
        """Send the waiting spans, and end the thread. Blocks for at most two exports if they fail."""
        self._exporter.ending = True
        self._provider.shutdown()


class _Trace:
    """The spans of a segment under one owner."""

    def __init__(
        self, tracer: Tracer, ids: "_SegmentIds", spans: Counter, segment_id: UUID, facts: Mapping[str, Fact]
    ) -> None:
        self._tracer = tracer
        self.spans = spans
        ids.next_trace_id = segment_id.int
        said = {"segment_id": str(segment_id), **facts}
        self._root: Span = tracer.start_span("segment", context=Context(), attributes=attributes(said))
        self._context = set_span_in_context(self._root, Context())

    def __enter__(self) -> Self:
        """Return itself; the trace has already begun."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the root span."""
        self._end(self._root, error)

    @contextmanager
    def step(self, name: str, **facts: Fact) -> Iterator[None]:
        """Time a step."""
        span = self._tracer.start_span(name, context=self._context, attributes=attributes(facts))
        try:
            yield
        except BaseException as error:
            self._end(span, error)
            raise
        self._end(span, None)

    def say(self, **facts: Fact) -> None:
        """Set facts of the segment."""
        self._root.set_attributes(attributes(facts))

    def _end(self, span: Span, error: BaseException | None) -> None:
        """End a span; for an error with its class, and without its message."""
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR))
        span.end()
        self.spans.labels(outcome="ended").inc()


def attributes(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """Return facts with their names in traces."""
    return {f"offloaderd.{name}": value for name, value in facts.items()}


class _SegmentIds(RandomIdGenerator):
    """Random ids, but for the traces of segments."""

    next_trace_id = 0

    def generate_trace_id(self) -> int:
        """Return the id that was set for the next trace, once."""
        found, self.next_trace_id = self.next_trace_id, 0
        return found or super().generate_trace_id()


class _Counted(SpanExporter):
    """An exporter that counts its spans; once it is `ending` it stops after a failure."""

    def __init__(self, exporter: SpanExporter, spans: Counter) -> None:
        self.ending = False
        self._exporter = exporter
        self._result = SpanExportResult.SUCCESS
        self.spans = spans

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans, in the SDK's thread."""
        if not (self.ending and self._result is SpanExportResult.FAILURE):
            self._result = self._exporter.export(spans)
        outcome = "exported" if self._result is SpanExportResult.SUCCESS else "failed"
        self.spans.labels(outcome=outcome).inc(len(spans))
        return self._result

    def shutdown(self) -> None:
        """End the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Have the exporter send what it keeps."""
        return self._exporter.force_flush(timeout_millis)


def _exporter(options: TracingSettings) -> SpanExporter:
    secure, authorities = (options.endpoint or "").startswith("https://"), _authorities(options.ca_file)
    return OTLPSpanExporter(
        endpoint=options.endpoint,
        insecure=not secure,
        credentials=grpc.ssl_channel_credentials(authorities) if secure else None,
        headers=header_pairs(options.headers.get_secret_value()) if options.headers is not None else None,
        timeout=EXPORT_TIMEOUT_S,
    )


def _authorities(path: str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        hint = "name a file with certificates (PEM) that the daemon may read"
        raise InvalidConfig(f"tracing.ca_file {path}: {error.strerror or error}", hint=hint) from error
