"""The whole examination: every group of checks, in the order in which they depend on each other; or the connections."""

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
from offloaderd.objects.bucket import bucket_store, check_places


async def settings_checks(case: Case) -> AsyncGenerator[CheckResult, None]:
    """Judge settings that are valid."""
    yield await case.check("settings", _settings_finding(case.settings))


def invalid(mistakes: Sequence[str]) -> list[CheckResult]:
    """Return a line for each mistake in settings that are not."""
    return [
        CheckResult(name="settings", verdict=Verdict.FAIL, found=mistake, what_to_do="docs/settings.md describes each")
        for mistake in mistakes
    ]


async def _settings_finding(settings: Settings) -> Finding:
    doubts = list(doubtful(settings))
    if doubts:
        return warn("; ".join(found for found, _ in doubts), "; ".join(advice for _, advice in doubts))
    return ok(f"valid: ledgers.kind = {settings.ledgers.kind}, objects.kind = {settings.objects.kind}")


GROUPS = (settings_checks, machine_checks, zookeeper_checks, admin_checks, bucket_checks, clock_checks)


async def examine(settings: Settings, clock: Clock, *, serving: bool = False) -> AsyncGenerator[CheckResult, None]:
    """Yield each result as it is found. `serving`: the daemon asks about itself."""
    case = Case(settings, clock, serving=serving)
    for group in GROUPS:
        async with aclosing(group(case)) as results:
            async for result in results:
                yield result


async def connections(settings: Settings, clock: Clock) -> list[CheckResult]:
    """Try once what the settings name, one after the other; nothing is changed anywhere."""
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
