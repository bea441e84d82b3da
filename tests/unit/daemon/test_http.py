"""The metrics and health server: what each path answers in each state, and that nothing outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from offloaderd.access.certificates import Watched, load_certificates
from offloaderd.core.aio import Tasks
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import InvalidConfig
from offloaderd.core.health import Health
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.metrics.tables import DeclaredTableMetrics
from offloaderd.daemon import http
from offloaderd.daemon.http import HttpServer
from offloaderd.daemon.settings.sections import HttpSettings
from tests.authority import Authority
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.authority import Pair

    Get = Callable[..., Awaitable[aiohttp.ClientResponse]]

REAL_TIME = "HTTP"

CLOCK = SystemClock()


@asynccontextmanager
async def served(metrics: Metrics, health: Health, topic_metrics: bool = True) -> AsyncIterator[Get]:
    """Serve on a free port and yield a function that gets a path."""
    async with (
        HttpServer(HttpSettings(port=0, topic_metrics=topic_metrics), metrics, health) as server,
        aiohttp.ClientSession(f"http://{server.address}") as client,
    ):

        async def get(path: str, accept: str = "*/*") -> aiohttp.ClientResponse:
            response = await client.get(path, headers={"Accept": accept})
            await response.read()
            return response

        yield get


async def test_readiness_follows_the_three_states() -> None:
    """Only while serving is /readyz 200, and its body says what it waits for or why it goes."""
    health = Health()
    async with served(Metrics(), health) as get:
        health.starting("waiting for the metadata store")
        starting = await get("/readyz")
        assert starting.status == 503
        assert await starting.json() == {
            "ready": False,
            "state": "starting",
            "reason": "starting: waiting for the metadata store",
            "dependencies": {},
        }
        health.serving()
        assert (await get("/readyz")).status == 200
        health.draining("SIGTERM")
        draining = await get("/readyz")
        assert draining.status == 503
        assert (await draining.json())["reason"] == "draining: SIGTERM"


async def test_a_dependency_that_is_down_is_named_but_does_not_take_the_daemon_out() -> None:
    """The other tiers still answer, so /readyz stays 200 and says what is down."""
    health = Health()
    health.serving()
    health.up("metadata")
    health.down("objects", "bucket pulsar is missing")
    async with served(Metrics(), health) as get:
        response = await get("/readyz")
        body = await response.json()
    assert response.status == 200
    assert body["reason"] == "serving; objects is down: bucket pulsar is missing"
    assert body["dependencies"] == {
        "metadata": {"up": True, "message": ""},
        "objects": {"up": False, "message": "bucket pulsar is missing"},
    }


@pytest.mark.parametrize("state", ["starting", "serving", "draining"])
async def test_liveness_does_not_depend_on_the_state(state: str) -> None:
    """/healthz is 200 as long as the loop turns, whatever the daemon is doing."""
    health = Health()
    if state != "starting":
        health.serving()
    if state == "draining":
        health.draining("SIGTERM")
    async with served(Metrics(), health) as get:
        response = await get("/healthz")
        assert (response.status, await response.text()) == (200, "alive\n")


async def test_metrics_are_served_in_the_text_format() -> None:
    """/metrics carries our numbers, the process's own, and the content type that Prometheus expects."""
    metrics = Metrics()
    metrics.upload_bytes.inc(4096)
    async with served(metrics, Health()) as get:
        response = await get("/metrics")
        text = await response.text()
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    assert "\noffloaderd_upload_bytes_total 4096.0\n" in text
    assert "\nprocess_resident_memory_bytes " in text
    assert "\npython_gc_collections_total{" in text


async def test_exemplars_are_served_as_openmetrics() -> None:
    """A Prometheus asks for OpenMetrics and gets the exemplars; the older text format has none."""
    metrics = Metrics()
    metrics.time_to_durable_seconds.observe(4.0, {"segment_id": "s", "trace_id": "t"})
    async with served(metrics, Health()) as get:
        response = await get("/metrics", accept="application/openmetrics-text;version=1.0.0")
        text = await response.text()
        plain = await (await get("/metrics")).text()
    assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=")
    line = r'offloaderd_time_to_durable_seconds_bucket\{le="5.0"\} 1.0 # \{segment_id="s",trace_id="t"\} 4.0 [\d.]+\n'
    assert re.search(line, text)
    assert text.endswith("# EOF\n")
    assert "trace_id" not in plain


@pytest.mark.parametrize("together", [True, False])
async def test_topics_have_a_page_of_their_own(together: bool) -> None:
    """With topic_metrics off /metrics leaves per-topic series to /metrics/topics, which has nothing else."""
    metrics = Metrics()
    metrics.lag_bytes.labels(topic="persistent://a/b/c").set(7)
    line = 'offloaderd_lag_bytes{topic="persistent://a/b/c"} 7.0\n'
    async with served(metrics, Health(), topic_metrics=together) as get:
        page, topics = await (await get("/metrics")).text(), await (await get("/metrics/topics")).text()
    assert (line in page) is together
    assert line in topics
    assert "offloaderd_ready" in page
    assert "offloaderd_ready" not in topics


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0"])
async def test_a_page_is_written_family_by_family(accept: str) -> None:
    """It is the page of the library, and others have their turn behind each: a daemon may have 200,000 series."""
    metrics, turns = DeclaredTableMetrics(CollectorRegistry()), 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)  # noqa: TID251 - takes a turn
            turns += 1

    async with Tasks("the test") as tasks:
        tasks.start(others(), name="others")
        page, content_type = await http.own_metrics(metrics)(accept, None)
    encode, expected = choose_encoder(accept)
    assert (page, content_type) == (encode(metrics.view()), expected)
    assert turns >= len(metrics.documented()) - 1 > 1


async def in_time(get: Get) -> aiohttp.ClientResponse:
    """Ask for health until the machine is quick enough to send a request within the limit."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(aiohttp.ServerDisconnectedError):
                return await get("/healthz")


async def test_a_client_that_never_ends_its_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Header lines that come one by one, or none at all, hold a connection no longer than the limit."""
    monkeypatch.setattr(http, "IDLE_S", 0.5)
    async with served(Metrics(), Health()) as get:
        url = (await in_time(get)).url
        for opening in (b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"):
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(opening)
            async with asyncio.timeout(PATIENCE_S):
                while not reader.at_eof():
                    with contextlib.suppress(TimeoutError, ConnectionError):
                        await asyncio.wait_for(reader.read(1), 0.05)
                    if opening and not reader.at_eof():
                        writer.write(b"X-More: 1\r\n")
            writer.close()
        assert (await in_time(get)).status == 200


async def test_a_client_that_takes_no_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made for it is not kept for longer than the limit; others are served meanwhile."""
    monkeypatch.setattr(http, "SEND_S", 0.5)
    metrics = Metrics()
    for number in range(20_000):
        metrics.lag_bytes.labels(topic=f"persistent://public/default/topic-{number:0200}").set(1)
    async with HttpServer(HttpSettings(port=0), metrics, Health()) as server:
        open_ = server._runner.server
        assert open_ is not None
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                while open_.requests_count == 0:
                    await CLOCK.sleep(0.01)
                while open_.connections:
                    await CLOCK.sleep(0.01)


async def test_other_paths_are_not_found() -> None:
    """Nothing else is served."""
    async with served(Metrics(), Health()) as get:
        assert (await get("/")).status == 404
        assert (await get("/metrics/../etc/passwd")).status == 404


async def test_a_port_in_use_is_one_clear_line() -> None:
    """The error names host and port and says what to set."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidConfig) as caught:
            async with HttpServer(HttpSettings(port=port), Metrics(), Health()):
                pytest.fail("listened on a port that was taken")
    assert caught.value.message == f"metrics and health server: port {port} on 127.0.0.1 is in use"
    assert "http.port" in caught.value.hint


async def test_a_foreign_address_is_one_clear_line() -> None:
    """An address that is not this machine's is a mistake in the settings, with a hint."""
    with pytest.raises(InvalidConfig, match=r"cannot listen on 192\.0\.2\.1") as caught:
        async with HttpServer(HttpSettings(host="192.0.2.1", port=0), Metrics(), Health()):
            pytest.fail("listened on an address of nobody")
    assert "http.host" in caught.value.hint


async def test_https_with_certificates_that_change(tmp_path: Path) -> None:
    """HTTPS, then with client certificates; new pair and new authority count for the next connection."""
    ca, evil = Authority(tmp_path), Authority(tmp_path, "evil")
    files = ca.server(ca.file)
    alice, outsider = ca.issue("alice"), evil.issue("alice")
    watched = Watched(files.all, lambda: load_certificates(files))

    async def status(port: int, ca_file: Path, pair: Pair | None = None) -> int:
        context = ssl.create_default_context(cafile=str(ca_file))
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        async with aiohttp.ClientSession() as client:
            return (await client.get(f"https://127.0.0.1:{port}/healthz", ssl=context)).status

    async with HttpServer(HttpSettings(port=0, tls="server"), Metrics(), Health(), watched) as server:
        assert await status(server.port, ca.file) == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await status(server.port, evil.file)
        with pytest.raises(aiohttp.ClientError):
            async with aiohttp.ClientSession() as client:
                await client.get(f"http://127.0.0.1:{server.port}/healthz")
        old = ssl.create_default_context(cafile=str(ca.file))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python, for asking for it
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", server.port, ssl=old)
    async with HttpServer(HttpSettings(port=0, tls="mutual"), Metrics(), Health(), watched) as server:
        assert await status(server.port, ca.file, alice) == 200
        for pair in (None, outsider):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                await status(server.port, ca.file, pair)
        kept = tmp_path / "kept.pem"
        kept.write_bytes(ca.file.read_bytes())
        later = evil.server()
        files.cert.write_bytes(later.cert.read_bytes())
        files.key.write_bytes(later.key.read_bytes())
        ca.file.write_bytes(evil.file.read_bytes())
        assert watched.refresh()
        assert await status(server.port, evil.file, outsider) == 200
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await status(server.port, evil.file, alice)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await status(server.port, kept, outsider)


async def test_closing_waits_for_no_idle_connection_and_frees_the_port() -> None:
    """A client that connects and says nothing, or keeps its connection, delays neither the end nor the next start."""
    async with asyncio.timeout(PATIENCE_S):
        async with HttpServer(HttpSettings(port=0), Metrics(), Health()) as server:
            port = server.port
            silent = await asyncio.open_connection("127.0.0.1", port)
            kept = await asyncio.open_connection("127.0.0.1", port)
            kept[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" in await kept[0].readline()
        async with HttpServer(HttpSettings(port=port), Metrics(), Health()) as again:
            assert again.port == port
    for _, writer in (silent, kept):
        writer.close()
        await writer.wait_closed()
