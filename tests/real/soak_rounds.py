"""The two kinds of rounds of a random run (see soak.py): daemons that crash, and brokers whose daemons come and go."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.client import DaemonClient
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.drill.s3_proxy import S3Proxy, Shaking
from offloaderd.objects.port import PART_BYTES_MIN
from tests.integration.processes import CLOCK, DaemonProcess, Proxy
from tests.patience import PATIENCE_S
from tests.real.ground import Tally
from tests.real.mortal import killed_at
from tests.real.points import MOMENTS
from tests.real.proof import check, ends_well
from tests.real.pusher import Pusher
from tests.real.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.processes import Site
    from tests.real.audit import Audit
    from tests.real.ground import Chance, Ground

LABELS = (
    "register",
    "claim",
    "begin",
    "create_upload",
    "note upload",
    "upload_part",
    "list_parts",
    "note progress",
    "seal",
    "complete_upload",
    "put data",
    "put index",
    "put manifest",
    "head data",
    "get index",
    "commit",
    "note ledger",
    "give up",
    "delete",
    "delete trash",
    "release",
)
LIVES = 6
LIFE_S = 6.0
FAULT_S = 20.0


async def crashes(ground: Ground, chance: Chance, *, lives: int = LIVES) -> Tally:
    """One daemon with a ledger store, killed at random points, one life after the other."""
    tally = Tally()
    site = await ground.site()
    site.settings["ledgers"] = {"ledger_entries_max": 170}
    site.settings["objects"] = {"read_timeout_s": 1}
    site.settings["offload"] = sizes()
    workload = Workload(TopicName.parse("public/default/crashes"), entry_bytes=40_000)
    async with S3Proxy(site.endpoint) as proxy:
        proxy.shake(Shaking(int(chance.between(0, 2**32)), chance.between(0.1, 0.25)))
        for _ in range(lives):
            point = f"{chance.pick(LABELS)}:{chance.pick(MOMENTS)}:{1 + int(chance.share() * 3)}"
            is_ended = await life(killed_at(replace(site, endpoint=proxy.endpoint), point), workload, chance)
            tally.events[f"kill at {point.partition(':')[0]}" if is_ended else "kill"] += 1
        tally.spoilt(proxy)
    return told(tally, await ends_well(site, workload), [workload])


async def life(daemon: DaemonProcess, workload: Workload, chance: Chance) -> bool:
    """Work with a daemon until it dies at its kill point, or for a while and then kill it; says which."""
    async with daemon:
        if await daemon.serves():
            async with asyncio.TaskGroup() as group:
                ended = group.create_task(daemon.ended(), name="the daemon's end")
                working = group.create_task(work(daemon, workload, ended, int(chance.between(50, 500))), name="work")
                await asyncio.wait({ended}, timeout=LIFE_S)
                is_ended = ended.done()
                if not is_ended:
                    daemon.signal(signal.SIGKILL)
                await ended
                await working
            return is_ended
        assert await daemon.ended() == -signal.SIGKILL
        return True


async def work(daemon: DaemonProcess, workload: Workload, ended: asyncio.Task[int], entries: int) -> None:
    """Append and read until the daemon ends."""
    with contextlib.suppress(OffloaderError):
        async with DaemonClient(daemon.address) as client:
            await client.enable(workload.topic)
            await workload.until_it_dies(client, ended, entries)


class Member:
    """One daemon of several, behind a line to ZooKeeper of its own; started again whenever it has ended."""

    def __init__(self, site: Site, line: Proxy) -> None:
        self.line = line
        self.ending = False
        self._site = replace(site, zookeeper=line.address)
        self.daemon = DaemonProcess(self._site)
        self.started = asyncio.Event()

    async def run(self) -> None:
        """Keep it running until it is to end."""
        while not self.ending:
            async with DaemonProcess(self._site) as self.daemon:
                self.started.set()
                await self.daemon.process.wait()

    async def end(self) -> None:
        """Stop it for good."""
        self.ending = True
        with contextlib.suppress(ProcessLookupError):
            self.daemon.signal(signal.SIGTERM)

    async def suffer(self, what: str, seconds: float) -> None:
        """Do something to it, for a while."""
        with contextlib.suppress(ProcessLookupError):
            match what:
                case "kill":
                    self.daemon.signal(signal.SIGKILL)
                case "drain":
                    self.daemon.signal(signal.SIGTERM)
                case "pause":
                    paused = self.daemon
                    paused.signal(signal.SIGSTOP)
                    await CLOCK.sleep(seconds)
                    paused.signal(signal.SIGCONT)
                case "cut":
                    self.line.cut()
                    await CLOCK.sleep(seconds)
                    self.line.mend()


async def brokers(ground: Ground, chance: Chance, *, fault_s: float = FAULT_S) -> Tally:
    """Two daemons that take what two brokers push, and all that can happen to them."""
    tally = Tally()
    site = await ground.site()
    site.settings["metadata"] = {"session_timeout_s": 2}
    site.settings["ledgers"] = {"kind": "none"}
    site.settings["objects"] = {"read_timeout_s": 1}
    site.settings["placement"] = {"settle_s": 1, "grace_s": 2, "cooldown_s": 5}
    site.settings["offload"] = {**sizes(), "segment_age_max_s": 1.5}
    workloads = [Workload(TopicName.parse(f"public/default/broker-{name}"), entry_bytes=10_000) for name in "ab"]
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(S3Proxy(site.endpoint))
        behind = replace(site, endpoint=proxy.endpoint)
        lines = [await stack.enter_async_context(Proxy(site.zookeeper)) for _ in range(2)]
        members = [
            Member(replace(behind, daemon_id=name), line) for name, line in zip(("one", "two"), lines, strict=True)
        ]
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for member in members:
            group.create_task(member.run(), name="daemon")
        client = await stack.enter_async_context(DaemonClient(await serving(members[0])))
        for workload in workloads:
            await client.enable(workload.topic)
        pushers = [Pusher(workload, lambda: [member.daemon.address for member in members]) for workload in workloads]
        pushing = [group.create_task(pusher.run(), name="broker") for pusher in pushers]
        proxy.shake(Shaking(int(chance.between(0, 2**32)), chance.between(0.02, 0.1)))
        await failure(members, workloads, chance, tally, CLOCK.monotonic() + fault_s)
        proxy.heal()
        tally.spoilt(proxy)
        async with asyncio.timeout(PATIENCE_S):
            for pusher, task in zip(pushers, pushing, strict=True):
                pusher.end()
                await task
        async with DaemonClient(await serving(members[1])) as other:
            for workload in workloads:
                await workload.read_at_last(other)
            audit = await check(site, other, *workloads)
        for member in members:
            await member.end()
    return told(tally, audit, workloads)


async def serving(member: Member) -> str:
    """Wait until a daemon serves; returns its address."""
    await member.started.wait()
    while not await member.daemon.serves():
        await CLOCK.sleep(0.1)
    return member.daemon.address


async def failure(
    members: Sequence[Member], workloads: Sequence[Workload], chance: Chance, tally: Tally, until: float
) -> None:
    """Let things happen for a while, one after the other, and look at the topics between."""
    while CLOCK.monotonic() < until or not tally.deaths:
        member = chance.pick(members)
        what = chance.pick(("kill", "kill", "drain", "pause", "cut"))
        await member.suffer(what, chance.between(0.5, 5))
        tally.events[what] += 1
        await CLOCK.sleep(chance.between(0.2, 3))
        await look(chance.pick(members), chance.pick(workloads))


async def look(member: Member, workload: Workload) -> None:
    """Read a topic and collect garbage, as far as the daemon lets us at this moment."""
    with contextlib.suppress(OffloaderError):
        async with DaemonClient(member.daemon.address) as client:
            await workload.read(client)
            async for event in client.gc(apply=True, grace_s=0, timeout_s=10):
                assert event.find.verdict != "alarm", event.find


def sizes() -> dict[str, object]:
    """Return settings by which segments have several parts, and objects are read back."""
    return {
        "segment_bytes_max": 12 << 20,
        "block_bytes": 256 << 10,
        "part_bytes": PART_BYTES_MIN,
        "verify": "readback",
    }


def told(tally: Tally, audit: Audit, workloads: Sequence[Workload]) -> Tally:
    """Add what was found at the end."""
    tally.entries = sum(workload.history.acked for workload in workloads)
    tally.reads = sum(len(workload.history.reads) for workload in workloads)
    tally.segments, tally.collected = audit.segments, audit.collected
    return tally
