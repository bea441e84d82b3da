"""Changes of one topic for all its watchers, at nearly no cost while there are none.

The topic's list and the open ledger's node are watched, and the open ledger's end is polled, often while it moves, ever
more rarely while it does not. A quiet ledger has long polls (`long_poll`) instead: the next poll comes when one has a
newer LAC, when a node changed, or when the long polls have ended. Without an open ledger there are no polls. There is a
task only while there are polls: `_wake` begins another one.

Watchers are woken by changes, and every HEARTBEAT_S without any, to show how fresh their view is. During long polls
their view is from the last poll and still valid: a heartbeat sends no request, since the bookie that holds the long
poll answered something within the last twice `request_timeout_s`, or the long poll would have failed.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from itertools import islice
from math import ceil

from offloaderd.bookkeeper.ledger_tail import LedgerTail, TailAsker
from offloaderd.bookkeeper.long_poll import RETURN_S, LastAnswer, LongPolls, Silence
from offloaderd.core.aio import Tasks
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, NotFound, OffloaderError
from offloaderd.core.model import Confirmed
from offloaderd.ledgers.pulsar.directory import Directory
from offloaderd.ledgers.pulsar.topic import Topic

SLOWER = 1.5
"""Factor of each pause between two polls to the next while nothing moves."""
TICK_S = 0.05
"""Longer pauses end at multiples of this, so that the polls of many topics share packets."""
HEARTBEAT_S = 10.0
"""Interval in which watchers are woken without a change, to show how fresh their view is."""
PULSE_S = 0.5
"""Interval of steps in which topics with long polls get their heartbeats, a share of them in each."""


class Alarm:
    """A sleep that a signal ends; a signal without a sleeper ends the next sleep."""

    __slots__ = ("_background", "_clock", "_sleeping", "woken")

    def __init__(self, background: Tasks, clock: Clock) -> None:
        self._background = background
        self._clock = clock
        self.woken = False
        """Whether there was a signal since the last sleep or `forget`."""
        self._sleeping: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """End the sleep, or the next one."""
        self.woken = True
        if self._sleeping is not None:
            self._sleeping.cancel()

    def forget(self) -> None:
        """Drop the signal."""
        self.woken = False

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
            share = ceil(2 * len(self._beats) * PULSE_S / HEARTBEAT_S)
            for beat, last_s in list(islice(self._beats.items(), share)):
                if now - last_s >= HEARTBEAT_S:
                    del self._beats[beat]
                    self._beats[beat] = now
                    beat()
            await self._clock.sleep(PULSE_S)
        self._task = None


@dataclass(slots=True, eq=False)
class Follower:
    """Watches one topic for all its watchers; `on_change` wakes them."""

    topic: Topic
    directory: Directory
    asker: TailAsker
    background: Tasks
    long_polls: InitVar[LongPolls]
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
    """The polls; None while there are none before a signal."""

    def __post_init__(self, long_polls: LongPolls) -> None:
        self._silence = Silence(long_polls)
        self._alarm = Alarm(self.background, self.asker.clock)
        self._notified_s = self.asker.clock.monotonic()
        self._pause_s = self.asker.options.poll_min_s
        self._task = self.background.start(self._run(), name=f"follow {self.topic.name}")

    def stop(self) -> None:
        """End all tasks and watches."""
        if self._task is not None:
            self._task.cancel()
        self._end_long_polls()
        for path in self._followed:
            self.directory.nodes.unfollow(path)

    def _wake(self) -> None:
        """Begin a poll now, or after the one that is under way."""
        self._alarm.wake()
        if self._task is None and self.watchers:
            with suppress(Closed):
                self._task = self.background.start(self._run(), name=f"follow {self.topic.name}")

    async def _run(self) -> None:
        """Poll, again and again, until nothing is to be done before a signal."""
        if not self._followed:
            self._follow(self.directory.topic_path(self.topic.name))
        options = self.asker.options
        while True:
            self._alarm.forget()
            await self._resume_polls()
            try:
                known: Confirmed | OffloaderError | None = await self._poll()
            except Closed:
                return
            except OffloaderError as error:
                known = error
            moved = isinstance(known, Confirmed) and known != self._state
            notified_before_s = self.asker.clock.monotonic() - self._notified_s
            if moved or type(known) is not type(self._state) or notified_before_s >= HEARTBEAT_S:
                self._notify()
            self._pause_s = options.poll_min_s if moved else min(self._pause_s * SLOWER, options.poll_max_s)
            self._state = known
            self._silence.polled(moved=moved)
            nothing_open = known is None or isinstance(known, NotFound)
            slow = not moved and self._pause_s >= options.poll_max_s
            if not (nothing_open or (slow and await self._begin_long_polls(known))):
                await self._alarm.sleep(self._aligned(self._pause_s))
            elif not self._alarm.woken:
                break
        self._task = None

    async def _begin_long_polls(self, known: Confirmed | OffloaderError | None) -> bool:
        """Begin long polls; return False where that is of no use, or impossible."""
        if not isinstance(known, Confirmed) or known.closed or self._open_id is None:
            return False
        try:
            metadata = await self.topic.metadata(self._open_id)
        except OffloaderError:
            return False
        tail = self.topic.tail(self._open_id) if metadata.last_entry_id is None else None
        if tail is None or tail.broker_due_s < self.asker.options.poll_max_s:
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
            await self._alarm.sleep(self.asker.clock.jitter(RETURN_S))

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
        now_s = self.asker.clock.monotonic()
        return ceil((now_s + pause_s) / TICK_S) * TICK_S - now_s

    async def _poll(self) -> Confirmed | None:
        """Return the end of the open ledger, and follow its node from now on; None when none is open."""
        listed = self.directory.topic_path(self.topic.name)
        self._open_id = ledger_id = await self.topic.open_ledger()
        if ledger_id is None:
            self._follow(listed)
            return None
        self._follow(listed, await self.directory.ledger_path(ledger_id))
        return await self.topic.confirmed(ledger_id)

    def _follow(self, *paths: str) -> None:
        before, self._followed = self._followed, paths
        for path in before:
            if path not in paths:
                self.directory.nodes.unfollow(path)
        for path in paths:
            if path not in before:
                self.directory.nodes.follow(path, self._on_node_change)

    def _on_node_change(self) -> None:
        """Wake the watchers and poll again: a node may have changed."""
        self._wake()
        self._notify()

    def _notify(self) -> None:
        self._notified_s = self.asker.clock.monotonic()
        self.on_change()
