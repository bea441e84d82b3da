"""A mirror: what the copies add to a push, in the daemon's CPU and in time until the last copy is recorded.

In turns, the same entries to a daemon without a mirror and to one whose mirror is another bucket of the same server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bench.appending import PUSHED, warm_up
from bench.load import DEADLINE_S, MIB, Entries, push
from bench.report import Figure, spread
from bench.site import CLOCK
from bench.usage import GIB, measured, process_figures
from offloaderd.core.errors import Transient
from offloaderd.core.model import TopicName

if TYPE_CHECKING:
    from bench.scale import Scale
    from bench.site import Daemon, Sections, Site
    from bench.usage import Measured

ENTRY_BYTES = 10 * 1024
NAME = "push with a mirror, 10 KiB"


class Round(NamedTuple):
    """The same push without a mirror, and with one until everything has its copy."""

    single: Measured
    mirrored: Measured


async def mirrored(site: Site, size: Scale) -> list[Figure]:
    """Measure a push to two places beside one to the first alone."""
    entries = Entries(ENTRY_BYTES, size.segment_bytes, segments=4)
    async with site.bucket() as place, site.bucket() as other:
        copies = f"{other.s3.bucket}/copies/"
        settings: Sections = {**PUSHED, "objects": {"places": copies}, "mirror": {"place": copies}}
        async with place.daemon(PUSHED, name="single") as single, place.daemon(settings, name="two") as two:
            await warm_up(single)
            await warm_up(two)
            rounds = [Round(await _push(single, entries), await _push(two, entries)) for _ in range(size.runs)]
    return _figures(rounds, entries)


async def _push(daemon: Daemon, entries: Entries) -> Measured:
    topic = TopicName.parse(f"mirror-{CLOCK.uuid().hex[:8]}")
    await daemon.client.enable(topic, segment_bytes_max=entries.segment_bytes)
    await daemon.claimed(topic)
    async with measured(daemon) as took:
        await push(daemon.client, topic, entries)
        await _copied(daemon, topic)
    return took


async def _copied(daemon: Daemon, topic: TopicName) -> None:
    """Wait until each segment has its copy, where the topic has a mirror."""
    until = CLOCK.monotonic() + DEADLINE_S
    while (found := (await daemon.client.status(topic)).topics[0].mirror).bucket and found.lag_segments:
        if CLOCK.monotonic() > until:
            raise Transient(f"{topic} was not copied within {DEADLINE_S:g} s: {found.failure}")
        await CLOCK.sleep(0.02)


def _figures(rounds: list[Round], entries: Entries) -> list[Figure]:
    mib, gib = entries.payload_bytes / MIB, entries.payload_bytes / GIB

    def cpu(ours: list[Measured]) -> str:
        return spread([one.cpu_s["daemon"] / gib for one in ours], "s/GiB")

    single, both = [one.single for one in rounds], [one.mirrored for one in rounds]
    return [
        Figure(
            benchmark=NAME,
            figure="CPU of the daemon over one without a mirror",
            values=[one.mirrored.cpu_s["daemon"] / one.single.cpu_s["daemon"] for one in rounds],
            more_is_better=False,
            notes={"with": cpu(both), "without": cpu(single)},
        ),
        Figure(
            benchmark=NAME,
            figure="rate until the last copy over one without a mirror",
            values=[one.single.seconds / one.mirrored.seconds for one in rounds],
            notes={
                "with": spread([mib / one.seconds for one in both], "MiB/s"),
                "without": spread([mib / one.seconds for one in single], "MiB/s"),
            },
        ),
        *process_figures(NAME, gib, both),
    ]
