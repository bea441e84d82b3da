"""Measure offloaderd on servers of its own, each figure beside its reference in the same run, and write a report.

The report is a page with tables of min, median and max, goals and ratios; beside it are the same as JSON and pictures
as SVG. The exit code says whether everything could be measured, not whether the goals were met: the report says that.

examples:
  python -m bench                              the main ways, three rounds: less than 20 minutes of a quiet machine
  python -m bench --all                        all but Spark's jobs: 40 minutes
  python -m bench --quick                      one round of little: less than 3 minutes
  python -m bench --only push --only read      some of it
  python -m bench --only memory --sustained 600
  python -m bench --only many --idle 10000        start, memory and requests of 10,000 idle topics: 40 minutes
  python -m bench --only spark --only spark-cores --only spark-bookies --only spark-read --runs 2    Spark's jobs
  python -m bench --s3 versitygw --only push --only read    on another S3 server (make stores)
  python -m bench --all --report docs/speed-report.md    the page that is committed
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from bench import machine, plots
from bench.appending import caught_up, pushed
from bench.clouds import clouds
from bench.disk import disk_cache
from bench.durable import time_to_durable
from bench.following import following
from bench.inside import inside
from bench.live import EXPLICIT_LAC, broker, live
from bench.loops import loops
from bench.many import many
from bench.memory import peak
from bench.mirrored import mirrored
from bench.processes import processes
from bench.publishing import publishing
from bench.random_reads import random_reads
from bench.readers import readers
from bench.reading import read_back
from bench.report import Figure, shown_by_little, table, write
from bench.scale import scale
from bench.site import CLOCK, site
from bench.spark import backfill_bookies, backfill_embedded, backfill_scaling
from bench.spark_source import data_source
from bench.stock import stock
from bench.tables import tables, tables_many
from bench.tailing import bookies, tail
from bench.tenants import tenants
from bench.topics import fifty, slow
from bench.whole import whole
from offloaderd.core.errors import OffloaderError
from offloaderd.daemon import log
from tests.real import stores

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from bench.scale import Scale
    from bench.site import Site
    from tests.real.bookies import BookKeeperCluster
    from tests.real.pulsar import PulsarServer

T = TypeVar("T")
BENCHMARK_S = 400.0
"""No benchmark takes longer, but for what it is kept at full load; one that does is broken."""
IDLE_TOPIC_S = 0.5
"""How much longer one may take for each idle topic."""

ALONE: dict[str, Callable[[Site, Scale], Awaitable[list[Figure]]]] = {
    "inside": inside,
    "loops": loops,
    "processes": processes,
    "push": pushed,
    "catch-up": caught_up,
    "fifty": fifty,
    "follow": following,
    "read": read_back,
    "readers": readers,
    "random": random_reads,
    "disk": disk_cache,
    "clouds": clouds,
    "mirror": mirrored,
    "durable": time_to_durable,
    "slow": slow,
    "tenants": tenants,
    "memory": peak,
    "spark": backfill_embedded,
    "spark-cores": backfill_scaling,
    "spark-read": data_source,
    "tables": tables,
    "tables-many": tables_many,
}
ON_BOOKIES: dict[str, Callable[[Site, Scale, BookKeeperCluster], Awaitable[list[Figure]]]] = {
    "tail": tail,
    "whole": whole,
    "stock": stock,
    "many": many,
    "spark-bookies": backfill_bookies,
}
ON_BROKER: dict[str, Callable[[Site, Scale, PulsarServer], Awaitable[list[Figure]]]] = {
    "live": live,
    "publishing": publishing,
}
Told = Callable[[list[Figure]], None]
NAMES = [*ALONE, *ON_BOOKIES, *ON_BROKER]
NAMED = ("spark", "spark-cores", "spark-read", "spark-bookies", "tables", "tables-many")
"""Those of Spark's jobs take as long as all others and have a page of their own: they run when they are named."""
IN_ALL = ("catch-up", "clouds", "disk", "fifty", "follow", "loops", "mirror", "publishing", "slow", "stock", "tenants")
"""Those beside the main ways: they run with `--all`, or when they are named."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run; returns 1 when something could not be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round of little: less than three minutes")
    chosen_by = parser.add_mutually_exclusive_group()
    chosen_by.add_argument("--only", choices=NAMES, action="append", help="run this one (may be repeated)")
    chosen_by.add_argument("--all", action="store_true", help=f"also run {', '.join(IN_ALL)}")
    parser.add_argument("--runs", type=int, help="rounds of ours and its references (default: 3; quick: 1)")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="begin none behind so many minutes: they are missing (default: 60)"
    )
    parser.add_argument("--s3", choices=stores.COMMANDS, help="another S3 server (make stores); default: SeaweedFS")
    parser.add_argument("--sustained", type=float, help="seconds at full load of `memory`, each of two ways")
    parser.add_argument("--idle", type=int, help="idle topics of `many` (default: 500; quick: 20)")
    parser.add_argument("--slow", type=int, help="topics of an entry a second of `slow` (default: 1000; quick: 50)")
    parser.add_argument(
        "--report",
        type=Path,
        default=Path("build/bench/report.md"),
        help="page to write, with .json and .svg beside it (default: %(default)s)",
    )
    chosen = parser.parse_args(arguments)
    if chosen.runs is not None and chosen.runs < 1:
        parser.error("--runs must be 1 or more")
    for name in [name for name in os.environ if name.startswith("OFFLOADERD__")]:
        del os.environ[name]  # nobody's own settings should be measured
    log.configure("warning", "json")
    size = scale(quick=chosen.quick, runs=chosen.runs, sustained_s=chosen.sustained, idle=chosen.idle, slow=chosen.slow)
    started, load = CLOCK.monotonic(), machine.load()
    figures: list[Figure] = []

    def told(more: list[Figure]) -> None:
        """Keep what there is, in case that the rest does not come."""
        figures.extend(shown_by_little(one) if size.quick else one for one in more)
        write(chosen.report, _about(arguments, chosen.s3, size, CLOCK.monotonic() - started, load), figures, [])

    left_out = (*NAMED, *(() if chosen.all else IN_ALL))
    names = chosen.only or [name for name in NAMES if name not in left_out]
    asyncio.run(run(names, size, told, started + 60 * chosen.minutes, chosen.s3 or ""))
    about = _about(arguments, chosen.s3, size, CLOCK.monotonic() - started, load)
    write(chosen.report, about, figures, plots.draw(chosen.report, figures))
    print(f"{about[0]}\n\n{table(one for one in figures if not one.process)}\n\nwritten to {chosen.report}")
    return 1 if any(one.missing for one in figures) else 0


def _about(arguments: Sequence[str] | None, s3: str | None, size: Scale, seconds: float, load: float) -> list[str]:
    """Return the paragraphs before the tables."""
    command = " ".join(["python -m bench", *(sys.argv[1:] if arguments is None else arguments)])
    return [
        f"`{command}`: a {'quick' if size.quick else 'full'} run of {size.runs} "
        f"round{'s' if size.runs > 1 else ''} in {seconds / 60:.0f} minutes. {machine.describe()}; client, daemon and "
        f"all servers share the cores. The load average of the minute before was {load:.1f}.",
        f"S3 server: {s3 or 'SeaweedFS'}. "
        + (
            "So little is moved that what happens once weighs heavily: rates, shares and CPU have goals only in a "
            "full run."
            if size.quick
            else "Each figure was measured in turns with its reference. Goals are for the median; some figures have "
            'none. A rate "over" another is divided by it. [speed.md](speed.md) says what the figures mean, and why '
            "goals are missed."
        ),
    ]


class Given(NamedTuple):
    """The context of every benchmark, and the time (monotonic seconds) after which none begins."""

    place: Site
    size: Scale
    until: float


async def run(names: Sequence[str], size: Scale, told: Told, until: float, s3: str) -> None:
    """Run benchmarks by name, one at a time; those that share servers of Java one behind the other."""
    async with site(s3) as place:
        given = Given(place, size, until)
        for name, benchmark in _chosen(ALONE, names).items():
            told(await _one(name, partial(benchmark, place, size), given))
        await _beside(bookies(place), _chosen(ON_BOOKIES, names), given, told)
        await _beside(broker(place, EXPLICIT_LAC), _chosen(ON_BROKER, names), given, told)


def _chosen(benchmarks: Mapping[str, T], names: Sequence[str]) -> dict[str, T]:
    return {name: benchmark for name, benchmark in benchmarks.items() if name in names}


async def _beside(
    server: AbstractAsyncContextManager[T],
    benchmarks: Mapping[str, Callable[[Site, Scale, T], Awaitable[list[Figure]]]],
    given: Given,
    told: Told,
) -> None:
    """Run benchmarks on one server, if any are wanted; without it (no Java, no jars) they are missing."""
    if not benchmarks:
        return
    async with AsyncExitStack() as stack:
        try:
            running = await stack.enter_async_context(server)
        except OffloaderError as error:
            told([_missing(name, error) for name in benchmarks])
            return
        for name, benchmark in benchmarks.items():
            told(await _one(name, partial(benchmark, given.place, given.size, running), given))


async def _one(name: str, measure: Callable[[], Awaitable[list[Figure]]], given: Given) -> list[Figure]:
    """Run one benchmark; figures that it could not measure are missing, and the others are reported."""
    started = CLOCK.monotonic()
    if started > given.until:
        return [_missing(name, TimeoutError("no time was left for it (--minutes)"))]
    print(f"{name} ...", end=" ", flush=True, file=sys.stderr)
    try:
        async with asyncio.timeout(BENCHMARK_S + 2 * given.size.sustained_s + IDLE_TOPIC_S * given.size.idle_topics):
            return await measure()
    except Exception as error:  # noqa: BLE001 - whatever it was
        traceback.print_exception(error)
        return [_missing(name, error)]
    finally:
        print(f"{CLOCK.monotonic() - started:.0f} s", file=sys.stderr)


def _missing(name: str, error: Exception) -> Figure:
    return Figure(
        benchmark=name,
        figure="everything",
        values=[],
        missing=f"{type(error).__name__}: {' '.join(str(error).split())}",
    )


if __name__ == "__main__":
    sys.exit(main())
