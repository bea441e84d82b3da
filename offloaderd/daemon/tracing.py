"""Opens what segments are traced to, as the settings say: OpenTelemetry, or nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.core.errors import InvalidConfig
from offloaderd.core.traces import NO_TRACES
from offloaderd.daemon.settings.sections.settings import header_pairs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.core.metrics.metrics import Metrics
    from offloaderd.core.traces import Traces
    from offloaderd.daemon.settings import Settings


@asynccontextmanager
async def opened_traces(settings: Settings, metrics: Metrics) -> AsyncIterator[Traces]:
    """Yield where segments are traced; what waits is sent at the end. Raises InvalidConfig.

    OpenTelemetry is imported here, and only if it is wanted: the settings have seen that it is there.
    """
    tracing = settings.tracing
    if not tracing.enabled or tracing.endpoint is None:
        yield NO_TRACES
        return
    from offloaderd.daemon.telemetry import Telemetry, TelemetryOptions  # noqa: PLC0415 - an extra that need not be installed

    options = TelemetryOptions(
        endpoint=tracing.endpoint,
        authorities=_authorities(tracing.ca_file),
        headers=header_pairs(tracing.headers.get_secret_value()) if tracing.headers is not None else {},
        ratio=tracing.ratio,
        daemon_id=settings.daemon.id,
        cluster=settings.daemon.cluster,
    )
    telemetry = Telemetry(options, metrics.spans)
    try:
        yield telemetry
    finally:
        await asyncio.to_thread(telemetry.close)


def _authorities(path: str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        hint = "name a file with certificates (PEM) that the daemon may read"
        raise InvalidConfig(f"tracing.ca_file {path}: {error.strerror or error}", hint=hint) from error
