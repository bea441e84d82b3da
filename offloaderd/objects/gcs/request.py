"""One request to the JSON API of Google Cloud Storage, and its answers as values of the port.

docs.cloud.google.com/storage/docs/json_api describes the API. An object's ETag is here the MD5 of its bytes. An object
that was composed has no MD5; the ETag that it was composed under is in its own metadata (`uploads.py`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
import google_crc32c
from yarl import URL

from offloaderd.core.errors import Closed, Denied, InvalidConfig
from offloaderd.objects.checks import flat
from offloaderd.objects.failures import Request
from offloaderd.objects.gcs.credentials import Tokens, found
from offloaderd.objects.gcs.errors import Refused, failure
from offloaderd.objects.port import Bytes, ObjectInfo
from offloaderd.objects.request import SLICE_BYTES, Body, Call, RequestMetrics, calling

if TYPE_CHECKING:
    from offloaderd.core.clock import Clock
    from offloaderd.objects.settings import ServiceSettings

GOOGLE = "https://storage.googleapis.com"
KEEPALIVE_S = 12.0
"""Idle connections are closed after this time, before servers and load balancers drop them."""
ERROR_BYTES_MAX = 64 * 1024
CONTENT_TYPE = "application/octet-stream"
AS_JSON = MappingProxyType({"Content-Type": "application/json"})
DESCRIBING = frozenset({"HeadObject", "InsertObject", "ComposeObjects"})
"""Requests that are answered with the description of one object."""
ETAG = "offloaderd-etag"
"""Metadata of a composed object: the ETag of S3 for its parts. Never shown as metadata."""
FIELDS = "name,size,md5Hash,crc32c,etag,generation,updated,timeCreated,metadata"
"""What is asked of an object's description."""


class Connection:
    """Connections to the service of one bucket, and the token of their requests."""

    def __init__(
        self, options: ServiceSettings, clock: Clock, metrics: RequestMetrics | None, bytes_per_s_min: int
    ) -> None:
        self.base = (options.endpoint or GOOGLE).rstrip("/")
        self.where = f"bucket {options.bucket} at {options.endpoint or 'Google Cloud Storage'}"
        self.bytes_per_s_min = bytes_per_s_min
        self._options = options
        self._clock = clock
        self._metrics = metrics
        self._tokens: Tokens | None = None
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the client, without a request. Raises InvalidConfig."""
        options = self._options
        self._tokens = Tokens(
            found(options),
            self._clock,
            options.connect_timeout_s + options.read_timeout_s,
        )
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=options.connect_timeout_s, sock_read=options.read_timeout_s
        )
        connector = aiohttp.TCPConnector(limit=options.connections_max, keepalive_timeout=KEEPALIVE_S)
        try:
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                auto_decompress=False,
                trust_env=not self.base.startswith("http://"),
            )
        except ValueError as error:
            raise InvalidConfig(f"cannot make a client for {self.where}: {error}") from error

    async def close(self) -> None:
        """Close the connections; later calls raise Closed."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def request(
        self,
        operation: str,
        method: str,
        path: str,
        *,
        key: str = "",
        query: Mapping[str, str | int] | None = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        write: bool = False,
    ) -> AsyncIterator[tuple[Call, aiohttp.ClientResponse]]:
        """Send one request and lend its answer; its deadline includes the wait for a token and for a connection.

        Raises our errors, also for an answer that is no success.
        """
        session, tokens, options = self._session, self._tokens, self._options
        if session is None or tokens is None:
            raise Closed("the store is closed")
        size_bytes = len(body) if body is not None else 0
        deadline_s = options.connect_timeout_s + options.read_timeout_s + size_bytes / self.bytes_per_s_min
        where = f"{key} in {self.where}" if key else self.where
        what = Request(operation=operation, where=where, write=write, section=options.section)
        token = ""
        try:
            async with calling(what, deadline_s, self._clock, self._metrics, failure) as call:
                token = await tokens.token()
                sent = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
                async with session.request(
                    method,
                    _url(self.base + path, query or {}),
                    data=body,
                    headers={"Accept-Encoding": "identity", **sent},
                    allow_redirects=False,
                ) as answer:
                    call.status = str(answer.status)
                    if not 200 <= answer.status < 300:
                        said = await answer.content.read(ERROR_BYTES_MAX)
                        raise Refused(answer.status, said, answer.headers.get("Location", ""))
                    call.bytes_out = size_bytes
                    yield call, answer
        except Denied:
            tokens.refused(token)
            raise

    async def described(
        self,
        operation: str,
        method: str,
        path: str,
        *,
        key: str = "",
        query: Mapping[str, str | int] | None = None,
        body: Body | None = None,
        headers: Mapping[str, str] = AS_JSON,
        write: bool = False,
    ) -> Mapping[str, Any]:
        """Send one request and return its answer, a JSON object; objects in it are complete. Raises as `request`.

        `headers` are those of a body.
        """
        headers = headers if body is not None else {}
        async with self.request(
            operation, method, path, key=key, query=query, body=body, headers=headers, write=write
        ) as (_, answer):
            said = dict(json.loads(await answer.read()))
            for one in [said] if operation in DESCRIBING else said.get("items", []):
                info_of(dict(one))
            return said


def _url(base: str, query: Mapping[str, str | int]) -> URL:
    """Return a URL whose path is escaped already: a key's slashes are part of one segment."""
    text = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
    return URL(f"{base}?{text}" if text else base, encoded=True)


def as_json(value: Mapping[str, Any]) -> Body:
    """Return a request's body."""
    return Body([json.dumps(value).encode()])


def crc32c_of(pieces: Sequence[Bytes]) -> str:
    """Return the CRC-32C of some pieces one after the other, as the service writes it."""
    crc = 0
    for view in map(flat, pieces):
        for begin in range(0, len(view), SLICE_BYTES):
            crc = google_crc32c.extend(crc, bytes(view[begin : begin + SLICE_BYTES]))  # it takes no view
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def upload(key: str, pieces: Sequence[Bytes], metadata: Mapping[str, str], boundary: str) -> tuple[Body, str]:
    """Return body and content type of a request that stores an object, with the CRC-32C that the service checks.

    Nobody whose bytes are in the content may know the boundary before.
    """
    described = {
        "name": key,
        "contentType": CONTENT_TYPE,
        "metadata": dict(metadata),
        "crc32c": crc32c_of(pieces),
    }
    head = (
        f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(described)}\r\n"
        f"--{boundary}\r\nContent-Type: {CONTENT_TYPE}\r\n\r\n"
    )
    body = Body([head.encode(), *pieces, f"\r\n--{boundary}--\r\n".encode()])
    return body, f"multipart/related; boundary={boundary}"


def time_ms(text: str) -> int:
    """Return a time of the service (RFC 3339) in ms since 1970. Raises ValueError."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def etag_of(described: Mapping[str, Any]) -> str:
    """Return the MD5 of an object's bytes, the ETag it was composed under, or the service's own."""
    composed = described.get("metadata", {}).get(ETAG)
    if composed is not None:
        return str(composed)
    if "md5Hash" in described:
        return base64.b64decode(described["md5Hash"]).hex()
    return str(described.get("etag", ""))


def info_of(described: Mapping[str, Any], *, metadata: bool = True) -> ObjectInfo:
    """Return the object of a description; a listing's has no `metadata`. Raises ValueError, KeyError."""
    own = described.get("metadata", {})
    int(described["generation"])
    return ObjectInfo(
        key=str(described["name"]),
        size_bytes=int(described.get("size", 0)),
        etag=etag_of(described),
        modified_ms=time_ms(described["updated"]),
        metadata={name.lower(): value for name, value in own.items() if name != ETAG} if metadata else {},
        etag_opaque="md5Hash" not in described and ETAG not in own,
    )
