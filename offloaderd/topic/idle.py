"""Idle topics: their owner keeps the claim, and frees everything else until there is work again.

Most topics of a cluster are idle at any time. The objects that serve an active one (map, chain, buffer, a task for each
duty) are many times as large as the state that an idle one needs. So an idle topic is released but for its claim, and
an `IdleTopic` remains. To wake it is to load it from the stores like a topic just claimed, under the same claim.

A topic is suspended after `after_s` without a change, or at once if it was loaded for inspection only (a daemon that
starts loads its idle topics a few at a time). All confirmed entries must be committed, no push or request may be open,
and each duty must have reported that it rests, and until when (`Rest`); a duty without a report keeps the topic
active, so a new duty is safe. Work between the decision and the end of the tasks is cut off as by a crash, and done
after the wake. No entry is lost: nobody finds the topic's buffer from that decision on.

A topic wakes when its source changes (compared at each change and heartbeat, as the tailer does; long polls notify of a
growing ledger), when a duty is due, on use, a change of its policy, a lost session, a hand-over or the daemon's stop;
and at the latest after `again_s`, for changes without a notification: a job's additions to its trash list, or a list of
ledgers that could not be watched.
"""

import asyncio
import io
import pickle
import zlib
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import structlog

from offloaderd.core.aio import Event, Group, Signal, in_turns
from offloaderd.core.clock import pause_after_pass
from offloaderd.core.errors import NotFound, OffloaderError
from offloaderd.core.model import Position, TopicName
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.port import Session
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.roll import RollPolicy
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.topic.status import OFFLOADING, TopicStatus
from offloaderd.topic.tailer import SourceSnapshot

LEVEL = 1
"""Compression level: topics are suspended by the thousand, and higher levels save only a tenth."""
DICTIONARY_BYTES = 2048
"""Of the first map that is packed so much is the dictionary of all: most of a small one are names that all have."""


class KeptMap:
    """A topic's map, packed; packing and unpacking take some tens of microseconds a segment."""

    __slots__ = ("_packed",)
    _dictionary: ClassVar[bytes] = b""

    def __init__(self, topic_map: TopicMap) -> None:
        packed = io.BytesIO()
        pickler = pickle.Pickler(packed, pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = {MappingProxyType: _reduced}  # pickle does not support it by itself
        pickler.dump(topic_map)
        if not KeptMap._dictionary:
            KeptMap._dictionary = packed.getvalue()[:DICTIONARY_BYTES]
        compressor = zlib.compressobj(LEVEL, zdict=KeptMap._dictionary)
        self._packed = compressor.compress(packed.getbuffer()) + compressor.flush()

    def map(self) -> TopicMap:
        """Return the map as it was."""
        unpacked = zlib.decompressobj(zdict=KeptMap._dictionary).decompress(self._packed)
        found = pickle.loads(unpacked)  # noqa: S301 - our own values, which never leave the process
        assert isinstance(found, TopicMap)  # noqa: S101 - it was made here
        return found


def _view(values: dict[object, object]) -> Mapping[object, object]:
    return MappingProxyType(values)


def _reduced(view: Mapping[object, object]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return _view, (dict(view),)


log = structlog.get_logger(__name__)

PASS_S = 1.0
"""Pause between two checks for topics to suspend and to wake; a fourth of `after_s` where that is shorter."""
LOOKED_AT_S, LOOKED_AT_MAX_S = 0.1, 10.0
"""Pause between two checks of topics that were loaded for inspection only, and for how long these checks continue."""
WORTH = 10
"""A topic is suspended only if no duty is due within so many times `after_s`: loading it again has a price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleOptions:
    """Seconds without a change before a topic is suspended (0: never), and the longest time that it stays so."""

    after_s: float = 0.0
    again_s: float = 3600.0


class Cause(StrEnum):
    """Why a topic wakes."""

    SOURCE = "source"
    DUE = "due"
    USED = "used"
    POLICY = "policy"
    LEAVING = "leaving"


@dataclass(slots=True, eq=False, kw_only=True)
class IdleTopic:
    """A suspended topic: status, source and time when it was suspended, and when it wakes by itself (monotonic)."""

    record: TopicStatus
    session: Session
    snapshot: SourceSnapshot | None
    suspended_s: float
    due_s: float
    refreshed_s: float
    woken: Event = field(default_factory=Event)
    cause: Cause | None = None

    def wake(self, cause: Cause) -> None:
        """Have the topic loaded again; only the first cause counts."""
        if self.cause is None:
            self.cause = cause
            self.woken.set()

    def status(self, now_s: float) -> TopicStatus:
        """Return the topic's status, as its owner reports it while nothing changes."""
        found = self.measured(now_s)
        return found if self.snapshot is None else replace(found, looked_age_s=now_s - self.refreshed_s)

    def measured(self, now_s: float) -> TopicStatus:
        """Return the status for gauges: as it was, but for the age of segments that cannot be copied now."""
        mirror = self.record.mirror
        if mirror is None or not mirror.lag_segments:
            return self.record
        return replace(self.record, mirror=replace(mirror, lag_seconds=mirror.lag_seconds + now_s - self.suspended_s))


def is_quiet(topic: TopicOffloader) -> bool:
    """Return whether no work is under way: all known entries are committed, no push is open, and no call is at work."""
    tailer = topic.tailer
    if topic.pushers or topic.users or topic.stopping or topic.attempt is not None or topic.feed.first() is not None:
        return False
    if tailer is not None and not tailer.resting:
        return False
    if tailer is None and topic.closed_ledgers.keys() - topic.map.ends.keys():
        return False  # their ends are known here alone, by the pusher
    if topic.record.end_is_unrecorded() or topic.record.trash_due or topic.adoption.due() is not None:
        return False
    now = topic.status()
    busy = now.lag_entries != 0 or now.history is not None or now.unprotected_since_ms or now.spilled_entries
    return now.state == OFFLOADING and not busy and not now.buffer_bytes


class State(NamedTuple):
    """Values that change whenever something happens to a topic."""

    taken: Position
    offloaded: Position | None
    policy: RollPolicy
    used: int


class Supervised(Protocol):
    """One topic of this daemon: active, idle or being claimed."""

    topic: TopicName
    session: Session
    """The session of the claim, once there is one."""
    used: int
    """How many callers have requested the offloader."""
    offloader: TopicOffloader | None
    idle_topic: IdleTopic | None
    """The suspended topic; None from the moment that it has an offloader again."""
    untouched: State | None
    """The state in which the topic was loaded, if it was loaded for inspection only."""

    @property
    def stopping(self) -> bool:
        """Whether the topic was requested to stop."""
        ...

    def suspend(self, idle_topic: IdleTopic, topic_map: TopicMap) -> None:
        """Free all but the claim and what readers need; from this moment on nobody finds the offloader."""
        ...

    def end_turn(self) -> None:
        """Let another topic be loaded."""
        ...


def state_of(supervisor: Supervised, topic: TopicOffloader) -> State:
    """Return a topic's present state."""
    return State(topic.taken, topic.offloaded, topic.policy, supervisor.used)


async def snapshot_of(source: LedgerSource, topic: TopicName) -> SourceSnapshot | None:
    """Read the source's state as the tailer does; None when the source does not answer in full."""
    try:
        infos = tuple(await source.ledgers(topic))
        is_open = bool(infos) and not infos[-1].closed
        return SourceSnapshot(infos, await source.confirmed(topic, infos[-1].ledger_id) if is_open else None)
    except NotFound:
        return SourceSnapshot((), None)
    except OffloaderError:
        return None


class IdleTopics:
    """Suspends the idle topics of a daemon, and wakes them."""

    def __init__(
        self,
        context: OffloadContext,
        supervised: Mapping[TopicName, Supervised],
        options: IdleOptions,
        *,
        report: Callable[[TopicStatus], None],
    ) -> None:
        """Take the daemon's topics; `report` gets the status of each as it is suspended."""
        self.options = options
        self._report = report
        self._context = context
        self._supervised = supervised
        self._clock = context.upload_context.clock
        self._metrics = context.upload_context.metrics
        self._group = Group()
        self._quiet: dict[Supervised, tuple[State, float]] = {}
        """Since when a topic has been quiet (monotonic), and its state then."""
        self._untouched: dict[Supervised, float] = {}
        """Until when a topic loaded for inspection is expected to prove quiet (monotonic)."""
        self._expected = Signal()
        """Notified when there is one more of them."""
        self._listening: dict[Supervised, tuple[IdleTopic, asyncio.Task[None]]] = {}
        self._sessions: set[str] = set()

    async def run(self) -> None:
        """Check all topics at intervals until cancelled."""
        async with self._group:
            self._group.create_task(self._look(), name="topics loaded for inspection")
            begun_s = self._clock.monotonic()
            while True:
                after_s = self.options.after_s
                pause_s = min(PASS_S, after_s / 4) if after_s else PASS_S
                await self._clock.sleep(pause_after_pass(self._clock, begun_s, pause_s))
                begun_s = self._clock.monotonic()
                await self.check()

    async def _look(self) -> None:
        """Look at topics loaded for inspection, at short intervals while there are any, until cancelled."""
        while True:
            if not self._untouched:
                await self._expected.wait()
            await self._clock.sleep(LOOKED_AT_S)
            self._look_at_untouched()

    def taken_up(self, supervisor: Supervised) -> None:
        """Expect a topic loaded for inspection only to be suspended as soon as it proves to have no work.

        Its turn lasts until then, so that few such topics are active at a time: memory of one is reused for the next.
        """
        if self.options.after_s and supervisor.untouched is not None:
            self._untouched[supervisor] = self._clock.monotonic() + LOOKED_AT_MAX_S
            self._expected.notify()
        else:
            supervisor.end_turn()

    def _look_at_untouched(self) -> None:
        now_s = self._clock.monotonic()
        for supervisor, until_s in list(self._untouched.items()):
            topic = supervisor.offloader
            if topic is None or now_s > until_s or state_of(supervisor, topic) != supervisor.untouched:
                del self._untouched[supervisor]
            elif not supervisor.stopping and self._may_rest(topic, now_s):
                del self._untouched[supervisor]
                self._suspend(supervisor, topic, now_s)
            else:
                continue
            supervisor.end_turn()

    async def check(self) -> None:
        """Suspend the topics that have been quiet for long enough, and wake those that are due."""
        quiet, self._quiet = self._quiet, {}
        async for supervisors in in_turns(list(self._supervised.values())):
            now_s, after_s = self._clock.monotonic(), self.options.after_s
            for supervisor in supervisors:
                if (idle_topic := supervisor.idle_topic) is None:
                    self._check(supervisor, quiet.get(supervisor), now_s)
                elif idle_topic.due_s <= now_s or not after_s:
                    idle_topic.wake(Cause.DUE)
        for supervisor, (idle_topic, task) in list(self._listening.items()):
            if supervisor.idle_topic is not idle_topic:
                task.cancel()
                del self._listening[supervisor]

    def _check(self, supervisor: Supervised, known: tuple[State, float] | None, now_s: float) -> None:
        """Suspend an active topic if it has been quiet for long enough; `known` is what `_quiet` had of it."""
        topic, after_s = supervisor.offloader, self.options.after_s
        if topic is not None and after_s and not supervisor.stopping and self._may_rest(topic, now_s):
            state = state_of(supervisor, topic)
            since = known if known is not None and known[0] == state else (state, now_s)
            if state == supervisor.untouched or now_s - since[1] >= after_s:
                self._suspend(supervisor, topic, now_s)
            else:
                self._quiet[supervisor] = since

    def _may_rest(self, topic: TopicOffloader, now_s: float) -> bool:
        due_s = topic.rest.due_s
        return due_s is not None and due_s > now_s + WORTH * self.options.after_s and is_quiet(topic)

    def _suspend(self, supervisor: Supervised, topic: TopicOffloader, now_s: float) -> None:
        """Suspend a topic: from this moment on nobody finds its offloader."""
        again_s, tailer, now = self.options.again_s, topic.tailer, topic.status()
        self._report(now)
        idle_topic = IdleTopic(
            record=replace(now, asleep=True, segments=()),
            session=supervisor.session,
            snapshot=tailer.snapshot if tailer is not None else None,
            suspended_s=now_s,
            due_s=min(topic.rest.due_s or inf, now_s + again_s - self._clock.jitter(again_s / 5)),
            refreshed_s=now_s if tailer is None or tailer.refreshed_s is None else tailer.refreshed_s,
        )
        if idle_topic.session.session_id not in self._sessions:
            self._sessions.add(idle_topic.session.session_id)
            self._group.create_task(self._watch(idle_topic.session), name="session of sleeping topics")
        if self._context.source is not None:
            listening = self._listen(self._context.source, supervisor.topic, idle_topic)
            task = self._group.create_task(listening, name=f"source of {supervisor.topic}")
            self._listening[supervisor] = idle_topic, task
        supervisor.suspend(idle_topic, topic.map)
        log.debug("topic.suspended", topic=str(supervisor.topic), due_s=round(idle_topic.due_s - now_s, 1))

    async def _watch(self, session: Session) -> None:
        """Wake all topics whose claims end with a session."""
        await session.lost.wait()
        self._sessions.discard(session.session_id)
        for supervisor in self._supervised.values():
            idle_topic = supervisor.idle_topic
            if idle_topic is not None and idle_topic.session.session_id == session.session_id:
                idle_topic.wake(Cause.LEAVING)

    async def _listen(self, source: LedgerSource, topic: TopicName, idle_topic: IdleTopic) -> None:
        """Wake a topic once its source has changed.

        The watch continues until the tailer watches as well: without any watcher the source would begin anew.
        """
        try:
            async with aclosing(source.watch(topic)) as changes:
                async for _ in changes:
                    if await snapshot_of(source, topic) != idle_topic.snapshot:
                        idle_topic.wake(Cause.SOURCE)
                    idle_topic.refreshed_s = self._clock.monotonic()
        except OffloaderError as error:
            log.debug("source.not_watched", topic=str(topic), error=str(error))
            idle_topic.wake(Cause.SOURCE)
