"""The calls that read, and continue after a stream broke: each entry of the range once, in order, or an error.

A direct read fetches what is in the bucket from there. The daemon plans it, run by run, and serves the rest.

The range is fixed before it begins: without `last` and without `follow` it ends at the newest entry of that moment,
also when another daemon continues it that does not know of that entry yet. After a break the entries after the last one
that was handed out are requested, and the answers are compared with that position.

Answers that are fetched ahead are bounded by number, not by bytes: measuring an answer costs as much as reading it, and
the daemon bounds the size of each (read.batch_bytes).
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from itertools import zip_longest
from typing import NamedTuple, Protocol, TypedDict, Unpack

from grpc import aio

from offloaderd.client.calls import Calls, seek_target
from offloaderd.client.channel import LATE, RESUME_S, NotOffered, Resume, TimedOut
from offloaderd.core.clock import Clock
from offloaderd.core.errors import (
    Archived,
    BucketMissing,
    Closed,
    CorruptData,
    NotFound,
    OffloaderError,
    OutOfRange,
    Transient,
)
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.core.read_options import Goal, ReadPriority, Transactions
from offloaderd.protocol.conversion import decoded_read_response, from_position, position_text, to_position
from offloaderd.protocol.v1 import common_pb2, read_pb2

log = logging.getLogger(__name__)


class ReadAnswer(NamedTuple):
    """Consecutive entries of one ledger, and the tier that served them."""

    batch: EntryBatch
    tier: "common_pb2.Tier.ValueType"


Attempt = Callable[[read_pb2.ReadRequest, float | None], AsyncGenerator[ReadAnswer, None]]


class Ahead:
    """A queue of at most `answers_max` answers, at least one."""

    def __init__(self, answers_max: int) -> None:
        self._answers_max = max(1, answers_max)
        self._answers: deque[ReadAnswer] = deque()
        self._changed = asyncio.Event()
        self._end: Exception | None = None
        self._ended = False

    async def fill(self, answers: AsyncGenerator[ReadAnswer, None]) -> None:
        """Add answers, waiting while the queue is full; `take` raises their error after the answers before it."""
        self._end = Closed("the client was closed during a read")
        try:
            async with aclosing(answers):
                async for answer in answers:
                    self._answers.append(answer)
                    self._changed.set()
                    while len(self._answers) >= self._answers_max:
                        self._changed.clear()
                        await self._changed.wait()
            self._end = None
        except Exception as error:  # noqa: BLE001 - whatever it is, the reader gets it
            self._end = error
        finally:
            self._ended = True
            self._changed.set()

    async def take(self) -> ReadAnswer | None:
        """Return the next answer, None at the end. Raises what ended the answers."""
        while not self._answers:
            if self._ended:
                if self._end is not None:
                    raise self._end
                return None
            self._changed.clear()
            await self._changed.wait()
        answer = self._answers.popleft()
        self._changed.set()
        return answer


class InBucket(NamedTuple):
    """A run of a direct read's plan, and the segment that it is in."""

    run: read_pb2.PlannedRun
    stored: read_pb2.StoredSegment


class SegmentsInTurn(Protocol):
    """Reads the segments of one read out of their buckets, one after the other."""

    def read(
        self, request: read_pb2.ReadRequest, stored: read_pb2.StoredSegment, following: InBucket | None
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield the entries from `first` to `last` of a request, as Read would. Raises as the bucket does.

        The begin of what is read next (`following`) is fetched before the last entries are yielded.
        """
        ...


class Bucket(Protocol):
    """The bucket for direct reads: `offloaderd.direct.bucket_reads` opens one."""

    def sequence(self) -> SegmentsInTurn:
        """Return the reader of one read."""
        ...


class Wanted(TypedDict, total=False):
    """The range to read of a topic: by default from its oldest to its newest entry; 0 is no limit of ours."""

    first: Position | str | None
    last: Position | str | None
    follow: bool
    entries_max: int | None
    batch_bytes: int
    read_priority: ReadPriority | None
    client_bytes: bool
    seek: Goal | None


class Reading:
    """The read of a range, over as many streams as needed.

    `attempt` opens a stream; `newest` returns the newest entry, None if the read is to end with what is behind it. No
    `newest`: only one stream is opened.
    """

    def __init__(
        self,
        request: read_pb2.ReadRequest,
        *,
        attempt: Attempt,
        newest: Callable[[], Awaitable[common_pb2.Position | None]] | None,
        resume: Resume,
        clock: Clock,
        timeout_s: float | None,
    ) -> None:
        self._request = request
        self._attempt = attempt
        self._newest = newest
        self._resume = resume
        self._clock = clock
        self._deadline_s = None if timeout_s is None else clock.monotonic() + timeout_s
        self._left = request.entries_max
        self._bounded = request.follow or request.HasField("last")
        self._done: Position | None = None

    async def answers(self) -> AsyncGenerator[ReadAnswer, None]:
        """Yield the answers. Raises what the daemon raised once that is final, TimedOut, Unreachable."""
        while not self._complete():
            self._resume.opening()
            try:
                await self._fix_end()
                left_s = seconds_left(self._clock, self._deadline_s)
                async with aclosing(self._attempt(self._request, left_s)) as answers:
                    async for answer in answers:
                        self._note(answer.batch)
                        self._resume.worked()
                        yield answer
            except OffloaderError as error:
                await self._resume.after(self._seen(error))
            else:
                return

    async def _fix_end(self) -> None:
        """Let the range end at what is the newest entry now.

        An empty topic has no end, nor one that ends before the range, or in what cannot be read.
        """
        if self._bounded or self._newest is None:
            return
        newest = await self._newest()
        first = self._request.first
        before = self._request.HasField("first") and newest is not None and from_position(newest) < from_position(first)
        if newest is not None and not before:
            self._request.last.CopyFrom(newest)
        self._bounded = True

    def _note(self, batch: EntryBatch) -> None:
        """Move behind a batch. Raises OffloaderError for one that does not follow."""
        came = batch.first
        if self._done is not None:
            following = self._done.next()
            if came < following or (came.ledger_id == following.ledger_id and came != following):
                raise OffloaderError(f"the daemon sent {came} behind {self._done}", hint="report this: entries repeat")
        self._done = batch.last
        self._request.ClearField("seek")
        self._request.first.ledger_id = self._done.ledger_id
        self._request.first.entry_id = self._done.entry_id + 1
        if self._left:
            self._left -= batch.count
            self._request.entries_max = max(1, self._left)

    def _complete(self) -> bool:
        """Whether the whole range was read."""
        if self._done is None:
            return False
        if self._request.HasField("last") and self._done >= from_position(self._request.last):
            return True
        return bool(self._request.entries_max) and self._left <= 0

    def _seen(self, error: OffloaderError) -> OffloaderError:
        """Return an error; that of a daemon which does not know existing entries yet is transient."""
        if isinstance(error, OutOfRange) and self._done is not None:
            return Transient(error.message, hint=error.hint)
        return error


def seconds_left(clock: Clock, deadline_s: float | None) -> float | None:
    """Return the seconds until a deadline, None without one. Raises TimedOut."""
    if deadline_s is None:
        return None
    left_s = deadline_s - clock.monotonic()
    if left_s <= 0:
        raise TimedOut("no result before the deadline", hint=LATE)
    return left_s


def read_request(topic: TopicName | str, wanted: Wanted, *, framed: bool = False) -> read_pb2.ReadRequest:
    """Return the request for a range; `framed` if answers are not messages."""
    return read_pb2.ReadRequest(
        topic=str(topic),
        first=position_message(wanted.get("first")),
        last=position_message(wanted.get("last")),
        follow=wanted.get("follow", False),
        entries_max=wanted.get("entries_max") or 0,
        batch_bytes=wanted.get("batch_bytes", 0),
        read_priority=wanted.get("read_priority") or "",
        client_bytes=wanted.get("client_bytes", False),
        seek=seek_target(goal) if (goal := wanted.get("seek")) is not None else None,
        framed=framed,
    )


def position_message(value: Position | str | None) -> common_pb2.Position | None:
    """Return a position, or a text LEDGER:ENTRY, as a message; None when there is none. Raises InvalidInput."""
    if isinstance(value, str):
        value = Position.parse(value)
    return to_position(value)


READ_METHOD = "/offloaderd.v1.ReadService/Read"
AHEAD = 4
"""Answers that a read fetches before they are asked for; the daemon makes them 1 MiB unless told otherwise."""

_TRANSACTIONS = {Transactions.COMMITTED: read_pb2.TRANSACTIONS_COMMITTED, Transactions.ALL: read_pb2.TRANSACTIONS_ALL}


class EntryCalls(Calls):
    """Calls of ReadService, for DaemonClient to inherit."""

    async def read(
        self,
        topic: TopicName | str,
        *,
        timeout_s: float | None = None,
        resume_s: float | None = RESUME_S,
        ahead: int = AHEAD,
        direct: Bucket | None = None,
        **wanted: Unpack[Wanted],
    ) -> AsyncGenerator[ReadAnswer, None]:
        """Yield the entries of a range in batches, each with the tier that served it; each entry once, in order.

        A stream that breaks is opened again behind the last entry, here or at another daemon, until `resume_s` have
        passed without an entry (0: never; None: no limit). Up to `ahead` answers are fetched before they are asked
        for. Leaving the loop early ends the stream.

        `direct`: entries in the bucket are fetched from there, where the daemon says they are; the daemon sends only
        the others, and those that the bucket does not give. Denied and BucketMissing, which say that this program has
        no access to the bucket, are raised.
        """
        if resume_s != 0:
            await self.learn_peers(str(topic))
        reading = Reading(
            read_request(topic, wanted, framed=True),
            attempt=self.read_once if direct is None else DirectRead(self, direct.sequence(), self._clock).attempt,
            newest=(lambda: self._newest(topic)) if resume_s != 0 or direct is not None else None,
            resume=Resume(self, self._clock, resume_s),
            clock=self._clock,
            timeout_s=timeout_s,
        )
        fetched = Ahead(ahead)
        async with self._beside(fetched.fill(reading.answers()), name=f"read {topic}"):
            while (answer := await fetched.take()) is not None:
                yield answer

    def read_messages(
        self,
        topic: TopicName | str,
        *,
        timeout_s: float | None = None,
        transactions: Transactions = Transactions.COMMITTED,
        **wanted: Unpack[Wanted],
    ) -> AsyncGenerator[read_pb2.ReadMessagesResponse, None]:
        """Yield the messages in the entries of a range. It is not resumed: a message may span several entries.

        Those that a consumer is given now, unless all are asked for: the last answer has `held_back` where that ends
        before the range does. Daemons that know nothing of transactions give all, and say of none what became of it.
        """
        request = read_request(topic, wanted)
        request.transactions = _TRANSACTIONS[transactions]
        return self._stream(lambda: self._reads.ReadMessages(request, timeout=timeout_s))

    async def plan_read(
        self, request: read_pb2.ReadRequest, timeout_s: float | None = None
    ) -> read_pb2.PlanReadResponse:
        """Return where the first entries of a range are stored."""
        return await self._ask(self._reads.PlanRead, request, timeout_s)

    async def read_once(
        self, request: read_pb2.ReadRequest, timeout_s: float | None
    ) -> AsyncGenerator[ReadAnswer, None]:
        """Yield what one stream gives. Answers come as bytes: of frames they are copied once only, entry by entry."""
        method: aio.UnaryStreamMultiCallable[read_pb2.ReadRequest, bytes] = self._channel.unary_stream(
            READ_METHOD, request_serializer=read_pb2.ReadRequest.SerializeToString
        )
        where, call = f"an answer of {self.address}", method(request, timeout=timeout_s)
        with self._errors(call):
            async for message in call:
                yield ReadAnswer(*decoded_read_response(message, where=where))

    async def _newest(self, topic: TopicName | str) -> common_pb2.Position | None:
        """Return the newest entry that can be read now; None if a read has to come to an error behind it."""
        found = await self.last_positions(topic)
        return found.confirmed if found.HasField("confirmed") and not found.ends_in_gap else None


class DirectRead:
    """A read by plans of the daemon: segments out of the bucket, all other entries out of the daemon's streams."""

    def __init__(self, daemon: EntryCalls, bucket: SegmentsInTurn, clock: Clock) -> None:
        self._daemon = daemon
        self._bucket = bucket
        self._clock = clock
        self._away = False
        """Whether the bucket did not answer, so that the daemon reads the rest."""
        self._stale = False
        """Whether the bucket lacks a segment of the plan."""

    async def attempt(self, request: read_pb2.ReadRequest, timeout_s: float | None) -> AsyncGenerator[ReadAnswer, None]:
        """Yield the entries of a request, which the caller moves behind each answer. Raises as `EntryCalls.read`."""
        until_s = None if timeout_s is None else self._clock.monotonic() + timeout_s
        while not self._away:
            try:
                plan = await self._daemon.plan_read(request, seconds_left(self._clock, until_s))
            except NotOffered as error:
                log.warning("the daemon reads all of %s: %s", request.topic, error)
                break
            async with aclosing(self._runs(request, plan, until_s)) as answers:
                async for answer in answers:
                    yield answer
            if plan.complete and (not plan.runs or _is_behind(request, plan.runs[-1])):
                return
            if not plan.runs:
                break
        async with aclosing(self._daemon.read_once(request, seconds_left(self._clock, until_s))) as answers:
            async for answer in answers:
                yield answer

    async def _runs(
        self, request: read_pb2.ReadRequest, plan: read_pb2.PlanReadResponse, until_s: float | None
    ) -> AsyncGenerator[ReadAnswer, None]:
        """Yield the entries of a plan, up to the first segment that is not there any more: others may be gone, too."""
        self._stale = False
        for run, after in zip_longest(plan.runs, plan.runs[1:]):
            _check_run(request, plan, run)
            async with aclosing(self._run(request, plan, run, _in_bucket(plan, after), until_s)) as answers:
                async for answer in answers:
                    yield answer
            if self._away:
                return
            if not _is_behind(request, run):
                raise _unsound(f"entries up to {position_text(run.last)} of {request.topic}, and not all came")
            if self._stale:
                return

    async def _run(
        self,
        request: read_pb2.ReadRequest,
        plan: read_pb2.PlanReadResponse,
        run: read_pb2.PlannedRun,
        following: InBucket | None,
        until_s: float | None,
    ) -> AsyncGenerator[ReadAnswer, None]:
        part = read_pb2.ReadRequest()
        part.CopyFrom(request)
        part.ClearField("seek")
        part.follow = False
        part.first.CopyFrom(run.first)
        part.last.CopyFrom(run.last)
        if (here := _in_bucket(plan, run)) is not None:
            try:
                async with aclosing(self._bucket.read(part, here.stored, following)) as batches:
                    while (batch := await self._next(batches, until_s)) is not None:
                        yield ReadAnswer(batch, common_pb2.TIER_OBJECTS)
                        part.first.entry_id = batch.last_entry_id + 1
                        part.first.ledger_id = batch.ledger_id
            except (NotFound, CorruptData, Transient, Archived) as error:
                if isinstance(error, BucketMissing | TimedOut):
                    raise
                log.warning("the daemon reads segment %s of %s: %s", here.stored.segment_id, request.topic, error)
                self._away, self._stale = isinstance(error, Transient), isinstance(error, NotFound)
            else:
                return
            if self._away:
                return
        async with aclosing(self._daemon.read_once(part, seconds_left(self._clock, until_s))) as answers:
            async for answer in answers:
                yield answer

    async def _next(self, batches: AsyncGenerator[EntryBatch, None], until_s: float | None) -> EntryBatch | None:
        """Return the next batch, None at the end. Raises TimedOut, and as the bucket does."""
        try:
            async with asyncio.timeout(seconds_left(self._clock, until_s)):
                return await anext(batches, None)
        except TimeoutError:
            raise TimedOut("no result before the deadline", hint=LATE) from None


def _check_run(request: read_pb2.ReadRequest, plan: read_pb2.PlanReadResponse, run: read_pb2.PlannedRun) -> None:
    """Raise OffloaderError for a run that does not follow, or of a segment that the plan does not have."""
    first, wanted = from_position(run.first), from_position(request.first)
    if request.HasField("first") and (first < wanted or (first.ledger_id == wanted.ledger_id and first != wanted)):
        raise _unsound(f"{first} of {request.topic} in place of {wanted}")
    if run.HasField("segment") and run.segment >= len(plan.segments):
        raise _unsound(f"{first} of {request.topic} in a segment that it does not describe")


def _in_bucket(plan: read_pb2.PlanReadResponse, run: read_pb2.PlannedRun | None) -> InBucket | None:
    """Return a run with its segment; None for one that is not in the bucket, or that `_check_run` refuses."""
    if run is None or not run.HasField("segment") or run.segment >= len(plan.segments):
        return None
    return InBucket(run, plan.segments[run.segment])


def _is_behind(request: read_pb2.ReadRequest, run: read_pb2.PlannedRun) -> bool:
    """Whether a request has moved behind a run."""
    return from_position(request.first) == from_position(run.last).next()


def _unsound(planned: str) -> OffloaderError:
    return OffloaderError(f"the daemon planned {planned}", hint="report this: a plan has each entry once, in order")
