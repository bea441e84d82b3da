"""Identities of Microsoft Entra: tokens come from the endpoint that the environment names, and go to the service."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import aiohttp.connector
import pytest
from aiohttp import web

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Denied, OffloaderError
from offloaderd.objects.azure.store import AzureStore
from tests.authority import Authority
from tests.azure.service import Service, options, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from offloaderd.objects.settings import ObjectsSettings

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
