"""The check of the admin API, against a small HTTP server that plays a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from pydantic import SecretStr

from offloaderd.core.model import TopicName
from offloaderd.daemon.doctor.cluster import admin_checks
from offloaderd.daemon.doctor.finding import Case, Verdict
from offloaderd.daemon.settings import Settings
from offloaderd.ledgers.settings import LedgersSettings, PulsarSettings
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.daemon.doctor.finding import CheckResult

REAL_TIME = "HTTP"

FILES = ObjectsSettings(kind="filesystem")


class Broker:
    """Knows no topic, and lets in who has the token, if one is needed."""

    def __init__(self) -> None:
        self.url = ""
        self.token: str | None = None
        self.paths: list[str] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        self.paths.append(request.path)
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401)
        return web.Response(status=404)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker on loopback."""
    broker = Broker()
    runner = web.ServerRunner(web.Server(broker.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    broker.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield broker
    finally:
        await runner.cleanup()


async def found(pulsar: PulsarSettings, kind: str = "bookkeeper", topic: TopicName | None = None) -> list[CheckResult]:
    """Run the group."""
    ledgers = LedgersSettings.model_validate({"kind": kind})
    case = Case(Settings(objects=FILES, ledgers=ledgers, pulsar=pulsar), FakeClock(), topic=topic)
    return [result async for result in admin_checks(case)]


async def test_a_broker_that_answers_is_well(broker: Broker) -> None:
    """It is asked about a topic that nobody has, in a namespace that the cluster has."""
    (result,) = await found(PulsarSettings(admin_url=broker.url), topic=TopicName("team", "ns", "orders"))
    assert (result.name, result.verdict) == ("admin api", Verdict.OK)
    assert result.found == f"{broker.url} answers without a token"
    (path,) = broker.paths
    assert path.startswith("/admin/v2/persistent/team/ns/doctor-")


async def test_the_token_is_tried(broker: Broker) -> None:
    """The right one passes, a wrong one and none fail with the setting; no token is ever shown."""
    broker.token = "right"
    (result,) = await found(PulsarSettings(admin_url=broker.url, admin_token=SecretStr("right")))
    assert (result.verdict, result.found) == (Verdict.OK, f"{broker.url} answers with our token")
    for pulsar in (
        PulsarSettings(admin_url=broker.url, admin_token=SecretStr("left")),
        PulsarSettings(admin_url=broker.url),
    ):
        (result,) = await found(pulsar)
        assert result.failed
        assert "pulsar.admin_token" in result.what_to_do
        assert "left" not in str(result)


async def test_one_that_is_away_fails_with_what_to_do() -> None:
    """Nobody listens there."""
    (result,) = await found(PulsarSettings(admin_url="http://127.0.0.1:1"))
    assert result.failed
    assert "pulsar.admin_url" in result.what_to_do


async def test_without_a_url_it_says_what_is_missed() -> None:
    """It is optional; and of no use to a daemon that follows no cluster."""
    (result,) = await found(PulsarSettings())
    assert result.verdict is Verdict.SKIPPED
    assert "idle open ledger" in result.found
    assert await found(PulsarSettings(), kind="none") == []
