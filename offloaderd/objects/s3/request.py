"""One S3 request: its body, deadline, condition and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import structlog
from aiohttp.payload import Payload

from offloaderd.core.clock import Clock
from offloaderd.core.errors import BucketMissing, Conflict, NotFound, OffloaderError, Transient
from offloaderd.objects.checks import flat
from offloaderd.objects.port import ObjectInfo, Pieces
from offloaderd.objects.s3.errors import Request, failure, is_not_implemented

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter


T = TypeVar("T")

SLICE_BYTES = 1024 * 1024
"""How much of a body is handed to the transport at a time: what it cannot send at once, it copies."""


class RequestMetrics(Protocol):
    """Where requests are counted; `code` is the HTTP status, S3's error code, or how it failed."""

    def request_begun(self) -> None:
        """Note that a request is under way; one call of `request` follows for each."""

    def request(self, operation: str, code: str, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """Count one request to the object store."""


class Body(Payload):
    """A request's body, sent piece by piece, slice by slice, from the caller's memory.

    botocore asks it for its length, and could send it again; it has no `read`, which would cost every request an
    `Expect: 100-continue` and its answer.
    """

    _autoclose = True

    def __init__(self, pieces: Pieces) -> None:
        self._views = [flat(piece) for piece in pieces]
        self._size: int = sum(map(len, self._views))
        super().__init__(self._views)

    def __len__(self) -> int:
        """Size in bytes."""
        return self._size

    def seek(self, _offset: int) -> None:
        """Nothing to wind back: every sending starts at the beginning."""

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """As aiohttp's debugging aids want it."""
        return b"".join(self._views).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send all of it."""
        for view in self._views:
            for begin in range(0, len(view), SLICE_BYTES):
                await writer.write(view[begin : begin + SLICE_BYTES])


class SignedBody(Body):
    """A body that botocore reads once to sign its hash; nothing of it is copied."""

    _at = 0

    def tell(self) -> int:
        """Where botocore's reading is: it begins, and begins again, at the start."""
        return 0

    def seek(self, _offset: int) -> None:
        """Wind back what botocore has read."""
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
    """Return what is sent, in the form whose hash is signed where TLS does not protect it."""
    return SignedBody(pieces) if signed else Body(pieces)


class Call:
    """One request that is on its way; the operation tells it what went over the wire."""

    def __init__(self, request: Request, limit: asyncio.Timeout) -> None:
        self._request = request
        self._limit = limit
        self._status = "error"
        self.bytes_in = 0
        self.bytes_out = 0

    def __str__(self) -> str:
        """Operation and object, for messages."""
        return f"{self._request.operation} {self._request.where}"

    @property
    def status(self) -> str:
        """HTTP status of the answer."""
        return self._status

    def note(self, answer: T) -> T:
        """Remember the status of botocore's answer, and hand it back."""
        self._status = str(answer["ResponseMetadata"]["HTTPStatusCode"])  # type: ignore[index]  # a typed dict, each
        return answer

    def extend(self, seconds: float) -> None:
        """Move the deadline, for an answer whose size has just become known."""
        until = self._limit.when()
        if until is not None:
            self._limit.reschedule(until + seconds)


@asynccontextmanager
async def calling(
    request: Request, deadline_s: float, clock: Clock, metrics: RequestMetrics | None
) -> AsyncIterator[Call]:
    """Bound one request in time, count it, and translate what the libraries raise in it."""
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
    """What one bucket's service is asked to check: that it replaces the very object that is meant, or none.

    Services that speak S3 check this in the moment in which they carry the request out, however late that is. One that
    does not know it either stores the object all the same, or says so (501); then it is not asked for it again.
    """

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._known = True

    async def put(
        self, key: str, if_etag: str | None, put: Callable[[dict[str, Any]], Awaitable[ObjectInfo]]
    ) -> ObjectInfo:
        """Have an object put under a condition, see ObjectStore; `put` takes parameters of the library."""
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
