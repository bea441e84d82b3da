"""The shared cache: budget, single flight, what a failed, abandoned or closed load leaves behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offloaderd.core.aio import Tasks
from offloaderd.core.errors import Closed, NotFound
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.read.cache import WINDOW_BYTES_MIN, Cache, ReadAhead
from tests.unit.read.build import for_ever, sample, turns
from tests.virtual import virtually

if TYPE_CHECKING:
    from offloaderd.read.cache import Slot


def make(limit_bytes: int, loader: Tasks) -> tuple[Cache[str], Metrics]:
    """Return a cache and its metrics."""
    metrics = Metrics()
    return Cache("blocks", limit_bytes, loader=loader, metrics=metrics), metrics


def put(cache: Cache[str], key: str, cost_bytes: int) -> Slot[str]:
    """Claim and fill a new value; it stays pinned."""
    slot, new = cache.claim(key, cost_bytes)
    assert new
    cache.fill(slot, key.upper(), cost_bytes)
    return slot


def together(cache: Cache[str], *keys: str) -> tuple[list[Slot[str]], asyncio.Event]:
    """Claim new values that one load fills, once the event is set."""
    slots, come = [cache.claim(key, 10)[0] for key in keys], asyncio.Event()

    async def work() -> None:
        await come.wait()
        for slot in slots:
            cache.fill(slot, "value", 10)

    cache.load(slots, work, name=" and ".join(keys))
    return slots, come


async def test_a_value_is_loaded_once_for_all_who_want_it() -> None:
    """The second reader joins the load of the first, and a third finds the value."""
    async with Tasks("the reader") as loader:
        cache, metrics = make(100, loader)
        started = asyncio.Event()
        slot, new = cache.claim("a", 10)
        assert new

        async def work() -> None:
            started.set()
            await turns()
            cache.fill(slot, "A", 10)

        cache.load([slot], work, name="a")
        joined, new = cache.claim("a", 10)
        assert not new
        async with asyncio.TaskGroup() as group:
            values = [group.create_task(one.get()) for one in (slot, joined)]
        assert [value.result() for value in values] == ["A", "A"]
        assert not cache.claim("a", 10)[1]
        counts = {result: sample(metrics, "offloaderd_cache_requests_total", {"cache": "blocks", "result": result})
                  for result in ("miss", "joined", "hit")}  # fmt: skip
        assert counts == {"miss": 1, "joined": 1, "hit": 1}


async def test_the_least_recently_used_value_leaves_first() -> None:
    """When the budget is exceeded, the value that was used longest ago is dropped, and counted."""
    async with Tasks("the reader") as loader:
        cache, metrics = make(30, loader)
        for key in "abc":
            cache.release(put(cache, key, 10))
        cache.release(cache.claim("a", 10)[0])
        cache.release(put(cache, "d", 10))
        assert [cache.claim(key, 10)[1] for key in "acd"] == [False, False, False]
        assert cache.claim("b", 10)[1]
        assert sample(metrics, "offloaderd_cache_evictions_total", {"cache": "blocks", "cause": "size"}) >= 1


async def test_what_was_released_before_it_came_can_be_evicted() -> None:
    """Of several values of one load some are given up early: they count as room once they are there."""
    async with Tasks("the reader") as loader:
        cache, _ = make(30, loader)
        slots, come = together(cache, "a", "b")
        cache.release(slots[0])
        come.set()
        assert await slots[1].get() == "value"
        assert (cache.room_bytes, cache.pinned_bytes) == (20, 10)
        cache.release(slots[1])
        assert (cache.room_bytes, cache.pinned_bytes) == (30, 0)


async def test_what_was_released_before_it_came_can_be_claimed() -> None:
    """Of several values of one load, which goes on for another reader: whoever comes back waits for it as well."""
    async with Tasks("the reader") as loader:
        cache, _ = make(30, loader)
        slots, come = together(cache, "a", "b")
        cache.release(slots[0])
        assert cache.claim("a", 10) == (slots[0], False)
        come.set()
        assert await slots[0].get() == "value"
        assert (cache.room_bytes, cache.pinned_bytes) == (10, 20)


def test_the_window_of_a_read_is_never_smaller_than_its_first() -> None:
    """However little of the cache is its share: one round trip to S3 costs as much as that."""
    pace = ReadAhead()
    for _ in range(3):
        pace.grow(1)
    assert pace.window_bytes == WINDOW_BYTES_MIN
    pace.grow(3 * WINDOW_BYTES_MIN)
    pace.grow(3 * WINDOW_BYTES_MIN)
    assert pace.window_bytes == 3 * WINDOW_BYTES_MIN


async def test_pinned_values_are_never_evicted() -> None:
    """What a reader holds stays, even above the budget, and leaves as soon as it is released."""
    async with Tasks("the reader") as loader:
        cache, metrics = make(10, loader)
        held = [put(cache, key, 10) for key in "abc"]
        assert cache.used_bytes == 30
        assert cache.room_bytes == -20
        for slot in held:
            cache.release(slot)
        assert cache.used_bytes == 10
        assert sample(metrics, "offloaderd_cache_bytes", {"cache": "blocks"}) == 10
        assert sample(metrics, "offloaderd_memory_used_bytes", {"pool": "cache"}) == 10


async def test_a_failed_load_is_forgotten() -> None:
    """Everybody who waited gets the error; the next claim tries again."""
    async with Tasks("the reader") as loader:
        cache, _ = make(100, loader)
        slot, _ = cache.claim("a", 10)

        async def work() -> None:
            await turns()
            raise NotFound("gone")

        cache.load([slot], work, name="a")
        with pytest.raises(NotFound):
            await slot.get()
        cache.release(slot)
        assert cache.used_bytes == 0
        assert cache.claim("a", 10)[1]


async def test_a_load_that_nobody_wants_is_cancelled() -> None:
    """When the last reader gives up, the request ends; while one still waits, it goes on."""
    async with Tasks("the reader") as loader:
        cache, _ = make(100, loader)
        ended: list[str] = []

        async def work() -> None:
            try:
                await for_ever()
            finally:
                ended.append("cancelled")

        first, _ = cache.claim("a", 10)
        second, _ = cache.claim("b", 10)
        cache.load([first, second], work, name="ab")
        await turns()
        joined, new = cache.claim("a", 10)
        assert not new
        cache.release(first)
        cache.release(second)
        await turns()
        assert not ended
        cache.release(joined)
        await turns(2)
        assert ended == ["cancelled"]
        assert cache.used_bytes == 0
        assert cache.claim("a", 10)[1]


@pytest.mark.parametrize("before", [0, 1])
async def test_closing_wakes_whoever_waits(before: int) -> None:
    """A load that is cut by closing, even before it began, gives Closed to its waiters; later loads are refused."""
    loader = Tasks("the reader")
    async with asyncio.TaskGroup() as group:
        async with loader:
            cache, _ = make(100, loader)
            slot, _ = cache.claim("a", 10)
            cache.load([slot], for_ever, name="a")
            waiter = group.create_task(expect_closed(slot))
            await turns(before)
        await waiter
    late, _ = cache.claim("b", 10)
    with pytest.raises(Closed):
        cache.load([late], for_ever, name="b")


async def expect_closed(slot: Slot[str]) -> None:
    """Wait for a value that never comes."""
    with pytest.raises(Closed):
        await slot.get()


@given(st.lists(st.tuples(st.sampled_from(["claim", "release", "fail"]), st.integers(0, 5)), max_size=60))
@settings(max_examples=100, deadline=None)
def test_the_budget_adds_up(steps: list[tuple[str, int]]) -> None:
    """Whatever readers do: used bytes are those of the values there, and exceed the budget only by pinned ones."""

    async def run() -> None:
        async with Tasks("the reader") as loader:
            cache, _ = make(25, loader)
            pins: dict[int, list[Slot[str]]] = {}
            for step, key in steps:
                if step == "claim":
                    slot, new = cache.claim(key, 7 + key)
                    if new:
                        cache.fill(slot, str(key), 5 + key)
                    assert await slot.get() == str(key)
                    pins.setdefault(key, []).append(slot)
                elif step == "release" and pins.get(key):
                    cache.release(pins[key].pop())
                elif step == "fail" and not pins.get(key):
                    slot, new = cache.claim(key, 7)
                    if new:
                        cache.fail(slot, NotFound("no"))
                    cache.release(slot)
                pinned = sum(5 + key for key, held in pins.items() if held)
                assert cache.pinned_bytes == pinned
                assert cache.used_bytes <= max(25, pinned)
                assert cache.room_bytes == 25 - pinned

    virtually(run())


@given(st.lists(st.tuples(st.sampled_from(["claim", "release", "come"]), st.integers(0, 5)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_loads_go_on_for_whoever_is_left(steps: list[tuple[str, int]]) -> None:
    """Readers claim neighbours together, and leave them one by one, before or after they have come, in any order."""

    async def run() -> None:
        async with Tasks("the reader") as loader:
            cache, _ = make(25, loader)
            held: list[Slot[str]] = []
            loads: list[asyncio.Event] = []

            def load(fresh: list[Slot[str]], come: asyncio.Event) -> None:
                async def work() -> None:
                    await come.wait()
                    for slot in fresh:
                        cache.fill(slot, f"value {slot.key}", 5)

                cache.load(fresh, work, name="neighbours")

            for step, number in steps:
                if step == "claim":
                    claims = [cache.claim(key, 5) for key in (number, number + 1)]
                    held += [slot for slot, _ in claims]
                    if fresh := [slot for slot, new in claims if new]:
                        loads.append(asyncio.Event())
                        load(fresh, loads[-1])
                elif step == "release" and held:
                    cache.release(held.pop(number % len(held)))
                elif step == "come" and loads:
                    loads.pop(number % len(loads)).set()
                await turns()
            for come in loads:
                come.set()
            assert [await slot.get() for slot in held] == [f"value {slot.key}" for slot in held]
            await turns()
            for slot in held:
                cache.release(slot)
            assert cache.pinned_bytes == 0
            assert cache.used_bytes <= 25

    virtually(run())
