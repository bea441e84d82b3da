"""Several readers at once over gRPC: one, four and sixteen, of one segment and of a segment each, all of it cold.

All segments are of one topic and of one size; every measurement has segments that nobody has read lately, more than
the cache holds lie in between. A reader's share is what it has when the first one has finished: fair is the mean.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

from bench import goals
from bench.load import DEADLINE_S, MIB, PUSH_LEDGER, Entries
from bench.report import Figure, spread
from bench.stored import stored
from bench.usage import GIB, Measured, measured, process_figures
from offloaderd.core.model import Position, TopicName
from offloaderd.core.read_options import ReadPriority

if TYPE_CHECKING:
    from bench.scale import Scale
    from bench.site import Daemon, Site

ENTRY_BYTES = 10 * 1024
TOPIC = TopicName.parse("readers")
WAYS = {
    "1 reader": [0],
    "4 readers of one segment": [1] * 4,
    "16 readers of one segment": [2] * 16,
    "4 readers of a segment each": list(range(3, 7)),
    "16 readers of a segment each": list(range(7, 23)),
}
"""Which segment each reader reads."""
SEGMENTS = 23


class Round(NamedTuple):
    """One measurement: what it took, and the least share of a reader over the fair one."""

    took: Measured
    least_share: float


async def readers(site: Site, size: Scale) -> list[Figure]:
    """Measure every way in turns."""
    entries = Entries(ENTRY_BYTES, SEGMENTS * size.reader_bytes, segments=SEGMENTS)
    each = entries.count // SEGMENTS
    rounds: dict[str, list[Round]] = {way: [] for way in WAYS}
    async with stored(site, {TOPIC: entries}) as there:
        for _ in range(size.runs):
            async with there.daemon() as daemon:
                for way, segments in WAYS.items():
                    rounds[way].append(await _round(daemon, segments, each))
    found: list[Figure] = []
    for way, segments in WAYS.items():
        found += _figures(way, segments, each * ENTRY_BYTES, rounds[way], rounds["1 reader"])
    return found


async def _round(daemon: Daemon, segments: list[int], each: int) -> Round:
    counts = [0] * len(segments)
    at_first_end: list[int] = []

    async def read(number: int) -> None:
        first = segments[number] * each
        one = daemon.client.read(
            TOPIC,
            first=Position(PUSH_LEDGER, first),
            last=Position(PUSH_LEDGER, first + each - 1),
            read_priority=ReadPriority.TIERED_STORAGE_FIRST,
            timeout_s=DEADLINE_S,
        )
        async with aclosing(one) as responses:
            async for response in responses:
                counts[number] += len(response.batch.payloads)
        if not at_first_end:
            at_first_end.extend(counts)

    async with measured(daemon) as took, asyncio.TaskGroup() as group:
        for number in range(len(segments)):
            group.create_task(read(number), name=f"reader {number}")
    if counts != [each] * len(segments):
        raise RuntimeError(f"{counts} entries were read, not {each} each")
    return Round(took, min(at_first_end) / mean(at_first_end))


def _possible_s(took: Measured) -> float:
    """Return the seconds that all processes would take if no core ever waited, and none did the work of two."""
    used = took.cpu_s.values()
    return max(sum(used) / len(os.sched_getaffinity(0)), *used)


def _figures(way: str, segments: list[int], segment_bytes: int, rounds: list[Round], one: list[Round]) -> list[Figure]:
    total = len(segments) * segment_bytes
    stored_bytes = len(set(segments)) * segment_bytes
    rates = [total / each.took.seconds for each in rounds]
    many, same = len(segments) > 1, len(set(segments)) == 1
    found = [
        Figure(
            benchmark=way,
            figure="rate over one reader",
            values=[rate * each.took.seconds / segment_bytes for rate, each in zip(rates, one, strict=True)],
            notes={"all together": spread([rate / MIB for rate in rates], "MiB/s")},
        ),
        Figure(
            benchmark=way,
            figure="rate over what the cores give",
            values=[_possible_s(each.took) / each.took.seconds for each in rounds],
            goal=goals.FOUR_READERS if same and len(segments) == 4 else None,
        ),
        Figure(
            benchmark=way,
            figure="bytes fetched from S3 over those of the segments",
            values=[each.took.s3_in_bytes / stored_bytes for each in rounds],
            goal=goals.FETCHED if many else None,
            little_shows=True,
            more_is_better=False,
        ),
    ]
    if many:
        found.append(
            Figure(
                benchmark=way,
                figure="least share of a reader over the fair one",
                values=[each.least_share for each in rounds],
                goal=goals.FAIR_SHARE,
            )
        )
    return [*found, *process_figures(way, total / GIB, [each.took for each in rounds])]
