"""The whole examination: all groups of checks in the order of their dependencies; or the connections alone."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from offloaderd.core.clock import Clock
from offloaderd.daemon.doctor.bucket import bucket_checks
from offloaderd.daemon.doctor.cluster import admin_checks
from offloaderd.daemon.doctor.finding import Case, CheckResult, Finding, Verdict, ok, warn
from offloaderd.daemon.doctor.machine import clock_checks, listen, machine_checks
from offloaderd.daemon.doctor.zookeeper import open_store, zookeeper_checks
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.settings.rules import doubtful
from offloaderd.objects.opening import bucket_store, check_places


def invalid(mistakes: Sequence[str]) -> list[CheckResult]:
    """Return a result for each mistake of invalid settings."""
    hint = "docs/settings.md describes each"
    return [CheckResult(Verdict.FAIL, mistake, hint, name="settings") for mistake in mistakes]


async def settings_checks(case: Case) -> AsyncGenerator[CheckResult, None]:
    """Check valid settings for probable mistakes."""
    yield await case.check("settings", _settings(case.settings))


async def _settings(settings: Settings) -> Finding:
    doubts = list(doubtful(settings))
    if doubts:
        return warn("; ".join(found for found, _ in doubts), "; ".join(advice for _, advice in doubts))
    return ok(f"valid: ledgers.kind = {settings.ledgers.kind}, objects.kind = {settings.objects.kind}")


GROUPS = (settings_checks, machine_checks, zookeeper_checks, admin_checks, bucket_checks, clock_checks)


async def examine(settings: Settings, clock: Clock, *, serving: bool = False) -> AsyncGenerator[CheckResult, None]:
    """Yield the results in order. `serving`: the daemon examines itself."""
    case = Case(settings, clock, serving=serving)
    for group in GROUPS:
        async with aclosing(group(case)) as results:
            async for result in results:
                yield result


async def connections(settings: Settings, clock: Clock) -> list[CheckResult]:
    """Connect once to each store and port of the settings; nothing is changed."""
    case, options = Case(settings, clock), settings.metadata

    async def metadata() -> Finding:
        async with open_store(settings, options.servers) as store:
            await store.children(options.root)
        return ok("")

    async def objects() -> Finding:
        async with bucket_store(settings.objects, clock) as store:
            await check_places(settings.objects, store)
        return ok("")

    async def port(host: str, number: int) -> Finding:
        listen(host, number)
        return ok("")

    place = settings.objects.bucket or settings.objects.directory
    found = [
        await case.check(f"metadata {options.servers}", metadata()),
        await case.check(f"objects {place}", objects()),
    ]
    for name, server in (("grpc", settings.grpc), ("http", settings.http)):
        found.append(await case.check(f"{name} {server.host}:{server.port}", port(server.host, server.port)))
    return found
