"""Reads of nodes and of their children, sent together: a request of many reads costs little more than one of one read.

What is asked in one turn of the loop, or in the next one, is one request; so is what is asked soon after, while
BATCHES_MAX requests are unanswered or there is no connection. Each read has an answer or an error of its own. Writes of
others may come between the reads of a request, as between requests.

A server makes the answer in its memory, and nothing of its own bounds it. So a request has few reads at first, more as
answers prove small, and fewer when they were large or did not come. Large nodes that are read behind many small ones
are TOGETHER_MAX to a request once. A server before ZooKeeper 3.6 does not know such
requests, and closes the connection: it gets each read alone from then on.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from offloaderd.core.errors import Closed, OffloaderError, Transient
from offloaderd.metadata.zookeeper.client import Read, Result, ZooKeeperClient, is_unknown
from offloaderd.metadata.zookeeper.connection import Connection

log = structlog.get_logger(__name__)

TOGETHER_MIN, TOGETHER_MAX = 4, 32
"""Reads of a request: so many at first, and at most."""
ANSWER_BYTES = 1024 * 1024
"""An answer of more bytes halves the reads of a request."""
BATCHES_MAX, SINGLE_MAX = 4, 64
"""Most unanswered requests, of many reads and of one. At 278 of a store the pipe that wakes kazoo's thread is full."""

LATE_PART = 0.1
"""A request takes no more reads after this part of its time: each has the rest of it at least."""

Translate = Callable[[Exception | None, Read], OffloaderError]
"""Returns our error for one of kazoo's."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Reads of one request, each with all who wait for its answer."""

    reads: dict[Read, list[asyncio.Future[Any]]] = field(default_factory=dict)
    late: asyncio.TimerHandle = field(init=False)
    sent: bool = False


class Reads:
    """The reads of one store. `timeout_s` is from the first read of a request until its answer."""

    def __init__(
        self, connection: Connection[ZooKeeperClient], *, servers: str, timeout_s: float, translate: Translate
    ) -> None:
        self._connection = connection
        self._servers = servers
        self._timeout_s = timeout_s
        self._translate = translate
        self._waiting: deque[_Batch] = deque()
        self._unanswered: set[_Batch] = set()
        self._together_max, self._unanswered_max = TOGETHER_MIN, BATCHES_MAX
        self._one_by_one = False

    def ask(self, read: Read) -> asyncio.Future[Any]:
        """Return the answer to come: value and stat, or names. It raises Transient and what `translate` returns.

        Raises Closed.
        """
        self._connection.check_open()
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._add(read, [asked])
        return asked

    def send(self) -> None:
        """Send what waits, as far as there is a connection; it is called at each new one as well."""
        while self._waiting and self._connection.live and len(self._unanswered) < self._unanswered_max:
            batch = self._waiting.popleft()
            batch.reads = {read: asked for read, asked in batch.reads.items() if not all(one.done() for one in asked)}
            if not batch.reads:
                batch.late.cancel()
                continue
            if len(batch.reads) > self._together_max:
                batch = self._cut(batch)
            batch.sent = True
            self._unanswered.add(batch)
            self._start(batch)

    def _cut(self, batch: _Batch) -> _Batch:
        """Return as many reads as a request may have now; the others are the next to be sent, in the same time."""
        first, reads = _Batch(), list(batch.reads.items())
        first.reads, batch.reads = dict(reads[: self._together_max]), dict(reads[self._together_max :])
        first.late = asyncio.get_running_loop().call_at(batch.late.when(), self._give_up, first)
        self._waiting.appendleft(batch)
        return first

    def close(self) -> None:
        """Raise Closed where a read has not been sent."""
        while self._waiting:
            self._fail(self._waiting.popleft(), lambda _: Closed("the metadata store is closed"))

    def _add(self, read: Read, asked: Sequence[asyncio.Future[Any]]) -> None:
        loop, batch = asyncio.get_running_loop(), self._waiting[-1] if self._waiting else None
        if batch is None or not self._takes(batch, read, loop.time()):
            batch = _Batch()
            batch.late = loop.call_later(self._timeout_s, self._give_up, batch)
            self._waiting.append(batch)
            loop.call_soon(loop.call_soon, self.send)  # tasks that begin in this turn ask in the next one
        batch.reads.setdefault(read, []).extend(asked)

    def _takes(self, batch: _Batch, read: Read, now_s: float) -> bool:
        room = len(batch.reads) < TOGETHER_MAX or read in batch.reads
        return room and batch.late.when() - now_s >= (1 - LATE_PART) * self._timeout_s

    def _start(self, batch: _Batch) -> None:
        loop, reads = asyncio.get_running_loop(), list(batch.reads)
        result: Result[Any] = self._connection.present().read_async(reads)

        def answered(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed, so the answer has no use any more
                loop.call_soon_threadsafe(self._settle, batch, result)

        result.rawlink(answered)

    def _settle(self, batch: _Batch, result: Result[Any]) -> None:
        """Pass the answers on, once: kazoo may call more than once."""
        if batch not in self._unanswered:
            return
        self._unanswered.discard(batch)
        if is_unknown(result.exception) and len(batch.reads) > 1:
            if not self._one_by_one:
                log.info("metadata.reads_one_by_one", servers=self._servers, reason="it is older than ZooKeeper 3.6")
            self._together_max, self._unanswered_max, self._one_by_one = 1, SINGLE_MAX, True
            batch.late.cancel()
            for read, asked in batch.reads.items():
                self._add(read, asked)
        elif not result.successful():
            self._fit(batch, None)
            self._fail(batch, lambda read: self._translate(result.exception, read))
        else:
            answers = result.value if len(batch.reads) > 1 else [result.value]
            self._fit(batch, sum(map(_size, answers)))
            batch.late.cancel()
            for (read, asked), answer in zip(batch.reads.items(), answers, strict=True):
                for one in asked:
                    if one.done():
                        continue
                    if isinstance(answer, Exception):
                        one.set_exception(self._translate(answer, read))
                    else:
                        one.set_result(answer)
        self.send()

    def _fit(self, batch: _Batch, answer_bytes: int | None) -> None:
        """Have further requests of as many reads as a request of this size allows; None: it has no answer."""
        count = len(batch.reads)
        if self._one_by_one:
            return
        if answer_bytes is None:
            self._together_max = min(self._together_max, TOGETHER_MIN)
        elif answer_bytes > ANSWER_BYTES:
            self._together_max = min(self._together_max, max(1, count // 2))
        elif count >= self._together_max:
            self._together_max = min(2 * self._together_max, TOGETHER_MAX)

    def _give_up(self, batch: _Batch) -> None:
        """Fail reads that were not answered in time."""
        if batch in self._unanswered:
            self._fit(batch, None)
        self._unanswered.discard(batch)
        with suppress(ValueError):
            self._waiting.remove(batch)
        why = f"no {'answer' if batch.sent else 'connection to ZooKeeper'} within {self._timeout_s:g} s"
        hint = "try again" if batch.sent else f"check that ZooKeeper runs at {self._servers}"
        self._fail(batch, lambda read: Transient(f"{read.what}: {why}", hint=hint))
        self.send()

    def _fail(self, batch: _Batch, error_of: Callable[[Read], OffloaderError]) -> None:
        batch.late.cancel()
        for read, asked in batch.reads.items():
            for one in asked:
                if not one.done():
                    one.set_exception(error_of(read))


def _size(answer: object) -> int:
    """Return about how many bytes an answer has: a value with its stat, names, or an error."""
    match answer:
        case (bytes() as value, _) | (bytes() as value):
            return len(value)
        case list():
            return sum(map(len, answer))
        case _:
            return 0
