"""Maps that engines have made, with losses, rolls at any moment and changes of owner, against their rebuilding."""

from __future__ import annotations

from dataclasses import replace
from random import Random  # noqa: TID251 - a seed of the test's own
from typing import TYPE_CHECKING

import pytest

from offloaderd.metadata import paths
from offloaderd.metadata.records import context
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.removal import without_oldest
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.flaws import Kind
from offloaderd.upkeep.stored import Site
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, turn

if TYPE_CHECKING:
    from offloaderd.testing.memory.metadata import MemoryMetadata

SEEDS = 16
SITE = Site(cluster="test", bucket="b", prefix="seg/")


async def lived(seed: int) -> Rig:
    """Let a few owners work on a topic whose ledgers close, and sometimes vanish before they were offloaded."""
    chance = Random(seed)  # noqa: S311 - repeatable on purpose
    rig = Rig(policy=RollPolicy(segment_bytes_max=chance.choice([800, 3000, 100_000]), segment_age_max_s=3600.0))
    source = rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=chance.choice([7, 20, 1000]))
    for number in range(4):
        last = await source.append(TOPIC, payloads(1, seed=number))
        for _ in range(chance.randrange(3)):
            last = await source.append(TOPIC, payloads(chance.randrange(1, 30), seed=number))
        if chance.random() < 0.3:
            await source.roll(TOPIC)
            last = await source.append(TOPIC, payloads(3, seed=number))
        if number and chance.random() < 0.6:
            ledgers = [one.ledger_id for one in await source.ledgers(TOPIC) if one.ledger_id < last.ledger_id]
            for ledger_id in ledgers[: chance.randrange(len(ledgers) + 1)]:
                await source.delete(TOPIC, ledger_id)
        async with rig.engine(f"owner-{number}") as engine:
            topic = await (offloader_of(engine) if number else enabled(engine))
            while topic.offloaded is None or topic.offloaded < last:
                await topic.request_roll()
                await turn()
    return rig


async def nodes(store: MemoryMetadata) -> dict[str, bytes]:
    """Return the nodes of the topic's map."""
    return {
        f"{folder}/{name}": (await store.get(f"{folder}/{name}")).value
        for folder in (paths.ledgers(TOPIC), paths.losses(TOPIC))
        for name in await store.children(folder)
    }


async def rebuilt(rig: Rig) -> tuple[MemoryMetadata, list[Kind]]:
    """Rebuild into new metadata; returns it with what was said."""
    plan = rebuild.make_plan(await rebuild.read_buckets(rig.store, [SITE], lambda _: None))
    target = MemoryTree().connect()
    await rebuild.write(target, plan, topics=(), enable=False, now_ms=1, progress=lambda _: None)
    return target, [
        problem.kind for problem in (*plan.problems, *(one for topic in plan.topics for one in topic.problems))
    ]


async def test_the_seeds_have_what_they_are_for() -> None:
    """Losses, ledgers that ended, and segments over several ledgers are among the histories below."""
    maps = [await catalog.load((await lived(seed)).tree.connect(), TOPIC) for seed in range(SEEDS)]
    assert sum(bool(one.losses) for one in maps) >= 3
    assert sum(len(one.ends) > 3 for one in maps) >= 3
    assert sum(any(len(segment.slices) > 1 for segment in one.segments) for one in maps) >= 3


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_rebuilt_map_is_the_one_that_was_lost(seed: int) -> None:
    """Byte for byte; only how the last ledger ended may have become known after its last segment was sealed."""
    rig = await lived(seed)
    live = await catalog.load(rig.tree.connect(), TOPIC)
    target, failure_tracker = await rebuilt(rig)
    assert not failure_tracker
    wanted = await nodes(rig.tree.connect())
    last = paths.ledger(TOPIC, live.segments[-1].end.ledger_id)
    found = await nodes(target)
    if found[last] != wanted[last]:
        wanted[last] = context.encode(replace(context.decode(wanted[last], path=last), end=None))
    assert found == wanted
    assert (await catalog.load(target, TOPIC)).segments == live.segments


async def test_what_retention_took_from_the_front_does_not_come_back() -> None:
    """The rest is as it was; where it begins is said."""
    rig = await lived(1)
    store = rig.tree.connect()
    for _ in range(2):
        current = await catalog.load(store, TOPIC)
        oldest = current.segments[0]
        steps, _ = without_oldest(current, oldest, reason="old", now_ms=1)
        await store.transact(steps)
        keys = [info.key async for info in rig.store.list(f"seg/{oldest.segment_id}")]
        await rig.store.delete(keys)
    target, failure_tracker = await rebuilt(rig)
    assert set(failure_tracker) <= {Kind.FRONT}
    assert (await catalog.load(target, TOPIC)).segments == (await catalog.load(store, TOPIC)).segments


@pytest.mark.parametrize("seed", [0, 5, 9])
async def test_a_segment_that_is_gone_from_the_middle_is_a_gap(seed: int) -> None:
    """Whichever it is: nothing is written of a topic that lacks one between two others."""
    rig = await lived(seed)
    live = await catalog.load(rig.tree.connect(), TOPIC)
    assert len(live.segments) > 2
    for one in live.segments[1:-1]:
        stored = {info.key: await rig.store.get(info.key) async for info in rig.store.list(f"seg/{one.segment_id}")}
        await rig.store.delete(list(stored))
        target, failure_tracker = await rebuilt(rig)
        assert Kind.GAP in failure_tracker, one
        assert await target.children(paths.TOPICS) == []
        for key, data in stored.items():
            await rig.store.put(key, data)


@pytest.mark.parametrize("seed", [0, 1, 5])
async def test_a_segment_that_the_operator_left_out_stops_no_owner(seed: int) -> None:
    """The head still names it; its next owner does not refuse that, and offloads the entries again."""
    rig = await lived(seed)
    last = (await catalog.load(rig.tree.connect(), TOPIC)).segments[-1]
    found = await rebuild.read_buckets(rig.store, [SITE], lambda _: None)
    plan = rebuild.make_plan(found, without=[last.segment_id])
    rig.tree = MemoryTree()
    await rebuild.write(rig.tree.connect(), plan, topics=(), enable=True, now_ms=1, progress=lambda _: None)
    async with rig.engine("next owner") as engine:
        topic = await offloader_of(engine)
        while topic.offloaded is None or topic.offloaded < last.end:
            await topic.request_roll()
            await turn()
    again = (await catalog.load(rig.tree.connect(), TOPIC)).segments
    assert again[-1].end == last.end
    assert last.segment_id not in {one.segment_id for one in again}
