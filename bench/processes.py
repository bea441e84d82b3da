"""Two processes of a host over one: entries are made in the processes, and the store discards what it gets.

A daemon alone and a host of two processes take turns, each process with as many bytes. Beside them goes the plainest
framing of the same entries, in the same processes: what of two its rate is, the machine can give.
"""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from bench import goals
from bench.host import DIRECTORY, PROGRAM, Turn
from bench.inside import DISTINCT
from bench.load import MIB
from bench.machine import load
from bench.report import Figure, spread
from bench.scale import ENTRY_SIZES
from bench.site import CLOCK, START_S
from offloaderd.client import DaemonClient
from offloaderd.core.errors import Transient
from offloaderd.standalone.ports import free_ports, http_get
from offloaderd.standalone.process import ChildProcess, Command

if TYPE_CHECKING:
    from bench.scale import Scale
    from bench.site import Sections, Site

COUNT = 2
LABEL = "10 KiB"
TOPICS = 16
"""So many that each process has one, whatever the placement."""
AHEAD_S = 0.5
"""How long before its begin a turn is written: the processes read it, and wait for the common time."""
TURN_S = 120.0
NAME = f"{COUNT} processes over one, {LABEL}, entries made inside, store that discards"


class Rate(NamedTuple):
    """Bytes a second of a whole host; the same a CPU second of its processes."""

    by_time: float
    by_cpu: float


@dataclass(slots=True)
class Host:
    """A running host with its turns."""

    count: int
    directory: Path
    child: ChildProcess
    taken: int = field(default=0)

    async def turn(self, what: str, total_bytes: int) -> Rate:
        """Have all processes do something with as many bytes each; returns the rate of all together."""
        self.taken += 1
        entry_bytes = ENTRY_SIZES[LABEL]
        task = Turn(at_s=CLOCK.monotonic() + AHEAD_S, what=what, entry_bytes=entry_bytes, total_bytes=total_bytes)
        draft = self.directory / ".turn"
        draft.write_text(json.dumps(task))
        draft.rename(self.directory / f"turn-{self.taken}")
        found = [self.directory / f"turn-{self.taken}-{number}" for number in range(1, self.count + 1)]
        until_s = CLOCK.monotonic() + TURN_S
        while not all(path.exists() for path in found):
            if not self.child.running:
                raise self.child.death(await self.child.wait())
            if CLOCK.monotonic() > until_s:
                raise Transient(f"the turn took longer than {TURN_S:g} s")
            await CLOCK.sleep(0.02)
        took = [json.loads(path.read_text()) for path in found]
        moved = self.count * total_bytes
        return Rate(moved / max(one[0] for one in took), moved / sum(one[1] for one in took))


async def processes(site: Site, size: Scale) -> list[Figure]:
    """Measure both in turns; the first turn of each makes its entries and is not counted."""
    total = max(4 * size.segment_bytes, DISTINCT * MIB)
    found: dict[tuple[int, str], list[Rate]] = {}
    loads = []
    async with AsyncExitStack() as stack:
        hosts = [await _host(stack, site, count) for count in (1, COUNT)]
        for turn in range(size.runs + 1):
            loads.append(load())
            for what in ("framing", "engine"):
                for host in hosts:
                    rate = await host.turn(what, total)
                    if turn:
                        found.setdefault((host.count, what), []).append(rate)
    ratios = {
        what: [two.by_time / one.by_time for one, two in zip(found[1, what], found[COUNT, what], strict=True)]
        for what in ("framing", "engine")
    }
    engines = list(zip(found[1, "engine"], found[COUNT, "engine"], strict=True))
    by_cpu = [COUNT * two.by_cpu / one.by_cpu for one, two in engines]
    return [
        Figure(
            benchmark=NAME,
            figure="rate over that of one process",
            values=ratios["engine"],
            goal=goals.TWO_PROCESSES,
            notes={
                "plain framing in the same processes": spread(ratios["framing"], ""),
                "of the engine's by CPU": spread(by_cpu, ""),
                "one": spread([one.by_time / 1e6 for one, _ in engines], "MB/s"),
                "two": spread([two.by_time / 1e6 for _, two in engines], "MB/s"),
                "load average": spread(loads, ""),
            },
        ),
        Figure(
            benchmark=NAME,
            figure="the same over plain framing's",
            values=[ours / plain for ours, plain in zip(ratios["engine"], ratios["framing"], strict=True)],
            notes={"median of plain framing's": f"{median(ratios['framing']):.2f}"},
        ),
    ]


async def _host(stack: AsyncExitStack, site: Site, count: int) -> Host:
    """Start a host with topics, of which each process has one at least."""
    name = f"processes-{count}"
    directory = site.directory / name
    (directory / "objects").mkdir(parents=True)
    grpc_port, http_port = free_ports(2, CLOCK)
    sections: Sections = {
        "daemon": {"processes": count},
        "grpc": {"process_port": 0},
        "ledgers": {"kind": "none"},
        "offload": {"segment_bytes_max": 64 << 30, "segment_age_max_s": 86_400},
        "memory": {"buffer_bytes": 512 * MIB, "upload_bytes": 256 * MIB},
        "log": {"level": "warning"},
    }
    environment = dict(site.environment(name, grpc_port, http_port, sections))
    for key in [key for key in environment if key.startswith("OFFLOADERD__OBJECTS__")]:
        del environment[key]
    environment |= {
        "OFFLOADERD__OBJECTS__KIND": "filesystem",
        "OFFLOADERD__OBJECTS__DIRECTORY": str(directory / "objects"),
        DIRECTORY: str(directory),
        "PYTHONPATH": str(Path.cwd()),
    }
    command = Command(
        name=name,
        program=Path(sys.executable),
        arguments=PROGRAM[1:],
        directory=directory,
        environment=environment,
        stop_grace_s=60.0,
    )
    child = await stack.enter_async_context(ChildProcess(command, CLOCK))

    async def serves() -> bool:
        return (await http_get(http_port, "/readyz"))[0] == 200

    await child.ready(serves, 6 * START_S)
    async with DaemonClient(f"127.0.0.1:{grpc_port}") as client:
        for number in range(TOPICS):
            await client.enable(f"topic-{number}")
        until_s = CLOCK.monotonic() + START_S
        while True:
            owners = [one.owner for one in await client.topics()]
            if all(owners) and len(set(owners)) == count:
                return Host(count, directory, child)
            if CLOCK.monotonic() > until_s:
                raise Transient("the processes have not divided the topics")
            await CLOCK.sleep(0.1)
