"""The cost of a measurement: time, CPU and peak memory of every process, and the daemon's requests.

async with measured(daemon) as took:
    ...
took.seconds, took.cpu_s["daemon"], took.requests, took.s3_in_bytes
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

from bench.machine import cpu_s, forget_peak, memory_bytes
from bench.report import CPU, PEAK, Figure
from bench.site import CLOCK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from bench.site import Daemon

MIB, GIB = 2**20, 2**30
_REQUESTS = re.compile(r'^offloaderd_objects_requests_total\{.*operation="(\w+)".*\} (\S+)$', re.MULTILINE)
_BYTES_IN = re.compile(r'^offloaderd_objects_bytes_total\{.*direction="in".*\} (\S+)$', re.MULTILINE)
_BOOKIES = re.compile(r"^offloaderd_bookie_requests_total\{.*\} (\S+)$", re.MULTILINE)
BOOKIES = "bookies"


@dataclass(slots=True)
class Measured:
    """The usage from the beginning of the context to its end; filled at the end.

    `requests` are the daemon's answers from S3 by operation, and those from bookies together.
    """

    seconds: float = 0.0
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    s3_in_bytes: float = 0.0

    @property
    def s3_requests(self) -> int:
        """All requests to S3."""
        return self.requests.total() - self.requests[BOOKIES]


class _Counters(NamedTuple):
    requests: Counter[str]
    s3_in_bytes: float


@asynccontextmanager
async def measured(daemon: Daemon) -> AsyncIterator[Measured]:
    """Measure the body."""
    took = Measured()
    before = await _counters(daemon)
    for pid in daemon.pids.values():
        forget_peak(pid)
    cpu = {name: cpu_s(pid) for name, pid in daemon.pids.items()}
    started = CLOCK.monotonic()
    yield took
    took.seconds = CLOCK.monotonic() - started
    took.cpu_s = {name: cpu_s(pid) - cpu[name] for name, pid in daemon.pids.items()}
    took.peak_bytes = {name: memory_bytes(pid)[1] for name, pid in daemon.pids.items()}
    after = await _counters(daemon)
    took.requests = after.requests - before.requests
    took.s3_in_bytes = after.s3_in_bytes - before.s3_in_bytes


async def _counters(daemon: Daemon) -> _Counters:
    address = f"http://127.0.0.1:{daemon.http_port}/metrics"
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(address) as answer:
        text = await answer.text()
    requests: Counter[str] = Counter()
    for operation, count in _REQUESTS.findall(text):
        requests[operation] += round(float(count))
    requests[BOOKIES] = round(sum(map(float, _BOOKIES.findall(text))))
    return _Counters(requests, sum(map(float, _BYTES_IN.findall(text))))


def process_figures(benchmark: str, gib: float, rounds: Sequence[Measured]) -> list[Figure]:
    """Return CPU for a GiB and peak memory of every process, and the daemon's requests to S3 for a GiB."""
    found = [
        Figure(
            benchmark=benchmark,
            figure="requests to S3",
            values=[one.s3_requests / gib for one in rounds],
            unit="/GiB",
        )
    ]
    for process in rounds[0].cpu_s:
        found += used_figures(
            benchmark,
            process,
            cpu=[one.cpu_s[process] / gib for one in rounds],
            peak=[one.peak_bytes[process] for one in rounds],
        )
    return found


def used_figures(benchmark: str, process: str, *, cpu: Sequence[float], peak: Sequence[int] = ()) -> list[Figure]:
    """Return what one process took: CPU seconds for a GiB, and bytes of memory at its peak, if there are any."""
    used = Figure(benchmark=benchmark, figure=CPU, process=process, values=list(cpu), unit="s/GiB")
    if not peak:
        return [used]
    return [
        used,
        Figure(benchmark=benchmark, figure=PEAK, process=process, values=[one / MIB for one in peak], unit="MiB"),
    ]
