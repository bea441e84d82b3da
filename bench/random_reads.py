"""Reads of single entries here and there and seeks by time, over gRPC: cold (tables cached, no block is) and warm.

The references are GETs of 64 KiB elsewhere in the same object by the adapter alone, in turns with the cold reads.
Every cold read hits a block that nobody has read before; so does every cold seek, for which the daemon is a new one.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from bench import goals
from bench.durable import quantile
from bench.empty import empty_server
from bench.load import MIB, PUSH_LEDGER, WRITTEN_MS, Entries
from bench.report import Figure
from bench.site import CLOCK
from bench.stored import stored
from bench.usage import measured
from offloaderd.client import Goal, SeekKind
from offloaderd.core.entries import framed_bytes
from offloaderd.core.model import Position, TopicName
from offloaderd.core.read_options import ReadPriority
from offloaderd.format.v2 import BLOCK_HEADER_BYTES
from offloaderd.objects.s3.store import S3Store

if TYPE_CHECKING:
    from bench.empty import Empty
    from bench.scale import Scale
    from bench.site import Daemon, Site
    from bench.stored import Stored

ENTRY_BYTES = 1024
GET_BYTES = 64 * 1024
WARM_TURNS = 10
"""How often every place is read when it is warm: the 99th percentile of a hundred reads would be their slowest."""
TOPIC = TopicName.parse("random-reads")


class Reads(NamedTuple):
    """One round: seconds of each read, ascending, and what a cold one fetched."""

    cold: list[float]
    bare: list[float]
    warm: list[float]
    empty: list[float]
    gets: float
    get_bytes: float


class Seeks(NamedTuple):
    """One round: seconds of each seek, ascending, and the ranges that a cold one fetched."""

    cold: list[float]
    warm: list[float]
    gets: float


async def random_reads(site: Site, size: Scale) -> list[Figure]:
    """Measure latencies, and the requests and bytes of a cold read."""
    blocks = size.random_reads + 1
    entries = Entries(ENTRY_BYTES, blocks * MIB, distinct=blocks)
    stride = next(one for one in (13, 7, 3, 1) if size.random_reads % one)
    per_block = (MIB - BLOCK_HEADER_BYTES) // framed_bytes(ENTRY_BYTES, 1)  # or one more: 100 entries in all of them
    places = [
        (number * stride % size.random_reads) * per_block + 150 + number * 131 % 700
        for number in range(size.random_reads)
    ]
    reads, seeks = [], []
    async with stored(site, {TOPIC: entries}) as there, empty_server() as empty:
        for _ in range(size.runs):
            reads.append(await _reads(there, empty, places, entries.count - 1))
            seeks.append(await _seeks(there, places, entries.count - 1))
    return [*_read_figures(reads), *_seek_figures(seeks)]


async def _reads(there: Stored, empty: Empty, places: list[int], last: int) -> Reads:
    (key,) = there.objects[TOPIC]
    cold, bare = [], []
    async with there.daemon() as daemon, S3Store(there.site.s3) as store:
        await one_entry(daemon, TOPIC, last)  # index and manifest come with the first one
        async with measured(daemon) as took:
            for place in places:
                cold.append(await one_entry(daemon, TOPIC, place))
                started = CLOCK.monotonic()
                await store.get(key, place * ENTRY_BYTES // 2, GET_BYTES)
                bare.append(CLOCK.monotonic() - started)
        warm, nothing = [], []
        for place in places * WARM_TURNS:
            warm.append(await one_entry(daemon, TOPIC, place))
            nothing.append((await empty.read(ENTRY_BYTES, 1)).seconds)
    gets = took.requests["GetObject"]
    return Reads(
        sorted(cold), sorted(bare), sorted(warm), sorted(nothing), gets / len(places), took.s3_in_bytes / max(1, gets)
    )


async def one_entry(daemon: Daemon, topic: TopicName, entry_id: int) -> float:
    """Return the seconds that one entry of a topic takes, read from the store."""
    position = Position(PUSH_LEDGER, entry_id)
    started = CLOCK.monotonic()
    priority = ReadPriority.TIERED_STORAGE_FIRST
    one = daemon.client.read(topic, first=position, last=position, read_priority=priority)
    async with aclosing(one) as responses:
        count = sum([len(response.batch.payloads) async for response in responses])
    if count != 1:
        raise RuntimeError(f"{count} entries came for one")
    return CLOCK.monotonic() - started


async def _seeks(there: Stored, places: list[int], last: int) -> Seeks:
    async with there.daemon() as daemon:
        await _seek(daemon, last)
        found = [await _seek(daemon, place) for place in places]
        warm = [(await _seek(daemon, place))[0] for place in places * WARM_TURNS]
    return Seeks(sorted(seconds for seconds, _ in found), sorted(warm), sum(gets for _, gets in found) / len(found))


async def _seek(daemon: Daemon, entry_id: int) -> tuple[float, int]:
    """Return the seconds that it takes to find an entry by its time, and the ranges that were fetched for it."""
    started = CLOCK.monotonic()
    answer = await daemon.client.seek(TOPIC, Goal(SeekKind.TIME, WRITTEN_MS + entry_id))
    seconds = CLOCK.monotonic() - started
    if answer.position.entry_id != entry_id:
        raise RuntimeError(f"entry {answer.position.entry_id} was found, not {entry_id}")
    return seconds, answer.gets


def _ms(rounds: list[list[float]], share: float) -> list[float]:
    return [1000 * quantile(one, share) for one in rounds]


def _between(rounds: list[list[float]]) -> str:
    """Return the median round's p50 and p99."""
    low, high = (sorted(_ms(rounds, share))[len(rounds) // 2] for share in (0.5, 0.99))
    return f"p50 {low:.1f} ms, p99 {high:.1f} ms"


def _read_figures(rounds: list[Reads]) -> list[Figure]:
    name = "random reads of one entry, 1 KiB"
    cold, bare = [one.cold for one in rounds], [one.bare for one in rounds]
    warm, empty = [one.warm for one in rounds], [one.empty for one in rounds]
    return [
        Figure(
            benchmark=name,
            figure="cold p50 over a bare GET of 64 KiB",
            values=[ours / theirs for ours, theirs in zip(_ms(cold, 0.5), _ms(bare, 0.5), strict=True)],
            goal=goals.COLD_P50,
            more_is_better=False,
            notes={"ours": _between(cold), "bare": _between(bare)},
        ),
        Figure(
            benchmark=name,
            figure="GETs of a cold read",
            values=[one.gets for one in rounds],
            goal=goals.COLD_GETS,
            little_shows=True,
            more_is_better=False,
        ),
        Figure(
            benchmark=name,
            figure="bytes of such a GET",
            values=[one.get_bytes / 1024 for one in rounds],
            unit="KiB",
            goal=goals.COLD_GET_KIB,
            little_shows=True,
            more_is_better=False,
        ),
        Figure(
            benchmark=name,
            figure="warm p99 over that of gRPC with empty work",
            values=[ours / least for ours, least in zip(_ms(warm, 0.99), _ms(empty, 0.99), strict=True)],
            goal=goals.WARM_P99,
            more_is_better=False,
            notes={"warm": _between(warm), "gRPC with empty work": _between(empty)},
        ),
    ]


def _seek_figures(rounds: list[Seeks]) -> list[Figure]:
    name = "seek by time, entries of 1 KiB"
    cold, warm = [one.cold for one in rounds], [one.warm for one in rounds]
    return [
        Figure(benchmark=name, figure="cold p50", values=_ms(cold, 0.5), unit="ms", notes={"cold": _between(cold)}),
        Figure(benchmark=name, figure="warm p50", values=_ms(warm, 0.5), unit="ms", notes={"warm": _between(warm)}),
        Figure(benchmark=name, figure="ranges fetched by a cold seek", values=[one.gets for one in rounds]),
    ]
