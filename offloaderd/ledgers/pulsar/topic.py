"""One topic: its ledgers in order and the end of the open one for readers, and its changes for watchers.

Rules: Pulsar's list has the order and the sizes of closed ledgers; BookKeeper has the state of those that the list
does not show as closed. A ledger that is not closed ends the list, whatever follows it. A deleted ledger is left out
for good, since ids are not reused.

The topic's list and the open ledger's node are watched. The open ledger's end is polled, often while it moves, ever
more rarely while it does not. A ledger whose end does not move has long polls (`long_poll`) instead; the next poll
follows when a long poll returns a newer LAC, when a node has changed, or when the long polls have ended. Where there
can be none, as each bookie has as many as it may, polls continue: the more topics are polled so, the more rarely each
(`SlowPolls`). Without an open ledger there are no polls. There is a task only while there are polls: `_wake` starts
another one.

Watchers are woken by changes, and after HEARTBEAT_S without a change (later where polls are rarer, or long polls of
more topics are out than BEATS_PER_S allows), which shows them how fresh their view is. During long polls a heartbeat
sends no request: the view of the last poll is still valid, since the bookie that holds the long
poll has answered some request within twice `request_timeout_s`, or the long poll would have failed.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field, replace
from itertools import islice
from math import ceil, inf

import structlog

from offloaderd.bookkeeper.ledger_tail import LedgerTail, TailAsker
from offloaderd.bookkeeper.long_poll import RETURN_S, LastAnswer, LongPolls, Silence
from offloaderd.bookkeeper.metadata import LedgerMetadata, LedgerState
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.aio import Tasks
from offloaderd.core.clock import Clock, Timer
from offloaderd.core.errors import Closed, CorruptData, NotFound, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Confirmed, Edge, LedgerInfo, TopicName
from offloaderd.core.names.managed_ledgers import misplaced_ledger
from offloaderd.ledgers.pulsar.directory import Directory
from offloaderd.ledgers.pulsar.managed_ledger import ListedLedger, ManagedLedger

log = structlog.get_logger(__name__)

STILL_S = 60.0
"""How long a broker may name a ledger that is not in the list yet."""
SLOWER = 1.5
"""Factor of each pause between two polls to the next while nothing moves."""
TICK_S = 0.05
"""Longer pauses end at multiples of this, so that the polls of many topics share packets."""
HEARTBEAT_S = 10.0
"""Interval in which watchers are woken without a change, to show how fresh their view is."""
BEATS_PER_S = 100
"""Most heartbeats of topics with long polls in a second: of thousands of them each gets one more rarely."""
NONE_DELETED: frozenset[int] = frozenset()
"""One for all topics: each empty set that Python makes has 216 bytes."""
PULSE_S = 0.5
"""Interval of steps in which topics with long polls get their heartbeats, a share of them in each."""


class Topic:
    """The state of one topic, shared by its readers and watchers."""

    __slots__ = (
        "_closed_ms",
        "_created_ms",
        "_deleted",
        "_edge",
        "_listed",
        "_placed",
        "_tails",
        "asker",
        "directory",
        "name",
    )

    def __init__(self, name: TopicName, directory: Directory, asker: TailAsker) -> None:
        self.name = name
        self.directory = directory
        self.asker = asker
        self._tails: dict[int, LedgerTail] = {}
        self._edge = Edge.NEXT_WRITE
        self._placed: LedgerMetadata | None = None
        self._deleted = NONE_DELETED
        self._closed_ms: dict[int, int] = {}
        self._created_ms: dict[int, int] = {}
        self._listed: tuple[ManagedLedger, int, list[LedgerInfo]] | None = None

    async def ledgers(self) -> Sequence[LedgerInfo]:
        """Return the ledgers in order, all but the last closed. Raises NotFound, CorruptData."""
        managed = await self.directory.topic(self.name)
        infos = self._closed_by_list(managed)
        begun = len(infos)
        infos = infos.copy()
        for listed in self._present(managed)[begun:]:
            info = await self._info(listed)
            if info is not None:
                infos.append(info)
                if not info.closed:
                    break
        if infos:
            infos[-1] = replace(infos[-1], listing=managed.listing)
        return infos

    async def offloaded(self) -> Sequence[LedgerInfo]:
        """Return the ledgers that a broker has offloaded as a whole, also those deleted from BookKeeper."""
        managed = await self.directory.topic(self.name)
        return [_info_of(listed) for listed in managed.ledgers if listed.offloaded is not None and _complete(listed)]

    async def confirmed(self, ledger_id: int) -> Confirmed:
        """Return how far a ledger may be read. Raises NotFound, CorruptData, Transient, Denied."""
        listed = await self._find(ledger_id)
        if _complete(listed):
            return Confirmed((listed.entries or 0) - 1, closed=True)
        metadata = await self.metadata(ledger_id)
        if metadata.last_entry_id is not None:
            return Confirmed(metadata.last_entry_id, closed=True)
        if metadata.state is LedgerState.IN_RECOVERY:
            return self.tail(ledger_id).frozen(metadata)
        return await self.tail(ledger_id).ask(metadata)

    async def readable(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """Return a ledger's metadata and the last entry that is known as confirmed without requests to bookies.

        Raises NotFound, and CorruptData where list and BookKeeper differ in a closed ledger: readers pass to the next
        ledger by the list, so entries could stay unread.
        """
        listed = await self._find(ledger_id)
        metadata = await self.metadata(ledger_id)
        known = metadata.confirmed_at_least
        if _complete(listed):
            known = (listed.entries or 0) - 1
            if metadata.last_entry_id not in {None, known} or metadata.confirmed_at_least > known:
                path = await self.directory.ledger_path(ledger_id)
                expected = f"{listed.entries} entries, as the list of {self.name} says"
                raise CorruptData(key=path, offset=0, expected=expected, found=metadata.confirmed_at_least + 1)
        tail = self._tails.get(ledger_id)
        return metadata, known if tail is None else max(known, tail.lac)

    async def metadata(self, ledger_id: int, *, fresh: bool = False) -> LedgerMetadata:
        """Return BookKeeper's metadata of one of the topic's ledgers.

        Raises NotFound for a deleted one, CorruptData for one of another topic, or without all confirmed entries.
        """
        try:
            metadata = await self.directory.ledger(ledger_id, fresh=fresh)
        except NotFound:
            self.vanished(ledger_id)
            raise
        if metadata is not self._placed:
            reason = misplaced_ledger(metadata.custom, self.name)
            if reason is not None:
                path = await self.directory.ledger_path(ledger_id)
                raise CorruptData(key=path, offset=0, expected=f"a ledger of {self.name}", found=reason)
            self._placed = metadata
        self._note(ledger_id, metadata)
        tail = self._tails.get(ledger_id)
        if metadata.last_entry_id is not None and tail is not None:
            tail.closed(metadata.last_entry_id, await self.directory.ledger_path(ledger_id))
            self._edge = self._tails.pop(ledger_id, tail).edge
        return metadata

    async def inspected(self, ledger_id: int) -> LedgerInfo:
        """Return a ledger as BookKeeper has it now. Raises NotFound, CorruptData."""
        metadata = await self.directory.ledger(ledger_id, fresh=True)
        self._note(ledger_id, metadata)
        return _by_metadata(ledger_id, metadata)

    async def standing_still(self) -> str | None:
        """Return that for STILL_S the broker has named a ledger that a fresh list lacks; None if not."""
        now_s = self.asker.clock.monotonic()
        named = [tail.overtaken for tail in self._tails.values() if tail.overtaken is not None]
        if not named or now_s - min(named)[1] < STILL_S:
            return None
        newest = max(await self.directory.listed(self.name), default=-1)
        if newest >= min(named)[0]:
            return None
        return (
            f"the broker of {self.name} writes ledger {min(named)[0]} and the list of its ledgers ends with {newest}: "
            "it stands still, as if the cluster kept its metadata elsewhere by now"
        )

    def _note(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """Remember when a ledger was made, for lists that need nothing else from BookKeeper."""
        if metadata.ctime_ms is not None and self._created_ms.get(ledger_id) != metadata.ctime_ms:
            self._created_ms[ledger_id] = metadata.ctime_ms
            self._listed = None

    def vanished(self, ledger_id: int) -> None:
        """Leave out a deleted ledger from now on."""
        if ledger_id not in self._deleted:
            log.info("source.ledger_deleted", topic=str(self.name), ledger_id=ledger_id)
        self._deleted |= {ledger_id}
        self._tails.pop(ledger_id, None)

    async def open_ledger(self) -> int | None:
        """Return the ledger that is open, None when there is none. Raises NotFound, CorruptData."""
        infos = await self.ledgers()
        return infos[-1].ledger_id if infos and not infos[-1].closed else None

    def tail(self, ledger_id: int) -> LedgerTail:
        """Return the end of an open ledger; its `edge` begins as that of the ledger before."""
        tail = self._tails.get(ledger_id)
        if tail is None:
            tail = self._tails[ledger_id] = LedgerTail(self.name, ledger_id, self.asker, edge=self._edge)
        return tail

    async def _find(self, ledger_id: int) -> ListedLedger:
        managed = await self.directory.topic(self.name)
        listed = next((listed for listed in reversed(managed.ledgers) if listed.ledger_id == ledger_id), None)
        if listed is None or _deleted_by_list(listed) or ledger_id in self._deleted:
            raise NotFound(f"no ledger {ledger_id} in {self.name}", hint="it may have been deleted")
        return listed

    def _present(self, managed: ManagedLedger) -> list[ListedLedger]:
        return [each for each in managed.ledgers if not _deleted_by_list(each) and each.ledger_id not in self._deleted]

    def _closed_by_list(self, managed: ManagedLedger) -> list[LedgerInfo]:
        """Return the first ledgers of the list that it shows as closed, cached: it changes rarely."""
        if self._listed is None or self._listed[0] is not managed or self._listed[1] != len(self._deleted):
            listed = {each.ledger_id for each in managed.ledgers}
            if self._deleted:
                self._deleted &= listed
            self._created_ms = {one: at for one, at in self._created_ms.items() if one in listed}
            infos = []
            for each in self._present(managed):
                if not _complete(each):
                    break
                infos.append(_info_of(each, self._created_ms.get(each.ledger_id)))
            self._listed = (managed, len(self._deleted), infos)
        return self._listed[2]

    async def _info(self, listed: ListedLedger) -> LedgerInfo | None:
        if _complete(listed):
            return _info_of(listed, self._created_ms.get(listed.ledger_id))
        try:
            info = _by_metadata(listed.ledger_id, await self.metadata(listed.ledger_id), listed)
        except NotFound:
            return None
        if info.closed:
            closed_ms = self._closed_ms.setdefault(info.ledger_id, self.asker.clock.wall_ms())
            return replace(info, closed_at_ms=listed.closed_at_ms or closed_ms)
        tail = self._tails.get(info.ledger_id)
        if tail is None:
            return info
        return replace(info, entries=max(info.entries, tail.lac + 1), size_bytes=tail.size_bytes)


def _complete(listed: ListedLedger) -> bool:
    """Whether the list alone has the sizes of a closed ledger."""
    return listed.closed and listed.entries is not None and listed.size_bytes is not None


def _deleted_by_list(listed: ListedLedger) -> bool:
    """Whether Pulsar offloaded the ledger itself and deleted it from BookKeeper."""
    return listed.offload is not None and listed.offload.bookkeeper_deleted


def _by_metadata(ledger_id: int, metadata: LedgerMetadata, listed: ListedLedger | None = None) -> LedgerInfo:
    return LedgerInfo(
        ledger_id=ledger_id,
        closed=metadata.closed,
        entries=metadata.confirmed_at_least + 1,
        size_bytes=metadata.length_bytes or 0,
        previous=listed.previous if listed is not None else None,
        created_ms=metadata.ctime_ms,
        replaces=listed is not None and listed.replaces,
    )


def _info_of(listed: ListedLedger, created_ms: int | None = None) -> LedgerInfo:
    return LedgerInfo(
        ledger_id=listed.ledger_id,
        closed=True,
        entries=listed.entries or 0,
        size_bytes=listed.size_bytes or 0,
        closed_at_ms=listed.closed_at_ms or 0,
        offloaded=listed.offloaded,
        previous=listed.previous,
        created_ms=created_ms,
    )


class Alarm:
    """A sleep that a signal ends; a signal without a sleeper ends the next sleep."""

    __slots__ = ("_background", "_clock", "_sleeping", "woken")

    def __init__(self, background: Tasks, clock: Clock) -> None:
        self._background = background
        self._clock = clock
        self.woken = False
        """Whether there was a signal since the last sleep."""
        self._sleeping: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """End the sleep, or the next one."""
        self.woken = True
        if self._sleeping is not None:
            self._sleeping.cancel()

    async def sleep(self, seconds: float) -> None:
        """Return at a signal, or after `seconds`. Raises Closed."""
        if not self.woken:
            self._sleeping = self._background.start(self._clock.sleep(seconds), name="pause")
            try:
                await asyncio.wait((self._sleeping,))
            finally:
                self._sleeping.cancel()
                self._sleeping = None
        self.woken = False


class Pulse:
    """The heartbeats of all topics with long polls: one timer for them together."""

    def __init__(self, background: Tasks, clock: Clock) -> None:
        self._background = background
        self._clock = clock
        self._beats: dict[Callable[[], None], float] = {}
        """The time of each one's last heartbeat; the next one is the first."""
        self._task: asyncio.Task[None] | None = None

    def join(self, beat: Callable[[], None], last_s: float) -> None:
        """Call `beat` about every HEARTBEAT_S from `last_s` on, until `leave`."""
        self._beats[beat] = last_s
        if self._task is None:
            self._task = self._background.start(self._run(), name="heartbeats")

    def leave(self, beat: Callable[[], None]) -> None:
        """Call it no more; an unknown one is no error."""
        self._beats.pop(beat, None)

    async def _run(self) -> None:
        while self._beats:
            now = self._clock.monotonic()
            share = min(ceil(2 * len(self._beats) * PULSE_S / HEARTBEAT_S), round(BEATS_PER_S * PULSE_S))
            for beat, last_s in list(islice(self._beats.items(), share)):
                if now - last_s >= HEARTBEAT_S:
                    del self._beats[beat]
                    self._beats[beat] = now
                    beat()
            await self._clock.sleep(PULSE_S)
        self._task = None


class SlowPolls:
    """The quiet topics that are polled, as they have no long poll: together no more than `idle_polls_per_s`."""

    def __init__(self, options: BookkeeperSettings, metrics: Metrics) -> None:
        self._options = options
        self._topics: set[TopicName] = set()
        metrics.source_polled_topics.set_function(lambda: len(self._topics))

    @property
    def pause_s(self) -> float:
        """The longest pause between two polls of one of them."""
        return max(self._options.poll_max_s, len(self._topics) / self._options.idle_polls_per_s)

    def note(self, topic: TopicName, *, polled: bool) -> None:
        """Note whether a topic is one of them."""
        if polled:
            self._topics.add(topic)
        else:
            self._topics.discard(topic)


@dataclass(slots=True, eq=False)
class Follower:
    """Watches one topic for all its watchers; `on_change` wakes them."""

    topic: Topic
    long_polls: InitVar[LongPolls]
    slow_polls: SlowPolls
    pulse: Pulse
    on_change: Callable[[], None]
    watchers: int = 0
    _silence: Silence = field(init=False)
    _quiet: LedgerTail | None = None
    """The open ledger's end during long polls."""
    _open_id: int | None = None
    _alarm: Alarm = field(init=False)
    _followed: tuple[str, ...] = ()
    _notified_s: float = field(init=False)
    _pause_s: float = field(init=False)
    _state: object = None
    """The result of the last poll."""
    _task: asyncio.Task[None] | None = field(init=False)
    """The polls; None while there are none before a signal, or before `_timer` is due."""
    _timer: Timer | None = None
    """It begins the next poll of a quiet topic: thousands of tasks that wait would take much memory."""
    _in_turn: bool = False
    """Whether its polls come at the longest pause, and at a time of their own."""

    def __post_init__(self, long_polls: LongPolls) -> None:
        self._silence = Silence(long_polls)
        self._alarm = Alarm(self.topic.asker.background, self.topic.asker.clock)
        self._notified_s = self.topic.asker.clock.monotonic()
        self._pause_s = self.topic.asker.options.poll_min_s
        self._task = self.topic.asker.background.start(self._run(), name=f"follow {self.topic.name}")

    def stop(self) -> None:
        """End all tasks and watches."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._end_long_polls()
        self.slow_polls.note(self.topic.name, polled=False)
        for path in self._followed:
            self.topic.directory.nodes.unfollow(path)

    def _wake(self) -> None:
        """Begin a poll now, or after the one that is under way: something has happened, perhaps to all topics."""
        self._in_turn = False
        self._begin()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._alarm.wake()
        if self._task is None and self.watchers:
            with suppress(Closed):
                self._task = self.topic.asker.background.start(self._run(), name=f"follow {self.topic.name}")

    async def _run(self) -> None:
        """Poll, again and again, until nothing is to be done before a signal."""
        if not self._followed:
            self._follow(self.topic.directory.topic_path(self.topic.name))
        options = self.topic.asker.options
        while True:
            self._alarm.woken = False
            await self._resume_polls()
            try:
                known: Confirmed | OffloaderError | None = await self._poll()
            except Closed:
                return
            except OffloaderError as error:
                known = error
            moved = isinstance(known, Confirmed) and known != self._state
            notified_before_s = self.topic.asker.clock.monotonic() - self._notified_s
            if moved or type(known) is not type(self._state) or notified_before_s >= HEARTBEAT_S:
                self._notify()
            self._pause_s = options.poll_min_s if moved else min(self._pause_s * SLOWER, self.slow_polls.pause_s)
            self._state = known
            self._silence.polled(moved=moved)
            nothing_open = known is None or isinstance(known, NotFound)
            slow = not moved and self._pause_s >= options.poll_max_s
            rests = nothing_open or (slow and await self._begin_long_polls(known))
            self.slow_polls.note(self.topic.name, polled=slow and not rests)
            pause_s = self._aligned(min(self._own_pause_s(slow=slow), self._broker_pause_s(known)))
            if not (rests or slow):
                await self._alarm.sleep(pause_s)
            elif not self._alarm.woken:
                if not rests:
                    self._timer = self.topic.asker.clock.call_later(pause_s, self._begin)
                break
        self._task = None

    def _own_pause_s(self, *, slow: bool) -> float:
        """Return the pause before the next poll; the first of the longest ones is drawn evenly from up to that.

        What wakes one topic wakes all of them at times, as the end of a session: each time after it they would be
        polled in one moment.
        """
        before, self._in_turn = self._in_turn, slow and self._pause_s >= self.slow_polls.pause_s
        if before or not self._in_turn:
            return self._pause_s
        return 2 * self.topic.asker.clock.jitter(self._pause_s) - self._pause_s

    def _broker_pause_s(self, known: Confirmed | OffloaderError | None) -> float:
        """Return the longest pause before a poll that asks the broker for hidden entries; inf when none does."""
        if not isinstance(known, Confirmed) or known.closed or self._open_id is None:
            return inf
        return max(self.topic.asker.options.poll_max_s, self.topic.tail(self._open_id).broker_due_s)

    async def _begin_long_polls(self, known: Confirmed | OffloaderError | None) -> bool:
        """Begin long polls; return False where that is of no use, or impossible."""
        if not isinstance(known, Confirmed) or known.closed or self._open_id is None:
            return False
        try:
            metadata = await self.topic.metadata(self._open_id)
        except OffloaderError:
            return False
        tail = self.topic.tail(self._open_id) if metadata.last_entry_id is None else None
        if tail is None or tail.broker_due_s < self.topic.asker.options.poll_max_s:
            return False
        if not self._silence.begin(tail.ledger_id, metadata, tail.last_answer, self._wake, tail.broker_due_s):
            return False
        self._quiet = tail
        tail.on_change = self._wake
        self.pulse.join(self._heartbeat, self._notified_s)
        return True

    async def _resume_polls(self) -> None:
        """End the long polls, if there are any, and use their outcome."""
        tail, last_answer = self._quiet, self._end_long_polls()
        if tail is not None and last_answer is LastAnswer.NEWER:
            tail.doubt()
        elif last_answer is LastAnswer.FAILED:
            await self._alarm.sleep(self.topic.asker.clock.jitter(RETURN_S))

    def _end_long_polls(self) -> LastAnswer | None:
        """End the long polls; return how they ended, None where none has."""
        tail, self._quiet = self._quiet, None
        if tail is None:
            return None
        tail.on_change = None
        self.pulse.leave(self._heartbeat)
        return self._silence.cancel()

    def _heartbeat(self) -> None:
        """Wake the watchers if their view is fresh."""
        if self._quiet is not None and self._silence.active:
            self._quiet.vouch()
            self._notify()

    def _aligned(self, pause_s: float) -> float:
        """Return a pause of about this length that ends when other topics are polled as well."""
        if pause_s < 10 * TICK_S:
            return pause_s
        now_s = self.topic.asker.clock.monotonic()
        return ceil((now_s + pause_s) / TICK_S) * TICK_S - now_s

    async def _poll(self) -> Confirmed | None:
        """Return the end of the open ledger, and follow its node from now on; None when none is open."""
        listed = self.topic.directory.topic_path(self.topic.name)
        self._open_id = ledger_id = await self.topic.open_ledger()
        if ledger_id is None:
            self._follow(listed)
            return None
        self._follow(listed, await self.topic.directory.ledger_path(ledger_id))
        return await self.topic.confirmed(ledger_id)

    def _follow(self, *paths: str) -> None:
        before, self._followed = self._followed, paths
        for path in before:
            if path not in paths:
                self.topic.directory.nodes.unfollow(path)
        for path in paths:
            if path not in before:
                self.topic.directory.nodes.follow(path, self._on_node_change)

    def _on_node_change(self) -> None:
        """Wake the watchers and poll again: a node may have changed."""
        self._wake()
        self._notify()

    def _notify(self) -> None:
        self._notified_s = self.topic.asker.clock.monotonic()
        self.on_change()
