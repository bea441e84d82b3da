"""The whole examination: all groups of checks in the order of their dependencies; or the connections alone.

Here are the checks of the settings and of this machine: memory for the budgets, free ports, writable directories, and
its clock. Wall-clock times are subtracted only here, to compare clocks. The time of a server is known to lie between
the times before and after its answer, and less exactly if it has full seconds.
"""

import asyncio
import errno
import os
import shutil
import socket
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

from offloaderd.core.clock import Clock
from offloaderd.core.model import TopicName
from offloaderd.core.units import format_bytes
from offloaderd.daemon.doctor.bucket import bucket_checks, reading_checks
from offloaderd.daemon.doctor.cluster import admin_checks
from offloaderd.daemon.doctor.finding import Case, CheckResult, Finding, Reading, Verdict, fail, ok, skipped, warn
from offloaderd.daemon.doctor.zookeeper import open_store, zookeeper_checks
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.settings.rules import doubtful
from offloaderd.metadata.topic_map.unnamed import UnnamedPlace
from offloaderd.objects.opening import bucket_store, check_places
from offloaderd.objects.settings import ServiceSettings

MiB = 1024**2
BASE_BYTES = 100 * MiB
"""Memory of a process besides its budgets; the parent of several takes as much."""
MEMORY_WARN_SHARE = 0.8
SKEW_WARN_MS = 2_000
SKEW_FAIL_MS = 300_000
"""Well before the 15 minutes after which S3 refuses signatures."""
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


async def machine_checks(case: Case) -> AsyncGenerator[CheckResult, None]:
    """Check this machine."""
    yield await case.check("memory", asyncio.to_thread(memory, case.settings))
    if case.serving:
        yield skipped("ports", "the daemon listens on them")
    else:
        yield await case.check("ports", asyncio.to_thread(ports, case.settings))
    if case.settings.ledgers.kind == "embedded":
        yield await case.check("ledgers directory", asyncio.to_thread(directory, case.settings, case.probe_name()))
    if case.settings.cache.directory is not None:
        yield await case.check("cache directory", asyncio.to_thread(cache_directory, case.settings))


def memory(settings: Settings) -> Finding:
    """Compare the budgets with the memory of this machine or container."""
    budgets = settings.memory
    count = settings.daemon.processes
    base = BASE_BYTES * (count + 1 if count > 1 else 1)
    needed = budgets.budget_bytes + base
    there = memory_bytes(map(Path, CGROUP_LIMITS))
    if there is None:
        return ok(f"{_mib(needed)} at most; this system does not say how much there is")
    found = f"{_mib(needed)} at most (the budgets and {_mib(base)}) of {_mib(there)} here"
    lower = "lower memory.buffer_bytes, memory.upload_bytes or memory.cache_bytes, or give the daemon more"
    if needed > there:
        return fail(found, f"{lower}: it would be killed under load")
    return warn(found, f"{lower}: little is left for others") if needed > there * MEMORY_WARN_SHARE else ok(found)


def memory_bytes(limits: Iterable[Path]) -> int | None:
    """Return the memory of the machine, or the lowest limit of a container; None if neither is known."""
    found = []
    with suppress(OSError, ValueError):  # not every system has these names
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in limits:
        try:
            found.append(int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue  # no such control group, or "max"
    return min(found, default=None)


def ports(settings: Settings) -> Finding:
    """Check that the ports are free."""
    told = []
    for name, server in (("grpc", settings.grpc), ("http", settings.http)):
        try:
            listen(server.host, server.port)
        except OSError as error:
            return warn(
                f"{name}.port {server.port} on {server.host}: {error.strerror or error}",
                "if the daemon runs already, ask it: offloadctl doctor; else give it another port",
            )
        told.append(f"{name} {server.host}:{server.port}")
    return ok(f"free: {', '.join(told)}")


def listen(host: str, port: int) -> None:
    """Bind a port and release it. Raises OSError if it is in use, also by the daemon itself."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host.strip("[]"), port))


def directory(settings: Settings, probe_name: str) -> Finding:
    """Write and delete a file in the directory of the embedded store; check its free space."""
    wanted = Path(settings.ledgers.directory)
    there = next((path for path in (wanted, *wanted.absolute().parents) if path.is_dir()), Path("/"))
    probe = there / f".{probe_name}"
    try:
        probe.write_bytes(b"probe")
        probe.unlink()
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        right = f"let the daemon's user write ledgers.directory = {settings.ledgers.directory}, or set another"
        return fail(f"cannot write in {there}: {error.strerror}", "free some space on that disk" if full else right)
    free = shutil.disk_usage(there).free
    found = f"{wanted}: {_mib(free)} free" + ("" if there == wanted else ", will be made")
    if free < settings.ledgers.ledger_bytes_max:
        return warn(found, f"make room: one ledger may take {format_bytes(settings.ledgers.ledger_bytes_max)}")
    return ok(found)


def cache_directory(settings: Settings, root: Path = Path("/")) -> Finding:
    """Check that the disk cache is on a disk of its own that has room for it."""
    cache = settings.cache
    wanted = Path(cache.directory or "")
    there = next((path for path in (wanted, *wanted.absolute().parents) if path.is_dir()), root)
    free = shutil.disk_usage(there).free
    found = f"{wanted}: {_mib(free)} free" + ("" if there == wanted else ", will be made")
    if there.stat().st_dev == root.stat().st_dev:
        return warn(
            f"{found}, on the file system of {root}",
            "mount a disk for cache.directory, and have the daemon start after it (systemd: RequiresMountsFor=); "
            f"else the cache takes up to {format_bytes(cache.disk_bytes)} of the disk of the system",
        )
    held = sum(one.stat().st_size for one in there.glob("*.block")) if there == wanted else 0
    if free + held < cache.disk_bytes + cache.free_bytes:
        return warn(found, "lower cache.disk_bytes, or give it a larger disk: it will be smaller than set")
    return ok(found)


def _mib(count: int) -> str:
    return f"{count // MiB:,} MiB"


async def clock_checks(case: Case) -> AsyncGenerator[CheckResult, None]:
    """Compare every clock that earlier checks have read."""
    for name, reading in case.readings.items():
        yield await case.check(f"clock of {name}", clock_finding(name, reading))


async def clock_finding(name: str, reading: Reading) -> Finding:
    """Return the finding for the clock of a server."""
    skew_ms = reading.skew_ms
    if abs(skew_ms) <= SKEW_WARN_MS:
        return ok(f"agrees with ours to {max(1.0, abs(skew_ms) / 1000):.0f} s")
    found = f"{abs(skew_ms) / 1000:.1f} s {'ahead of' if skew_ms > 0 else 'behind'} ours"
    if abs(skew_ms) <= SKEW_FAIL_MS:
        return warn(found, f"let NTP set this machine and {name}: ages and times in segments are off by as much")
    return fail(found, f"let NTP set this machine and {name}: S3 refuses signatures that are 15 minutes off")


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
READING_GROUPS = (settings_checks, machine_checks, reading_checks)
"""The checks for a daemon that only reads."""


async def examine(
    settings: Settings,
    clock: Clock,
    *,
    serving: bool = False,
    unnamed: Mapping[TopicName, Sequence[UnnamedPlace]] | None = None,
) -> AsyncGenerator[CheckResult, None]:
    """Yield the results in order. `serving`: the daemon examines itself; `unnamed` as in Case."""
    case = Case(settings, clock, serving=serving, unnamed=unnamed)
    for group in READING_GROUPS if settings.daemon.read_only else GROUPS:
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

    async def objects(service: ServiceSettings) -> Finding:
        async with bucket_store(settings.objects, clock) as store:
            await check_places(service, store)
        return ok("")

    async def port(host: str, number: int) -> Finding:
        listen(host, number)
        return ok("")

    found = []
    if not settings.daemon.read_only:
        found.append(await case.check(f"metadata {options.servers}", metadata()))
    services = [(f"{one.section} {one.bucket or one.directory}", one) for one in settings.objects.every_service]
    found += [await case.check(name, objects(one)) for name, one in services]
    for name, server in (("grpc", settings.grpc), ("http", settings.http)):
        found.append(await case.check(f"{name} {server.host}:{server.port}", port(server.host, server.port)))
    return found
