"""Shared limits: amounts held at once, parts in flight to the store, rates, remembered entries."""

import asyncio
from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

from offloaderd.core.clock import Clock
from offloaderd.core.errors import OutcomeUnknown, Throttled

K = TypeVar("K")
V = TypeVar("V")

CEILING = 16
"""Most parts at a time without a setting: as many as the default memory for uploads holds."""

BURST_S = 1.0
SLACK_S = 1e-6
"""Tolerance for rounding in sums of durations."""


class Flow:
    """Requests of one namespace: flows that wait for the same limit are served in turn, by their weights."""

    weight: float = 1.0

    def counted(self) -> "Flow":
        """Return the flow that its requests belong to."""
        return self


FLOW: ContextVar[Flow | None] = ContextVar("flow", default=None)
"""The flow of the present task, and of those that it starts; None is a flow as well."""


class _Asked(NamedTuple):
    begin: float
    number: int
    lasts: float
    flow: Flow | None
    wanted: int
    holder: Hashable
    turn: asyncio.Future[None]


class InGroup(NamedTuple):
    """A holder that belongs to a group of holders."""

    group: Hashable
    holder: Hashable


class _Turns:
    """Order of the flows' requests, by start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996).

    A request begins where the last one of its flow ends, but not before the one that was granted last, and lasts as
    long as its amount divided by the flow's weight. The earliest begin is granted first. So a flow with many requests
    waits behind itself, and one flow alone gets its requests in order. Nothing is remembered while nothing is held.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._ends: dict[Flow | None, float] = {}

    def begin(self, amount: int) -> tuple[float, float, Flow | None]:
        """Return the begin of a request of the present flow, how long it lasts, and the flow."""
        flow = FLOW.get()
        if flow is not None:
            flow = flow.counted()
        begin = max(self._now, self._ends.get(flow, 0.0))
        lasts = amount / (flow.weight if flow is not None else Flow.weight)
        self._ends[flow] = begin + lasts
        return begin, lasts, flow

    def without_given_up(self, queue: Iterable[_Asked]) -> list[_Asked]:
        """Return the queue without requests that were given up, in order: what is behind them begins earlier."""
        gone: dict[Flow | None, float] = {}
        kept = []
        for one in queue:
            earlier = gone.get(one.flow, 0.0)
            if one.turn.cancelled():
                gone[one.flow] = earlier + one.lasts
            else:
                kept.append(one._replace(begin=one.begin - earlier) if earlier else one)
        for flow, lasted in gone.items():
            self._ends[flow] -= lasted
        return sorted(kept)

    def granted(self, begin: float) -> None:
        """Note that a request was granted."""
        self._now = max(self._now, begin)

    def forget(self) -> None:
        """Begin anew."""
        self._now = 0.0
        self._ends.clear()


class Admission:
    """A limit on the amount held at once; any amount is granted if nothing is held.

    Requests of one flow are granted in their order, and flows in turn.
    A `holder` that holds something gets more only if the same amount stays free for others. So a holder whose requests
    fail, and that releases nothing, cannot take all. A group that holds something gets more only if a quarter of the
    limit stays free for other groups.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._queue: list[_Asked] = []
        self._asked = 0
        self._waiting: set[int] = set()  # numbers of those in the queue
        self._turns = _Turns()
        self._held: Counter[Hashable] = Counter()

    @property
    def idle(self) -> bool:
        """Whether nothing is held."""
        return not self.used

    async def acquire(self, wanted: int = 1, holder: Hashable = None, *, size: int | None = None) -> None:
        """Take `wanted`; waits until it is granted. Cancellation leaves nothing taken.

        `size` is what counts in the turns of the flows, if that is not `wanted`.
        """
        if self.take_now(wanted, holder, size=size):
            return
        self._asked += 1
        turn = asyncio.get_running_loop().create_future()
        begin, lasts, flow = self._turns.begin(wanted if size is None else size)
        asked = _Asked(begin, self._asked, lasts, flow, wanted, holder, turn)
        insort(self._queue, asked)
        self._waiting.add(asked.number)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(wanted, holder)
            elif asked.number in self._waiting:  # else with another one that was given up in the same turn of the loop
                self._queue = self._turns.without_given_up(self._queue)
                self._waiting = {one.number for one in self._queue}
                self._grant()
            raise

    def take_now(self, wanted: int = 1, holder: Hashable = None, *, size: int | None = None) -> bool:
        """Take `wanted` if that needs no wait. Returns whether it was taken."""
        if self._queue or not self._fits(wanted) or not self._may_have(wanted, holder):
            return False
        if self.idle:
            self._turns.forget()
        begin, _, _ = self._turns.begin(wanted if size is None else size)
        self._turns.granted(begin)
        self._take(wanted, holder)
        return True

    def release(self, held: int = 1, holder: Hashable = None) -> None:
        """Release an amount that was taken before."""
        self._take(-held, holder)
        self._grant()

    @asynccontextmanager
    async def held(self, wanted: int = 1, holder: Hashable = None, *, size: int | None = None) -> AsyncIterator[None]:
        """Hold `wanted` within the `async with` block; waits until it is granted, as `acquire` does."""
        await self.acquire(wanted, holder, size=size)
        try:
            yield
        finally:
            self.release(wanted, holder)

    def follow(self, limit: int) -> None:
        """Change the limit. An amount above a lower limit stays held until its holders release it."""
        self.limit = limit
        self._grant()

    def _fits(self, wanted: int) -> bool:
        return self.used == 0 or self.used + wanted <= self.limit

    def _may_have(self, wanted: int, holder: Hashable) -> bool:
        """Whether the holder may get more at all; if not, later requests of other holders are granted first."""
        held = self._held[holder] if holder is not None else 0
        if isinstance(holder, InGroup):
            of_all = self._held[InGroup(holder.group, None)]
            if of_all and of_all + wanted > self.limit - self.limit // 4:
                return False
        return held == 0 or held + 2 * wanted <= self.limit

    def _take(self, wanted: int, holder: Hashable) -> None:
        self.used += wanted
        holders = [holder] if holder is not None else []
        if isinstance(holder, InGroup):
            holders.append(InGroup(holder.group, None))
        for one in holders:
            self._held[one] += wanted
            if self._held[one] <= 0:
                del self._held[one]

    def _grant(self) -> None:
        number = 0
        while number < len(self._queue):
            asked = self._queue[number]
            if asked.turn.cancelled() or not self._may_have(asked.wanted, asked.holder):
                number += 1
                continue
            if not self._fits(asked.wanted):
                return
            self._take(asked.wanted, asked.holder)
            self._turns.granted(asked.begin)
            asked.turn.set_result(None)
            self._waiting.discard(asked.number)
            del self._queue[number]


class ByteBudget(Admission):
    """A limit on the bytes that all topics together hold at once."""


class Pace(Admission):
    """The slots for parts in flight to the store, of all topics: additive increase, multiplicative decrease.

    A refusal of the store (503, 429) halves the limit; a window of successes raises it by one; `changed` is called with
    each new limit. A lost answer counts as a refusal, since an overloaded store or line often does not answer. A burst
    of refusals halves once: requests that were sent before the last cut do not count. Slots are given to flows in
    turn and held for one request only, never for the pause before the next try, so a topic whose requests fail
    leaves them to the others.
    """

    def __init__(self, ceiling: int = CEILING, *, changed: Callable[[int], None] | None = None) -> None:
        super().__init__(ceiling)
        self.ceiling = ceiling
        self._changed = changed
        self._cuts = 0
        self._worked = 0
        self._tell()

    def follow(self, limit: int) -> None:
        """Change the ceiling; a higher one is reached step by step, as after a refusal."""
        self.ceiling = limit
        if self.limit > limit:
            self.limit = limit
            self._tell()

    def mark(self) -> int:
        """Return the present state of the limit, for `failed` and `worked`."""
        return self._cuts

    def failed(self, error: Exception, mark: int) -> None:
        """Handle the failure of a request that was sent at `mark`: lower the limit after a refusal."""
        if mark == self._cuts and isinstance(error, Throttled | OutcomeUnknown):
            self._cuts += 1
            self._worked = 0
            if self.limit > 1:
                self.limit //= 2
                self._tell()

    def worked(self, mark: int) -> None:
        """Handle the success of a request that was sent at `mark`: raise the limit after a window of successes."""
        if mark != self._cuts or self.limit >= self.ceiling:
            return
        self._worked += 1
        if self._worked >= self.limit:
            self._worked = 0
            self.limit += 1
            self._tell()
            self._grant()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed(self.limit)


class TokenBucket:
    """A rate of at most `per_s` per second, 0 for no limit. The unused share of the last `burst_s` seconds is kept.

    The state is one time: at `_free_s` (monotonic) all amounts taken so far are paid for.
    """

    __slots__ = ("_burst_s", "_clock", "_free_s", "per_s")

    def __init__(self, per_s: float, clock: Clock, *, burst_s: float = BURST_S) -> None:
        self.per_s = per_s
        self._clock = clock
        self._burst_s = burst_s
        self._free_s = clock.monotonic() - burst_s

    @property
    def wait_s(self) -> float:
        """Seconds until all amounts taken so far are paid for."""
        return max(0.0, self._free_s - self._clock.monotonic())

    @property
    def full(self) -> bool:
        """Whether the bucket is in the state of a new one."""
        return self._free_s <= self._clock.monotonic() - self._burst_s

    def take(self, amount: float) -> float:
        """Take an amount, or return one if it is negative. Returns `wait_s` as it was before."""
        wait_s = self.wait_s
        if self.per_s:
            self._free_s = max(self._free_s, self._clock.monotonic() - self._burst_s) + amount / self.per_s
        return wait_s

    def take_now(self, amount: float) -> bool:
        """Take an amount if that needs no wait. Returns whether it was taken."""
        now_s, before_s = self._clock.monotonic(), self._free_s
        self.take(amount)
        if self._free_s <= now_s + SLACK_S:
            return True
        self._free_s = before_s
        return False

    async def ready(self) -> None:
        """Wait until all amounts are paid for, including those that others take during the wait."""
        while wait_s := self.wait_s:
            await self._clock.sleep(wait_s)


class Bounded(OrderedDict[K, V]):
    """A dictionary of at most `most` entries; one more removes the entry that was set longest ago."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)
