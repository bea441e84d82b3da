"""Processes reach each other, and the parent shows their pages, over Unix sockets."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from offloaderd.access.roles import Rights
from offloaderd.api.gate import Authentication, Gate
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.metrics.processes import ProcessMetrics
from offloaderd.daemon.http import HttpServer
from offloaderd.daemon.log_levels import LogLevels
from offloaderd.daemon.settings.sections import HttpSettings, LogSettings
from offloaderd.daemon.settings.share import Process, socket_of
from offloaderd.daemon.siblings import ask, log_level_route, pass_level_on
from offloaderd.daemon.status_page.site import StatusSite
from offloaderd.processes.pages import ProcessesSite, gathered
from offloaderd.processes.parent import HostHealth
from offloaderd.processes.serving import _view
from offloaderd.testing.clock import FakeClock
from tests.unit.daemon.scene import Scene, status, topic
from tests.unit.daemon.test_http_callers import authentication, bearer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

REAL_TIME = "HTTP over Unix sockets"
COUNT = 2


@pytest.fixture(autouse=True)
def levels_afterwards() -> Iterator[None]:
    """Leave no module at another level."""
    yield
    LogLevels(LogSettings(), FakeClock(), Metrics()).prepare(LogSettings())()


@asynccontextmanager
async def processes(directory: Path, *numbers: int) -> AsyncIterator[dict[int, LogLevels]]:
    """Run the HTTP servers of some processes; yields their log levels."""
    async with AsyncExitStack() as stack:
        found = {}
        for number in numbers:
            scene = Scene([status(number)])
            found[number] = LogLevels(LogSettings(), FakeClock(), scene.metrics)
            site = StatusSite(None, scene.health, private=False, process=(number, COUNT))
            site.board = scene.board
            scene.metrics.source_entries.inc(number)
            socket, routes = socket_of(directory, number), [log_level_route(found[number])]
            server = HttpServer(HttpSettings(), scene.metrics, scene.health, site=site, socket=socket, routes=routes)
            await stack.enter_async_context(server)
        yield found


@asynccontextmanager
async def parent(directory: Path, authentication: Authentication | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """Run the HTTP server of a parent; yields a client of it that follows no redirect by itself."""
    gate, health = Gate(Metrics(), FakeClock(), None, authentication), HostHealth()
    site = ProcessesSite(gate, health, directory, COUNT, private=authentication is None)
    scrape = gathered(ProcessMetrics(), directory, COUNT)
    async with (
        HttpServer(HttpSettings(port=0), scrape, health, site=site) as server,
        aiohttp.ClientSession(f"http://{server.address}") as client,
    ):
        yield client


def raised(levels: LogLevels) -> dict[str, str]:
    """Return the levels that were raised."""
    return {one.module: one.level for one in levels.shown() if one.left_s is not None}


async def test_a_log_level_is_raised_and_reset_in_all_processes(tmp_path: Path) -> None:
    """Whichever process a caller reached; one that is away is named, and one without the level is no error."""
    process = Process(number=1, count=3, port=7650, directory=tmp_path)
    async with processes(tmp_path, 1, 2) as found:
        found[1].raised("topic.tailer", "debug", 60)
        with capture_logs() as logs:
            await pass_level_on(process, "topic.tailer", "debug", 60.0)
        assert raised(found[2]) == {"offloaderd.topic.tailer": "debug"} == raised(found[1])
        assert [one["to"] for one in logs if one["event"] == "log.level_not_passed_on"] == [3]
        for _ in range(2):
            await pass_level_on(process, "topic.tailer", "", 0.0)
        assert not raised(found[2])


async def test_metrics_of_all_processes_that_answer_are_one_page(tmp_path: Path) -> None:
    """A scrape does not fail for one that is being replaced."""
    async with parent(tmp_path) as client:
        async with processes(tmp_path, 1, 2):
            both = await (await client.get("/metrics")).text()
            assert 'offloaderd_source_entries_total{process="1"} 1.0' in both
            assert 'offloaderd_source_entries_total{process="2"} 2.0' in both
        async with processes(tmp_path, 2):
            one = await client.get("/metrics")
            assert one.status == 200
            assert 'offloaderd_source_entries_total{process="2"} 2.0' in await one.text()
            assert 'process="1"' not in await one.text()


async def test_the_status_page_is_that_of_a_process_and_links_to_the_others(tmp_path: Path) -> None:
    """Also as JSON; what it loads lies beside it; one that is away is said to be so."""
    async with processes(tmp_path, 1), parent(tmp_path) as client:
        moved = await client.get("/status?q=a%20b", allow_redirects=False)
        assert (moved.status, moved.headers["Location"]) == (302, "processes/1/status?q=a+b")
        page = await client.get("/processes/1/status")
        assert page.status == 200
        text = await page.text()
        assert "<strong>1</strong>" in text
        assert 'href="../2/status"' in text
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert (await client.get("/processes/1/status.css")).status == 200
        found = await (await client.get("/processes/1/status.json")).json()
        assert found["topics_total"] == 1
        assert (await client.get("/processes/1/status.json?sort=nothing")).status == 400
        assert (await client.get("/processes/2/status")).status == 503
        assert "process 2 does not answer" in await (await client.get("/processes/2/status")).text()
        assert (await client.get("/processes/3/status")).status == 404


async def test_the_status_page_is_behind_the_gate_of_the_parent(tmp_path: Path) -> None:
    """The process behind it asks nobody, so nothing of it is shown to who is not let in."""
    closed = Authentication(rights=Rights([]))
    async with processes(tmp_path, 1), parent(tmp_path, closed) as client:
        for name in ("status", "status.json", "status?topic=a"):
            answer = await client.get(f"/processes/1/{name}")
            assert answer.status == 401
            assert "topics_total" not in await answer.text()


async def test_a_reader_of_a_topic_sees_that_topic_alone_whatever_else_the_query_holds(tmp_path: Path) -> None:
    """What the gate of the parent reads in the query is what the process reads in it."""
    own = topic(1)
    async with processes(tmp_path, 1), parent(tmp_path, authentication()) as client:
        for other in ("", "#", f"&topic={topic(2)}", "%23"):
            query = {"x": other, "topic": str(own)}
            answer = await client.get("/processes/1/status.json", params=query, headers=bearer("carol"))
            assert answer.status == 200
            assert "topics_total" not in (found := await answer.json())
            assert found["topic"] == str(own)
        moved = await client.get("/status", params={"x": "#", "y": "&"}, allow_redirects=False)
        assert moved.headers["Location"] == "processes/1/status?x=%23&y=%26"


async def test_an_error_of_a_process_is_neither_a_view_nor_metrics(tmp_path: Path) -> None:
    """The parent goes on: the page has the others, and one that says only that is not heard of."""

    async def broken(_request: web.Request) -> web.Response:
        return web.Response(status=500, text="out of order")

    app = web.Application()
    app.router.add_get("/{name}", broken)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(socket_of(tmp_path, 1))).start()
        async with processes(tmp_path, 2), parent(tmp_path) as client:
            assert await _view(tmp_path, 1) is None
            assert await _view(tmp_path, 2) is not None
            page = await (await client.get("/metrics")).text()
        assert "of order" not in page
        assert 'process="2"' in page
    finally:
        await runner.cleanup()


async def test_a_socket_without_a_process_is_no_answer(tmp_path: Path) -> None:
    """Neither where there is none, nor where its process ended and left it."""
    assert await ask(tmp_path / "1", "/readyz") is None
    (tmp_path / "2").touch()
    assert await ask(tmp_path / "2", "/readyz") is None
