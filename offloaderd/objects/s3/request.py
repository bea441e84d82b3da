"""One S3 request: its body, deadline, condition and metrics, and the answers of servers as values of the port."""

from __future__ import annotations

import asyncio
import email.utils
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import structlog
from aiohttp.payload import Payload

from offloaderd.core.clock import Clock
from offloaderd.core.errors import BucketMissing, Conflict, NotFound, OffloaderError, Transient
from offloaderd.objects.checks import flat
from offloaderd.objects.port import ObjectInfo, PartInfo, Pieces, UploadInfo
from offloaderd.objects.s3.errors import Request, failure, is_not_implemented

if TYPE_CHECKING:
    from aiobotocore.response import AioStreamingBody  # type: ignore[import-untyped]
    from aiohttp.abc import AbstractStreamWriter
    from types_aiobotocore_s3.type_defs import (
        HeadObjectOutputTypeDef,
        ListMultipartUploadsOutputTypeDef,
        ListObjectsV2OutputTypeDef,
        PartTypeDef,
    )


T = TypeVar("T")

SLICE_BYTES = 1024 * 1024
"""Bytes of a body per write: the transport copies those that it cannot send at once."""


class RequestMetrics(Protocol):
    """Counts requests; `code` is the HTTP status, S3's error code, or the kind of failure."""

    def request_begun(self) -> None:
        """Count the begin of a request; one call of `request` follows for each."""

    def request(self, operation: str, code: str, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """Count one request to the object store."""


class Body(Payload):
    """A request's body, sent in slices of its pieces from the caller's memory.

    botocore asks for its length, and may send it again. A `read` would add an `Expect: 100-continue` to every request.
    """

    _autoclose = True

    def __init__(self, pieces: Pieces) -> None:
        self._views = [flat(piece) for piece in pieces]
        self._size: int = sum(map(len, self._views))
        super().__init__(self._views)

    def __len__(self) -> int:
        return self._size

    def seek(self, _offset: int) -> None:
        """Do nothing: every sending starts at the beginning."""

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the text for aiohttp's debugging aids."""
        return b"".join(self._views).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send all of it."""
        for view in self._views:
            for begin in range(0, len(view), SLICE_BYTES):
                await writer.write(view[begin : begin + SLICE_BYTES])


class SignedBody(Body):
    """A body that botocore reads once to sign its hash, without a copy."""

    _at = 0

    def tell(self) -> int:
        """Return the start, where botocore's reads begin each time."""
        return 0

    def seek(self, _offset: int) -> None:
        """Return to the start."""
        self._at = 0

    def read(self, size: int) -> memoryview:
        """Return the next bytes, at most `size` of them; none at the end."""
        skip = self._at
        for view in self._views:
            if skip < len(view):
                found = view[skip : skip + size]
                self._at += len(found)
                return found
            skip -= len(view)
        return memoryview(b"")


def body_of(pieces: Pieces, *, signed: bool) -> Body:
    """Return a request's body; a `signed` one is for connections without TLS."""
    return SignedBody(pieces) if signed else Body(pieces)


class Call:
    """A running request; the operation reports its bytes."""

    def __init__(self, request: Request, limit: asyncio.Timeout) -> None:
        self._request = request
        self._limit = limit
        self._status = "error"
        self.bytes_in = 0
        self.bytes_out = 0

    def __str__(self) -> str:
        return f"{self._request.operation} {self._request.where}"

    @property
    def status(self) -> str:
        """HTTP status of the answer."""
        return self._status

    def note(self, answer: T) -> T:
        """Keep the status of botocore's answer, and return the answer."""
        self._status = str(answer["ResponseMetadata"]["HTTPStatusCode"])  # type: ignore[index]  # a typed dict, each
        return answer

    def extend(self, seconds: float) -> None:
        """Move the deadline after the size of the answer is known."""
        until = self._limit.when()
        if until is not None:
            self._limit.reschedule(until + seconds)


@asynccontextmanager
async def calling(
    request: Request, deadline_s: float, clock: Clock, metrics: RequestMetrics | None
) -> AsyncIterator[Call]:
    """Limit a request in time, count it, and translate the libraries' errors."""
    limit = asyncio.timeout(deadline_s)
    call = Call(request, limit)
    started = clock.monotonic()
    code = "error"
    if metrics is not None:
        metrics.request_begun()
    try:
        async with limit:
            yield call
        code = call.status
    except OffloaderError:
        raise
    except Exception as error:
        failed = failure(error, request)
        if failed is None:
            raise
        code = failed.code
        raise failed.error from error
    finally:
        if metrics is not None:
            metrics.request(request.operation, code, clock.monotonic() - started, call.bytes_in, call.bytes_out)


log = structlog.get_logger(__name__)


class Conditions:
    """Conditional writes to one bucket: replace exactly the expected object, or create a new one.

    S3 services check the condition when they carry the request out, however late that is. A service without conditions
    either ignores them or answers 501; after that they are not sent any more.
    """

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._known = True

    async def put(
        self, key: str, if_etag: str | None, put: Callable[[dict[str, Any]], Awaitable[ObjectInfo]]
    ) -> ObjectInfo:
        """Store an object under a condition, see ObjectStore; `put` takes the library's parameters."""
        if if_etag is None or not self._known:
            return await put({})
        try:
            return await put({"IfMatch": f'"{if_etag}"'} if if_etag else {"IfNoneMatch": "*"})
        except BucketMissing:
            raise
        except NotFound as error:
            raise Conflict(f"{key} is not there any more: {error}") from error
        except Transient as error:
            if not is_not_implemented(error.__cause__):
                raise
            self._known = False
            log.warning(
                "s3.no_conditions",
                bucket=self._bucket,
                error=str(error),
                hint="docs/how-it-works.md says what is not promised without conditional writes",
            )
            return await put({})


_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def date_ms(headers: Mapping[str, str]) -> int:
    """Return the server's time of an answer, about that of the object it stored; 0 without one."""
    try:
        return int(email.utils.parsedate_to_datetime(headers.get("date", "")).timestamp() * 1000)
    except ValueError:
        return 0


def bare(etag: str) -> str:
    """Return an ETag without the quotes of HTTP."""
    return etag.strip('"')


def is_opaque(answer: HeadObjectOutputTypeDef) -> bool:
    """Whether an object is encrypted with a key of a service or of ours: then its ETag is no MD5, whatever its form."""
    return answer.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in answer


def described(key: str, answer: HeadObjectOutputTypeDef) -> ObjectInfo:
    """Return the object of a HEAD answer."""
    return ObjectInfo(
        key=key,
        size_bytes=answer["ContentLength"],
        etag=bare(answer["ETag"]),
        modified_ms=int(answer["LastModified"].timestamp() * 1000),
        metadata={name.lower(): value for name, value in answer["Metadata"].items()},
        etag_opaque=is_opaque(answer),
    )


def listed(page: ListObjectsV2OutputTypeDef) -> list[ObjectInfo]:
    """Return the objects of one page of a listing."""
    return [
        ObjectInfo(
            key=found["Key"],
            size_bytes=found["Size"],
            etag=bare(found["ETag"]),
            modified_ms=int(found["LastModified"].timestamp() * 1000),
        )
        for found in page.get("Contents", [])
    ]


def parts_of(found: Sequence[PartTypeDef]) -> list[PartInfo]:
    """Return the parts of an upload in order of number, the newest of each."""
    newest = {part["PartNumber"]: part for part in sorted(found, key=lambda part: part["LastModified"])}
    return [
        PartInfo(part_number=number, etag=bare(part["ETag"]), size_bytes=part["Size"])
        for number, part in sorted(newest.items())
    ]


def uploads_of(page: ListMultipartUploadsOutputTypeDef) -> list[UploadInfo]:
    """Return the open uploads of one page of their list."""
    return [
        UploadInfo(
            key=found["Key"], upload_id=found["UploadId"], initiated_ms=int(found["Initiated"].timestamp() * 1000)
        )
        for found in page.get("Uploads", [])
    ]


def check_answered_range(call: object, answered: str, size_bytes: int, first: int, length: int | None) -> None:
    """Check that the answer has the requested bytes, cut only by the object's end. Raises Transient."""
    found = _RANGE.fullmatch(answered)
    if found is None:
        raise Transient(f"{call}: the server does not say which bytes it sent ({answered!r})")
    begin, last, total = map(int, found.groups())
    end = total if length is None else min(total, first + length)
    if (begin, last + 1, size_bytes) != (first, end, end - first):
        raise Transient(f"{call}: asked for bytes {first} to {end - 1}, got {size_bytes} of {answered!r}")


async def in_pieces(body: AioStreamingBody, size_bytes: int, lengths: Sequence[int]) -> Sequence[bytes]:
    """Return a body of that size in pieces of these lengths, or shorter ones if it ends earlier.

    Each byte is copied once, from the socket's buffer to its piece. Further bytes, which were not requested, are added
    to the last piece. Raises aiohttp's errors.
    """
    stream = body.raw_stream.content
    stream.set_read_chunk_size(max(1, size_bytes))  # else aiohttp often stops reading from the socket
    pieces: list[bytes] = []
    came: list[bytes | memoryview] = []
    missing = lengths[0]
    async for chunk, _ in stream.iter_chunks():
        rest = memoryview(chunk)
        while len(rest) >= missing and len(pieces) < len(lengths) - 1:
            pieces.append(b"".join((*came, rest[:missing])))
            came, rest, missing = [], rest[missing:], lengths[len(pieces)]
        came.append(rest)
        missing -= len(rest)
    pieces.append(b"".join(came))
    return pieces + [b""] * (len(lengths) - len(pieces))
