"""One request to a store over HTTP: its body, deadline and metrics, whatever library sends it."""

from __future__ import annotations

import asyncio
import email.utils
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias

from aiohttp.payload import Payload

from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError
from offloaderd.objects.checks import flat
from offloaderd.objects.failures import Failure, Request, hints_in
from offloaderd.objects.port import Pieces

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

Translate: TypeAlias = Callable[[Exception, Request], Failure | None]
"""Returns our error for one of a library; None for any other."""

BYTES_PER_S_MIN = 128 * 1024
"""A transfer that is slower, after the time that every request has, fails."""

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


class Call:
    """A running request; the operation reports its bytes."""

    def __init__(self, request: Request, limit: asyncio.Timeout) -> None:
        self._request = request
        self._limit = limit
        self.status = "error"
        """HTTP status of the answer."""
        self.bytes_in = 0
        self.bytes_out = 0

    def __str__(self) -> str:
        return f"{self._request.operation} {self._request.where}"

    def extend(self, seconds: float) -> None:
        """Move the deadline after the size of the answer is known."""
        until = self._limit.when()
        if until is not None:
            self._limit.reschedule(until + seconds)


@asynccontextmanager
async def calling(
    request: Request, deadline_s: float, clock: Clock, metrics: RequestMetrics | None, failure: Translate
) -> AsyncIterator[Call]:
    """Limit a request in time, count it, and translate the library's errors by `failure`."""
    limit = asyncio.timeout(deadline_s)
    call = Call(request, limit)
    started = clock.monotonic()
    code = "error"
    if metrics is not None:
        metrics.request_begun()
    with hints_in(request.section):
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


def date_ms(headers: Mapping[str, str], name: str = "date") -> int:
    """Return the server's time of an answer, about that of the object it stored; 0 without one."""
    try:
        return int(email.utils.parsedate_to_datetime(headers.get(name, "")).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0
