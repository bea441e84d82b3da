"""A server with the part of the JSON API of Google Cloud Storage that the adapter uses, in the test's own process.

It keeps Google's rules where the emulator does not: generations of the sources of a composed object, no MD5 of it, the
messages of refusals, rights by token. Answers can be refused, or lost after the act.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import google_crc32c
from aiohttp import web

from offloaderd.core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SOURCES_MAX = 32
_PATH = re.compile(r"(?P<upload>/upload)?/storage/v1/b/(?P<bucket>[^/]+)/o(?:/(?P<key>[^/]+)(?P<compose>/compose)?)?")
_CONTENT = re.compile(rb"\r\n\r\n(?P<described>.*?)\r\n--(?P<boundary>[^\r]+)\r\n[^\r]*\r\n\r\n", re.DOTALL)


@dataclass(kw_only=True)
class Stored:
    """One object."""

    name: str
    data: bytes
    generation: int
    metadata: dict[str, str]
    composed: bool
    at: str
    content_type: str = ""

    def described(self) -> dict[str, Any]:
        """Return it as the API describes it."""
        crc = google_crc32c.value(self.data).to_bytes(4, "big")
        found: dict[str, Any] = {
            "kind": "storage#object",
            "name": self.name,
            "size": str(len(self.data)),
            "generation": str(self.generation),
            "etag": f"C{self.generation}=",
            "crc32c": base64.b64encode(crc).decode(),
            "contentType": self.content_type,
            "updated": self.at,
            "timeCreated": self.at,
        }
        if self.metadata:
            found["metadata"] = self.metadata
        if not self.composed:
            digest = hashlib.md5(self.data, usedforsecurity=False).digest()
            found["md5Hash"] = base64.b64encode(digest).decode()
        return found


class Refusal(Exception):
    """An error answer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass(kw_only=True)
class GcsServer:
    """The state behind the server."""

    buckets: dict[str, dict[str, Stored]] = field(default_factory=dict)
    tokens: dict[str, frozenset[str]] | None = None
    """Rights by token; None lets everybody in."""
    bucket: dict[str, Any] = field(default_factory=dict)
    """What is set for the buckets."""
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by operation."""
    inserted: Counter[str] = field(default_factory=Counter)
    """Uploads that were stored, by key."""
    endpoint: str = ""
    anonymous: bool = False
    """Whether a request without a token has the rights of the token "" (for tests of rights alone)."""
    damaged: bool = False
    """Whether content loses its last byte on the way."""
    trusting: bool = False
    """Whether a checksum in a header is not looked at, as the emulator does."""
    empty: bool = False
    """Whether answers say nothing."""
    page: str = ""
    """The page of a balancer that answers instead."""
    own_key: bool = False
    """Whether objects are encrypted with a key of the customer: then listings have no checksums."""
    garbled: bool = False
    """Whether answers are not those of the API."""
    boundary: bytes = b""
    """Between the parts of the last upload's body."""
    before: Callable[[str, str], Refusal | None] | None = None
    """Asked with operation and key before each request: its refusal is answered."""
    after: Callable[[str, str], bool] | None = None
    """Asked with operation and key after each request: whether to lose the answer."""
    _generations: count[int] = field(default_factory=lambda: count(1_700_000_000_000_000))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        body = await request.read()
        operation, key = "?", ""
        try:
            operation, key, act = self._parsed(request, body)
            self.requests[operation] += 1
            if self.before is not None and (refusal := self.before(operation, key)) is not None:
                raise refusal
            self._authorize(request, operation, key)
            if self.page:
                return web.Response(status=502, text=self.page, content_type="text/html")
            answer = act()
            if self.garbled or self.empty:
                answer = web.json_response({} if self.empty else ["?"])
        except Refusal as refusal:
            error = {"reason": refusal.reason, "domain": "global", "message": refusal.message}
            said = {"error": {"code": refusal.status, "message": refusal.message, "errors": [error]}}
            return web.json_response(said, status=refusal.status)
        if self.after is not None and self.after(operation, key):
            assert request.transport is not None
            request.transport.abort()
        return answer

    def _parsed(self, request: web.Request, body: bytes) -> tuple[str, str, Callable[[], web.StreamResponse]]:
        """Return the operation, its key, and what carries it out."""
        query, method = request.query, request.method
        if request.raw_path.split("?")[0] == "/storage/v1/b" and method == "POST":
            name = json.loads(body)["name"]
            return "CreateBucket", name, lambda: self._create(name)
        if re.fullmatch("/storage/v1/b/[^/]+", request.path) and method == "GET":
            return "GetBucket", "", lambda: web.json_response(self.bucket)
        matched = _PATH.fullmatch(request.raw_path.split("?")[0])
        assert matched is not None, request.raw_path
        bucket = matched["bucket"]
        if matched["upload"]:
            described, data = self._uploaded(request, body)
            return "InsertObject", described["name"], lambda: self._insert(bucket, described, data, query)
        if matched["key"] is None:
            prefix = query.get("prefix", "")
            return "ListObjects", prefix, lambda: self._list(bucket, prefix, query)
        key = unquote(matched["key"])
        if matched["compose"]:
            return "ComposeObjects", key, lambda: self._compose(bucket, key, json.loads(body))
        if method == "DELETE":
            return "DeleteObject", key, lambda: self._delete(bucket, key, query)
        if query.get("alt") == "media":
            return "GetObject", key, lambda: self._get(bucket, key, request.headers.get("Range"))
        return "HeadObject", key, lambda: web.json_response(self._object(bucket, key).described())

    def _uploaded(self, request: web.Request, body: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the description and the content of an object that is sent."""
        if request.query["uploadType"] == "media":
            described = {"name": request.query["name"], "contentType": request.headers["Content-Type"]}
            said = request.headers.get("X-Goog-Hash", "").removeprefix("crc32c=")
            return described | ({"crc32c": said} if said and not self.trusting else {}), body[
                : len(body) - self.damaged
            ]
        assert request.query["uploadType"] == "multipart"
        found = _CONTENT.search(body)
        assert found is not None
        self.boundary = found["boundary"]
        end = body.rindex(b"\r\n--" + found["boundary"] + b"--")
        return json.loads(found["described"]), body[found.end() : end - self.damaged]

    def _authorize(self, request: web.Request, operation: str, key: str) -> None:
        """Refuse a request without a known token, or without the right that it needs."""
        if self.tokens is None:
            return
        said = request.headers.get("Authorization", "")
        if not said and not self.anonymous:
            words = "Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object."
            raise Refusal(401, "required", words)
        rights = self.tokens.get(said.removeprefix("Bearer "))
        if rights is None:
            raise Refusal(401, "authError", "Invalid Credentials")
        for right in NEEDED[operation]:
            if right == "storage.objects.delete" and operation in REPLACING and not self._exists(request, key):
                continue
            if right not in rights:
                raise Refusal(
                    403,
                    "forbidden",
                    f"tests@offloaderd does not have {right} access to the Google Cloud Storage object. Permission "
                    f"'{right}' denied on resource (or it may not exist).",
                )

    def _exists(self, request: web.Request, key: str) -> bool:
        matched = _PATH.fullmatch(request.raw_path.split("?")[0])
        return matched is not None and key in self.buckets.get(matched["bucket"], {})

    def _objects(self, bucket: str) -> dict[str, Stored]:
        if bucket not in self.buckets:
            raise Refusal(404, "notFound", "The specified bucket does not exist.")
        return self.buckets[bucket]

    def _object(self, bucket: str, key: str) -> Stored:
        objects = self._objects(bucket)
        if key not in objects:
            raise Refusal(404, "notFound", f"No such object: {bucket}/{key}")
        return objects[key]

    def _create(self, name: str) -> web.Response:
        if name in self.buckets:
            raise Refusal(409, "conflict", f"A Cloud Storage bucket named '{name}' already exists.")
        self.buckets[name] = {}
        return web.json_response({"kind": "storage#bucket", "name": name})

    def _store(self, bucket: str, key: str, data: bytes, described: dict[str, Any], *, composed: bool) -> web.Response:
        stored = Stored(
            name=key,
            data=data,
            generation=next(self._generations),
            metadata=described.get("metadata", {}),
            content_type=described["contentType"],
            composed=composed,
            at=datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC).isoformat(timespec="milliseconds"),
        )
        self._objects(bucket)[key] = stored
        return web.json_response(stored.described())

    def _insert(self, bucket: str, described: dict[str, Any], data: bytes, query: Any) -> web.Response:  # noqa: ANN401
        key = described["name"]
        there = self._objects(bucket).get(key)
        wanted = query.get("ifGenerationMatch")
        if wanted is not None and wanted != str(there.generation if there is not None else 0):
            raise Refusal(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        crc = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
        if described.get("crc32c", crc) != crc:
            raise Refusal(400, "invalid", f"Provided CRC32C doesn't match calculated CRC32C {crc}.")
        self.inserted[key] += 1
        return self._store(bucket, key, data, described, composed=False)

    def _compose(self, bucket: str, key: str, wanted: dict[str, Any]) -> web.Response:
        sources = wanted["sourceObjects"]
        if not 1 <= len(sources) <= SOURCES_MAX:
            raise Refusal(400, "invalid", f"The number of source components provided ({len(sources)}) is not 1 to 32")
        data = []
        for source in sources:
            stored = self._object(bucket, source["name"])
            if stored.generation != int(source["objectPreconditions"]["ifGenerationMatch"]):
                raise Refusal(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
            data.append(stored.data)
        return self._store(bucket, key, b"".join(data), wanted["destination"], composed=True)

    def _list(self, bucket: str, prefix: str, query: Any) -> web.Response:  # noqa: ANN401
        objects = self._objects(bucket)
        keys = sorted((key for key in objects if key.startswith(prefix)), key=str.encode)
        keys = [key for key in keys if key.encode() > query.get("pageToken", "").encode()]
        most = int(query["maxResults"])
        page: dict[str, Any] = {"kind": "storage#objects"}
        if keys:
            chosen = re.search(r"items\((.*?)\)", query["fields"])
            assert chosen is not None
            names = set(chosen[1].split(",")) - ({"md5Hash", "crc32c"} if self.own_key else set())
            items = [objects[key].described() for key in keys[:most]]
            page["items"] = [{name: value for name, value in one.items() if name in names} for one in items]
        if len(keys) > most:
            page["nextPageToken"] = keys[most - 1]
        return web.json_response(page)

    def _get(self, bucket: str, key: str, ranged: str | None) -> web.Response:
        data = self._object(bucket, key).data
        if ranged is None:
            return web.Response(body=data)
        first, _, last = ranged.removeprefix("bytes=").partition("-")
        if int(first) >= len(data):
            raise Refusal(416, "requestedRangeNotSatisfiable", "The requested range cannot be satisfied.")
        end = min(int(last) + 1, len(data)) if last else len(data)
        headers = {"Content-Range": f"bytes {first}-{end - 1}/{len(data)}"}
        return web.Response(body=data[int(first) : end], status=206, headers=headers)

    def _delete(self, bucket: str, key: str, query: Any) -> web.Response:  # noqa: ANN401
        stored = self._object(bucket, key)
        if query.get("generation", str(stored.generation)) != str(stored.generation):
            raise Refusal(404, "notFound", f"No such object: {bucket}/{key}#{query['generation']}")
        del self._objects(bucket)[key]
        return web.Response(status=204)


REPLACING = ("InsertObject", "ComposeObjects")
NEEDED = {
    "ListObjects": ("storage.objects.list",),
    "GetObject": ("storage.objects.get",),
    "HeadObject": ("storage.objects.get",),
    "InsertObject": ("storage.objects.create", "storage.objects.delete"),
    "ComposeObjects": ("storage.objects.create", "storage.objects.get", "storage.objects.delete"),
    "DeleteObject": ("storage.objects.delete",),
    "CreateBucket": ("storage.buckets.create",),
    "GetBucket": ("storage.buckets.get",),
}
"""The rights that each request needs; that to delete only where an object is replaced."""


@asynccontextmanager
async def gcs_server(*buckets: str) -> AsyncIterator[GcsServer]:
    """Serve on loopback until the block ends."""
    server = GcsServer(buckets={name: {} for name in buckets})
    application = web.Application(client_max_size=1 << 30)
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
