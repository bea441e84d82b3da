"""Identities of Microsoft Entra: tokens come from the endpoint that the environment names, and go to the service."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp.connector
import pytest
from aiohttp import web

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Denied, Expired, InvalidConfig, OffloaderError
from offloaderd.objects.azure.access import account_of
from offloaderd.objects.azure.store import AzureStore
from offloaderd.objects.settings import ObjectsSettings
from tests.authority import Authority
from tests.azure.service import Refusal, Service, options, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REAL_TIME = "the service in the process listens on a socket"


class Tokens(Service):
    """A service that takes tokens alone, and the endpoints that give them out."""

    given = 0
    refused = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Give out a token, or answer who has the last one."""
        if request.path not in {"/msi", "/tenant/oauth2/v2.0/token"}:
            if request.headers.get("Authorization") != f"Bearer token-{self.given}":
                return web.Response(status=401, headers={"x-ms-error-code": "InvalidAuthenticationInfo"})
            return await super().handle(request)
        told = await request.post()
        by_pod = told.get("client_assertion") == "of the pod" and told.get("client_id") == "client"
        by_machine = request.headers.get("X-IDENTITY-HEADER") == "header"
        if self.refused or not (by_pod or by_machine):
            return web.json_response({"error": "invalid_client", "error_description": "no such identity"}, status=400)
        self.given += 1
        until_s = SystemClock().wall_ms() // 1000 + 3600
        return web.json_response(
            {
                "access_token": f"token-{self.given}",
                "expires_in": 3600,
                "expires_on": str(until_s),
                "token_type": "Bearer",
                "resource": "https://storage.azure.com",
            }
        )


@pytest.fixture
def service() -> Tokens:
    """The service."""
    return Tokens(SystemClock())


@pytest.fixture
async def access(service: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectsSettings]:
    """Access to it without key or SAS, over TLS, as tokens are not sent in the clear."""
    for name in ("AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_ID", "AZURE_TENANT_ID", "IDENTITY_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    authority = Authority(tmp_path)
    pair = authority.issue("server", "127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    # Both libraries go by aiohttp's own context, which is made when it is loaded.
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", ssl.create_default_context(cafile=authority.file))
    async with serving(service, context) as endpoint:
        yield options(endpoint, "segments").model_copy(update={"azure_key": None})


def as_machine(access: ObjectsSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the environment of a machine with a managed identity."""
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{access.endpoint}/msi")
    monkeypatch.setenv("IDENTITY_HEADER", "header")


async def test_the_managed_identity_of_the_machine(
    access: ObjectsSettings, service: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token serves many requests."""
    as_machine(access, monkeypatch)
    async with AzureStore(access) as store:
        await store.create_bucket()
        await store.put("key", b"content")
        assert await store.get("key") == b"content"
    assert service.given == 1


async def test_the_workload_identity_of_a_pod(
    access: ObjectsSettings, service: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod's token file is exchanged; it counts before the machine's identity."""
    (tmp_path / "token").write_text("of the pod", encoding="utf-8")
    as_machine(access, monkeypatch)
    monkeypatch.setenv("IDENTITY_HEADER", "of another")
    for name, value in {
        "AZURE_FEDERATED_TOKEN_FILE": str(tmp_path / "token"),
        "AZURE_TENANT_ID": "tenant",
        "AZURE_CLIENT_ID": "client",
        "AZURE_AUTHORITY_HOST": str(access.endpoint),
    }.items():
        monkeypatch.setenv(name, value)
    async with AzureStore(access) as store:
        await store.create_bucket()
        await store.check()
    assert service.given == 1


async def test_an_identity_that_gets_no_token_is_named(
    access: ObjectsSettings, service: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a refusal with a remedy, and ends when the endpoint gives one."""
    as_machine(access, monkeypatch)
    service.refused = True
    async with AzureStore(access) as store:
        with pytest.raises(OffloaderError) as caught:
            await store.create_bucket()
        assert type(caught.value) is Denied
        assert "identity" in caught.value.hint
        service.refused = False
        await store.create_bucket()


class Signed(Service):
    """A service that takes one SAS alone."""

    signature = "first"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Refuse any other."""
        if request.query.get("sig") != self.signature:
            return Refusal(403, "AuthenticationFailed", "no", "Signature not valid in the specified time frame").answer(
                request
            )
        return await super().handle(request)


def by_file(endpoint: str, path: Path) -> ObjectsSettings:
    """Describe a container whose credentials are in a file."""
    return options(endpoint, "segments").model_copy(update={"azure_key": None, "credentials_file": str(path)})


async def test_a_sas_in_a_file_is_read_again_once_it_was_refused(tmp_path: Path) -> None:
    """The next request has the new one; a file that cannot be read, or has the old one still, changes nothing."""
    service, path = Signed(SystemClock()), tmp_path / "sas"
    path.write_text("?sv=2026-01-01&sig=first\n")
    async with serving(service) as endpoint, AzureStore(by_file(endpoint, path)) as store:
        await store.create_bucket()
        service.signature = "second"
        path.unlink()
        for _ in range(2):
            with pytest.raises(Expired, match="time frame"):
                await store.put("k", b"x")
        path.write_text("sv=2026-01-01&sig=second")
        store._access._read_s = None  # the pause is over
        await store.put("k", b"x")
        assert await store.get("k") == b"x"


async def test_many_refusals_read_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the pause it is not read again, whoever asks."""
    service, path, reads = Signed(SystemClock()), tmp_path / "sas", 0
    path.write_text("sv=2026-01-01&sig=wrong")
    read_text = Path.read_text

    def counted(self: Path, **more: Any) -> str:  # noqa: ANN401
        nonlocal reads
        reads += self == path
        return read_text(self, **more)

    monkeypatch.setattr(Path, "read_text", counted)
    async with serving(service) as endpoint, AzureStore(by_file(endpoint, path)) as store:
        for _ in range(5):
            with pytest.raises(Expired):
                await store.put("k", b"x")
    assert reads == 2


@pytest.mark.parametrize("content", [None, "", "\u00e9"])
async def test_a_file_that_holds_nothing_is_named(tmp_path: Path, content: str | None) -> None:
    """At the start, as a mistake in the settings."""
    path = tmp_path / "sas"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidConfig, match="credentials_file"):
        async with AzureStore(by_file("http://127.0.0.1:1", path)):
            raise AssertionError("opened")


@pytest.mark.parametrize(
    ("given", "key", "sas"),
    [
        ("a2V5", "a2V5", ""),
        ("?sv=1&sig=s%3D", "", "sv=1&sig=s%3D"),
        ("AccountName=n;AccountKey=a2V5==", "a2V5==", ""),
        ("BlobEndpoint=https://n.example/;SharedAccessSignature=sv=1&sig=s", "", "sv=1&sig=s"),
    ],
)
def test_a_file_holds_a_key_a_sas_or_both_in_a_connection_string(given: str, key: str, sas: str) -> None:
    """Whichever it is shows in its form."""
    account = account_of(ObjectsSettings(kind="azure", bucket="segments", azure_account="n"), given)
    assert (account.name, account.key, account.sas) == ("n", key, sas)
