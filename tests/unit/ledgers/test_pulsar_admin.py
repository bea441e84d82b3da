"""The question to a broker's admin API, against a small HTTP server that plays several brokers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr
from structlog.testing import capture_logs

from offloaderd.core.errors import Denied, InvalidConfig, Transient
from offloaderd.core.model import Position, Retained, TopicName
from offloaderd.ledgers.pulsar.admin import ANSWER_BYTES_MAX, PulsarAdmin
from offloaderd.ledgers.settings import PulsarSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

REAL_TIME = "HTTP"

TOPIC = TopicName("public", "default", "a b/ü")
STATS = {"entriesAddedCounter": 100, "lastConfirmedEntry": "13:99", "ledgers": []}


class Brokers:
    """Answers whatever a test wants, and remembers what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str, str | None]] = []
        self.answer: Callable[[web.Request], web.StreamResponse] = lambda _: web.json_response(STATS)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.asked.append((request.raw_path, request.headers.get("Authorization")))
        return self.answer(request)


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    """A server on loopback."""
    brokers = Brokers()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", brokers.handle)
    async with TestServer(app) as server:
        brokers.url = str(server.make_url("")).rstrip("/")
        yield brokers


async def ask(brokers: Brokers, options: PulsarSettings | None = None) -> Position | None:
    """Ask once, with a client of its own."""
    async with PulsarAdmin(brokers.url + "/", options) as admin:
        return await admin.last_confirmed(TOPIC)


async def test_the_writers_position_is_read(brokers: Brokers) -> None:
    """From the topic's internal statistics, by the topic's encoded name, without a token unless there is one."""
    assert await ask(brokers) == Position(13, 99)
    assert brokers.asked == [("/admin/v2/persistent/public/default/a%20b%2F%C3%BC/internalStats", None)]


@pytest.mark.parametrize("text", ["-1:-1", "13:-1"])
async def test_no_entry_is_none(brokers: Brokers, text: str) -> None:
    """An empty topic has no last entry."""
    brokers.answer = lambda _: web.json_response({"lastConfirmedEntry": text})
    assert await ask(brokers) is None


async def test_an_unknown_topic_is_none(brokers: Brokers) -> None:
    """A topic that no broker has loaded has no writer."""
    brokers.answer = lambda _: web.Response(status=404, text="Topic not found")
    assert await ask(brokers) is None


async def test_a_token_is_sent_and_a_token_file_read_anew(brokers: Brokers, tmp_path: Path) -> None:
    """A file may be rotated while we run."""
    await ask(brokers, PulsarSettings(admin_token=SecretStr("secret")))
    file = tmp_path / "token"
    file.write_text("first\n")
    async with PulsarAdmin(brokers.url, PulsarSettings(admin_token_file=str(file))) as admin:
        await admin.last_confirmed(TOPIC)
        file.write_text("second")
        await admin.last_confirmed(TOPIC)
    assert [token for _, token in brokers.asked] == ["Bearer secret", "Bearer first", "Bearer second"]
    assert "secret" not in repr(PulsarSettings(admin_token=SecretStr("secret")))
    with pytest.raises(Denied, match="cannot be read"):
        await ask(brokers, PulsarSettings(admin_token_file=str(tmp_path / "none")))


async def test_redirects_are_followed_with_the_token(brokers: Brokers) -> None:
    """To the broker that owns the topic, and not for ever."""

    def redirect(request: web.Request) -> web.StreamResponse:
        if len(brokers.asked) < 4:
            return web.Response(status=307, headers={"Location": f"{brokers.url}/hop{len(brokers.asked)}"})
        return web.json_response(STATS)

    brokers.answer = redirect
    assert await ask(brokers, PulsarSettings(admin_token=SecretStr("t"))) == Position(13, 99)
    assert [path for path, _ in brokers.asked[1:]] == ["/hop1", "/hop2", "/hop3"]
    assert {token for _, token in brokers.asked} == {"Bearer t"}
    brokers.answer = lambda _: web.Response(status=307, headers={"Location": f"{brokers.url}/again"})
    brokers.asked.clear()
    with pytest.raises(Transient, match="redirects more than 5 times"):
        await ask(brokers)
    assert len(brokers.asked) == 6


async def test_a_token_stays_with_its_scheme(brokers: Brokers) -> None:
    """A redirect from https to http is followed without it (here the other way round, which needs no certificate)."""
    async with PulsarAdmin("https://127.0.0.1:1", PulsarSettings(admin_token=SecretStr("t"))) as admin:
        assert admin._headers("https://elsewhere/x") == {"Authorization": "Bearer t"}
        assert admin._headers("http://elsewhere/x") == {}


@pytest.mark.parametrize("location", ["", "/relative", "ftp://host/x", "http://"])
async def test_redirects_to_nowhere_are_refused(brokers: Brokers, location: str) -> None:
    """Only an absolute web address is followed."""
    brokers.answer = lambda _: web.Response(status=302, headers={"Location": location})
    with pytest.raises(Transient, match="redirects"):
        await ask(brokers)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_is_denied(brokers: Brokers, status: int) -> None:
    """An operator has to mend the token."""
    brokers.answer = lambda _: web.Response(status=status)
    with pytest.raises(Denied, match=r"pulsar\.admin_token"):
        await ask(brokers)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not JSON",
        b"[]",
        b"{}",
        b'{"lastConfirmedEntry": null}',
        b'{"lastConfirmedEntry": "13"}',
        b"\xff\xfe",
        b"7",
    ],
)
async def test_an_answer_that_is_none_is_transient(brokers: Brokers, body: bytes) -> None:
    """Whatever a proxy may put in a broker's place."""
    brokers.answer = lambda _: web.Response(body=body)
    with pytest.raises(Transient, match="not a topic's internal statistics"):
        await ask(brokers)


async def test_an_endless_answer_is_cut_off(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded."""
    assert ANSWER_BYTES_MAX >= 1 << 20
    monkeypatch.setattr("offloaderd.ledgers.pulsar.admin.ANSWER_BYTES_MAX", 10)
    with pytest.raises(Transient, match="larger than"):
        await ask(brokers)


async def test_errors_of_brokers_and_networks_are_transient(brokers: Brokers) -> None:
    """A 500, a refused connection, and no answer in time."""
    brokers.answer = lambda _: web.Response(status=500)
    with pytest.raises(Transient, match=r"answered .* with 500"):
        await ask(brokers)
    async with PulsarAdmin("http://127.0.0.1:1") as admin:
        with pytest.raises(Transient, match=r"did not answer http://127\.0\.0\.1:1/\S+: Connect call failed"):
            await admin.last_confirmed(TOPIC)
    with pytest.raises(Transient, match="not open"):
        await admin.last_confirmed(TOPIC)


async def test_failing_is_logged_once(brokers: Brokers) -> None:
    """One line when it begins, one when it is over, however often it is asked."""
    with capture_logs() as lines:
        async with PulsarAdmin(brokers.url) as admin:
            brokers.answer = lambda _: web.Response(status=500)
            for _ in range(3):
                with pytest.raises(Transient):
                    await admin.last_confirmed(TOPIC)
            brokers.answer = lambda _: web.Response(text=json.dumps(STATS))
            for _ in range(2):
                await admin.last_confirmed(TOPIC)
    assert [line["event"] for line in lines] == ["pulsar_admin.failed", "pulsar_admin.recovered"]


@pytest.mark.parametrize("url", ["", "pulsar://host:6650", "host:8080", "http://"])
def test_urls_that_cannot_be_are_refused(url: str) -> None:
    """Before anything is asked."""
    with pytest.raises(InvalidConfig, match="http"):
        PulsarAdmin(url)


def test_a_ca_file_that_is_none_is_refused(tmp_path: Path) -> None:
    """With the name of the file."""
    file = tmp_path / "ca.pem"
    for content in (None, b"no certificate"):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InvalidConfig, match=r"ca\.pem"):
            PulsarAdmin("https://host", PulsarSettings(admin_ca_file=str(file)))


@pytest.mark.parametrize(
    ("minutes", "mib", "kept"),
    [
        (-1, -1, Retained()),
        (0, 0, Retained(0.0, 0)),
        (90, 5, Retained(5400.0, 5 << 20)),
        (-1, 1, Retained(None, 1 << 20)),
    ],
)
async def test_a_namespaces_retention_is_read(brokers: Brokers, minutes: int, mib: int, kept: Retained) -> None:
    """In minutes and MiB; -1 is no limit."""
    brokers.answer = lambda _: web.json_response({"retentionTimeInMinutes": minutes, "retentionSizeInMB": mib})
    async with PulsarAdmin(brokers.url) as admin:
        assert await admin.retained("acme", "eu west") == kept
    assert brokers.asked == [("/admin/v2/namespaces/acme/eu%20west/retention", None)]


async def test_a_namespace_without_retention_says_nothing(brokers: Brokers) -> None:
    """Neither one that has none (204) nor one that does not exist is a limit; endless redirects are an error."""
    async with PulsarAdmin(brokers.url) as admin:
        for status in (404, 204, 200):
            brokers.answer = lambda _, status=status: web.Response(status=status)  # type: ignore[misc]
            assert await admin.retained("acme", "eu") == Retained()
        brokers.answer = lambda _: web.Response(status=307, headers={"Location": "/elsewhere"})
        with pytest.raises(Transient, match="redirects"):
            await admin.retained("acme", "eu")


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "{}", "x", '{"retentionTimeInMinutes": 5}'),
        '{"retentionTimeInMinutes": "5", "retentionSizeInMB": 1}',
        '{"retentionTimeInMinutes": true, "retentionSizeInMB": 1}',
    ],
)
async def test_a_retention_that_is_none_is_transient(brokers: Brokers, text: str) -> None:
    """Whatever a server says instead."""
    brokers.answer = lambda _: web.Response(text=text)
    async with PulsarAdmin(brokers.url) as admin:
        with pytest.raises(Transient, match="no retention"):
            await admin.retained("acme", "eu")
