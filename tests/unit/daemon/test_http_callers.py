"""Who may look: the same as may call Status, by token or certificate, and nobody by a trick."""

from __future__ import annotations

import ssl
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from offloaderd.access.certificates import Watched, load_certificates
from offloaderd.access.roles import Grant, Rights
from offloaderd.access.tokens import secret_key
from offloaderd.api.gate import Authentication, Limits
from offloaderd.daemon.settings.sections import HttpSettings
from offloaderd.daemon.status_page.site import bearer_of, is_local, names_this_machine
from tests.authority import Authority, token
from tests.unit.daemon.scene import Scene, opened, status, topic

if TYPE_CHECKING:
    from pathlib import Path

REAL_TIME = "HTTP"

SECRET = b"0123456789abcdef0123456789abcdef"
GRANTS = ("read alice *", f"read carol {topic(1)}", "offload broker *", "admin root *")


def authentication(*, certificates: bool = False) -> Authentication:
    """Return what the daemon goes by: tokens, or certificates alone."""
    key = secret_key(f"data:;base64,{b64encode(SECRET).decode()}", "k")
    return Authentication(
        rights=Rights(map(Grant.parse, GRANTS)),
        certificates=certificates,
        token_keys=tuple if certificates else (lambda: [key]),
    )


def bearer(subject: str, secret: bytes = SECRET, **claims: Any) -> dict[str, str]:  # noqa: ANN401 - claims are JSON
    """Return the header of a program."""
    return {"Authorization": f"Bearer {token(secret, subject, **claims)}"}


def password(subject: str) -> dict[str, str]:
    """Return the header of a browser whose user gave the token as the password."""
    return {"Authorization": aiohttp.encode_basic_auth("whoever", token(SECRET, subject))}


async def test_a_token_opens_the_page_as_it_opens_status() -> None:
    """Readers and administrators of everything see all, a reader of a topic that topic alone, others nothing."""
    expected = {"alice": (200, 200), "root": (200, 200), "carol": (403, 200), "broker": (403, 403), "eve": (403, 403)}
    async with opened(Scene([status(1)]), authentication=authentication()) as client:
        for name, codes in expected.items():
            for headers in (bearer(name), password(name)):
                found = []
                for path in ("/status", f"/status?topic={topic(1)}"):
                    async with client.get(path, headers=headers) as answer:
                        found.append(answer.status)
                async with client.get("/status.json", headers=headers) as answer:
                    assert answer.status == codes[0]
                assert tuple(found) == codes, name


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer nonsense"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic schlüssel"},
        {"Authorization": "Basic " + b64encode(b"alice").decode()},
        {"Authorization": "Negotiate abc"},
        bearer("alice", b"another secret of thirty-two byte"),
        bearer("alice", exp=1_600_000_000),
    ],
)
async def test_who_is_nobody_is_asked_for_a_name(headers: dict[str, str]) -> None:
    """No token, or none that is good: 401, the browser is told to ask, and not a word of any topic is said."""
    scene = Scene([status(1)])
    async with opened(scene, authentication=authentication()) as client:
        for path in ("/status", "/status.json", f"/status?topic={topic(1)}"):
            async with client.get(path, headers=headers) as answer:
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
                assert "topic-0000" not in (await answer.text()).replace(path, "")
    assert scene.looks == 0


async def test_refusals_are_in_the_audit_log_without_the_token() -> None:
    """Who was refused, what for, from where: an event of the audit log; the token is in no event."""
    sent = bearer("carol")
    with capture_logs() as events:
        async with opened(Scene([status(1)]), authentication=authentication()) as client:
            async with client.get("/status", headers=sent) as answer:
                assert answer.status == 403
            async with client.get("/status", headers=bearer("carol", b"wrong" * 8)) as answer:
                assert answer.status == 401
    audited = [event for event in events if event["event"] == "audit.call"]
    assert [(event["code"], event["identity"]) for event in audited] == [
        ("PermissionDenied", "carol"),
        ("Unauthenticated", ""),
    ]
    assert sent["Authorization"].removeprefix("Bearer ") not in str(events)


async def test_a_certificate_opens_the_page_where_one_is_asked_for(tmp_path: Path) -> None:
    """Under mutual TLS its names count; under HTTPS alone nobody is known, and the page says what to set."""
    ca = Authority(tmp_path)
    files = ca.server(ca.file)
    watched = Watched(files.all, lambda: load_certificates(files))
    rules = authentication(certificates=True)

    def context(name: str | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(ca.file))
        if name is not None:
            pair = ca.issue(name)
            made.load_cert_chain(pair.cert, pair.key)
        return made

    mutual = HttpSettings(port=0, tls="mutual")
    async with opened(Scene([]), http=mutual, certificates=watched, authentication=rules) as client:
        for name, code in (("alice", 200), ("eve", 403), ("", 403)):
            async with client.get("/status", ssl=context(name)) as answer:
                assert answer.status == code
    https = HttpSettings(port=0, tls="server")
    async with (
        opened(Scene([]), http=https, certificates=watched, authentication=rules) as client,
        client.get("/status", ssl=context(None)) as answer,
    ):
        assert answer.status == 401
        assert "http.tls = mutual" in await answer.text()


async def test_one_caller_does_not_take_it_all() -> None:
    """The page counts against the same limits as calls: who asks too often hears so, and the page stays up."""
    scene = Scene([status(1)])
    async with opened(scene, limits=Limits(calls_per_s=3)) as client:
        codes = []
        for _ in range(5):
            async with client.get("/status") as answer:
                codes.append(answer.status)
        assert codes == [200, 200, 200, 429, 429]
        await scene.clock.advance(5)
        async with client.get("/status") as answer:
            assert answer.status == 200


async def test_a_foreign_page_cannot_read_it_by_a_name_of_its_own() -> None:
    """A name that was pointed at this machine's loopback is no address of it: only 127.0.0.1 and localhost are."""
    async with opened(Scene([status(1)])) as client:
        for host, code in (("evil.example", 400), ("localhost:7651", 200), ("127.0.0.1", 200), ("[::1]:7651", 200)):
            async with client.get("/status.json", headers={"Host": host}) as answer:
                assert answer.status == code, host
                assert (str(topic(1)) in await answer.text()) is (code == 200)
    async with (
        opened(Scene([status(1)]), private=False) as client,
        client.get("/status.json", headers={"Host": "offloaderd.example"}) as answer,
    ):
        assert answer.status == 200


async def test_nothing_takes_orders() -> None:
    """The page is read only: any other method is refused."""
    async with opened(Scene([status(1)])) as client:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            async with client.request(method, "/status") as answer:
                assert answer.status == 405


def test_hosts() -> None:
    """Addresses and localhost are this machine's, names of others are not, however they are dressed up."""
    for host in ("127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:80", "localhost", "LOCALHOST:1", "10.0.0.1:80"):
        assert names_this_machine(host), host
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[evil]", "localhost."):
        assert not names_this_machine(host), host
    assert is_local("127.0.0.1")
    assert is_local("::1")
    assert not is_local("10.0.0.1")
    assert not is_local("")


def test_a_password_is_a_token() -> None:
    """The name before the colon does not matter, a colon in the token stays; what is no Basic goes on as it is."""
    assert bearer_of("Basic " + b64encode(b"x:a:b").decode()) == "Bearer a:b"
    assert bearer_of("basic " + b64encode(b":t").decode()) == "Bearer t"
    assert bearer_of("Bearer t") == "Bearer t"
