"""Topics that nothing happens to: their owner keeps the claim and lets go of everything else until something does.

Most topics of a cluster are quiet at any time, and what works on one (its map, chain, buffer, and a task for each
duty) is many times what has to be known of it meanwhile. So a topic that has been quiet for a while is put down as if
it had been released, but for the claim: what is left of it is a `IdleTopic`. It is taken up again exactly as one that
was just claimed, from what is stored, without a new claim.

It may sleep when nothing has happened to it for `after_s`, or since it was taken up if that was to look at it only (a
daemon that starts has its quiet topics awake a few at a time): all that was confirmed is committed, nobody pushes or
asks, and every duty is at rest. Each says so itself, and when it has to go on (`duties.py`): one that says nothing
keeps the topic awake, so a new duty is safe before anybody thought of it. What falls between the decision and the end
of the tasks is cut off as by a crash, and is there when the topic wakes: nothing that was accepted and is nowhere else
is among it, for nobody finds the topic's buffer from that decision on.

It wakes when the source is not as it was (asked at each of its changes and heartbeats, as the tailer does; bells ring
for a ledger that grows), when a duty is due, when somebody uses it or its policy changes, when the session is lost, it
is handed over or the daemon stops; and at the latest after `again_s`, for what nobody tells: a job that has left
something on its trash list, a ledger's list that could not be watched.
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
from typing import Any, NamedTuple, Protocol

import structlog

from offloaderd.core.aio.groups import Group
from offloaderd.core.aio.signal import Event
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
"""Of compression: topics fall asleep by the thousand, and the higher ones save a tenth."""


class KeptMap:
    """A topic's map, packed; some tens of microseconds a segment to make and to look at."""

    __slots__ = ("_packed",)

    def __init__(self, topic_map: TopicMap) -> None:
        packed = io.BytesIO()
        pickler = pickle.Pickler(packed, pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = {MappingProxyType: _reduced}  # which pickle does not take by itself
        pickler.dump(topic_map)
        self._packed = zlib.compress(packed.getbuffer(), LEVEL)

    @property
    def packed_bytes(self) -> int:
        """How much it takes."""
        return len(self._packed)

    def map(self) -> TopicMap:
        """Return the map as it was."""
        found = pickle.loads(zlib.decompress(self._packed))  # noqa: S301 - our own values, which never leave the process
        assert isinstance(found, TopicMap)  # noqa: S101 - it was made here
        return found


def _view(values: dict[object, object]) -> Mapping[object, object]:
    return MappingProxyType(values)


def _reduced(view: Mapping[object, object]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return _view, (dict(view),)


log = structlog.get_logger(__name__)

PASS_S = 1.0
"""Pause between two looks at which topics may sleep, and which are due; shorter where they may sleep sooner."""
LOOKED_AT_S, LOOKED_AT_MAX_S = 0.1, 10.0
"""Pause between two looks at topics that were taken up just to be looked at, and for how long there are such looks."""
WORTH = 10
"""A topic sleeps if no duty is due before so many times what it has to be quiet for: taking it up has a price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleOptions:
    """How long a topic has to be quiet before it sleeps (0: none does), and how long it sleeps at most; seconds."""

    after_s: float = 0.0
    again_s: float = 3600.0


class Cause(StrEnum):
    """What woke a topic."""

    SOURCE = "source"
    DUE = "due"
    USED = "used"
    POLICY = "policy"
    LEAVING = "leaving"


@dataclass(slots=True, eq=False, kw_only=True)
class IdleTopic:
    """What is kept of a topic that sleeps: where it stands, how its source was, when it is due (monotonic)."""

    record: TopicStatus
    session: Session
    snapshot: SourceSnapshot | None
    due_s: float
    looked_s: float
    woken: Event = field(default_factory=Event)
    cause: Cause | None = None

    def wake(self, cause: Cause) -> None:
        """Have it taken up again; what woke it first is the cause."""
        if self.cause is None:
            self.cause = cause
            self.woken.set()

    def status(self, now_s: float) -> TopicStatus:
        """Describe it as its owner would, who has nothing to do."""
        return self.record if self.snapshot is None else replace(self.record, looked_age_s=now_s - self.looked_s)


def is_quiet(topic: TopicOffloader) -> bool:
    """Say whether nothing is under way: all that is known to exist is committed and nobody brings anything."""
    tailer = topic.tailer
    if topic.pushers or topic.stopping or topic.attempt is not None or topic.feed.first() is not None:
        return False
    if tailer is not None and not tailer.resting:
        return False
    if tailer is None and topic.closed_ledgers.keys() - topic.map.ends.keys():
        return False  # only whoever was told knows how they ended
    if topic.record.end_is_a_change() or topic.record.trash_due or topic.adoption.due() is not None:
        return False
    now = topic.status()
    busy = now.lag_entries != 0 or now.history is not None or now.unprotected_since_ms or now.spilled_entries
    return now.state == OFFLOADING and not busy and not now.buffer_bytes


class State(NamedTuple):
    """What of a topic changes when something happens to it."""

    taken: Position
    offloaded: Position | None
    policy: RollPolicy
    used: int


class Supervised(Protocol):
    """One topic of this daemon, awake, asleep or being claimed."""

    topic: TopicName
    session: Session
    """That of the claim, once there is one."""
    used: int
    """How often somebody wanted the offloader."""
    offloader: TopicOffloader | None
    idle_topic: IdleTopic | None
    """What is kept of the topic while there is no offloader; until there is one again."""
    untouched: State | None
    """How the topic was when it was taken up, if nobody wanted that for more than to look at it."""

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        ...

    def suspend(self, idle_topic: IdleTopic, topic_map: TopicMap) -> None:
        """Let go of all but the claim, and of what readers need; from this moment on nobody finds the offloader."""
        ...


def state_of(supervisor: Supervised, topic: TopicOffloader) -> State:
    """Return how a topic is now."""
    return State(topic.taken, topic.offloaded, topic.policy, supervisor.used)


async def snapshot_of(source: LedgerSource, topic: TopicName) -> SourceSnapshot | None:
    """Look at the source as the tailer does; None when it does not say all."""
    try:
        infos = tuple(await source.ledgers(topic))
        is_open = bool(infos) and not infos[-1].closed
        return SourceSnapshot(infos, await source.confirmed(topic, infos[-1].ledger_id) if is_open else None)
    except NotFound:
        return SourceSnapshot((), None)
    except OffloaderError:
        return None


class IdleTopics:
    """Puts the quiet topics of a daemon to sleep, and wakes them."""

    def __init__(
        self,
        context: OffloadContext,
        supervised: Mapping[TopicName, Supervised],
        options: IdleOptions,
        *,
        report: Callable[[TopicStatus], None],
    ) -> None:
        """Take the topics that are here; `report` hears of each as it was when it fell asleep."""
        self.options = options
        self._report = report
        self._context = context
        self._supervised = supervised
        self._clock = context.upload_context.clock
        self._metrics = context.upload_context.metrics
        self._group = Group()
        self._quiet: dict[Supervised, tuple[State, float]] = {}
        """Since when a topic has been quiet, and how it was then."""
        self._untouched: dict[Supervised, float] = {}
        """Until when a topic that was taken up to be looked at is expected to prove quiet."""
        self._listening: dict[Supervised, tuple[IdleTopic, asyncio.Task[None]]] = {}
        self._sessions: set[str] = set()

    async def run(self) -> None:
        """Look again and again until cancelled."""
        async with self._group:
            while True:
                after_s = self.options.after_s
                pause_s = min(PASS_S, after_s / 4) if after_s else PASS_S
                until_s = self._clock.monotonic() + pause_s
                while (left_s := until_s - self._clock.monotonic()) > 0:
                    await self._clock.sleep(min(LOOKED_AT_S, left_s))
                    self._look_at_untouched()
                self.look()

    def taken_up(self, supervisor: Supervised) -> None:
        """A topic was taken up to be looked at: it sleeps as soon as there turns out to be nothing to do."""
        if self.options.after_s:
            self._untouched[supervisor] = self._clock.monotonic() + LOOKED_AT_MAX_S

    def _look_at_untouched(self) -> None:
        now_s = self._clock.monotonic()
        for supervisor, until_s in list(self._untouched.items()):
            topic = supervisor.offloader
            if topic is None or now_s > until_s or state_of(supervisor, topic) != supervisor.untouched:
                del self._untouched[supervisor]
            elif not supervisor.stopping and self._may_rest(topic, now_s):
                del self._untouched[supervisor]
                self._suspend(supervisor, topic, now_s)

    def look(self) -> None:
        """Have those sleep that may, and those wake that are due. Decides without a pause."""
        now_s, after_s = self._clock.monotonic(), self.options.after_s
        quiet, self._quiet = self._quiet, {}
        for supervisor in list(self._supervised.values()):
            idle_topic, topic = supervisor.idle_topic, supervisor.offloader
            if idle_topic is not None:
                if idle_topic.due_s <= now_s or not after_s:
                    idle_topic.wake(Cause.DUE)
            elif topic is not None and after_s and not supervisor.stopping and self._may_rest(topic, now_s):
                state, known = state_of(supervisor, topic), quiet.get(supervisor)
                since = known if known is not None and known[0] == state else (state, now_s)
                if state == supervisor.untouched or now_s - since[1] >= after_s:
                    self._suspend(supervisor, topic, now_s)
                else:
                    self._quiet[supervisor] = since
        for supervisor, (idle_topic, task) in list(self._listening.items()):
            if supervisor.idle_topic is not idle_topic:
                task.cancel()
                del self._listening[supervisor]

    def _may_rest(self, topic: TopicOffloader, now_s: float) -> bool:
        due_s = topic.rest.due_s
        return due_s is not None and due_s > now_s + WORTH * self.options.after_s and is_quiet(topic)

    def _suspend(self, supervisor: Supervised, topic: TopicOffloader, now_s: float) -> None:
        """Have a topic sleep from this moment on: nobody finds its offloader any more."""
        again_s, tailer, now = self.options.again_s, topic.tailer, topic.status()
        self._report(now)
        idle_topic = IdleTopic(
            record=replace(now, asleep=True, segments=()),
            session=supervisor.session,
            snapshot=tailer.snapshot if tailer is not None else None,
            due_s=min(topic.rest.due_s or inf, now_s + again_s - self._clock.jitter(again_s / 5)),
            looked_s=now_s if tailer is None or tailer.looked_s is None else tailer.looked_s,
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
        """Wake a topic once its source is not as it was.

        The source is watched on until the tailer does so as well: it would begin anew without any watcher.
        """
        try:
            async with aclosing(source.watch(topic)) as changes:
                async for _ in changes:
                    if await snapshot_of(source, topic) != idle_topic.snapshot:
                        idle_topic.wake(Cause.SOURCE)
                    idle_topic.looked_s = self._clock.monotonic()
        except OffloaderError as error:
            log.debug("source.not_watched", topic=str(topic), error=str(error))
            idle_topic.wake(Cause.SOURCE)
