"""Manual requests to offload a topic: which entries they mean, by which method, or why none.

A size threshold means what it does in `pulsar-admin topics offload` (CmdTopics.findFirstLedgerWithinThreshold): from
the newest ledger on, the open one's size included, ledgers stay as long as their sizes add up to no more than the
threshold; the first one beyond it is offloaded with all older ones. So at most the threshold stays in BookKeeper, not
at least, and the open ledger stays however large it is. Thresholds of a policy leave the open ledger out of the sum
(ManagedLedgerImpl.maybeOffload sums closed ledgers alone).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple, Protocol

import structlog

from offloaderd.core.errors import Conflict, CorruptData, InvalidInput, NewerRecord, NotFound
from offloaderd.core.model import START, LedgerInfo, OffloadMethod, Position, TopicName
from offloaderd.core.retry import until_answered
from offloaderd.history import plan as history
from offloaderd.ledgers.chain import Run
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import orders
from offloaderd.metadata.records.history import Worker
from offloaderd.metadata.records.orders import Asked
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.roll import TopicView
from offloaderd.topic.chooser import method_of, reachable
from offloaderd.topic.status import Described, lag_of


class RequestedTopic(Described, Protocol):
    """A topic that takes manual requests."""

    closed_ledgers: dict[int, LedgerInfo]

    @property
    def view(self) -> TopicView:
        """The topic's present state."""
        ...

    async def request_roll(self, to: Position | None = None) -> Position | None:
        """See TopicOffloader."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request: for everything, up to and with the entry at `to`, or all but the newest `keep_bytes`."""

    to: Position | None = None
    keep_bytes: int | None = None

    def __str__(self) -> str:
        """Return the request as text."""
        if self.to is not None:
            return f"everything up to {self.to}"
        if self.keep_bytes is not None:
            return f"all but the newest {self.keep_bytes} bytes"
        return "everything"

    def checked(self) -> "Wanted":
        """Return itself if it is valid. Raises InvalidInput."""
        if self.to is not None and self.keep_bytes is not None:
            raise InvalidInput("a position and a size threshold exclude each other", hint="give one of them")
        if self.keep_bytes is not None and self.keep_bytes < 0:
            raise InvalidInput(f"a size threshold of {self.keep_bytes} bytes", hint="0 leaves the open ledger alone")
        if self.to is not None:
            self.to.checked()
        return self


class Why(StrEnum):
    """Why there is nothing to do, or less than was requested."""

    EMPTY = "the topic has no entries"
    OFFLOADED = "all of it is offloaded already"
    OPEN = "the rest is in the open ledger, and ledger-based offloading takes ledgers once they are closed"
    WHOLE = "the rest is a part of a ledger, and ledger-based offloading takes whole ledgers"
    THRESHOLD = "the closed ledgers are within the threshold, or there are none"
    NONE = "the method is none"
    PAUSED = "the topic is paused"
    HISTORY = "live segments wait for the job that offloads the topic's history"
    NOT_DUE = "no request includes the rest, and it is below the thresholds of the policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Consecutive entries of one ledger to offload, with their payload bytes.

    `due`: the topic's policy offloads them without a request.
    """

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    payload_bytes: int
    method: OffloadMethod
    due: bool

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.last_entry_id - self.first_entry_id + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The present meaning of a request. `target` is the position to wait for, None when there is nothing to do.

    `why` is the reason for that, or for less than was requested. `takes` has the entries of the source's ledgers that
    are not offloaded; a topic without a source has none.
    """

    wanted: Wanted
    method: OffloadMethod
    target: Position | None
    takes: tuple[Take, ...] = ()
    why: Why | None = None

    @property
    def reason(self) -> str:
        """`why` as text; empty for none."""
        return str(self.why or "")


async def planned(topic: RequestedTopic, source: LedgerSource | None, wanted: Wanted) -> Plan:
    """Return the plan of a request. Raises InvalidInput for one that the topic cannot fulfil, Transient."""
    wanted.checked()
    newest = await topic.tailer.refresh() if topic.tailer is not None else topic.buffer.last_offered
    newest = max((one for one in (newest, topic.map.standing) if one is not None), default=None)
    meant, why = newest, None
    if wanted.to is not None:
        _check(topic, wanted.to, newest)
        meant = wanted.to
    elif wanted.keep_bytes is not None:
        if source is None:
            raise InvalidInput(
                f"{topic.topic} has no ledger source, so the sizes of its ledgers are unknown", hint="name a position"
            )
        meant, why = beyond(await _infos(topic, source), wanted.keep_bytes), Why.THRESHOLD
    method = topic.policy.method
    if newest is None or meant is None:
        return Plan(wanted=wanted, method=method, target=None, why=Why.EMPTY if newest is None else why)
    if reached(topic.map, meant):
        return Plan(wanted=wanted, method=method, target=None, why=Why.OFFLOADED)
    if topic.policy.paused is not None:
        return Plan(wanted=wanted, method=method, target=None, why=Why.PAUSED)
    if method is OffloadMethod.NONE:
        return Plan(wanted=wanted, method=method, target=None, why=Why.NONE)
    target, why = reachable(topic.view, meant), None
    if target != meant:
        info = topic.record.chain.ledgers.get(meant.ledger_id)
        why = Why.OPEN if info is not None and not info.closed else Why.WHOLE
    if target is None or reached(topic.map, target):
        return Plan(wanted=wanted, method=method, target=None, why=why)
    takes = await _takes(topic, source, target) if source is not None else ()
    return Plan(wanted=wanted, method=method, target=target, takes=takes, why=why)


def beyond(infos: Sequence[LedgerInfo], keep_bytes: int) -> Position | None:
    """Return the newest entry to offload if at most `keep_bytes` stay in the ledgers, None for none."""
    kept = 0
    for index in reversed(range(len(infos))):
        kept += infos[index].size_bytes
        if kept > keep_bytes:
            older = [one for one in infos[: index + 1] if one.closed and one.entries]
            return Position(older[-1].ledger_id, older[-1].entries - 1) if older else None
    return None


def reached(topic_map: TopicMap, target: Position) -> bool:
    """Return whether everything up to `target` is offloaded or recorded as lost."""
    standing, plan = topic_map.standing, topic_map.unfinished
    if standing is None or standing < target or topic_map.awaits(target):
        return False
    return plan is None or plan.worker is not Worker.DAEMON or target < plan.live_begin


def remaining(topic: RequestedTopic, target: Position) -> tuple[int, int]:
    """Return the entries and, as far as they are known, the payload bytes up to `target` that are not offloaded."""
    entries = size = 0
    plan = topic.map.unfinished
    if plan is not None and (
        plan.worker is Worker.DAEMON or topic.map.awaits(target) or history.waits(topic.map, topic.policy)
    ):
        entries, size = history.left_of(topic.map)
    for info, run in _runs(topic, target):
        count = run.last_entry_id - run.first_entry_id + 1
        entries += count
        size += max(0, info.size_bytes) * count // max(1, info.entries)
    return entries, size


def _check(topic: RequestedTopic, to: Position, newest: Position | None) -> None:
    """Raise InvalidInput for a position that is no entry of the topic, as far as its ledgers are known."""
    if newest is None or to > newest:
        end = f"the newest entry is {newest}" if newest is not None else "it has no entries"
        raise InvalidInput(f"position {to} is beyond the end of {topic.topic}", hint=end)
    known = {**topic.closed_ledgers, **topic.record.chain.ledgers}
    info, end_of = known.get(to.ledger_id), topic.map.ends.get(to.ledger_id)
    entries = info.entries if info is not None else end_of.entries if end_of is not None else None
    if entries is not None and to.entry_id >= entries:
        raise InvalidInput(f"ledger {to.ledger_id} of {topic.topic} has no entry {to.entry_id}: it has {entries}")
    if entries is not None or topic.map.find(to) is not None or to.ledger_id == newest.ledger_id:
        return
    if topic.map.floor is not None and to <= topic.map.floor:
        return
    hint = "`offloadctl explain` shows what is known of a position" if topic.tailer is not None else ""
    raise InvalidInput(f"ledger {to.ledger_id} is not one of {topic.topic}", hint=hint)


async def _infos(topic: RequestedTopic, source: LedgerSource) -> list[LedgerInfo]:
    """Return the source's ledgers in order, the open one with its present size."""
    infos = list(topic.record.chain.ledgers.values())
    if infos and not infos[-1].closed and infos[-1].entries:
        size = await _length(topic, source, Position(infos[-1].ledger_id, infos[-1].entries - 1))
        infos[-1] = replace(infos[-1], size_bytes=max(size, infos[-1].size_bytes))
    return infos


def _runs(topic: RequestedTopic, target: Position) -> Iterable[tuple[LedgerInfo, Run]]:
    """Yield the source's ledgers and runs behind the offloaded position, up to `target`."""
    after = topic.map.standing or START
    for info in topic.record.chain.ledgers.values():
        first = after.entry_id + 1 if info.ledger_id == after.ledger_id else 0
        last = min(info.entries - 1, target.entry_id) if info.ledger_id == target.ledger_id else info.entries - 1
        if after.ledger_id <= info.ledger_id <= target.ledger_id and first <= last:
            yield info, Run(info.ledger_id, first, last)


async def _takes(topic: RequestedTopic, source: LedgerSource, target: Position) -> tuple[Take, ...]:
    takes = []
    for info, run in _runs(topic, target):
        whole = info.closed and run.last_entry_id == info.entries - 1
        size = info.size_bytes if whole else await _length(topic, source, Position(info.ledger_id, run.last_entry_id))
        if run.first_entry_id:
            size -= await _length(topic, source, Position(info.ledger_id, run.first_entry_id - 1))
        goes = method_of(topic.view, run)
        takes.append(
            Take(
                ledger_id=info.ledger_id,
                first_entry_id=run.first_entry_id,
                last_entry_id=run.last_entry_id,
                payload_bytes=max(0, size),
                method=topic.policy.method if goes is OffloadMethod.NONE else goes,
                due=goes is not OffloadMethod.NONE,
            )
        )
    return tuple(takes)


async def _length(topic: RequestedTopic, source: LedgerSource, position: Position) -> int:
    """Return a ledger's payload bytes up to and with an entry; 0 for a deleted ledger."""
    try:
        return await source.length_at(topic.topic, *position)
    except NotFound:
        return 0


log = structlog.get_logger(__name__)

WRITE_TRIES = 5
"""Tries to write the record while other processes write it too."""


class Outcome(StrEnum):
    """The outcome of a request."""

    NOTHING = "nothing"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Fate(NamedTuple):
    """The outcome of a request, its reason where it needs one, and when it was done (0: not done, or unknown)."""

    outcome: Outcome
    reason: str = ""
    done_ms: int = 0


async def read(store: MetadataStore, topic: TopicName) -> Asked | None:
    """Return the last request, None for none. Raises CorruptData, Transient."""
    return await nodes.record(store, paths.asked(topic), orders.decode_asked)


async def record(store: MetadataStore, topic: TopicName, topic_map: TopicMap, asked: Asked) -> None:
    """Record a request, unless an open earlier one includes it. Raises Transient, Conflict when it may not be recorded.

    An unreadable record is replaced, unless a later release wrote it: raises NewerRecord.
    """
    path, value = paths.asked(topic), orders.encode_asked(asked)
    for _ in range(WRITE_TRIES):
        node = await nodes.node(store, path)
        try:
            if node is None:
                await store.create(path, value)
            elif not _includes(node.value, path, topic_map, asked):
                await store.replace(path, value, node.version)
        except (Conflict, NotFound):
            continue
        else:
            return
    raise Conflict(
        f"the recorded request of {topic} changes faster than it can be replaced",
        hint="`offloadctl topics offload-status`",
    )


def _includes(value: bytes, path: str, topic_map: TopicMap, asked: Asked) -> bool:
    """Return whether the recorded request is open and reaches at least as far as `asked`."""
    try:
        known = orders.decode_asked(value, path=path)
    except NewerRecord:
        raise
    except CorruptData:
        return False
    if known.target is None or reached(topic_map, known.target):
        return False
    return asked.target is None or asked.target <= known.target


def fate_of(
    asked: Asked, topic_map: TopicMap, *, none: bool = False, paused: bool = False, active: bool = True
) -> Fate:
    """Return the outcome of a request.

    `none`: the topic's method is none, `paused`: an operator has paused the topic, `active`: it is offloaded at all.
    """
    target = asked.target
    if target is None:
        return Fate(Outcome.NOTHING, asked.reason)
    if not reached(topic_map, target):
        if not active:
            return Fate(Outcome.FAILED, "the topic is not enabled any more; it continues once it is enabled")
        if paused:
            return Fate(Outcome.FAILED, f"{Why.PAUSED}; it continues once it is resumed")
        if none:
            return Fate(Outcome.FAILED, f"{Why.NONE}; it continues under another method")
        return Fate(Outcome.RUNNING, asked.reason)
    lost = [loss for loss in topic_map.losses if loss.noticed_ms >= asked.asked_ms and loss.after < target]
    if lost:
        ranges = ", ".join(map(str, lost))
        return Fate(Outcome.FAILED, f"the source deleted entries before they were offloaded: {ranges}")
    segment = topic_map.find(target)
    return Fate(Outcome.DONE, asked.reason, segment.offloaded_ms if segment is not None else 0)


class ByHand:
    """Manual requests to one topic's owner."""

    def __init__(self, topic: RequestedTopic, context: OffloadContext) -> None:
        self._topic = topic
        self._context = context

    async def plan(self, wanted: Wanted) -> Plan:
        """Return the plan of a request. Raises InvalidInput for one that the topic cannot fulfil, Transient."""
        return await planned(self._topic, self._context.source, wanted)

    async def ask(self, wanted: Wanted, by: str) -> tuple[Asked, Plan]:
        """Record a request and begin to fulfil it; return it and its plan.

        Without a position it means all written entries, also those that the source does not report yet. Raises
        InvalidInput for one that the topic cannot fulfil, Conflict when its method is none, Transient.
        """
        topic = self._topic
        if topic.tailer is not None and wanted.to is None:
            await topic.tailer.settled()
        plan = await self.plan(wanted)
        if plan.why is Why.NONE:
            raise Conflict(f"the policy of {topic.topic} has the method none", hint="set another method first")
        asked = Asked(
            wanted=str(wanted),
            target=plan.target,
            stood=topic.map.offloaded,
            asked_ms=self._context.upload_context.clock.wall_ms(),
            asked_by=by,
            reason=plan.reason,
        )
        await record(self._context.metadata, topic.topic, topic.map, asked)
        log.info("offload.requested", topic=str(topic.topic), wanted=asked.wanted, target=str(plan.target), by=by)
        if plan.target is not None:
            await topic.request_roll(plan.target)
        return asked, plan

    async def by_itself(self) -> Asked:
        """Return the offloading that needs no request as a request, with an empty text. Raises Transient."""
        topic, plan = self._topic, await self.plan(Wanted())
        target, why = plan.target, plan.why
        past = topic.map.unfinished if history.waits(topic.map, topic.policy) else None
        if past is not None:
            target, why = (past.last, None) if past.worker is Worker.DAEMON else (None, Why.HISTORY)
        elif plan.takes:
            due = list(takewhile(lambda take: take.due, plan.takes))
            target = Position(due[-1].ledger_id, due[-1].last_entry_id) if due else None
            why = why if due else Why.NOT_DUE
        return Asked(
            wanted="",
            target=target,
            stood=topic.map.offloaded,
            asked_ms=self._context.upload_context.clock.wall_ms(),
            reason=str(why or ""),
        )

    def remaining(self, target: Position) -> tuple[int, int]:
        """Return the entries and payload bytes up to `target` that the source has and that are not offloaded."""
        return remaining(self._topic, target) if self._topic.tailer is not None else lag_of(self._topic)


async def resume_recorded(context: OffloadContext, offloader: RequestedTopic) -> None:
    """Resume the recorded request of an earlier owner, and again at each change of the policy."""
    topic, clock = offloader.topic, context.upload_context.clock
    while True:
        try:
            asked = await until_answered(clock, lambda: read(context.metadata, topic))
            if asked is not None and asked.target is not None and not reached(offloader.map, asked.target):
                await _resume(offloader, asked.target)
        except CorruptData as error:
            log.warning("offload.request_unreadable", topic=str(topic), error=str(error))
        with offloader.resting():
            await offloader.policy_changed.wait()


async def _resume(offloader: RequestedTopic, target: Position) -> None:
    """Request a position again; a position that the source does not have any more is dropped."""
    try:
        await offloader.failure_tracker.until_answered(lambda: offloader.request_roll(target), "source")
    except InvalidInput as error:
        log.warning("offload.request_dropped", topic=str(offloader.topic), target=str(target), error=str(error))
    except Conflict as error:
        log.info("offload.request_waits", topic=str(offloader.topic), target=str(target), reason=str(error))
