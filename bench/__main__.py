"""Runs the benchmarks one after the other on servers of its own, and writes what came out."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from bench import machine
from bench.appending import caught_up, pushed
from bench.durable import time_to_durable
from bench.inside import inside
from bench.live import live
from bench.many import many
from bench.memory import peak
from bench.publishing import publishing
from bench.random_reads import random_reads
from bench.reading import read_back
from bench.report import Figure, table, write
from bench.scale import scale
from bench.site import CLOCK, site
from bench.spark import backfill_bookies, backfill_embedded, data_source
from bench.tailing import tail
from offloaderd import log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bench.scale import Scale
    from bench.site import Site

BENCHMARK_S = 300.0
"""No benchmark takes longer; one that does is broken."""

BENCHMARKS: dict[str, Callable[[Site, Scale], Awaitable[list[Figure]]]] = {
    "inside": inside,
    "push": pushed,
    "catch-up": caught_up,
    "read": read_back,
    "random": random_reads,
    "durable": time_to_durable,
    "memory": peak,
    "tail": tail,
    "live": live,
    "many": many,
    "publishing": publishing,
    "spark": backfill_embedded,
    "spark-bookies": backfill_bookies,
    "spark-read": data_source,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run; returns 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer bytes: about three minutes instead of ten")
    parser.add_argument("--only", choices=BENCHMARKS, action="append", help="run this one (may be repeated)")
    parser.add_argument("--runs", type=int, default=3, help="rounds of ours and the reference (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="directory of report.md and report.json")
    chosen = parser.parse_args(arguments)
    if chosen.runs < 1:
        parser.error("--runs must be 1 or more")
    for name in [name for name in os.environ if name.startswith("OFFLOADERD__")]:
        del os.environ[name]  # nobody's own settings should be measured
    log.configure("warning", "json")
    names = chosen.only or list(BENCHMARKS)
    started = CLOCK.monotonic()
    figures = asyncio.run(run(names, scale(quick=chosen.quick, runs=chosen.runs)))
    about = (
        f"Python {platform.python_version()}, {machine.describe()}; {'quick' if chosen.quick else 'full'} run, "
        f"{chosen.runs} rounds, {CLOCK.monotonic() - started:.0f} s. Goals are for the median."
    )
    write(chosen.out, about, figures)
    print(f"{about}\n\n{table(figures)}\n\nwritten to {chosen.out}/report.md and report.json")
    return 1 if any(one.met is False for one in figures) else 0


async def run(names: Sequence[str], size: Scale) -> list[Figure]:
    """Run benchmarks by name, one at a time."""
    figures: list[Figure] = []
    async with site() as place:
        for name in names:
            started = CLOCK.monotonic()
            print(f"{name} ...", end=" ", flush=True, file=sys.stderr)
            try:
                async with asyncio.timeout(BENCHMARK_S):
                    figures += await BENCHMARKS[name](place, size)
            except Exception as error:  # noqa: BLE001 - the other benchmarks still tell something
                figures.append(Figure(benchmark=name, figure="failed", values=[1.0], goal=0.0, more_is_better=False))
                traceback.print_exception(error)
            print(f"{CLOCK.monotonic() - started:.0f} s", file=sys.stderr)
    return figures


if __name__ == "__main__":
    sys.exit(main())
