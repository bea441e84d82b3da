"""Who ranks first for what: the same everywhere, evenly spread, and moved only as far as it must."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from offloaderd.fleet.placement import Placement, ranked, score
from offloaderd.fleet.settings import PlacementSettings
from offloaderd.metadata import paths
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records.ownership import DaemonNode
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryTree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.testing.memory.metadata import MemoryMetadata

KEYS = [f"public/default/topic-{number}" for number in range(3000)]


def node(name: str, *, draining: bool = False, impaired: str = "") -> DaemonNode:
    """Make a registration."""
    return DaemonNode(
        daemon_id=name, address=f"{name}:1", version="0", started_ms=1, draining=draining, impaired=impaired
    )


def firsts(names: str, **changed: DaemonNode) -> dict[str, str]:
    """Return who ranks first for every key, among daemons with one-letter names."""
    daemons = [changed.get(name, node(name)) for name in names]
    return {key: ranked(key, daemons)[0].daemon_id for key in KEYS}


def test_scores_do_not_depend_on_the_process() -> None:
    """Daemons agree without talking: a score is the same in a process with another hash seed, and for ever."""
    assert score("a", "public/default/orders") == 0x81E086310EEBB25A
    code = "from offloaderd.fleet.placement import score; print(score('a', 'public/default/orders'))"
    said = subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": "77"}, capture_output=True, check=True)
    assert int(said.stdout) == score("a", "public/default/orders")


def test_topics_are_spread_evenly() -> None:
    """With five daemons none has a third more or less than its fifth."""
    counts = Counter(firsts("abcde").values())
    assert all(400 < counts[name] < 800 for name in "abcde")


def test_only_the_topics_of_the_one_that_leaves_or_joins_move() -> None:
    """Taking a daemon away moves its topics alone; adding it moves only what becomes its own."""
    with_it, without = firsts("abcd"), firsts("abc")
    assert all(without[key] == first for key, first in with_it.items() if first != "d")
    moved = sum(with_it[key] != without[key] for key in KEYS)
    assert moved == sum(first == "d" for first in with_it.values())


def test_draining_and_impaired_daemons_come_last_and_count_when_there_is_no_other() -> None:
    """Others take the topics of one that drains; when all do, the topics stay where they would be anyway."""
    assert "b" not in set(firsts("abc", b=node("b", draining=True)).values())
    assert firsts("abc", b=node("b", impaired="no bucket")) == firsts("ac")
    order = [one.daemon_id for one in ranked("x", [node("a", draining=True), node("b", impaired="x"), node("c")])]
    assert order == ["c", "b", "a"]
    all_impaired = {name: node(name, impaired="no bucket") for name in "abc"}
    assert firsts("abc", **all_impaired) == firsts("abc")


@given(st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1), st.text())
def test_rank_says_the_place_in_the_ranking(names: set[str], key: str) -> None:
    """Rank, computed without sorting, is the index in the ranking, whoever asks."""
    for name in names:
        placement = Placement(MemoryTree().connect(), FakeClock())
        placement._registered = {one: node(one) for one in names}
        placement.become(node(name))
        assert placement.ranking(key)[placement.rank(key)].daemon_id == name
        assert placement.first(key) == placement.ranking(key)[0]


@asynccontextmanager
async def following(store: MemoryMetadata, name: str, clock: FakeClock) -> AsyncIterator[Placement]:
    """Run a daemon's view of the registrations."""
    placement = Placement(store, clock, PlacementSettings(settle_s=10))
    placement.become(node(name))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(placement.run())
        await clock.settle()
        yield placement
        task.cancel()


async def registered(store: MemoryMetadata, one: DaemonNode) -> None:
    """Register a daemon, or change its registration, as registration.py does."""
    path = paths.daemon(one.daemon_id)
    if one.daemon_id in await store.children(paths.DAEMONS):
        await store.replace(path, ownership.encode_daemon(one), (await store.get(path)).version)
        await store.replace(paths.DAEMONS, b"", (await store.get(paths.DAEMONS)).version)
    else:
        await store.create(path, ownership.encode_daemon(one), ephemeral=True)


async def test_one_daemon_leads_a_job_and_another_when_it_leaves() -> None:
    """Of registered daemons exactly one leads each job; unregistered and draining ones never do."""
    clock, tree = FakeClock(), MemoryTree()
    one, two = tree.connect(), tree.connect()
    async with following(one, "a", clock) as first, following(two, "b", clock) as second:
        assert not first.leads("gc")
        await registered(one, node("a"))
        await registered(two, node("b"))
        await clock.settle()
        jobs = [f"job-{number}" for number in range(20)]
        assert all(first.leads(job) != second.leads(job) for job in jobs)
        assert any(first.leads(job) for job in jobs)
        assert any(second.leads(job) for job in jobs)
        first.become(node("a", draining=True))
        await registered(one, node("a", draining=True))
        await clock.settle()
        assert all(second.leads(job) and not first.leads(job) for job in jobs)
        two.expire()
        await clock.settle()
        assert not any(second.leads(job) for job in jobs)


async def test_a_change_is_settled_only_after_a_while() -> None:
    """Every change of the daemons begins the time to settle anew; a look that shows the same does not."""
    clock, tree = FakeClock(), MemoryTree()
    store, other = tree.connect(), tree.connect()
    async with following(store, "a", clock) as placement:
        await clock.advance(6)
        assert placement.unsettled_s == 4
        await registered(other, node("b"))
        await clock.settle()
        assert placement.unsettled_s == 10
        await clock.advance(6)
        version = placement.version
        await registered(other, replace(node("b"), version="1"))
        await clock.settle()
        assert (placement.version, placement.unsettled_s) == (version, 4)
        await registered(other, node("b", impaired="no bucket"))
        await clock.settle()
        assert (placement.version, placement.unsettled_s) == (version + 1, 10)


async def test_daemons_that_lost_their_sessions_together_are_expected_back() -> None:
    """After the loss of our own session the others count for a while longer, so an outage moves no topics."""
    clock, tree = FakeClock(), MemoryTree()
    store, other = tree.connect(), tree.connect()
    await registered(store, node("a"))
    await registered(other, node("b"))
    async with following(store, "a", clock) as placement:
        assert placement.members.keys() == {"a", "b"}
        version = placement.version
        store.expire()
        other.expire()
        await clock.settle()
        assert (set(placement.members), placement.version) == ({"a", "b"}, version)
        await clock.advance(9)
        await registered(other, node("b"))
        await clock.advance(9)
        assert (set(placement.members), placement.version) == ({"a", "b"}, version)
        store.expire()
        other.expire()
        await clock.advance(11)
        assert placement.members.keys() == {"a"}
        await registered(other, node("b"))
        await clock.settle()
        other.expire()
        await clock.settle()
        assert placement.members.keys() == {"a"}


async def test_a_damaged_registration_is_left_out() -> None:
    """Bytes that are no registration do not keep the others from being seen."""
    clock, tree = FakeClock(), MemoryTree()
    store = tree.connect()
    await store.create(f"{paths.DAEMONS}/c", b"\xff\xff", ephemeral=True)
    await registered(store, node("b"))
    async with following(store, "a", clock) as placement:
        assert placement.members.keys() == {"a", "b"}
