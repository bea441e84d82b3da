"""A cache of checked values (blocks, segment tables) with a byte budget, shared by all readers; and their read-ahead.

Rules:
- A value is loaded once; later claims join a load under way.
- A claim pins a value until its release. Pinned values count against the budget but are never evicted, so a slow
  reader makes the cache smaller, not the memory larger. Unpinned values are evicted in least recently used order.
- Only pinned values exceed the budget. Readers check `room_bytes` before they read ahead, and each may always claim
  the one block that it needs next.
- A load without claims is cancelled; a failed one is forgotten, so that the next claim tries again.

Methods that change the tables do not await; loads run as tasks of an owner that outlives all readers.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Generic, TypeVar

from offloaderd.core.aio import Tasks
from offloaderd.core.errors import Closed
from offloaderd.core.metrics.metrics import Metrics

V = TypeVar("V")

WINDOW_BYTES_MIN = 256 * 1024
"""The first window of a read, at least one block: about the cost of one round trip to S3."""


class ReadAhead:
    """The window of a sequential read: it fetches more ahead, the longer it lasts, or much from its beginning."""

    __slots__ = ("window_bytes",)

    def __init__(self, window_bytes: int = WINDOW_BYTES_MIN) -> None:
        self.window_bytes = window_bytes

    def fit(self, limit_bytes: int) -> None:
        """Keep the window within a limit, but not below the smallest one."""
        self.window_bytes = min(self.window_bytes, max(WINDOW_BYTES_MIN, limit_bytes))

    def grow(self, limit_bytes: int) -> None:
        """Double the window within a limit, when the consumer wants more."""
        self.window_bytes *= 2
        self.fit(limit_bytes)


class Slot(Generic[V]):
    """One value of the cache, loaded or being loaded. Made by `Cache.claim` only."""

    __slots__ = ("_done", "_error", "_value", "cost_bytes", "key", "load", "pins")

    def __init__(self, key: Hashable, cost_bytes: int) -> None:
        self.key = key
        self.cost_bytes = cost_bytes
        self.pins = 1
        self.load: Load[V] | None = None
        self._done = asyncio.Event()
        self._value: V | None = None
        self._error: Exception | None = None

    @property
    def loaded(self) -> bool:
        """Whether there is a value."""
        return self._value is not None

    @property
    def settled(self) -> bool:
        """Whether loading has ended, well or not."""
        return self._done.is_set()

    def settle(self, value: V | None, error: Exception | None) -> None:
        """Set the outcome of loading."""
        self._value, self._error = value, error
        self.load = None
        self._done.set()

    async def get(self) -> V:
        """Return the value, waiting until it is loaded. Raises what loading raised."""
        if self._value is None:
            await self._done.wait()
        if self._value is None:
            raise self._error or Closed("the value is gone")
        return self._value


class Load(Generic[V]):
    """One request that fills some slots; cancelled when all of them have been released."""

    __slots__ = ("error", "slots", "task")

    def __init__(self, slots: Sequence[Slot[V]]) -> None:
        self.slots = slots
        self.task: asyncio.Task[None] | None = None
        self.error: Exception = Closed("the reader is closed", hint="the daemon is stopping; ask another one")


class Cache(Generic[V]):
    """Values by key under a byte budget. `name` is the label of its metrics: `blocks` or `segments`."""

    def __init__(self, name: str, limit_bytes: int, *, loader: Tasks, metrics: Metrics) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.beside: Callable[[], int] = lambda: 0
        """Returns the bytes of values that are held elsewhere as well, for a moment; they use up the budget."""
        self._name = name
        self._loader = loader
        self._slots: dict[Hashable, Slot[V]] = {}
        self._idle: OrderedDict[Hashable, Slot[V]] = OrderedDict()
        self._idle_bytes = 0
        self._hits = metrics.cache_requests.labels(cache=name, result="hit")
        self._joins = metrics.cache_requests.labels(cache=name, result="joined")
        self._misses = metrics.cache_requests.labels(cache=name, result="miss")
        self._evictions = metrics.cache_evictions.labels(cache=name, cause="size")
        self._bytes = metrics.cache_bytes.labels(cache=name)
        self._pool = metrics.memory_used_bytes.labels(pool="cache")
        metrics.cache_limit_bytes.labels(cache=name).set(limit_bytes)

    @property
    def room_bytes(self) -> int:
        """Bytes that could be claimed within the budget, with all unpinned values evicted."""
        return self.limit_bytes - self.beside() - self.used_bytes + self._idle_bytes

    @property
    def pinned_bytes(self) -> int:
        """Bytes that readers hold, or wait for, at this moment."""
        return self.used_bytes - self._idle_bytes

    def holds(self, key: Hashable) -> bool:
        """Whether there is a value, or a load of it."""
        return key in self._slots

    def claim(self, key: Hashable, cost_bytes: int) -> tuple[Slot[V], bool]:
        """Pin the value; return whether it is new: then `load` it. `fill` corrects the estimate `cost_bytes`."""
        slot = self._slots.get(key)
        if slot is None:
            self._misses.inc()
            slot = self._slots[key] = Slot(key, cost_bytes)
            self._account(cost_bytes)
            return slot, True
        (self._hits if slot.loaded else self._joins).inc()
        if slot.pins == 0 and slot.loaded:  # one that is not there yet was left by readers, and comes for others
            del self._idle[key]
            self._idle_bytes -= slot.cost_bytes
        slot.pins += 1
        return slot, False

    def load(self, slots: Sequence[Slot[V]], work: Callable[[], Coroutine[None, None, None]], *, name: str) -> None:
        """Run `work`, which fills or fails new slots; its error, or its end, fails the others."""
        load = Load(slots)
        for slot in slots:
            slot.load = load
        try:
            load.task = self._loader.start(self._run(load, work), name=name)
        except Closed as error:
            for slot in slots:
                self.fail(slot, error)
            raise
        load.task.add_done_callback(lambda _: self._ended(load))  # also for a task that is cancelled before it starts

    async def _run(self, load: Load[V], work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - all claims raise it
            load.error = error

    def _ended(self, load: Load[V]) -> None:
        for slot in load.slots:
            self.fail(slot, load.error)

    def fill(self, slot: Slot[V], value: V, cost_bytes: int) -> None:
        """Set a slot's value and its size."""
        if slot.settled:
            return
        slot.settle(value, None)
        if self._slots.get(slot.key) is slot:
            self._account(cost_bytes - slot.cost_bytes)
            slot.cost_bytes = cost_bytes
            if slot.pins == 0:
                self._rest(slot)

    def fail(self, slot: Slot[V], error: Exception) -> None:
        """Set a slot's error, and forget it."""
        if not slot.settled:
            slot.settle(None, error)
            self._forget(slot)

    def release(self, slot: Slot[V]) -> None:
        """Unpin a value; a load without other claims is cancelled."""
        slot.pins -= 1
        if slot.pins or self._slots.get(slot.key) is not slot:
            return
        if slot.loaded:
            self._rest(slot)
            return
        load = slot.load
        if load is not None and load.task is not None and all(one.pins == 0 for one in load.slots):
            for one in load.slots:
                if not one.settled:
                    self._forget(one)
            load.task.cancel()

    def _rest(self, slot: Slot[V]) -> None:
        self._idle[slot.key] = slot
        self._idle_bytes += slot.cost_bytes
        self._account(0)

    def _forget(self, slot: Slot[V]) -> None:
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]
            self._account(-slot.cost_bytes)

    def _account(self, change: int) -> None:
        before = self.used_bytes
        self.used_bytes += change
        limit_bytes = self.limit_bytes - self.beside()
        while self.used_bytes > limit_bytes and self._idle:
            key, slot = self._idle.popitem(last=False)
            del self._slots[key]
            self._idle_bytes -= slot.cost_bytes
            self.used_bytes -= slot.cost_bytes
            self._evictions.inc()
        self._bytes.set(self.used_bytes)
        self._pool.inc(self.used_bytes - before)  # several caches share the pool
