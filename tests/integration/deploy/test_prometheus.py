"""A real Prometheus with what deploy/ gives it, over a real daemon: rules, their stories, the queries of the dashboard.

Where no Prometheus is to be had, these tests are skipped and say why.
"""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING
from urllib.parse import quote

import aiohttp
import grpc
import pytest

from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.tables import store as tables
from offloaderd.tables.declaration import Declaration
from offloaderd.tables.store import States, TableState
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.integration.servers.test_daemon import TOPIC, append, entries, offload, read_all
from tests.patience import PATIENCE_S
from tests.real.prometheus import NotToBeHad, Programs, answer, programs, serving
from tests.unit.deploy.expressions import PROMETHEUS, drawn

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import S3Server

EMPTY_WHEN_SOUND = {
    "Answers that are not 2xx",
    "Fetched for each byte handed out",  # there are readers at some time, not always
    "Left to be offloaded",
    "Left to be rewritten for a stock broker",
    "New entries that wait for it",
    "Not what was written",
    "Stalled, and not protected meanwhile",
}
"""Panels with nothing to draw while nothing is wrong and nothing special goes on."""
OF_TABLES = "offloaderd_table_"
"""Metrics of the application that writes tables, which does not run here."""


@pytest.fixture(scope="session")
def prometheus() -> Programs:
    """Where Prometheus and promtool are."""
    try:
        return programs()
    except NotToBeHad as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (["check", "config"], "prometheus.yml"),
        (["check", "rules"], "*.rules.yml"),
        (["test", "rules"], "tests/*.test.yml"),
    ],
)
def test_promtool_finds_nothing_wrong(prometheus: Programs, command: list[str], files: str) -> None:
    """The configuration is one, the rules are rules, and each alert fires when its story says so and not else."""
    found = sorted(map(str, PROMETHEUS.glob(files)))
    assert found
    done = subprocess.run([str(prometheus.promtool), *command, *found], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_would_find_a_broken_story(prometheus: Programs, tmp_path: Path) -> None:
    """The stories can fail: with another threshold of a rule, one of them does."""
    for path in PROMETHEUS.rglob("*.yml"):
        copy = tmp_path / path.relative_to(PROMETHEUS)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(path.read_text().replace('{outcome="failed"}[13h]) >= 2', '{outcome="failed"}[13h]) >= 3'))
    command = [str(prometheus.promtool), "test", "rules", str(tmp_path / "tests" / "slow-alerts.test.yml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "OffloaderdGcFailing" in done.stdout + done.stderr


async def test_prometheus_scrapes_a_daemon_and_draws_every_panel(
    prometheus: Programs, zookeeper: str, s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    """All rules evaluate, no alert fires over a daemon that works, and every query of the dashboard has an answer."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(TOPIC)
        await append(client, entries(2000))
        await offload(client)
        assert len(await read_all(client)) == 2000
        await declare_table(site)
        async with (
            grpc.aio.insecure_channel(daemon.address) as channel,
            serving(prometheus, f"127.0.0.1:{daemon.http_port}", tmp_path) as server,
            aiohttp.ClientSession(server) as session,
        ):
            await unknown_methods(channel)
            await until_evaluated(session)
            async with asyncio.timeout(PATIENCE_S):
                while not (lag_s := await asked(session, "offloaderd_declared_table_lag_seconds")):
                    await CLOCK.sleep(0.2)
            assert lag_s[0] > 5
            assert await asked(session, "offloaderd_declaration_unwritten_seconds > 0")
            assert await asked(session, 'up{job="offloaderd"}') == [1.0]
            methods = await asked(session, 'count(grpc_server_handled_total{grpc_method=~"No.*"}) or vector(0)')
            assert methods == [0.0], "a client may not make series"
            queries = [(title, query) for title, query in drawn() if OF_TABLES not in query]
            empty = {title for title, query in queries if not await asked(session, query)}
            assert not empty - EMPTY_WHEN_SOUND
            groups = (await answer(session, "/api/v1/rules"))["groups"]
            wrong = [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "ok"]
            assert not wrong
            alerts = {one["labels"]["alertname"] for one in (await answer(session, "/api/v1/alerts"))["alerts"]}
            assert alerts <= {"OffloaderdEventLoopBlocked"}, "on a busy machine it is right"
            committed = {segment.segment_id for segment in await client.segments(TOPIC)}
            buckets = "/api/v1/query_exemplars?query=offloaderd_time_to_durable_seconds_bucket&start=0&end=9999999999"
            found = [one["labels"] for series in await answer(session, buckets) for one in series["exemplars"]]
            assert {labels["segment_id"] for labels in found} <= committed
            assert found


async def declare_table(site: Site) -> None:
    """Declare a table whose application is gone: the daemon has to say so."""
    async with ZooKeeperStore(site.zookeeper, f"/offloaderd/{site.cluster}") as metadata:
        declared = Declaration(name="orders", topics=str(TOPIC), to="/lake", created_ms=CLOCK.wall_ms())
        await tables.create(metadata, declared)
        state = TableState(table="orders", topic=str(TOPIC), lag_s=5.0, lag_entries=7)
        await tables.put_states(metadata, "orders", States(writer="gone", at_ms=CLOCK.wall_ms(), tables=[state]))


async def unknown_methods(channel: grpc.aio.Channel) -> None:
    """Call methods that do not exist."""
    for number in range(20):
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/offloaderd.v1.AdminService/No{number}"
        )
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"")


async def until_evaluated(session: aiohttp.ClientSession) -> None:
    """Wait until the daemon has been scraped over the rules' shortest range, and all groups were evaluated since."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                scraped = await asked(session, 'count_over_time(up{job="offloaderd"}[1m])')
                groups = (await answer(session, "/api/v1/rules"))["groups"]
            except aiohttp.ClientError:
                scraped, groups = [], []
            known = [rule["health"] != "unknown" for group in groups for rule in group["rules"]]
            if scraped and scraped[0] >= 8 and known and all(known):
                return
            await CLOCK.sleep(0.2)


async def asked(session: aiohttp.ClientSession, query: str) -> list[float]:
    """The values of a query that must be one."""
    result = (await answer(session, f"/api/v1/query?query={quote(query)}"))["result"]
    return [float(one["value"][1]) for one in result]
