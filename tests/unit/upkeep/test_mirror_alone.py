"""What a mirror alone gives when the first place, or the metadata as well, are lost."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Transient
from offloaderd.fleet.engine import mark_places
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.gc.findings import Verdict
from tests.unit.rigs.owned import Owned
from tests.unit.rigs.rig import TOPIC, Rig, until
from tests.unit.upkeep.test_mirror import AWAY, THIRD, buckets_of, lag, mirroring, offloaded, rig_of
from tests.unit.upkeep.test_mirrored import SITES, collected, segments_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.model import TopicName
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.upkeep.rebuild import Plan
    from offloaderd.upkeep.stored import Site

OURS = str(uuid.UUID(int=7))
ALONE = [site for site in SITES if (site.bucket, site.prefix) == AWAY]


async def marked_and_mirrored() -> Rig:
    """Return a rig of a deployment that has marked its places, with a topic whose segments all have a copy."""
    rig = rig_of()
    rig.deployment_id = OURS
    await offloaded(rig, 10, 10)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    await mark_places((await Owned.claim(rig)).context, "one")
    return rig


async def planned(rig: Rig, sites: Sequence[Site]) -> Plan:
    """Plan a rebuild from some places."""
    return rebuild.make_plan(await rebuild.read_buckets(rig.store, sites, lambda _: None))


async def test_a_rebuild_from_the_mirror_alone_goes_on_as_the_same_deployment() -> None:
    """There are no heads, but a marker: else nothing would be collected there, as it were another deployment's."""
    rig = await marked_and_mirrored()
    before, plan = await segments_of(rig), await planned(rig, ALONE)
    assert plan.deployment_id == OURS
    target = MemoryTree().connect()
    assert await rebuild.write(target, plan, topics=(), enable=True, now_ms=1, progress=lambda _: None) == [TOPIC]
    after = (await catalog.load(target, TOPIC)).segments
    assert [(one.segment_id, one.slices, one.place, one.mirror) for one in after] == [
        (one.segment_id, one.slices, AWAY, None) for one in before
    ]


@pytest.mark.parametrize("stored", [b"", None])
async def test_markers_that_say_nothing_are_passed(stored: bytes | None) -> None:
    """A damaged one, or none: an operator accepts the place, as the collector asks for."""
    rig = await marked_and_mirrored()
    there = buckets_of(rig).at(AWAY[0])
    [key] = [info.key async for info in there.list() if info.key.endswith(".marker")]
    await (there.delete([key]) if stored is None else there.put(key, stored))
    plan = await planned(rig, ALONE)
    assert (plan.deployment_id, plan.blocked) == ("", False)


async def test_heads_count_before_markers() -> None:
    """They are of the last commits; a marker may be of a deployment that was there first."""
    rig = await marked_and_mirrored()
    found = await rebuild.read_buckets(rig.store, SITES, lambda _: None)
    found.marked = {str(uuid.UUID(int=8))}
    assert rebuild.make_plan(found).deployment_id == OURS


async def test_a_collection_that_fails_before_it_deletes_holds_up_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata do not answer after it has taken the record of the topic's copies: it gives the record back."""
    rig = await marked_and_mirrored()
    rig.policy = replace(rig.policy, mirror=THIRD)
    async with mirroring(rig) as owned:
        await until(lambda: not lag(owned))
    store, load = rig.tree.connect(), catalog.load

    async def fails(metadata: MetadataStore, topic: TopicName) -> TopicMap:
        if await nodes.node(store, paths.mirror(topic)) is not None:
            raise Transient("gone")
        return await load(metadata, topic)

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "load", fails)
        assert {one.verdict for one in await collected(rig)} == {Verdict.FAILED}
    assert await nodes.node(store, paths.mirror(TOPIC)) is None
    assert {one.verdict for one in await collected(rig)} == {Verdict.DELETED}
