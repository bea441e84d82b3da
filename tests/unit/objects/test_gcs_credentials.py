"""Access tokens for Google Cloud Storage: from where they come, when they are renewed, and what a refusal says."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from google.auth.compute_engine import _metadata

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Denied, Expired, Transient
from offloaderd.objects.gcs import credentials
from offloaderd.objects.gcs.errors import RIGHTS
from offloaderd.objects.gcs.store import GcsStore
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.standalone.ports import free_ports
from tests.gcs_server import GcsServer, gcs_server
from tests.token_server import TokenServer, token_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

REAL_TIME = "HTTP, and threads of google-auth"
ALL = frozenset(RIGHTS.values())


@pytest.fixture(autouse=True)
def no_credentials_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has of its own is not found."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture
async def server() -> AsyncIterator[GcsServer]:
    """A server that takes the token "first"."""
    async with gcs_server("segments") as server:
        server.tokens = {"first": ALL}
        yield server


@pytest.fixture
async def issuer() -> AsyncIterator[TokenServer]:
    """A server that issues tokens."""
    async with token_server() as server:
        yield server


@asynccontextmanager
async def store_at(server: GcsServer, path: Path | None = None) -> AsyncIterator[GcsStore]:
    """The adapter, with a file of credentials."""
    options = ObjectsSettings(
        kind="gcs",
        bucket="segments",
        endpoint=server.endpoint,
        credentials_file=str(path) if path else None,
        connect_timeout_s=2,
        read_timeout_s=5,
    )
    async with GcsStore(options) as store:
        yield store


@pytest.fixture
def by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for the application default credentials, also for a server on loopback."""
    monkeypatch.setattr("offloaderd.objects.gcs.request.found", lambda *_: credentials.default)


async def test_a_service_account_signs_for_its_token(server: GcsServer, issuer: TokenServer, tmp_path: Path) -> None:
    """Once, for many requests at a time and after one another."""
    async with store_at(server, issuer.service_account(tmp_path / "key.json")) as store:
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(store.put(f"k{number}", b"x"))
        await store.check()
    assert issuer.requests == {"signed": 1}


async def test_a_workload_identity_is_exchanged(server: GcsServer, issuer: TokenServer, tmp_path: Path) -> None:
    """A pod's token is read from its file and exchanged for one of Google's, both again once that is refused."""
    path = issuer.federation(tmp_path / "federation.json")
    async with store_at(server, path) as store:
        await store.put("k", b"x")
        assert issuer.requests == {"exchanged": 1}
        issuer.subject, issuer.tokens, server.tokens = "renewed", ["second"], {"second": ALL}
        path.with_suffix(".token").write_text("renewed")
        with pytest.raises(Expired):
            await store.put("k", b"x")
        clear(store)
        await store.put("k", b"x")
    assert issuer.requests == {"exchanged": 2}


def clear(store: GcsStore) -> None:
    """Let the time between two readings of the credentials pass."""
    tokens = store._http._tokens
    assert tokens is not None
    tokens._tried_s = None


@pytest.mark.usefixtures("by_default")
async def test_the_variable_of_the_ecosystem_names_the_file(
    server: GcsServer, issuer: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GOOGLE_APPLICATION_CREDENTIALS, as with every other program of Google's users."""
    path = issuer.service_account(tmp_path / "key.json")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    async with store_at(server) as store:
        await store.put("k", b"x")
    assert issuer.requests == {"signed": 1}


@pytest.mark.usefixtures("by_default")
async def test_a_machine_or_pod_has_a_token_of_its_own(
    server: GcsServer, issuer: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its metadata server, which is how GKE gives a pod the identity of its service account."""
    address = issuer.endpoint.removeprefix("http://")
    monkeypatch.delenv("NO_GCE_CHECK")
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", address)
    monkeypatch.setenv("GCE_METADATA_IP", address)
    async with store_at(server) as store:
        await store.put("k", b"x")
    assert issuer.requests == {"machine": 1}


@pytest.mark.usefixtures("by_default")
async def test_without_any_credentials_the_settings_are_named(server: GcsServer) -> None:
    """The remedy says where they may come from; nothing is sent."""
    async with store_at(server) as store:
        with pytest.raises(Denied, match=r"objects\.credentials_file"):
            await store.check()
    assert not server.requests


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "JSONDecodeError"),
        ("[]", "of type ''"),
        ('{"type": "gdch"}', "of type 'gdch'"),
        ('{"type": "impersonated_service_account"}', "no access token"),
        ('{"type": "external_account", "credential_source": null}', "no access token"),
        ('{"type": "service_account"}', "no access token"),
        (None, "FileNotFound"),
    ],
)
async def test_a_file_that_is_none(server: GcsServer, tmp_path: Path, content: str | None, words: str) -> None:
    """What is wrong with it is said, and it is read again at the next try."""
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    async with store_at(server, path) as store:
        with pytest.raises(Denied, match=words):
            await store.check()


async def test_a_corrected_file_is_found(server: GcsServer, issuer: TokenServer, tmp_path: Path) -> None:
    """A request after it was put right works, once the pause is over."""
    path = tmp_path / "key.json"
    async with store_at(server, path) as store:
        with pytest.raises(Denied):
            await store.check()
        issuer.service_account(path)
        clear(store)
        await store.check()


async def test_a_clock_that_is_wrong_is_named(server: GcsServer, issuer: TokenServer, tmp_path: Path) -> None:
    """A signed request for a token holds for minutes: the issuer's own words, and where to look."""
    said = {
        "error": "invalid_grant",
        "error_description": "Invalid JWT: Token must be a short-lived token",
    }
    issuer.refusal = 400, said
    async with store_at(server, issuer.service_account(tmp_path / "key.json")) as store:
        with pytest.raises(Denied, match="short-lived") as refused:
            await store.put("k", b"x")
    assert "clock" in refused.value.hint
    assert not server.requests


async def test_an_issuer_that_is_away_is_no_refusal(server: GcsServer, issuer: TokenServer, tmp_path: Path) -> None:
    """Nothing was sent to the store, so the request may simply be sent again."""
    path = issuer.service_account(tmp_path / "key.json")
    text = path.read_text()
    path.write_text(text.replace(issuer.endpoint, f"http://127.0.0.1:{free_ports(1, SystemClock())[0]}"))
    async with store_at(server, path) as store:
        with pytest.raises(Transient) as refused:
            await store.put("k", b"x")
    assert type(refused.value) is Transient


async def test_an_issuer_that_fails_is_asked_once_for_all(
    server: GcsServer, issuer: TokenServer, tmp_path: Path
) -> None:
    """Requests of the same moment fail with its answer; the next one is asked after a pause."""
    issuer.refusal = 400, {"error": "invalid_grant", "error_description": "account deleted"}
    async with store_at(server, issuer.service_account(tmp_path / "key.json")) as store:
        found = await asyncio.gather(*(store.put(f"k{number}", b"x") for number in range(8)), return_exceptions=True)  # noqa: TID251 - all errors are wanted
        assert all(isinstance(one, Denied) and "account deleted" in one.message for one in found)
        assert issuer.requests == {"signed": 1}
        issuer.refusal = None
        with pytest.raises(Denied, match="account deleted"):
            await store.put("k", b"x")
        clear(store)
        await store.put("k", b"x")
    assert issuer.requests == {"signed": 2}


async def test_a_token_is_renewed_before_it_ends(server: GcsServer, issuer: TokenServer, tmp_path: Path) -> None:
    """While it still holds, an issuer that is down stops nobody."""
    issuer.holds_s, issuer.tokens = 100, ["first", "second"]
    server.tokens = {"first": ALL, "second": ALL}
    async with store_at(server, issuer.service_account(tmp_path / "key.json")) as store:
        await store.put("k", b"x")
        issuer.refusal = 500, {"error": "internal_failure"}
        clear(store)
        await store.put("k", b"x")
        issuer.refusal = None
        clear(store)
        await store.put("k", b"x")
        tokens = store._http._tokens
        assert tokens is not None
        assert await tokens.token() == "second"


async def test_a_token_that_is_refused_is_replaced_once(server: GcsServer, issuer: TokenServer, tmp_path: Path) -> None:
    """A revoked one is fetched anew by the next request, and not again at once if that does not help."""
    issuer.tokens = ["revoked", "first"]
    async with store_at(server, issuer.service_account(tmp_path / "key.json")) as store:
        with pytest.raises(Expired):
            await store.put("k", b"x")
        clear(store)
        await store.put("k", b"x")
        server.tokens = {}
        for _ in range(5):
            with pytest.raises(Expired):
                await store.put("k", b"x")
    assert issuer.requests == {"signed": 2}
