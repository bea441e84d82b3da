"""A Blob service in the process of the test, with what the adapter uses of Azure's REST interface and its rules.

It trusts every caller; `refuse` has the next requests answered by an error. It differs from Azure where Azure's answer
depends on time or load. Azurite, a real server, runs the same suites.
"""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from aiohttp import web

from offloaderd.objects.settings import ObjectsSettings

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from offloaderd.core.clock import Clock

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account of every emulator, and its key, which Azure publishes."""
BYTES_MAX = 64 << 20


class Refusal(NamedTuple):
    """An error answer: HTTP status, code, message, and the detail that some codes have."""

    status: int
    code: str
    message: str = "no"
    detail: str = ""

    def answer(self, request: web.Request) -> web.Response:
        """Return it as Azure writes it."""
        detail = f"<AuthenticationErrorDetail>{escape(self.detail)}</AuthenticationErrorDetail>" if self.detail else ""
        text = f"<Error><Code>{self.code}</Code><Message>{escape(self.message)}</Message>{detail}</Error>"
        return web.Response(
            status=self.status,
            text=f'<?xml version="1.0" encoding="utf-8"?>{text}' if request.method != "HEAD" else None,
            content_type="application/xml",
            headers={"x-ms-error-code": self.code},
        )


BLOB_MISSING = Refusal(404, "BlobNotFound")
CONDITION_FAILED = Refusal(412, "ConditionNotMet")


@dataclass
class Blob:
    """A blob: committed content with the blocks that it was made of, None before, and staged blocks by their id."""

    content: bytes | None = None
    etag: str = ""
    modified_s: float = 0.0
    metadata: dict[str, str] = field(default_factory=dict)
    tier: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    blocks: list[tuple[str, bytes]] = field(default_factory=list)
    staged: dict[str, bytes] = field(default_factory=dict)


class Service:
    """The service's state: containers, their blobs, the requests that came, and the refusals of the next ones."""

    def __init__(self, clock: Clock) -> None:
        self.containers: dict[str, dict[str, Blob]] = {}
        self.requests: list[str] = []
        self.refusals: deque[Refusal | None] = deque()
        self._clock = clock
        self._changes = 0

    def refuse(self, refusal: Refusal, *, times: int = 1, after: int = 0) -> None:
        """Refuse requests, after some that are carried out."""
        self.refusals.extend([None] * after + [refusal] * times)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        _, _, container, name = (*request.path.split("/", 3), "")[:4]
        query = request.query
        operation = f"{request.method} {query.get('restype', '')}{query.get('comp', '')}".strip()
        self.requests.append(operation)
        body = await request.read()
        if self.refusals and (refusal := self.refusals.popleft()) is not None:
            return refusal.answer(request)
        if operation == "PUT container":
            if container in self.containers:
                return Refusal(409, "ContainerAlreadyExists").answer(request)
            self.containers[container] = {}
            return web.Response(status=201, headers={"ETag": '"0x0"', "Last-Modified": self._date(0)})
        blobs = self.containers.get(container)
        if blobs is None:
            return Refusal(404, "ContainerNotFound").answer(request)
        if operation == "GET containerlist":
            return self._list(request, blobs)
        answer = {
            "PUT": self._put,
            "PUT block": self._stage,
            "PUT blocklist": self._commit,
            "GET blocklist": self._block_list,
            "GET": self._get,
            "HEAD": self._get,
            "DELETE": self._delete,
        }[operation](request, blobs, name, body)
        return answer.answer(request) if isinstance(answer, Refusal) else answer

    def _date(self, seconds: float) -> str:
        return formatdate(seconds, usegmt=True)

    def _put(self, request: web.Request, blobs: dict[str, Blob], name: str, body: bytes) -> web.Response | Refusal:
        there = blobs.get(name)
        etag = there.etag if there is not None and there.content is not None else ""
        if request.headers.get("If-None-Match") == "*" and etag:
            return Refusal(409, "BlobAlreadyExists")
        if request.headers.get("If-Match", etag) != etag:
            return CONDITION_FAILED
        if _damaged(request, body):
            return Refusal(400, "Md5Mismatch")
        blobs[name] = Blob()
        return self._stored(request, blobs[name], body, [])

    def _stored(
        self, request: web.Request, blob: Blob, content: bytes, blocks: list[tuple[str, bytes]]
    ) -> web.Response:
        self._changes += 1
        blob.content, blob.blocks, blob.staged = content, blocks, {}
        blob.etag, blob.modified_s = f'"0x{self._changes:016X}"', self._clock.wall_ms() / 1000
        blob.metadata = {
            key.lower().removeprefix("x-ms-meta-"): value
            for key, value in request.headers.items()
            if key.lower().startswith("x-ms-meta-")
        }
        blob.tier = request.headers.get("x-ms-access-tier", "")
        blob.tags = dict(parse_qsl(request.headers.get("x-ms-tags", "")))
        return web.Response(status=201, headers={"ETag": blob.etag, "Last-Modified": self._date(blob.modified_s)})

    def _stage(self, request: web.Request, blobs: dict[str, Blob], name: str, body: bytes) -> web.Response | Refusal:
        block_id = base64.b64decode(request.query["blockid"]).decode()
        blob = blobs.setdefault(name, Blob())
        if len(block_id) > 64 or any(len(other) != len(block_id) for other in blob.staged):
            return Refusal(400, "InvalidBlobOrBlock")
        if _damaged(request, body):
            return Refusal(400, "Md5Mismatch")
        blob.staged[block_id] = body
        return web.Response(status=201)

    def _commit(self, request: web.Request, blobs: dict[str, Blob], name: str, body: bytes) -> web.Response | Refusal:
        blob = blobs.setdefault(name, Blob())
        known = dict(blob.blocks) | blob.staged
        wanted = [base64.b64decode(one.text or "").decode() for one in ElementTree.fromstring(body)]  # noqa: S314 - ours
        if any(one not in known for one in wanted):
            return Refusal(400, "InvalidBlockList")
        blocks = [(one, known[one]) for one in wanted]
        return self._stored(request, blob, b"".join(content for _, content in blocks), blocks)

    def _block_list(self, request: web.Request, blobs: dict[str, Blob], name: str, _: bytes) -> web.Response | Refusal:
        if name not in blobs:
            return BLOB_MISSING
        blob = blobs[name]
        lists = {"CommittedBlocks": blob.blocks, "UncommittedBlocks": sorted(blob.staged.items())}
        text = "".join(
            f"<{tag}>"
            + "".join(
                f"<Block><Name>{base64.b64encode(one.encode()).decode()}</Name><Size>{len(content)}</Size></Block>"
                for one, content in blocks
            )
            + f"</{tag}>"
            for tag, blocks in lists.items()
        )
        return web.Response(text=f"<BlockList>{text}</BlockList>", content_type="application/xml")

    def _get(self, request: web.Request, blobs: dict[str, Blob], name: str, _: bytes) -> web.Response | Refusal:
        blob = blobs.get(name)
        if blob is None or blob.content is None:
            return BLOB_MISSING
        headers: dict[str, str] = {
            "ETag": blob.etag,
            "Last-Modified": self._date(blob.modified_s),
            "x-ms-blob-type": "BlockBlob",
        }
        headers |= {f"x-ms-meta-{key}": value for key, value in blob.metadata.items()}
        size, content, status = len(blob.content), blob.content, 200
        asked = request.headers.get("x-ms-range") or request.headers.get("Range")
        if asked is not None:
            first, last = asked.removeprefix("bytes=").split("-")
            if int(first) >= size:
                return Refusal(416, "InvalidRange")
            end = min(size, int(last) + 1) if last else size
            content, status = content[int(first) : end], 206
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
        headers["Content-Length"] = str(len(content))
        body = content if request.method == "GET" else None
        return web.Response(status=status, body=body, headers=headers, content_type="application/octet-stream")

    def _delete(self, _: web.Request, blobs: dict[str, Blob], name: str, __: bytes) -> web.Response | Refusal:
        if name not in blobs or blobs[name].content is None:
            return BLOB_MISSING
        del blobs[name]
        return web.Response(status=202)

    def _list(self, request: web.Request, blobs: dict[str, Blob]) -> web.Response:
        query = request.query
        names = sorted(name for name, blob in blobs.items() if blob.content is not None)
        rest = [name for name in names if name.startswith(query.get("prefix", "")) and name >= query.get("marker", "")]
        count = int(query.get("maxresults", 5000))
        text = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Etag>{blobs[name].etag[1:-1]}</Etag>"
            f"<Last-Modified>{self._date(blobs[name].modified_s)}</Last-Modified>"
            f"<Content-Length>{len(blobs[name].content or b'')}</Content-Length><BlobType>BlockBlob</BlobType>"
            "</Properties></Blob>"
            for name in rest[:count]
        )
        marker = escape(rest[count]) if len(rest) > count else ""
        return web.Response(
            text=f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="http://here/"'
            f' ContainerName="c"><Blobs>{text}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>',
            content_type="application/xml",
        )


def _damaged(request: web.Request, body: bytes) -> bool:
    digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    return request.headers.get("Content-MD5", digest) != digest


@asynccontextmanager
async def serving(service: Service, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve on loopback; yields the endpoint."""
    application = web.Application(client_max_size=BYTES_MAX)
    application.router.add_route("*", "/{path:.*}", service.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def options(endpoint: str, container: str) -> ObjectsSettings:
    """Describe a container of the emulators' account."""
    return ObjectsSettings(kind="azure", bucket=container, endpoint=endpoint, azure_account=ACCOUNT, azure_key=KEY)
