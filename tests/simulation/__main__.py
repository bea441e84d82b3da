"""Run seeds: `python -m tests.simulation --seeds 2000`, or one of them again: `--seed 17 --verbose`."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter

import structlog

from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.metrics.service import WAKE_CAUSES
from tests.simulation.kill_points import KillWorld
from tests.simulation.run import again, options_of, simulate
from tests.simulation.world import RealSourceWorld

COLLECTED_AFTER = 50
"""Seeds between two searches for cycles of objects, which take a tenth of the time; a seed leaves 4 MiB."""


def main() -> int:
    """Run what was asked for; returns 1 when a seed failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--point", metavar="HISTORY/POINT", help="run worlds whose daemon dies there (kill_points.py)")
    parser.add_argument("--verbose", action="store_true", help="print the trace")
    parser.add_argument("--hashes", action="store_true", help="print each seed's trace hash")
    parser.add_argument("--tail", type=int, default=60, help="how many lines of a failed run's trace to print")
    parser.add_argument("--stop", action="store_true", help="stop at the first seed that fails")
    parser.add_argument(
        "--real-source", action="store_true", help="no seed draws its ledger source: all have the real one"
    )
    parser.add_argument("--mirrored", action="store_true", help="leave out seeds whose segments have no second copy")
    given = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(50 if not given.verbose else 0),
        cache_logger_on_first_use=True,
    )
    usual = RealSourceWorld if given.real_source else None
    metrics, make = Metrics(), KillWorld.at(*given.point.split("/")) if given.point else usual
    fired: Counter[str] = Counter()
    real_source: Counter[str] = Counter()
    failed: list[int] = []
    commits = entries = reads = steps = kept = granted = removed = history = 0
    chosen = [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    seeds = [seed for seed in chosen if not given.mirrored or options_of(seed).mirror]
    started = time.process_time()  # how long it takes on the machine
    gc.disable()
    for number, seed in enumerate(seeds):
        report = simulate(seed, metrics, verbose=given.verbose, make=make)
        fired += report.fired
        commits, entries = commits + report.commits, entries + report.entries
        reads, steps, kept = reads + report.reads, steps + report.steps, kept + report.kept
        granted, removed = granted + report.granted, removed + report.removed
        history, real_source = history + report.history, real_source + report.real_source
        if given.hashes:
            print(f"{seed} {report.trace_hash}")
        if report.failure:
            failed.append(seed)
            print(f"seed {seed} FAILED: {report.failure}")
            print("\n".join(report.tail[-given.tail :] if given.tail else []))
            print(f"again: {again(seed, given.point, real_source=given.real_source)}", flush=True)
            if given.stop:
                break
        if number % COLLECTED_AFTER == COLLECTED_AFTER - 1 and number < len(seeds) - 1:
            gc.collect()
    took = time.process_time() - started
    print(
        f"{len(seeds)} seeds in {took:.1f} s ({took / max(1, len(seeds)):.3f} s each, {steps} steps): "
        f"{len(failed)} failed, {commits} segments of {entries} entries committed, "
        f"{history} of history, {reads} entries read, "
        f"{kept} parts found by new owners, {granted} ledgers deleted by grant, {removed} segments removed, "
        f"{fired.total()} faults"
    )
    wakes = {one: metrics.topic_wakes.labels(cause=one)._value.get() for one in WAKE_CAUSES}
    print("topics woken: " + ", ".join(f"{cause} {count:g}" for cause, count in wakes.items()))
    print("real ledger source: " + ", ".join(f"{what} {count}" for what, count in sorted(real_source.items())))
    print(", ".join(f"{what} {count}" for what, count in sorted(fired.items())))
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    code = main()
    gc.freeze()  # what ends with the process need not be searched for cycles
    sys.exit(code)
