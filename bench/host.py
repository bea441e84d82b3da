"""`offloaderd serve` with daemon.processes, whose processes make their entries themselves and discard their objects.

Parent, processes, ZooKeeper, placement and engine are the real ones. Without sockets and servers on the way the work is
the processes' own, so two of them show how much two cores give. A process waits for the file `turn-NUMBER`, does what
it says from a common time on, and writes what it took to `turn-NUMBER-PROCESS`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from bench.child import used_s
from bench.discarding import store
from bench.inside import DISTINCT, framed
from bench.load import PUSH_LEDGER, Entries
from bench.site import CLOCK
from offloaderd.core.model import EntryBatch, OfferResult, Position
from offloaderd.daemon import daemon, log
from offloaderd.daemon.components import Components
from offloaderd.daemon.process import freeze_heap, limit_arenas, relax_gc
from offloaderd.daemon.settings import load
from offloaderd.daemon.settings.share import Process, share_of
from offloaderd.processes.serving import run_processes
from tests.unit.rigs.rig import until_offloaded

if TYPE_CHECKING:
    from offloaderd.fleet.engine import Engine

PROGRAM = (sys.executable, "-m", "bench.host")
DIRECTORY = "BENCH_TURNS"
"""Variable of the environment: the directory of the turns."""
LOOK_S = 0.02


class Turn(TypedDict):
    """What all processes of a host do from a time (monotonic seconds) on: `framing` or `engine`, with such entries."""

    at_s: float
    what: str
    entry_bytes: int
    total_bytes: int


class Feeding(Components):
    """The parts of the daemon, of which the last made are known."""

    made: Components

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ANN401 - as the daemon makes it
        super().__init__(*given, **named)
        Feeding.made = self


async def turns(engine: Engine, directory: Path, number: int) -> None:
    """Take turns for ever."""
    turn, first = 1, 0
    made: dict[tuple[int, int], Entries] = {}
    while True:
        path = directory / f"turn-{turn}"
        while not path.exists():
            await CLOCK.sleep(LOOK_S)
        task: Turn = json.loads(path.read_text())
        sizes = task["entry_bytes"], task["total_bytes"]
        entries = made.get(sizes)
        if entries is None:
            entries = made[sizes] = Entries(*sizes, distinct=DISTINCT)
        while CLOCK.monotonic() < task["at_s"]:
            await CLOCK.sleep(LOOK_S / 10)
        before = used_s()
        if task["what"] == "framing":
            framed(entries)
        else:
            await pushed(engine, entries, first)
            first += entries.count
        took = [CLOCK.monotonic() - task["at_s"], used_s() - before]
        draft = directory / f".turn-{turn}-{number}"
        draft.write_text(json.dumps(took))
        draft.rename(directory / f"turn-{turn}-{number}")
        turn += 1


async def pushed(engine: Engine, entries: Entries, first: int) -> None:
    """Push everything behind an entry into the first of this process's topics, until it is committed."""
    topic = await engine.owned(engine.topics()[0])
    for number, payloads in entries.batches():
        result = await topic.accept(EntryBatch(PUSH_LEDGER, first + number, payloads))
        if result is not OfferResult.ACCEPTED:
            raise RuntimeError(f"declined: {result}")
    last = Position(PUSH_LEDGER, first + entries.count - 1)
    await topic.request_roll(last)
    await until_offloaded(topic, last)


async def serve(process: Process | None) -> int:
    """Run one daemon, and take turns once it serves."""
    settings = share_of(load(None, os.environ), process.number if process is not None else 1)
    tasks: set[asyncio.Task[None]] = set()

    def ready(_: object) -> None:
        freeze_heap()
        number = process.number if process is not None else 1
        work = turns(Feeding.made.engine, Path(os.environ[DIRECTORY]), number)
        task = asyncio.get_running_loop().create_task(work, name="turns")
        task.add_done_callback(ended)
        tasks.add(task)

    code = await daemon.run(settings, on_ready=ready, environ=os.environ, process=process)
    for task in tasks:
        task.cancel()
    return code


def ended(task: asyncio.Task[None]) -> None:
    """End the process with an error that its turns have raised."""
    if not task.cancelled() and (error := task.exception()) is not None:
        traceback.print_exception(error)
        os._exit(1)


def main(arguments: list[str]) -> int:
    """Be the parent, one of its processes, or the only one."""
    limit_arenas()
    relax_gc()
    vars(daemon).update(Components=Feeding, bucket_store=store)
    settings = load(None, os.environ)
    log.configure(settings.log.level, settings.log.format)
    if "--as-process" in arguments:
        number, port, directory = arguments[arguments.index("--as-process") + 1 :][:3]
        count = settings.daemon.processes
        process = Process(number=int(number), count=count, port=int(port), directory=Path(directory))
        return asyncio.run(serve(process))
    if settings.daemon.processes > 1:
        again = run_processes(settings, None, reread=lambda: settings, environ=os.environ, program=PROGRAM)
        return asyncio.run(again)
    return asyncio.run(serve(None))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
