"""A daemon's registration: made, changed, made again, and never mistaken for another run's."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Conflict, NotFound, Transient
from offloaderd.fleet.registration import Registration
from offloaderd.metadata import paths
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records.ownership import DaemonNode
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.faults import Faults, FaultyMetadata
from offloaderd.testing.memory.metadata import MemoryTree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.metadata.port import MetadataStore

NODE = DaemonNode(daemon_id="a", address="a:1", version="0", started_ms=7)
PATH = paths.daemon("a")


def stored(tree: MemoryTree) -> DaemonNode:
    """Return what is registered."""
    return ownership.decode_daemon(tree.node(PATH).value, path=PATH)


@asynccontextmanager
async def staying(store: MetadataStore, clock: FakeClock) -> AsyncIterator[Registration]:
    """Register and stay registered."""
    last_answer: list[DaemonNode] = []
    registration = Registration(store, NODE, clock=clock, patience_s=5, changed=last_answer.append)
    await registration.open()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(registration.run())
        await clock.settle()
        yield registration
        task.cancel()
    assert not last_answer or last_answer[-1] == registration.node


async def test_what_is_said_is_stored_and_the_others_are_woken() -> None:
    """Draining is written to the node, and whoever watches the folder hears of it."""
    tree, clock = MemoryTree(), FakeClock()
    store, other = tree.connect(), tree.connect()
    async with staying(store, clock) as registration:
        session = await store.session()
        assert stored(tree) == replace(NODE, session_id=session.session_id)
        woken = 0

        async def watch() -> None:
            nonlocal woken
            async for _ in other.watch(paths.DAEMONS):
                woken += 1

        watching = asyncio.ensure_future(watch())  # noqa: TID251 - ended below
        await clock.settle()
        before = woken
        registration.announce(draining=True)
        await registration.announced()
        await clock.settle()
        assert stored(tree).draining
        assert woken > before
        registration.announce(draining=True)
        await registration.announced()
        watching.cancel()


@pytest.mark.parametrize("lost", ["expired", "deleted"])
async def test_a_registration_that_is_gone_is_made_again(lost: str) -> None:
    """After a lost session, or when a stranger deletes the node, with what was last said."""
    tree, clock = MemoryTree(), FakeClock()
    store = tree.connect()
    async with staying(store, clock) as registration:
        registration.announce(impaired="no bucket")
        await registration.announced()
        if lost == "expired":
            store.expire()
        else:
            await tree.connect().delete(PATH)
        await clock.advance(1)
        session = await store.session()
        assert (stored(tree).session_id, stored(tree).impaired) == (session.session_id, "no bucket")


@pytest.mark.parametrize("operation", ["create", "transact"])
async def test_lost_answers_are_read_back(operation: str) -> None:
    """Registering and changing are carried out once, also when nobody hears of it."""
    tree, clock, faults = MemoryTree(), FakeClock(), Faults()
    store = FaultyMetadata(tree.connect(), faults)
    faults.lose_answer(operation)
    opening = asyncio.ensure_future(Registration(store, NODE, clock=clock, patience_s=5).open())  # noqa: TID251 - ended below
    await clock.advance(3)
    await opening
    async with staying(store, clock) as registration:
        registration.announce(draining=True)
        await clock.advance(3)
        await registration.announced()
        assert stored(tree).draining
    assert faults.fired == 1


async def test_what_another_session_of_this_very_run_has_left_is_replaced_at_once() -> None:
    """The server may keep a session for a while that we have given up: its node is ours to delete."""
    tree, clock = MemoryTree(), FakeClock()
    former, store = tree.connect(), tree.connect()
    await Registration(former, NODE, clock=clock, patience_s=5).open()
    await Registration(store, NODE, clock=clock, patience_s=5).open()
    assert clock.monotonic() == 0
    assert stored(tree).session_id == (await store.session()).session_id
    former.close()
    assert stored(tree).session_id == (await store.session()).session_id


async def test_another_run_is_waited_for_and_never_pushed_aside() -> None:
    """Until its session ends, or with an error that names its address when it does not."""
    tree, clock = MemoryTree(), FakeClock()
    other, store = tree.connect(), tree.connect()
    await Registration(other, replace(NODE, address="b:2", started_ms=6), clock=clock, patience_s=5).open()
    waiting = asyncio.ensure_future(Registration(store, NODE, clock=clock, patience_s=5).open())  # noqa: TID251 - ended below
    await clock.advance(4)
    assert not waiting.done()
    await clock.advance(2)
    with pytest.raises(Conflict, match="already running at b:2"):
        await waiting
    waiting = asyncio.ensure_future(Registration(store, NODE, clock=clock, patience_s=5).open())  # noqa: TID251 - ended below
    await clock.advance(2)
    other.close()
    await clock.advance(1)
    await waiting
    assert stored(tree).address == "a:1"


async def test_another_run_that_has_ended_for_certain_is_succeeded_at_once() -> None:
    """Its node goes, not with its session but now; the proof is asked for with what it left."""
    tree, clock = MemoryTree(), FakeClock()
    other, store = tree.connect(), tree.connect()
    left = await Registration(other, replace(NODE, started_ms=6, process="p"), clock=clock, patience_s=5).open()
    asked: list[DaemonNode] = []

    def ended(node: DaemonNode) -> bool:
        asked.append(node)
        return True

    await Registration(store, NODE, clock=clock, patience_s=5, ended=ended).open()
    assert (asked, clock.monotonic()) == ([left], 0)
    assert stored(tree).session_id == (await store.session()).session_id


async def test_a_bucket_that_is_silent_for_long_makes_a_daemon_impaired_until_it_answers() -> None:
    """One failed probe says nothing yet; the first answer takes it back."""
    tree, clock = MemoryTree(), FakeClock()
    async with staying(tree.connect(), clock) as registration:
        for wait_s, reached, impaired in [(0, False, False), (20, False, False), (20, True, False)]:
            await clock.advance(wait_s)
            registration.probed(reached=reached, patience_s=30)
            assert bool(registration.node.impaired) is impaired
        registration.probed(reached=False, patience_s=30)
        await clock.advance(30)
        registration.probed(reached=False, patience_s=30)
        await registration.announced()
        assert stored(tree).impaired
        registration.probed(reached=True, patience_s=30)
        await registration.announced()
        assert not stored(tree).impaired


async def test_an_unreachable_store_is_asked_again() -> None:
    """A registration that fails for a while is made as soon as it can be."""
    tree, clock, faults = MemoryTree(), FakeClock(), Faults()
    faults.fail("create", Transient("no connection"), times=3)
    opening = asyncio.ensure_future(  # noqa: TID251 - ended below
        Registration(FaultyMetadata(tree.connect(), faults), NODE, clock=clock, patience_s=5).open()
    )
    with pytest.raises(NotFound):
        stored(tree)
    await clock.advance(5)
    await opening
    assert stored(tree).daemon_id == "a"
