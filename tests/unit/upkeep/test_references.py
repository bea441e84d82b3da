"""A look at the metadata misses nothing that exists all the while, however it moves while the look goes on."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

from offloaderd.metadata import paths
from offloaderd.metadata.port import Create, Delete
from offloaderd.metadata.records import deletion
from offloaderd.metadata.topic_map.removal import without_oldest
from offloaderd.testing.faults import FaultyMetadata, FaultyStore
from offloaderd.testing.memory.metadata import MemoryMetadata, MemoryTree
from offloaderd.upkeep.gc import references
from offloaderd.upkeep.gc.findings import Kind, Verdict
from tests.unit.upkeep.site import OURS, TOPIC, Ground, all_keys, committed, data_key, manifest_key, runs, segment_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.format.manifest import SegmentManifest
    from offloaderd.metadata.port import Step, Versioned
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.objects.port import ObjectInfo
    from offloaderd.upkeep.gc.findings import Finding


async def moved_at(moments: tuple[int, int]) -> tuple[references.References, int]:
    """Look while segment 2 is committed at one request of the look and thrown away at another."""
    ground = Ground()
    await ground.enable()
    described = await ground.store(2, runs(1, 0, 5))
    await ground.begin(2)
    asked = 0

    def commit() -> None:
        steps, after = before.with_commit(committed(described))
        ground.tree.apply([*steps, Delete(paths.attempt(TOPIC))], "")
        moves.append(lambda: remove(after))

    def remove(topic_map: TopicMap) -> None:
        steps, _ = without_oldest(topic_map, topic_map.segments[0], reason="old", now_ms=1)
        ground.tree.apply(steps, "")

    before = await ground.map()
    moves: list[Callable[[], None]] = [commit]

    def plan(_operation: str, _key: str, when: str) -> None:
        nonlocal asked
        if when == "before":
            for moment in moments:
                if moment == asked:
                    moves.pop()()
            asked += 1

    return await references.read(FaultyMetadata(ground.metadata, plan)), asked


async def test_a_segment_that_moves_during_a_look_is_seen() -> None:
    """Whatever two requests of the look the commit and the removal fall on, the segment is in what was seen."""
    _, requests = await moved_at((-1, -1))
    assert requests > 8
    missed = []
    for commit in range(requests):
        for remove in range(commit, requests + 1):
            found, _ = await moved_at((commit, remove))
            if segment_id(2) not in found:
                missed.append((commit, remove))
    assert not missed


async def test_a_refresh_has_the_server_catch_up() -> None:
    """A server that lags behind its leader would show a past in which what is referred to was not yet."""
    synced = []

    class Lagging(MemoryMetadata):
        async def sync(self, path: str) -> None:
            synced.append(path)
            await super().sync(path)

        async def get(self, path: str) -> Versioned:
            assert synced
            return await super().get(path)

    found = await references.read(Lagging(MemoryTree()))
    assert not found.topics
    assert synced == ["/"]


STATES = ("attempt", "committed", "trash")


async def referring(ground: Ground, described: SegmentManifest) -> dict[str, list[Step]]:
    """Return by state what makes the topic refer to segment 2."""
    await ground.begin(2)
    attempt = (await ground.metadata.get(paths.attempt(TOPIC))).value
    await ground.metadata.delete(paths.attempt(TOPIC))
    trash = deletion.Trash(segment_id=segment_id(2), upload_id="", reason="test", decided_ms=2**50)
    return {
        "attempt": [Create(paths.attempt(TOPIC), attempt)],
        "committed": (await ground.map()).with_commit(committed(described))[0],
        "trash": [Create(paths.trash_record(TOPIC, segment_id(2)), deletion.encode_trash(trash))],
    }


async def collected_while(ground: Ground, steps: list[Step], *, look: int) -> list[Finding]:
    """Collect, with this change of the metadata right before the collection's look of that number, its last one."""
    looks = 0

    def plan(operation: str, key: str, when: str) -> None:
        nonlocal looks
        if (operation, key, when) == ("get", paths.REBUILD, "before"):
            looks += 1
            if looks == look:
                ground.tree.apply(steps, "")

    finds, _ = await ground.collect(metadata=FaultyMetadata(ground.metadata, plan))
    assert looks == look
    return finds


@pytest.mark.parametrize("state", STATES)
async def test_commits_and_attempts_between_listing_and_look(state: str) -> None:
    """What was listed as unreferenced and is referred to by the time of the second look is no find."""
    ground = Ground()
    await ground.enable()
    steps = await referring(ground, await ground.store(2, runs(1, 0, 5)))
    await ground.age()
    assert await collected_while(ground, steps[state], look=2) == []


@pytest.mark.parametrize("state", STATES)
async def test_what_is_referred_to_between_classification_and_deletion_stays(state: str) -> None:
    """The look right before the deletion is heard: what is referred to by then, in whatever way, is kept."""
    ground = Ground()
    await ground.enable()
    await ground.segment(1, runs(1, 0, 5))
    steps = await referring(ground, await ground.store(2, runs(1, 5, 5)))
    await ground.objects.delete([manifest_key(2)])
    await ground.age()
    before = await ground.keys()
    assert {find.verdict for find in (await ground.collect(apply=False))[0]} == {Verdict.DELETE}
    finds = await collected_while(ground, steps[state], look=3)
    assert [(find.verdict, find.reason) for find in finds] == [(Verdict.KEEP, "it is referred to now")] * 2
    assert await ground.keys() == before


async def test_an_upload_that_is_being_written_by_then_is_not_aborted() -> None:
    """Nor does an upload go whose attempt was recorded between judgement and deletion."""
    ground = Ground()
    await ground.enable()
    await ground.segment(1, runs(1, 0, 5))
    steps = await referring(ground, await ground.store(2, runs(1, 5, 5)))
    await ground.objects.delete(all_keys(2))
    await ground.objects.create_upload(data_key(2), metadata=OURS)
    await ground.age()
    finds = await collected_while(ground, steps["attempt"], look=3)
    assert [(find.verdict, find.reason) for find in finds] == [(Verdict.KEEP, "it is referred to now")]
    assert [upload.key async for upload in ground.memory.list_uploads()] == [data_key(2)]


async def test_an_object_that_was_replaced_since_it_was_classified_stays() -> None:
    """What is deleted is what was judged: another object under the same key is left alone."""
    ground = Ground()
    await ground.enable()
    await ground.segment(1, runs(1, 0, 5))
    await ground.objects.put(data_key(2), b"judged", metadata=OURS)
    await ground.age()

    class Replacing(FaultyStore):
        heads = 0

        async def head(self, key: str) -> ObjectInfo:
            self.heads += 1
            if self.heads == 2:
                await ground.objects.put(key, b"other", metadata=OURS)
            return await super().head(key)

    finds, _ = await ground.collect(objects=Replacing(ground.objects, lambda *_: None))
    assert [(find.kind, find.verdict) for find in finds] == [(Kind.CHANGED, Verdict.KEEP)]
    assert await ground.objects.get(data_key(2)) == b"other"


def test_every_node_of_a_topic_is_known() -> None:
    """Whoever gives topics another node says here whether it refers to segments; until then nothing is collected."""
    folder = paths.topic(TOPIC)
    made = set()
    for name, make in inspect.getmembers(paths, inspect.isfunction):
        parameters = list(inspect.signature(make).parameters.values())
        if name == "folders" or not parameters or parameters[0].name != "name" or parameters[0].annotation is str:
            continue
        path = make(TOPIC, *(["1"] * (len(parameters) - 1)))
        if path.startswith(f"{folder}/"):
            made.add(path.removeprefix(folder).split("/")[1])
    assert len(made) >= 13
    assert made <= references.KNOWN_NODES
