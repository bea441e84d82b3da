"""Engine and reader alone, in one process without servers, beside the least that plain Python could do.

The engine takes pushed batches to finished parts, which a store drops; the reader gets blocks out of memory. The
reference joins heads and payloads of the same entries into parts of the same size, and does nothing else: what of it is
lost is what buffer, checks, times, manifests and commits cost. Rounds of all three take turns, in a child process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, TypedDict

from bench import goals
from bench.child import Took, answer_of, used_s
from bench.discarding import Discarding
from bench.load import MIB, PUSH_LEDGER, Entries
from bench.report import Figure, spread
from bench.scale import bytes_of
from offloaderd.core.entries import ENTRY_HEAD
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import EntryBatch, OfferResult, Position, TopicName
from offloaderd.daemon import log
from offloaderd.format.chunks import CHUNK_BYTES
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.policy.records import TopicPolicy
from offloaderd.read.segments import SegmentOptions, SegmentReader
from offloaderd.segment.builder import SegmentLayout
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.rigs.rig import Rig, enabled, until_offloaded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.scale import Scale
    from bench.site import Site
    from offloaderd.topic.offloader import TopicOffloader

GIB = 1024 * MIB
PART_BYTES = 8 * MIB
DISTINCT = 64
"""Batches with entries of their own: far more than a core's cache holds, as no entry is seen twice. A quarter of it is
enough where entries are small and slow to make."""


class Task(TypedDict):
    """How large the entries are, how many bytes of them, and how often."""

    entry_bytes: int
    total_bytes: int
    runs: int


class Discard(Discarding, MemoryStore):
    """Keeps index and manifest in memory."""


async def inside(site: Site, size: Scale) -> list[Figure]:
    """Measure every size of entries; the servers are not used."""
    del site
    figures: list[Figure] = []
    core: list[float] = []
    for label, entry_bytes in size.entry_sizes.items():
        total = bytes_of(size.segment_bytes, entry_bytes)
        task = Task(entry_bytes=entry_bytes, total_bytes=total, runs=size.runs)
        found = {
            what: [Took(*one) for one in rounds] for what, rounds in (await answer_of("bench.inside", task)).items()
        }
        rates = {what: [total / 1e6 / one.cpu_s for one in rounds] for what, rounds in found.items()}
        core = core or rates["framing"]
        figures += [
            _figure("engine", label, rates["engine"], core, goals.ENGINE_MB_S.get(label)),
            _figure("reader", label, rates["reader"], core, None),
        ]
    return figures


def _figure(what: str, label: str, rates: list[float], core: list[float], goal: float | None) -> Figure:
    """Return MB a CPU second on a core that frames as many as the goal's: as they were here, over framing here."""
    return Figure(
        benchmark=f"{what} alone, {label}",
        figure=f"MB a CPU second, if plain framing of 1 KiB made {goals.CORE_MB_S:g}",
        values=[goals.CORE_MB_S * rate / reference for rate, reference in zip(rates, core, strict=True)],
        unit="MB/s",
        goal=goal,
        notes={
            "here": spread(rates, "MB/s"),
            "framing here": spread(core, "MB/s"),
            "CPU": spread([GIB / 1e6 / rate for rate in rates], "s/GiB"),
        },
    )


def framed(entries: Entries) -> int:
    """Make parts in the plainest way; returns their bytes."""
    pack, chunks, size, total = ENTRY_HEAD.pack, list[bytes](), 0, 0
    for first, payloads in entries.batches():
        for entry_id, payload in enumerate(payloads, first):
            chunks += (pack(len(payload), entry_id), payload)
            size += len(payload)
        if size >= PART_BYTES:
            total += len(b"".join(chunks))
            chunks, size = [], 0
    return total + len(b"".join(chunks))


async def pushed(topic: TopicOffloader, entries: Entries) -> None:
    """Push everything, as the gRPC service does, until it is committed."""
    for first, payloads in entries.batches():
        result = await topic.accept(EntryBatch(PUSH_LEDGER, first, payloads))
        if result is not OfferResult.ACCEPTED:
            raise RuntimeError(f"declined: {result}")
    last = Position(PUSH_LEDGER, entries.count - 1)
    await topic.request_roll(last)
    await until_offloaded(topic, last)


def rig(store: MemoryStore, entries: Entries) -> Rig:
    """Return an engine's surroundings, with the daemon's block and part and room for everything."""
    return Rig(
        objects=store,
        layout=SegmentLayout(block_bytes=MIB, part_bytes=PART_BYTES),
        chunk_bytes=CHUNK_BYTES,
        buffer_bytes=2 * entries.payload_bytes,
        upload_bytes=256 * MIB,
    )


async def engine_alone(entries: Entries, number: int, made: Rig) -> Took:
    """Measure one topic from its first push to its commit."""
    async with made.engine(push_only=True) as engine:
        topic = await enabled(
            engine, TopicPolicy(enabled=True, segment_bytes_max=entries.segment_bytes), TopicName.parse(f"t-{number}")
        )
        started, before = made.clock.monotonic(), used_s()
        await pushed(topic, entries)
        return Took(made.clock.monotonic() - started, used_s() - before)


async def reader_alone(store: MemoryStore, entries: Entries, made: Rig, topic: TopicName) -> Took:
    """Measure a cold read of all segments."""
    segments = (await catalog.load(made.tree.connect(), topic)).segments
    async with SegmentReader(store, clock=made.clock, metrics=Metrics(), options=SegmentOptions()) as reader:
        started, before, count = made.clock.monotonic(), used_s(), 0
        for segment in segments:
            async with aclosing(reader.read(topic, segment, segment.range.begin, segment.range.end)) as batches:
                async for batch in batches:
                    count += len(batch.payloads)
        took = Took(made.clock.monotonic() - started, used_s() - before)
    if count != entries.count:
        raise RuntimeError(f"{count} entries were read, not {entries.count}")
    return took


async def run(task: Task) -> Mapping[str, list[Took]]:
    """Take turns."""
    entries = Entries(
        task["entry_bytes"], task["total_bytes"], distinct=DISTINCT if task["entry_bytes"] >= 1024 else DISTINCT // 4
    )
    clock = Rig().clock
    discard, kept = Discard(clock), MemoryStore(clock)
    made, stored = rig(discard, entries), rig(kept, entries)
    await engine_alone(entries, 0, stored)
    found: dict[str, list[Took]] = {"framing": [], "engine": [], "reader": []}
    for number in range(task["runs"]):
        before = used_s()
        framed(entries)
        found["framing"].append(Took(used_s() - before, used_s() - before))
        found["engine"].append(await engine_alone(entries, number + 1, made))
        found["reader"].append(await reader_alone(kept, entries, stored, TopicName.parse("t-0")))
    return found


if __name__ == "__main__":
    log.configure("warning", "json")
    given: Task = json.load(sys.stdin)
    json.dump(asyncio.run(run(given)), sys.stdout)
