"""Rollback to a stock broker: on request the owner rewrites a topic's streaming segments as whole ledgers.

By PIP-76's text, a team that rolls back gives up the data of its streaming segments. This rollback keeps it: from the
oldest on, each closed ledger that is offloaded to its end gets an object as Pulsar's offloader writes it, which
replaces its slices (`rewrite.py`, `metadata/topic_map/conversion.py`). The order is recorded, so the next owner
continues it. A daemon rewrites one ledger at a time, and the topic's offloading, retention and reads continue by the
map of each moment. A ledger that cannot be read or stored stays as it is, is reported, and is tried again only under a
new order.

This module writes nothing below `/managed-ledgers`, which belongs to the brokers.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from offloaderd.core.aio import Group, Signal
from offloaderd.core.errors import Conflict, Fenced, NotFound, OffloaderError, Transient, first_of
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.core.retry import Backoff
from offloaderd.history.rewrite import PIECE_BYTES, LedgerRewrite, Stopped, Unreadable, cut_of
from offloaderd.history.segment import OwnedTopic
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.port import Create, Replace
from offloaderd.metadata.records import orders
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.records.orders import RollbackOrder
from offloaderd.metadata.topic_map import conversion
from offloaderd.metadata.topic_map.conversion import LedgerState, Standing
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.segment.claim.attempt_log import attempt_log
from offloaderd.segment.claim.fence import Fence
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.resume import abandon, as_finished, take_over
from offloaderd.segment.upload import SegmentFailed

Decide = Callable[[RollbackOrder | None], RollbackOrder]

log = structlog.get_logger(__name__)


def extended(to_ledger_id: int, now_ms: int) -> Decide:
    """Return the change that orders ledgers up to that one; an active order never shrinks."""

    def decide(known: RollbackOrder | None) -> RollbackOrder:
        if known is not None and known.active:
            return replace(known, to_ledger_id=max(known.to_ledger_id, to_ledger_id))
        return RollbackOrder(to_ledger_id=to_ledger_id, ordered_ms=now_ms)

    return decide


def taken_back(now_ms: int) -> Decide:
    """Return the change that withdraws the order; one that has ended stays."""

    def decide(known: RollbackOrder | None) -> RollbackOrder:
        if known is None:
            raise NotFound("nothing of this topic was ordered to be rewritten", hint="offloadctl rollback convert")
        return replace(known, ended_ms=max(1, now_ms), stopped=True) if known.active else known

    return decide


@dataclass(slots=True, eq=False)
class _Request:
    """A requested change, and the future of the changed order."""

    decide: Decide
    done: asyncio.Future[RollbackOrder]

    def fail(self, error: OffloaderError) -> None:
        """Answer with an error, unless the caller has left."""
        if not self.done.done():
            self.done.set_exception(error)


class OrderDesk:
    """The recorded order under one claim. Requests are carried out even if their caller leaves."""

    def __init__(self, topic: TopicName, fence: Fence) -> None:
        self.order: RollbackOrder | None = None
        self.changed = Signal()
        self._topic = topic
        self._fence = fence
        self._version: int | None = None
        self._known = False
        self._writing = asyncio.Lock()  # a writer of the node has to know its version
        self._requests: list[_Request] = []
        self._asked = Signal()

    @property
    def active(self) -> bool:
        """Whether there is an order that has not ended."""
        return self.order is not None and self.order.active

    async def load(self) -> None:
        """Read the record. Raises CorruptData, Transient."""
        async with self._writing:
            await self._load()

    async def _load(self) -> None:
        path = paths.rollback_order(self._topic)
        node = await nodes.node(self._fence.store, path)
        self.order = orders.decode_rollback(node.value, path=path) if node is not None else None
        self._version = node.version if node is not None else None
        self._known = True

    async def ask(self, decide: Decide) -> RollbackOrder:
        """Request a change; returns the order. Raises what `decide` does, Transient, Fenced."""
        request = _Request(decide, asyncio.get_running_loop().create_future())
        self._requests.append(request)
        self._asked.notify()
        return await request.done

    async def serve(self) -> None:
        """Carry out requests until cancelled. Raises Fenced."""
        while True:
            while self._requests:
                await self._carry_out(self._requests.pop(0))
            await self._asked.wait()

    async def _carry_out(self, request: _Request) -> None:
        try:
            order = await self.change(request.decide)
        except OffloaderError as error:
            request.fail(error)
            if isinstance(error, Fenced):
                raise
        except BaseException:
            request.fail(_released(self._topic))
            raise
        else:
            if not request.done.done():
                request.done.set_result(order)

    def close(self) -> None:
        """Refuse the requests that were not carried out."""
        for request in self._requests:
            request.fail(_released(self._topic))

    async def change(self, decide: Decide) -> RollbackOrder:
        """Record a change of the order, and return it. Raises what `decide` does, Fenced, Conflict, Transient."""
        async with self._writing:
            if not self._known:
                await self._load()
            after = decide(self.order)
            if after != self.order:
                await self._write(after)
                self.order = after
                self.changed.notify()
        return after

    async def _write(self, order: RollbackOrder) -> None:
        path, value = paths.rollback_order(self._topic), orders.encode_rollback(order)
        version = self._version

        async def recorded() -> bool:
            node = await nodes.node(self._fence.store, path)
            return node is not None and node.value == value

        self._known = False  # unknown until the outcome is read
        if version is None:
            try:
                await self._fence.store.create(paths.rollback(self._topic), b"")
            except Conflict:
                log.debug("rollback.folder_exists", topic=str(self._topic))
        step = Create(path, value) if version is None else Replace(path, value, version)
        await self._fence.settle([step], recorded)
        self._version, self._known = (0 if version is None else version + 1), True


def _released(topic: TopicName) -> Transient:
    return Transient(f"{topic} is being released", hint="ask its next owner; what was ordered stays ordered")


LEDGERS_AT_A_TIME = 1
"""Of all topics of a daemon: live segments need memory and bandwidth as well."""
TRIES_MAX = 3
"""Tries to store a ledger's object before the ledger is left as it is."""
GUESSED_BYTES_PER_S = 32 << 20
"""Expected speed before the first ledger is rewritten."""


@dataclass(slots=True)
class Speed:
    """The speed of rewriting: payload bytes, and seconds from the first request to the exchange."""

    payload_bytes: int = 0
    seconds: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether a ledger has been rewritten."""
        return self.payload_bytes > 0 and self.seconds > 0

    @property
    def bytes_per_s(self) -> float:
        """The speed to expect of the next ledger."""
        return self.payload_bytes / self.seconds if self.measured else GUESSED_BYTES_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a topic's order in ledgers and payload bytes, without ledgers that cannot be rewritten.

    `ledger_id` is the ledger in work, None for none; `error` is the present failure.
    """

    order: RollbackOrder | None = None
    done: int = 0
    done_bytes: int = 0
    left: int = 0
    left_bytes: int = 0
    ledger_id: int | None = None
    phase: str = ""
    ledger_done_bytes: int = 0
    error: str = ""


class Rollback:
    """The duty for each topic to carry out its orders, and the place to request them."""

    def __init__(self, context: OffloadContext) -> None:
        self.speed = Speed()
        self._context = context
        self._clock = context.upload_context.clock
        self._turns = asyncio.Semaphore(LEDGERS_AT_A_TIME)
        self._topics: dict[TopicName, _TopicRollback] = {}

    async def run(self, offloader: OwnedTopic) -> None:
        """Carry out a topic's orders until cancelled. Raises Fenced."""
        work = self._topics[offloader.topic] = _TopicRollback(self._context, offloader, self._turns, self.speed)
        try:
            await work.run()
        finally:
            del self._topics[offloader.topic]
            work.desk.close()

    async def order(self, offloader: OwnedTopic, to_ledger_id: int | None) -> RollbackOrder | None:
        """Order the rewriting of all ledgers up to one (None: all present ones); return None if none is left.

        Raises NotFound for a ledger that the topic does not have, Transient while the topic is being taken over.
        """
        rows = self.ledger_states(offloader.map)
        if to_ledger_id is not None and to_ledger_id not in {one.ledger_id for one in rows}:
            raise NotFound(
                f"{offloader.topic} has no ledger {to_ledger_id} in the tier", hint="offloadctl ledgers list"
            )
        wanted = [one.ledger_id for one in rows if one.standing is Standing.CONVERTIBLE]
        wanted = [one for one in wanted if to_ledger_id is None or one <= to_ledger_id]
        work = self._of(offloader)
        if not wanted:
            return work.desk.order if work.desk.active else None
        return await work.desk.ask(extended(max(wanted), self._clock.wall_ms()))

    async def stop(self, offloader: OwnedTopic) -> RollbackOrder:
        """Withdraw the order: the attempt is given up, and rewritten ledgers stay. Raises NotFound."""
        return await self._of(offloader).desk.ask(taken_back(self._clock.wall_ms()))

    def progress(self, offloader: OwnedTopic) -> Progress:
        """Return the progress of the topic's order. Raises Transient while the topic is being taken over."""
        return self._of(offloader).progress()

    def ledger_states(self, topic_map: TopicMap, to_ledger_id: int | None = None) -> Sequence[LedgerState]:
        """Return for each ledger of a topic, of any owner, whether it can be rewritten."""
        return conversion.ledger_states(topic_map, buckets=self._context.places.buckets, to=to_ledger_id)

    def requests(self, row: LedgerState) -> int:
        """Estimate the requests to rewrite a ledger: its data is read, written and read back."""
        layout = self._context.layout
        pieces = -(-row.payload_bytes // min(PIECE_BYTES, layout.part_bytes))
        parts = -(-row.payload_bytes // cut_of(self._context).part_bytes)
        return row.segments + 2 * pieces + parts + len(("create", "complete", "index", "manifest")) + 5

    def _of(self, offloader: OwnedTopic) -> "_TopicRollback":
        work = self._topics.get(offloader.topic)
        if work is None:
            raise Transient(f"{offloader.topic} is being taken over", hint="try again in a moment")
        return work


@dataclass(slots=True)
class _Tries:
    """How often ledgers failed under one order, and the ledgers that are not tried again."""

    ordered_ms: int = 0
    counts: Counter[int] = field(default_factory=Counter)
    given_up: set[int] = field(default_factory=set)


class _TopicRollback:
    """One owner's work on one topic's orders."""

    def __init__(self, context: OffloadContext, offloader: OwnedTopic, turns: asyncio.Semaphore, speed: Speed) -> None:
        self.desk = OrderDesk(offloader.topic, offloader.record.fence)
        self._context = context
        self._offloader = offloader
        self._turns = turns
        self._speed = speed
        self._topic = offloader.topic
        self._clock, self._metrics = context.upload_context.clock, context.upload_context.metrics
        self._buckets = context.places.buckets
        self._tries = _Tries()
        self._current: LedgerRewrite | None = None
        self._error: OffloaderError | None = None
        self._attempts = attempt_log(context, offloader.claim, paths.rollback_attempt(offloader.topic), offloader.head)

    async def run(self) -> None:
        """Carry out orders until cancelled. Raises Fenced."""
        try:
            async with Group() as group:
                group.create_task(self.desk.serve(), name=f"orders of {self._topic}")
                group.create_task(self._work(), name=f"whole ledgers of {self._topic}")
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None

    async def _work(self) -> None:
        backoff, known = Backoff(self._clock), False
        left: Attempt | None = None
        while True:
            try:
                if not known:
                    await self.desk.load()
                    left = (await take_over(self._attempts, None, self._context)).attempt
                    if left is not None:
                        topic = self._offloader
                        left = await as_finished(
                            self._context, left, failure_tracker=topic.failure_tracker, identity=topic.identity
                        )
                    known = True
                await self._turn(left)
            except Fenced:
                raise
            except OffloaderError as error:
                self._error, known = error, False
                log.warning("rollback.retried", topic=str(self._topic), error=str(error))
                await backoff.wait(error)
            else:
                backoff.reset()
                left = None
                self._error = None

    async def _turn(self, left: Attempt | None) -> None:
        """Do the next step: give up an unwanted attempt, rewrite a ledger, or wait for an order. Raises Fenced."""
        rows = self._left()
        self._metrics.rollback_remaining_ledgers.labels(topic=str(self._topic)).set(len(rows))
        if left is not None and (reason := self._unwanted(left, rows)):
            await abandon(self._attempts, left, reason, self._metrics)
            return
        if not self.desk.active:
            with self._offloader.resting():
                await self.desk.changed.wait()
        elif not rows:
            await self._end()
        else:
            row = rows[left.begin.ledger_id] if left is not None else next(iter(rows.values()))
            async with self._turns:
                await self._one_ledger(row, left)

    def _left(self) -> dict[int, LedgerState]:
        """Return the ledgers that the order has left to rewrite, in a sequence in which they can be."""
        order = self.desk.order
        if order is None or not order.active:
            return {}
        if self._tries.ordered_ms != order.ordered_ms:
            self._tries = _Tries(order.ordered_ms)
        without = {*order.failures, *self._tries.given_up}
        found = conversion.ledger_states(
            self._offloader.map, buckets=self._buckets, to=order.to_ledger_id, without=without
        )
        rows = {one.ledger_id: one for one in found if one.standing is Standing.CONVERTIBLE}
        wanted = {one for one in rows if one <= order.to_ledger_id and one not in without}
        return {one: rows[one] for one in conversion.sequence(self._offloader.map, wanted)}

    def _unwanted(self, left: Attempt, rows: dict[int, LedgerState]) -> str:
        """Return why an earlier owner's attempt is not resumed; empty if it is."""
        row = rows.get(left.ledger_id) if left.ledger_id is not None else None
        if row is None:
            return "its ledger is not to be rewritten any more"
        end = left.end
        if end is None or end.entry_id + 1 != row.entries:
            return f"it was to have other entries than the {row.entries} that the ledger has"
        return ""

    async def _end(self) -> None:
        """Record the end of the order. Raises Fenced."""
        now_ms = max(1, self._clock.wall_ms())
        order = await self.desk.change(lambda known: _ended(known, now_ms))
        log.info("rollback.ended", topic=str(self._topic), to=order.to_ledger_id, failures=len(order.failures))
        self._offloader.changed.notify()

    async def _one_ledger(self, row: LedgerState, left: Attempt | None) -> None:
        """Rewrite a ledger, or record why it failed. Raises Fenced."""
        started_s = self._clock.monotonic()
        work = LedgerRewrite(self._offloader, self._context, self._attempts, row, lambda: not self.desk.active)
        self._current = work
        try:
            whole = await work.run(left)
        except SegmentFailed as error:
            await self._failed(row, error)
        else:
            self._converted(row, whole, self._clock.monotonic() - started_s)
        finally:
            self._current = None
            self._offloader.changed.notify()

    def _converted(self, row: LedgerState, whole: CommittedSegment, seconds: float) -> None:
        self._speed.payload_bytes += row.payload_bytes
        self._speed.seconds += seconds
        self._metrics.rollback_ledgers.inc()
        self._metrics.rollback_bytes.inc(row.payload_bytes)
        log.info(
            "rollback.ledger_converted",
            topic=str(self._topic),
            ledger_id=row.ledger_id,
            segment_id=str(whole.segment_id),
            entries=whole.entries,
            payload_bytes=row.payload_bytes,
            object_bytes=whole.object_bytes,
            segments=row.segments,
            duration_s=round(seconds, 3),
            epoch=self._offloader.claim.epoch,
        )

    async def _failed(self, row: LedgerState, error: OffloaderError) -> None:
        """Try the ledger again, or leave it as it is. Raises Fenced."""
        ledger_id = row.ledger_id
        if isinstance(error, Stopped):
            return
        self._tries.counts[ledger_id] += 1
        await self._offloader.record.reload()
        if ledger_id not in self._left():
            log.info("rollback.ledger_dropped", topic=str(self._topic), ledger_id=ledger_id, error=str(error))
            return
        if isinstance(error, SegmentFailed) and self._tries.counts[ledger_id] < TRIES_MAX:
            log.warning("rollback.ledger_retried", topic=str(self._topic), ledger_id=ledger_id, error=str(error))
            await Backoff(self._clock).wait(Transient(str(error)))
            return
        self._tries.given_up.add(ledger_id)
        reason = "unreadable" if isinstance(error, Unreadable) else "upload"
        self._metrics.rollback_failures.labels(reason=reason).inc()
        log.error(
            "rollback.ledger_failed",
            topic=str(self._topic),
            ledger_id=ledger_id,
            error=str(error),
            hint="it stays in its segments; order it again when that is mended",
        )
        await self.desk.change(lambda known: _with_failure(known, ledger_id, str(error)))

    def progress(self) -> Progress:
        """Return the progress of the order."""
        order, current = self.desk.order, self._current
        if order is None:
            return Progress(error=str(self._error) if self._error is not None else "")
        done = [
            one
            for one in self._offloader.map.segments
            if one.method is OffloadMethod.LEDGER_BASED
            and one.assigned_ms >= order.ordered_ms
            and one.begin.ledger_id <= order.to_ledger_id
        ]
        left = self._left()
        error = self._error or (current.failure_tracker.error if current is not None else None)
        return Progress(
            order=order,
            done=len(done),
            done_bytes=sum(one.payload_bytes for one in done),
            left=len(left),
            left_bytes=sum(one.payload_bytes for one in left.values()),
            ledger_id=current.row.ledger_id if current is not None else None,
            phase=current.phase if current is not None else "",
            ledger_done_bytes=current.done_bytes if current is not None else 0,
            error=str(error) if error is not None else "",
        )


def _ended(known: RollbackOrder | None, now_ms: int) -> RollbackOrder:
    assert known is not None  # noqa: S101 - only an existing order ends
    return replace(known, ended_ms=now_ms) if known.active else known


def _with_failure(known: RollbackOrder | None, ledger_id: int, reason: str) -> RollbackOrder:
    assert known is not None  # noqa: S101 - ledgers fail under an order only
    return replace(known, failures={**known.failures, ledger_id: reason})
