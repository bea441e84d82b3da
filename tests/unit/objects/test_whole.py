"""Indexes and manifests read whole: short ones at once, long ones one after the other."""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from offloaderd.core.errors import Transient
from offloaderd.objects import whole as turns
from offloaderd.objects.retrying import RetryingReader
from offloaderd.objects.whole import APART_BYTES, AT_ONCE_BYTES, apart, read_apart, whole
from offloaderd.testing.memory.objects import MemoryStore
from tests.patience import PATIENCE_S
from tests.virtual import LoopClock

REAL_TIME = "threads"


async def store() -> MemoryStore:
    """Return a bucket with objects of several lengths."""
    made = MemoryStore(LoopClock())
    for key, size in (("empty", 0), ("short", 100), ("edge", AT_ONCE_BYTES), ("long", 3 * AT_ONCE_BYTES)):
        await made.put(key, bytes(size))
    return made


async def test_objects_come_whole_whatever_their_length() -> None:
    """Also those that are looked at together, of which both may be long."""
    bucket = await store()

    def of(key: str):  # type: ignore[no-untyped-def] # noqa: ANN202
        return lambda length: bucket.get(key, 0, length)

    for keys in (["empty"], ["short"], ["edge"], ["long"], ["short", "long"], ["long", "edge"]):
        async with whole(*map(of, keys)) as found:
            assert [len(data) for data in found] == [len(await bucket.get(key)) for key in keys]


async def test_long_objects_are_held_one_at_a_time() -> None:
    """However many are asked for at once; short ones do not wait for them."""
    bucket = await store()
    held = most = short = 0

    async def look(key: str) -> None:
        nonlocal held, most, short
        async with whole(lambda length: bucket.get(key, 0, length)) as (data,):
            if len(data) < AT_ONCE_BYTES:
                short += 1
                return
            held += 1
            most = max(most, held)
            for _ in range(20):
                await asyncio.sleep(0)  # noqa: TID251 - gives the others their turn
            held -= 1

    async with asyncio.TaskGroup() as group:
        for key in ["long"] * 8 + ["short"] * 8:
            group.create_task(look(key))
    assert (most, short) == (1, 8)


class Counting(ThreadPoolExecutor):
    """Threads that count what they are given, at once and not when one of them begins it."""

    given = 0

    def submit(self, *work: Any, **named: Any) -> Future[Any]:  # noqa: ANN401 - whatever it is
        """Count it."""
        self.given += 1
        return super().submit(*work, **named)


async def test_long_objects_are_taken_apart_beside_other_work_one_at_a_time() -> None:
    """A manifest that takes seconds stops nobody: others have their turn, and one that was given up keeps its own."""
    begun, resume = queue.SimpleQueue[str](), threading.Event()
    busy = threading.Lock()
    threads = Counting()
    asyncio.get_running_loop().set_default_executor(threads)

    def decode(name: str, data: bytes) -> str:
        assert busy.acquire(blocking=False)
        begun.put(name)
        assert resume.wait(PATIENCE_S)
        busy.release()
        return f"{name} {len(data)}"

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        first, second = (
            group.create_task(apart(partial(decode, name), bytes(APART_BYTES))) for name in ("first", "second")
        )
        assert await asyncio.to_thread(begun.get) == "first"
        assert await apart(len, bytes(APART_BYTES - 1)) == APART_BYTES - 1
        given = threads.given
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        for _ in range(10):
            await asyncio.sleep(0)  # noqa: TID251 - the second has its chance
        meanwhile = threads.given - given
        resume.set()
        assert not meanwhile
        assert await second == f"second {APART_BYTES}"
    with pytest.raises(ZeroDivisionError):
        await apart(lambda _: 1 // 0, bytes(APART_BYTES))
    assert await apart(len, bytes(APART_BYTES)) == APART_BYTES


async def test_all_readers_of_a_daemon_share_the_turn() -> None:
    """However many there are: each with a turn of its own would hold a long object each."""
    bucket = await store()
    get = partial(bucket.get, "long", 0)
    async with whole(get):
        other = asyncio.create_task(read_apart(len, get))  # noqa: TID251 - looked at while it waits
        for _ in range(20):
            await asyncio.sleep(0)  # noqa: TID251 - gives the other its turn
        assert not other.done()
    assert await other == 3 * AT_ONCE_BYTES


class Pauses(LoopClock):
    """Sleeps no time, and remembers whether somebody had the turn meanwhile."""

    def __init__(self) -> None:
        self.held: list[bool] = []

    async def sleep(self, seconds: float) -> None:
        """Look."""
        self.held.append(turns._own().hold.locked())


class Stumbling(MemoryStore):
    """The first two reads of a long object fail, not those of its beginning."""

    left = 2

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """See ObjectReader."""
        if length is None and self.left:
            self.left -= 1
            raise Transient("it does not answer")
        return await super().get(key, first, length)


async def test_who_tries_again_gives_the_turn_back() -> None:
    """A store that does not answer one of them holds up no other long object for all the pauses in between."""
    clock = Pauses()
    bucket = Stumbling(clock)
    await bucket.put("long", bytes(3 * AT_ONCE_BYTES))
    found = await RetryingReader(bucket, clock=clock).table(len, "long")
    assert found == 3 * AT_ONCE_BYTES
    assert clock.held == [False, False]
