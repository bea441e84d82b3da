"""The settings: what is allowed, works, and may still not be what somebody wants."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from offloaderd.config.rules_access import is_authenticated, is_loopback
from offloaderd.doctor.finding import CheckResult, Finding, Verdict, ok, warn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from offloaderd.config import Settings
    from offloaderd.doctor.case import Case


async def settings_checks(case: Case) -> AsyncGenerator[CheckResult, None]:
    """Judge settings that are valid."""
    yield await case.check("settings", _judged(case.settings))


def invalid(mistakes: Sequence[str]) -> list[CheckResult]:
    """Return a line for each mistake in settings that are not."""
    return [
        CheckResult(name="settings", verdict=Verdict.FAIL, found=mistake, what_to_do="docs/settings.md describes each")
        for mistake in mistakes
    ]


async def _judged(settings: Settings) -> Finding:
    doubts = list(doubtful(settings))
    if doubts:
        return warn("; ".join(found for found, _ in doubts), "; ".join(advice for _, advice in doubts))
    return ok(f"valid: ledgers.kind = {settings.ledgers.kind}, objects.kind = {settings.objects.kind}")


def doubtful(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield what may be a mistake, and what to do about it."""
    pulsar, bookkeeper = settings.pulsar, settings.bookkeeper
    has_token = pulsar.admin_token is not None or pulsar.admin_token_file is not None
    if has_token and pulsar.admin_url is not None and not _is_private(pulsar.admin_url):
        yield f"the admin token is sent in the clear to {pulsar.admin_url}", "use https:// in pulsar.admin_url"
    if bookkeeper.sasl_username is not None and not bookkeeper.tls:
        yield "bookies are authenticated to, but not encrypted", "set bookkeeper.tls = true if they offer it"
    if not is_authenticated(settings) and not is_loopback(settings.grpc.host):
        yield "the API is open to whoever reaches its port", "let only clients and daemons reach grpc.port"
    if settings.ledgers.kind == "none" and settings.pulsar.admin_url is not None:
        yield "pulsar.admin_url is set, but no ledgers are tailed", 'set ledgers.kind = "bookkeeper", or remove it'


def _is_private(url: str) -> bool:
    """Whether nobody on the way can listen."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")
