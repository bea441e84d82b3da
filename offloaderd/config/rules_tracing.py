"""What must hold between the settings of traces; see rules.py."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from offloaderd.config.rules_access import Broken, is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offloaderd.config.sections import Settings

EXTRA = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc")


def tracing_rules(settings: Settings) -> Iterator[Broken]:
    """Yield what would send no traces, or send what goes with them to anybody."""
    tracing = settings.tracing
    if not tracing.enabled:
        return
    if not all(map(is_installed, EXTRA)):
        yield Broken(
            ("tracing.enabled",),
            "tracing.enabled = true needs OpenTelemetry, which is not installed: pip install 'offloaderd[otel]', or "
            "set tracing.enabled = false",
        )
    if tracing.endpoint is None:
        yield Broken(
            ("tracing.enabled", "tracing.endpoint"), "tracing.enabled = true needs tracing.endpoint: say where to send"
        )
    elif tracing.headers is not None:
        address = urlsplit(tracing.endpoint)
        if address.scheme != "https" and not is_loopback(address.hostname or ""):
            yield Broken(
                ("tracing.headers", "tracing.endpoint"),
                f"tracing.headers would be sent in the clear to {tracing.endpoint}: use https",
            )
        if not header_pairs(tracing.headers.get_secret_value()):
            yield Broken(
                ("tracing.headers",), "tracing.headers is not NAME=VALUE, or several of them with commas between them"
            )


def header_pairs(text: str) -> dict[str, str]:
    """Return the headers in a text by their names, as gRPC wants them; none if one of them is malformed."""
    pairs = [pair.strip().partition("=") for pair in text.split(",")]
    found = {name.strip().lower(): value.strip() for name, _, value in pairs if value.strip().isprintable()}
    good = len(found) == len(pairs) and all(re.fullmatch(r"[a-z0-9_.-]+", name) and found[name] for name in found)
    return found if good else {}


def is_installed(module: str) -> bool:
    """Whether a module could be imported; only those above it are."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
