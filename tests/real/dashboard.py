"""What the dashboard shows of an outage of S3: `make dashboard-picture`, ten minutes.

A daemon takes entries of some topics at a steady rate, while readers go over them, under a real Prometheus with the
rules of deploy/. In the middle S3 is out of reach for two minutes. Then every panel of the dashboard that is not folded
up is drawn from its own queries, where the dashboard has it. That is not Grafana, which looks different; what the lines
show is the same.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

import aiohttp

from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import TopicName
from tests.integration.processes import CLOCK, DaemonProcess, Proxy
from tests.real.dashboard_picture import Curve, Panel, draw
from tests.real.ground import ground
from tests.real.prometheus import NotToBeHad, answer, programs, serving
from tests.real.workload import Workload
from tests.unit.deploy.expressions import chosen, unfolded

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.client import DaemonClient

PICTURE = Path("docs/pictures/dashboard.png")
PACE_S = 5
PAUSE_S = 0.5
TOPICS = {"orders": 40, "payments": 20, "clicks": 120, "audit": 5}
"""Entries of about 3 KiB that each gets every half second."""
SETTINGS: dict[str, dict[str, object]] = {
    "offload": {"segment_age_max_s": 20, "segment_bytes_max": "16MiB"},
    "ledgers": {"ledger_entries_max": 20_000},
}


class Outage(NamedTuple):
    """When S3 is out of reach, and when all ends; in seconds from the beginning."""

    begin_s: float
    end_s: float
    all_s: float

    @classmethod
    def of(cls, minutes: float) -> Outage:
        """Put it behind the middle, a fifth of the time long."""
        return cls(60 * minutes * 0.5, 60 * minutes * 0.7, 60 * minutes)


async def write(client: DaemonClient, workload: Workload, count: int) -> None:
    """Append for ever; whoever is held back waits."""
    while True:
        with suppress(OffloaderError):
            await workload.append(client, count)
        await CLOCK.sleep(PAUSE_S)


async def read(client: DaemonClient, topic: TopicName) -> None:
    """Go over a topic from its oldest entry again and again, whatever becomes of it."""
    while True:
        with suppress(OffloaderError):
            async for _ in client.read(topic, timeout_s=30):
                pass
        await CLOCK.sleep(10 * PAUSE_S)


async def load(daemon: DaemonProcess, s3: Proxy, outage: Outage) -> None:
    """Write and read, with the outage in the middle."""
    async with daemon.client() as client, asyncio.TaskGroup() as group:
        tasks = []
        for name, count in TOPICS.items():
            topic = TopicName("public", "default", name)
            await client.enable(topic)
            workload = Workload(topic, entry_bytes=3000)
            tasks.append(group.create_task(write(client, workload, count), name=f"write {name}"))
            tasks.append(group.create_task(read(client, topic), name=f"read {name}"))
        await CLOCK.sleep(outage.begin_s)
        s3.cut()
        await CLOCK.sleep(outage.end_s - outage.begin_s)
        s3.mend()
        await CLOCK.sleep(outage.all_s - outage.end_s)
        for task in tasks:
            task.cancel()


async def panels(session: aiohttp.ClientSession, begin_s: float, end_s: float) -> list[Panel]:
    """Ask Prometheus what every panel that is not folded up asks."""
    found = []
    for panel in unfolded():
        curves = []
        for target in panel.get("targets", ()):
            query = {
                "query": chosen(target["expr"], __rate_interval=f"{6 * PACE_S}s"),
                "start": begin_s,
                "end": end_s,
                "step": PACE_S,
            }
            for one in (await answer(session, f"/api/v1/query_range?{urlencode(query)}"))["result"]:
                name = target.get("legendFormat") or ""
                for label, value in one["metric"].items():
                    name = name.replace(f"{{{{{label}}}}}", value)
                curves.append(Curve(name, [(at - begin_s, float(value)) for at, value in one["values"]]))
        found.append(Panel.of(panel, curves))
    return found


async def picture(path: Path, minutes: float, say: Callable[[str], object]) -> None:
    """Run everything, and draw. Raises NotToBeHad."""
    tools, outage = programs(), Outage.of(minutes)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="offloaderd-dashboard-")))
        servers = await stack.enter_async_context(ground(directory))
        site = await servers.site()
        proxy = await stack.enter_async_context(Proxy(servers.s3.endpoint))
        site.endpoint = f"http://127.0.0.1:{proxy.port}"
        site.settings = SETTINGS
        daemon = await stack.enter_async_context(DaemonProcess(site))
        await daemon.serving()
        scraping = serving(tools, f"127.0.0.1:{daemon.http_port}", directory, pace_s=PACE_S)
        url = await stack.enter_async_context(scraping)
        session = await stack.enter_async_context(aiohttp.ClientSession(url))
        say(f"{minutes:g} minutes, S3 out of reach from {outage.begin_s:.0f} s to {outage.end_s:.0f} s\n")
        begun_s = CLOCK.wall_ms() / 1000
        await load(daemon, proxy, outage)
        shown = await panels(session, begun_s, CLOCK.wall_ms() / 1000)
    draw(path, shown, outage.all_s, (outage.begin_s, outage.end_s))
    say(f"written to {path}\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument(
        "path", type=Path, nargs="?", default=Path("docs/pictures/dashboard.png"), help="picture to write"
    )
    given = parser.parse_args()
    try:
        asyncio.run(picture(given.path, given.minutes, sys.stdout.write))
    except NotToBeHad as reason:
        sys.exit(str(reason))


if __name__ == "__main__":
    main()
