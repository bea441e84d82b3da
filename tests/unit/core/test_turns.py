"""Namespaces that wait for the same limit are served in turn, by their weights; within one by order."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING

from offloaderd.core.limits import FLOW, Admission, Flow
from offloaderd.objects.retrying import RetryingReader, Slots
from offloaderd.testing.memory.objects import MemoryStore
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import Sequence


async def granted(admission: Admission, asked: Sequence[tuple[str, Flow | None, int]]) -> list[str]:
    """Return the names of requests in the order in which they are granted, one after the other."""
    order: list[str] = []
    await admission.acquire(admission.limit)

    async def work(name: str, size: int) -> None:
        async with admission.held(size=size):
            order.append(name)
            await LoopClock().sleep(1.0)

    async with asyncio.TaskGroup() as group:
        for name, flow, size in asked:
            context = copy_context()
            context.run(FLOW.set, flow)
            group.create_task(work(name, size), context=context)
        await LoopClock().sleep(1.0)
        admission.release(admission.limit)
    return order


def weighted(weight: float) -> Flow:
    """Return a flow of a weight."""
    flow = Flow()
    flow.weight = weight
    return flow


async def test_a_request_waits_behind_those_of_its_own_namespace_alone() -> None:
    """Ten of one namespace came first; that of another is granted second."""
    loud, quiet = Flow(), Flow()
    asked = [(f"loud {number}", loud, 1) for number in range(10)]
    order = await granted(Admission(1), [*asked, ("quiet", quiet, 1)])
    assert order[:3] == ["loud 0", "quiet", "loud 1"]
    assert [name for name in order if name != "quiet"] == [name for name, _, _ in asked]


async def test_without_namespaces_requests_are_granted_in_order() -> None:
    """As it is for what is no work of a topic, and in a daemon with one namespace."""
    names = [(str(number), None, 1 + number % 3) for number in range(10)]
    assert await granted(Admission(1), names) == [name for name, _, _ in names]


async def test_large_requests_count_more() -> None:
    """Of two namespaces with as many requests, that with the smaller ones gets more of them."""
    large, small = Flow(), Flow()
    asked = [(name, flow, size) for _ in range(6) for name, flow, size in (("large", large, 4), ("small", small, 1))]
    order = await granted(Admission(1), asked)
    assert order[:6].count("small") == 4


async def test_a_weight_is_a_share() -> None:
    """Of the first nine, a namespace with the weight 2 has six."""
    heavy, light = weighted(2.0), weighted(1.0)
    asked = [(name, flow, 1) for _ in range(9) for name, flow in (("heavy", heavy), ("light", light))]
    assert (await granted(Admission(1), asked))[:9].count("heavy") == 6


async def test_who_was_alone_pays_nothing_for_that_later() -> None:
    """A namespace that used the limit while nobody else did is not behind when another one comes."""
    alone, late = Flow(), Flow()
    admission = Admission(1)
    token = FLOW.set(alone)
    for _ in range(100):
        async with admission.held():
            pass
    FLOW.reset(token)
    order = await granted(admission, [(name, flow, 1) for _ in range(4) for name, flow in (("a", alone), ("l", late))])
    assert order[:4].count("a") == 2


async def test_requests_that_were_given_up_count_for_nothing() -> None:
    """Readers that left do not keep those behind them, and the next ones of their namespace, from their turns."""
    left, other = Flow(), Flow()
    admission, order = Admission(1), list[str]()
    await admission.acquire()

    def ask(name: str, flow: Flow) -> asyncio.Task[None]:
        async def work() -> None:
            async with admission.held():
                order.append(name)
                await LoopClock().sleep(1.0)

        context = copy_context()
        context.run(FLOW.set, flow)
        return group.create_task(work(), context=context)

    async with asyncio.TaskGroup() as group:
        gone = [ask("gone", left) for _ in range(20)]
        ask("left 1", left)
        for number in range(5):
            ask(f"other {number}", other)
        await LoopClock().sleep(1.0)
        for one in gone:
            one.cancel()
        await LoopClock().sleep(1.0)
        ask("left 2", left)
        await LoopClock().sleep(1.0)
        admission.release()
    assert order == ["left 1", "other 0", "other 1", "left 2", "other 2", "other 3", "other 4"]


async def test_namespaces_are_forgotten_when_nothing_is_held() -> None:
    """A limit remembers none for ever."""
    admission = Admission(1)
    for _ in range(50):
        token = FLOW.set(Flow())
        async with admission.held():
            pass
        FLOW.reset(token)
    assert len(admission._turns._ends) == 1


async def test_readers_of_a_bucket_get_its_connections_in_turn() -> None:
    """The one GET of a namespace is not behind the twenty of another; those of another bucket do not count."""

    class Slow(MemoryStore):
        async def get_pieces(self, key: str, first: int, lengths: Sequence[int]) -> Sequence[bytes]:
            await LoopClock().sleep(1.0)
            return await super().get_pieces(key, first, lengths)

    store, done = Slow(LoopClock()), list[str]()
    await store.put("k", bytes(100))
    reader = RetryingReader(store, clock=LoopClock(), slots=Slots(2))

    async def read(name: str) -> None:
        await reader.pieces("k", 0, [10])
        done.append(name)

    async with asyncio.TaskGroup() as group:
        for name, count in (("loud", 20), ("quiet", 1)):
            context = copy_context()
            context.run(FLOW.set, Flow())
            for _ in range(count):
                group.create_task(read(name), context=context)
    assert done.index("quiet") < 4
    slots = Slots(2)
    assert slots.at("other") is slots.at("other") is not slots
