"""The settings of traces; see sections.py, and docs/status.md for what is in them."""

from __future__ import annotations

import re

from pydantic import Field

from offloaderd.config.kinds import OptionalSecret, OptionalText, Url
from offloaderd.config.section import Section


class TracingSettings(Section):
    """The life of segments as traces of OpenTelemetry, sent by OTLP over gRPC."""

    enabled: bool = False
    """Send traces. Needs OpenTelemetry: pip install 'offloaderd[otel]'. Off, it costs nothing."""

    endpoint: Url = "http://127.0.0.1:4317"
    """The collector. It may be away: what finds no room in a queue of 4096 spans is dropped."""

    ca_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/collector-ca.crt"])
    """Authorities that sign the collector's certificate (PEM), with https. Not set: the system's."""

    headers: OptionalSecret = Field(default=None, examples=["authorization=Bearer TOKEN"])
    """Sent with every export: NAME=VALUE, several with commas between them. Never shown."""

    ratio: float = Field(default=1.0, ge=0, le=1, allow_inf_nan=False)
    """Of how many segments, chosen by their ids: 0.01 is one in a hundred, for all daemons the same."""


def header_pairs(text: str) -> dict[str, str]:
    """Return the headers in a text by their names, as gRPC wants them; none if one of them is malformed."""
    pairs = [pair.strip().partition("=") for pair in text.split(",")]
    found = {name.strip().lower(): value.strip() for name, _, value in pairs if value.strip().isprintable()}
    good = len(found) == len(pairs) and all(re.fullmatch(r"[a-z0-9_.-]+", name) and found[name] for name in found)
    return found if good else {}
