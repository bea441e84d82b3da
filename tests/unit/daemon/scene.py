"""A daemon to look at: topics with made-up numbers, an hour of them, and its status page on a free port."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import aiohttp

from offloaderd.api.admin import topic_status
from offloaderd.api.gate import Authentication, Gate, Limits
from offloaderd.core.errors import NotFound, OffloaderError
from offloaderd.core.health import Health
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Loss, Position, TopicName
from offloaderd.daemon.http import HttpServer
from offloaderd.daemon.settings.sections import HttpSettings
from offloaderd.daemon.status_page.board import Board
from offloaderd.daemon.status_page.site import StatusSite
from offloaderd.protocol.v1 import admin_pb2, common_pb2, inspect_pb2
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.topic.status import TopicStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from offloaderd.access.certificates import Certificates, Watched
    from offloaderd.api.admin import AdminService

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}",
    "a&amp;b</th></table>",
    "javascript:alert(1)",
    "../../status?topic=x#frag",
    "right\u202eto-left",
    "line\u2028separator",
    "zero\u200bwidth",
    "x" * 2000,
)
"""Local names of topics that would like to be markup, addresses, or another topic."""


def topic(number: int) -> TopicName:
    """Return a name."""
    return TopicName("shop", f"orders-{number % 7}", f"topic-{number:05}")


def status(number: int, **others: Any) -> TopicStatus:  # noqa: ANN401 - fields of the status
    """Return a topic that runs."""
    return replace(
        TopicStatus(
            topic=topic(number),
            state="offloading",
            epoch=3,
            confirmed=Position(17, 4000 + number),
            offloaded=Position(17, 3000 + number),
            lag_entries=1000,
            lag_bytes=(1 + number % 50) << 20,
            lag_seconds=1.0 + number,
            open_segment_id="5e0b1c9a-1111-4222-8333-444455556666",
            open_segment_entries=1000,
            open_segment_bytes=(1 + number % 30) << 20,
            open_segment_age_s=float(number % 600),
            method="streaming",
        ),
        **others,
    )


def stalled(number: int, reason: str = "the bucket is full") -> TopicStatus:
    """Return a topic that does not run."""
    return status(number, state="stalled", stalled_reason=reason, stalled_class="no_space", stalled_since_ms=1, epoch=3)


def lost(number: int) -> TopicStatus:
    """Return a topic that has lost entries."""
    return status(number, losses=(Loss(after=Position(3, 9), before=Position(5, 0), entries=0, noticed_ms=1),))


@dataclass
class Scene:
    """What the page looks at, and the page. `completions` are the topics whose owner was looked up."""

    statuses: list[TopicStatus]
    clock: FakeClock = field(default_factory=FakeClock)
    metrics: Metrics = field(default_factory=Metrics)
    health: Health = field(default_factory=Health)
    down: str = "<b>no answer</b>"
    alarms: tuple[str, ...] = ()
    looks: int = 0
    completions: list[str] = field(default_factory=list)
    layout_failure: OffloaderError | None = None
    address: str = ""
    metadata: object = field(default_factory=lambda: MemoryTree().connect())
    board: Board = field(init=False)

    def __post_init__(self) -> None:
        """Make the board."""
        self.board = Board(
            cast("AdminService", self), self._look, lambda: self.statuses, self._layout, self.metrics, self.clock
        )

    async def _layout(self, topic: TopicName) -> inspect_pb2.LayoutResponse:
        """Return tiers, a place with a name that would like to be markup, and two losses. Raises `layout_failure`."""
        if self.layout_failure is not None:
            raise self.layout_failure
        held, position, extent = (
            inspect_pb2.LayoutResponse.Holder,
            common_pb2.Position,
            inspect_pb2.LayoutResponse.Extent,
        )

        def part(begin: int, end: int) -> inspect_pb2.LayoutResponse.Extent:
            ends = position(ledger_id=17, entry_id=begin), position(ledger_id=17, entry_id=end)
            return extent(begin=ends[0], end=ends[1], offset=begin, entries=end - begin + 1)

        gone, doubt = part(999, 1001), part(1500, 1501)
        gone.offset, gone.entries, doubt.offset, doubt.entries = 1000, 1, 1501, 0
        return inspect_pb2.LayoutResponse(
            first=position(ledger_id=17, entry_id=0),
            last=position(ledger_id=17, entry_id=3999),
            entries=4000,
            holders=[
                held(kind="buffer", name="offloaderd-1", extents=[part(2900, 3999)], entries=1100),
                held(kind="source", name="bookkeeper", problem=self.down),
                held(kind="place", name=HOSTILE[1], extents=[part(0, 999), part(2000, 2999)], entries=2000),
                held(kind="table", name="lake/orders", extents=[part(0, 1999)], entries=2000, lag_s=90.0),
                held(kind="lost", extents=[gone, doubt], entries=1, problem="deleted at the source"),
            ],
        )

    def _look(self) -> list[TopicStatus]:
        self.looks += 1
        return self.statuses

    def response(self, topics: Iterable[admin_pb2.TopicStatus] = (), failure: str = "") -> admin_pb2.StatusResponse:
        """Return the daemon, of which the store is down."""
        up, down = admin_pb2.StatusResponse.Dependency, admin_pb2.StatusResponse.Dependency
        return admin_pb2.StatusResponse(
            daemon_id="offloaderd-1",
            version="1.2.3",
            state="serving",
            started_ms=1_699_990_000_000,
            memory_used_bytes=90 << 20,
            memory_budget_bytes=512 << 20,
            dependencies=[up(name="metadata", up=True), down(name="objects", up=False, message=self.down)],
            topics=topics,
            alarms=self.alarms,
        )

    async def completed(self, status: TopicStatus, failure: str = "") -> admin_pb2.TopicStatus:
        """Say who owns a topic."""
        self.completions.append(str(status.topic))
        message = topic_status(status)
        message.owner = "offloaderd-1"
        return message

    async def topic_status(self, topic: TopicName, failure: str = "") -> admin_pb2.TopicStatus:
        """Return one topic. Raises NotFound."""
        for one in self.statuses:
            if one.topic == topic:
                return await self.completed(one)
        raise NotFound(f"nobody knows {topic}", hint="offloadctl topics list")

    async def an_hour(self) -> None:
        """Let an hour pass in which entries come in waves."""
        begun = list(self.statuses)
        for step in range(361):
            wave = 1 + math.sin(step / 20)
            self.metrics.source_bytes.inc(400e6 * wave)
            self.metrics.source_entries.inc(40_000)
            self.metrics.upload_bytes.inc(380e6 * (1 + math.sin((step - 8) / 20)))
            self.metrics.read_bytes.labels(source="objects").inc(60e6 if 100 < step < 220 else 0)
            self.metrics.read_bytes.labels(source="buffer").inc(20e6)
            self.statuses = [
                replace(
                    one,
                    taken_bytes=int(5e6 * (step + 20 - 20 * math.cos(step / 20))),
                    taken_entries=500 * step,
                    lag_seconds=(one.lag_seconds or 0.0) * (1 + wave) / 3,
                    lag_bytes=int((one.lag_bytes or 0) * (1 + wave) / 3),
                )
                for one in begun
            ]
            await self.board.sampler.sample()
            await self.clock.advance(10)


@asynccontextmanager
async def opened(
    scene: Scene,
    *,
    filled: bool = True,
    private: bool = True,
    http: HttpSettings | None = None,
    certificates: Watched[Certificates] | None = None,
    authentication: Authentication | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve the page; yields a client of it that follows no redirect by itself."""
    gate = Gate(scene.metrics, scene.clock, limits, authentication)
    site = StatusSite(gate, scene.health, private=private)
    site.board = scene.board if filled else None
    settings = http or HttpSettings(port=0)
    async with HttpServer(settings, scene.metrics, scene.health, certificates, site) as server:
        scheme = "https" if certificates is not None and settings.tls != "off" else "http"
        scene.address = f"{scheme}://{server.address}"
        async with aiohttp.ClientSession(scene.address, cookie_jar=cast("Any", aiohttp.DummyCookieJar())) as client:
            yield client
