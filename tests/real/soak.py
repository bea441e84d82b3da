"""A long random run on real processes and servers, which ends by itself: `python -m tests.real.soak --minutes 10`.

One ZooKeeper and one S3 server, and rounds of two kinds until the time is over, each on a bucket and a cluster of its
own, with the S3 server behind a proxy that spoils a share of all requests. *Crashes*: a daemon with a ledger store dies
at a random kill point again and again. *Brokers*: two daemons without a source take what brokers push, while they are
killed, paused past their sessions, drained and cut off from ZooKeeper. Garbage is collected all the time. After every
round all is healed, offloaded and read, and history, bucket and metadata have to agree (proof.py). A round that saw no
fault, no death or no segment proves nothing and counts as failed.

Rounds are drawn from a seed; the processes' own timing is not, so a seed that failed is likely, not certain, to again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.processes import CLOCK
from tests.real.ground import Chance, Tally, ground
from tests.real.soak_rounds import brokers, crashes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real.ground import Ground


async def one_round(site: Ground, chance: Chance, number: int) -> tuple[str, Tally]:
    """Run one round; which kind alternates."""
    kind = (crashes, brokers)[number % 2]
    tally = await kind(site, chance)
    tally.rounds = 1
    for what, there in (("fault", tally.faults.total()), ("death", tally.deaths), ("segment", tally.segments)):
        assert there, f"a round without any {what} proves nothing"
    return kind.__name__, tally


async def soak(seconds: float, seed: int, say: Callable[[str], object]) -> Tally:
    """Run rounds until the time is over, two at least; raises what a round found wrong."""
    total = Tally()
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="offloaderd-soak-")))
        site = await stack.enter_async_context(ground(directory))
        until = CLOCK.monotonic() + seconds
        while total.rounds < 2 or CLOCK.monotonic() < until:
            kind, tally = await one_round(site, Chance(f"{seed}/{total.rounds}"), total.rounds)
            total.add(tally)
            say(f"round {total.rounds}, {kind}: {tally}\n")
    return total


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no round after this (default 10)")
    parser.add_argument("--seed", type=int, default=CLOCK.wall_ms(), help="what to draw from (default: the time)")
    given = parser.parse_args()

    def say(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    say(f"seed {given.seed}\n")
    total = asyncio.run(soak(60 * given.minutes, given.seed, say))
    say(f"{total.rounds} rounds, nothing lost, nothing left: {total}\n")


if __name__ == "__main__":
    main()
