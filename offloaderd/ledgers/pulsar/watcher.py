"""News of one topic for all who watch it, at the cost of nearly nothing while there are none.

The topic's list and the open ledger's node are watched, and the open ledger's end is asked for, often while it moves,
ever more rarely while it does not. Of a ledger that stays quiet the bookies are to tell (`long_polls`), and the next
poll is when one did, when a node changed, or when the bells come back. Nothing is asked while nothing is open. There
is a task only for as long as there are polls: what rings begins another one.

Watchers are woken by news, and every HEARTBEAT_S without any, so that they can tell how fresh their view is. While
bells hang their view is as old as the last poll and holds all the same: at a heartbeat no bookie is asked, for the one
that holds the bell answered something within the last twice `request_timeout_s`, or the bell would be broken.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from math import ceil

from offloaderd.bookkeeper.background import Alarm, Background
from offloaderd.bookkeeper.ledger_tail import LedgerTail, TailAsker
from offloaderd.bookkeeper.long_poll import RETURN_S, LastAnswer, LongPolls, Silence
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Closed, NotFound, OffloaderError
from offloaderd.core.model import Confirmed
from offloaderd.ledgers.pulsar.directory import Directory
from offloaderd.ledgers.pulsar.topic import Topic

SLOWER = 1.5
"""How much longer each pause between two polls gets while nothing moves."""
TICK_S = 0.05
"""Longer pauses end at multiples of this, so that the polls of many topics share packets."""
HEARTBEAT_S = 10.0
"""Watchers are woken this often without news, so that they can tell how fresh their view is."""
PULSE_S = 0.5
"""The heartbeats of topics that rest come in such steps, and only a share of them in each."""


class Pulse:
    """The heartbeats of all topics whose bells hang: one timer for them together."""

    def __init__(self, background: Background, clock: Clock) -> None:
        self._background = background
        self._clock = clock
        self._beats: dict[Callable[[], None], float] = {}
        """When each was told last; the next one is the first."""
        self._task: asyncio.Task[None] | None = None

    def join(self, beat: Callable[[], None], told_s: float) -> None:
        """Call `beat` about HEARTBEAT_S after it was told, and so on until it leaves."""
        self._beats[beat] = told_s
        if self._task is None:
            self._task = self._background.start(self._run(), name="heartbeats")

    def leave(self, beat: Callable[[], None]) -> None:
        """Call it no more; one that is not there is no error."""
        self._beats.pop(beat, None)

    async def _run(self) -> None:
        while self._beats:
            now = self._clock.monotonic()
            share = ceil(2 * len(self._beats) * PULSE_S / HEARTBEAT_S)
            for beat, told_s in list(islice(self._beats.items(), share)):
                if now - told_s >= HEARTBEAT_S:
                    del self._beats[beat]
                    self._beats[beat] = now
                    beat()
            await self._clock.sleep(PULSE_S)
        self._task = None


class Follower:
    """Watches one topic for all its watchers."""

    __slots__ = (
        "_asker",
        "_background",
        "_change_signal",
        "_changed",
        "_directory",
        "_followed",
        "_open_id",
        "_pause_s",
        "_pulse",
        "_resting",
        "_seen",
        "_silence",
        "_task",
        "_told_s",
        "_topic",
        "watchers",
    )

    def __init__(
        self,
        topic: Topic,
        directory: Directory,
        asker: TailAsker,
        background: Background,
        long_polls: LongPolls,
        pulse: Pulse,
        change_signal: Callable[[], None],
    ) -> None:
        self._topic = topic
        self._directory = directory
        self._asker = asker
        self._background = background
        self._pulse = pulse
        self._change_signal = change_signal
        self._silence = Silence(long_polls)
        self._resting: LedgerTail | None = None
        """The open ledger's end while bells hang."""
        self._open_id: int | None = None
        self._changed = Alarm(background, asker.clock)
        self._followed: tuple[str, ...] = ()
        self._told_s = asker.clock.monotonic()
        self._pause_s = asker.options.poll_min_s
        self._seen: object = None
        """What the last poll brought."""
        self.watchers = 0
        self._task: asyncio.Task[None] | None = background.start(self._run(), name=f"follow {topic.name}")
        """What polls; None while there is nothing to do before something rings."""

    def stop(self) -> None:
        """Follow nothing any more."""
        if self._task is not None:
            self._task.cancel()
        self._end_rest()
        for path in self._followed:
            self._directory.nodes.unfollow(path)

    def _ring(self) -> None:
        """Have a poll begin now, or after the one that is under way."""
        self._changed.ring()
        if self._task is None and self.watchers:
            with suppress(Closed):
                self._task = self._background.start(self._run(), name=f"follow {self._topic.name}")

    async def _run(self) -> None:
        """Poll, again and again, until there is nothing to do before something rings."""
        if not self._followed:
            self._follow(self._directory.topic_path(self._topic.name))
        options = self._asker.options
        while True:
            self._changed.forget()
            await self._rise()
            try:
                known: Confirmed | OffloaderError | None = await self._poll()
            except Closed:
                return
            except OffloaderError as error:
                known = error
            moved = isinstance(known, Confirmed) and known != self._seen
            told_before_s = self._asker.clock.monotonic() - self._told_s
            if moved or _state(known) != _state(self._seen) or told_before_s >= HEARTBEAT_S:
                self._tell()
            self._pause_s = options.poll_min_s if moved else min(self._pause_s * SLOWER, options.poll_max_s)
            self._seen = known
            self._silence.looked(moved=moved)
            nothing_open = known is None or isinstance(known, NotFound)
            slow = not moved and self._pause_s >= options.poll_max_s
            if not (nothing_open or (slow and await self._listens(known))):
                await self._changed.sleep(self._aligned(self._pause_s))
            elif not self._changed.rung:
                break
        self._task = None

    async def _listens(self, known: Confirmed | OffloaderError | None) -> bool:
        """Have the bookies tell when there is more; False where that cannot be had."""
        if not isinstance(known, Confirmed) or known.closed or self._open_id is None:
            return False
        try:
            metadata = await self._topic.metadata(self._open_id)
        except OffloaderError:
            return False
        tail = self._topic.tail(self._open_id) if metadata.last_entry_id is None else None
        if tail is None or tail.broker_due_s < self._asker.options.poll_max_s:
            return False
        if not self._silence.hang(tail.ledger_id, metadata, tail.last_answer, self._ring, tail.broker_due_s):
            return False
        self._resting = tail
        tail.tell(self._ring)
        self._pulse.join(self._vouch, self._told_s)
        return True

    async def _rise(self) -> None:
        """Take the bells down, if they hang, and heed what they said."""
        tail, last_answer = self._resting, self._end_rest()
        if tail is not None and last_answer is LastAnswer.RUNG:
            tail.doubt()
        elif last_answer is LastAnswer.BROKEN:
            await self._changed.sleep(self._asker.clock.jitter(RETURN_S))

    def _end_rest(self) -> LastAnswer | None:
        """Have nobody tell of news any more; returns how the wait for a bell ended, if that is what ended."""
        tail, self._resting = self._resting, None
        if tail is None:
            return None
        tail.tell(None)
        self._pulse.leave(self._vouch)
        return self._silence.take_down()

    def _vouch(self) -> None:
        """Tell the watchers that their view is fresh, if it is."""
        if self._resting is not None and self._silence.kept:
            self._resting.vouch()
            self._tell()

    def _aligned(self, pause_s: float) -> float:
        """Return about as long a pause, at whose end other topics are polled as well."""
        if pause_s < 10 * TICK_S:
            return pause_s
        now_s = self._asker.clock.monotonic()
        return ceil((now_s + pause_s) / TICK_S) * TICK_S - now_s

    async def _poll(self) -> Confirmed | None:
        """Ask for the end of the open ledger, whose node is followed from now on; None when none is open."""
        listed = self._directory.topic_path(self._topic.name)
        self._open_id = ledger_id = await self._topic.open_ledger()
        if ledger_id is None:
            self._follow(listed)
            return None
        self._follow(listed, await self._directory.ledger_path(ledger_id))
        return await self._topic.confirmed(ledger_id)

    def _follow(self, *paths: str) -> None:
        before, self._followed = self._followed, paths
        for path in before:
            if path not in paths:
                self._directory.nodes.unfollow(path)
        for path in paths:
            if path not in before:
                self._directory.nodes.follow(path, self._woken)

    def _woken(self) -> None:
        """A node may have changed: the watchers may want to know at once, and the poll begins anew."""
        self._ring()
        self._tell()

    def _tell(self) -> None:
        self._told_s = self._asker.clock.monotonic()
        self._change_signal()


def _state(known: object) -> object:
    """Return what two polls have in common when nothing is new: that both failed in one way, or both did not."""
    return type(known)
