"""Access to one storage account: its address, credentials and connections, shared by all of its containers.

Credentials, the first of them: a key of the account, a SAS, each from a connection string or a file too; else an
identity of Microsoft Entra, which is a federated one (workload identity) where the environment names a token file, as
in a pod of AKS, else the managed one of this machine. Its library renews tokens before they end. A file is read again
after the store has refused what was in it, but not twice within RENEWAL_S: a SAS that rotates stops nobody.
"""

from __future__ import annotations

import asyncio
import base64
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import aiohttp
import structlog
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.pipeline.transport import AioHttpTransport
from azure.storage.blob.aio import BlobServiceClient

from offloaderd.core.errors import Closed, InvalidConfig
from offloaderd.objects.azure.gets import Gets
from offloaderd.objects.request import Body

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential
    from azure.storage.blob.aio import ContainerClient

    from offloaderd.core.clock import Clock
    from offloaderd.objects.settings import ServiceSettings

    Credential: TypeAlias = AzureNamedKeyCredential | AzureSasCredential | AsyncTokenCredential

KEEPALIVE_S = 12.0
"""Idle connections are closed after this time, before servers and load balancers drop them."""
RENEWAL_S = 5.0
"""Least time between two readings of the file: many simultaneous refusals read it once."""
PUT_BYTES_MAX = 1 << 30
"""The library cuts a longer content into blocks; none of ours is as long."""


log = structlog.get_logger(__name__)


class _Transport(AioHttpTransport):  # type: ignore[misc] # the module hands it out untyped
    """The library's transport, which sends the bytes of a large body in slices as well."""

    def _get_request_data(self, request: Any) -> Any:  # noqa: ANN401 - as there
        data = super()._get_request_data(request)
        return Body([data]) if isinstance(data, bytes) and data else data


class _Opened(NamedTuple):
    """The client of the account, and what sends GETs with its credentials."""

    service: BlobServiceClient
    gets: Gets


class Access:
    """The connections to an account, open between `open` and `close`."""

    def __init__(self, options: ServiceSettings, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._given = ""
        self._refused = False
        self._read_s: float | None = None
        self._stack = AsyncExitStack()
        self._opened: _Opened | None = None

    def container(self, name: str) -> ContainerClient:
        """Return the client of a container, without a request, for all but GETs of blobs. Raises Closed."""
        return self._current().service.get_container_client(name)

    def gets(self) -> Gets:
        """Return what sends GETs of blobs. Raises Closed."""
        return self._current().gets

    def _current(self) -> _Opened:
        if self._opened is None:
            raise Closed("the Azure store is closed")
        return self._opened

    async def open(self) -> None:
        """Make the client, without a request. Raises InvalidConfig."""
        if self._opened is not None:
            return
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._options.connections_max, keepalive_timeout=KEEPALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=True,
            )
        )
        try:
            self._given = await self._in_file()
            self._opened = await self._made(self._session)
        except InvalidConfig:
            await self.close()
            raise

    async def _made(self, session: aiohttp.ClientSession) -> _Opened:
        """Return a client over the open connections. Raises InvalidConfig."""
        options = self._options
        transport = _Transport(
            session=session,
            session_owner=False,
            connection_timeout=options.connect_timeout_s,
            read_timeout=options.read_timeout_s,
        )
        account = account_of(options, self._given)
        try:
            service = BlobServiceClient(
                account.url,
                credential=await self._credential(account),
                transport=transport,
                retry_total=0,
                max_single_put_size=PUT_BYTES_MAX,
            )
        except ValueError as error:
            raise InvalidConfig(
                f"cannot make a client for {account.url}: {error}",
                hint="check objects.azure_account, its credentials and objects.endpoint",
            ) from error
        return _Opened(service, Gets(service, account.url, transport, self._clock))

    async def _in_file(self) -> str:
        """Return what the file of the settings holds, "" without one. Raises InvalidConfig."""
        if self._options.credentials_file is None:
            return ""
        path = Path(self._options.credentials_file)
        try:
            found = (await asyncio.to_thread(path.read_text, encoding="ascii")).strip()
        except (OSError, ValueError) as error:
            raise InvalidConfig(f"{self._options.section}.credentials_file {path} cannot be read: {error}") from error
        if not found:
            raise InvalidConfig(f"{self._options.section}.credentials_file {path} is empty")
        return found

    def refused(self) -> None:
        """Have the next request read the credentials again."""
        self._refused = True

    async def renew(self) -> None:
        """Make another client, if the credentials were refused and their file has others now."""
        session, now_s = self._session, self._clock.monotonic()
        if session is None or not self._refused or self._options.credentials_file is None:
            return
        if self._read_s is not None and now_s - self._read_s < RENEWAL_S:
            return
        self._refused, self._read_s, before = False, now_s, self._given
        try:
            self._given = await self._in_file()
            made = await self._made(session) if self._given != before else None
        except InvalidConfig as error:
            self._given = before
            log.warning("credentials.unreadable", where="the Azure store", error=error.message)
            return
        if made is not None and self._session is session:
            self._opened = made
            log.info("credentials.reloaded", where="the Azure store")

    async def close(self) -> None:
        """Close the connections."""
        self._opened = self._session = None
        await self._stack.aclose()

    async def _credential(self, account: Account) -> Credential:
        """Return what signs requests. Raises ValueError."""
        if account.key:
            base64.b64decode(account.key, validate=True)  # else the first request fails, as if it were refused
            return AzureNamedKeyCredential(account.name, account.key)
        if account.sas:
            return AzureSasCredential(account.sas)
        from azure.identity.aio import (  # noqa: PLC0415 - takes long to load, and keys and SAS do not need it
            ManagedIdentityCredential,
            WorkloadIdentityCredential,
        )

        federated = bool(os.environ.get("AZURE_FEDERATED_TOKEN_FILE"))
        named: Any = {"client_id": self._options.azure_client_id} if self._options.azure_client_id else {}
        found = WorkloadIdentityCredential(**named) if federated else ManagedIdentityCredential(**named)
        return await self._stack.enter_async_context(found)


class Account(NamedTuple):
    """An account: its name, the URL of its Blob service, and its key or a SAS, or neither."""

    name: str
    url: str
    key: str
    sas: str


def account_of(options: ServiceSettings, given: str = "") -> Account:
    """Return the account of the settings, in which a connection string counts before the others.

    `given`: what their file holds, a connection string, a SAS or a key.

    An endpoint whose host does not begin with the account's name, as an emulator's, has the account in the path.
    """
    connection_string, key, sas = options.azure_secrets
    if "AccountKey=" in given or "SharedAccessSignature=" in given:
        connection_string = given
    elif "&" in given:  # which no key has
        sas = given.removeprefix("?")
    elif given:
        key = given
    fields = dict(one.split("=", 1) for one in connection_string.split(";") if "=" in one)
    name = fields.get("AccountName") or options.azure_account or ""
    url = fields.get("BlobEndpoint", "").rstrip("/")
    if not url and (endpoint := (options.endpoint or "").rstrip("/")):
        url = endpoint if (urlsplit(endpoint).hostname or "").startswith(f"{name}.") else f"{endpoint}/{name}"
    url = url or f"https://{name}.blob.{fields.get('EndpointSuffix', 'core.windows.net')}"
    return Account(name, url, fields.get("AccountKey") or key, fields.get("SharedAccessSignature") or sas)
