"""Two deployments of one cluster name in one bucket, and numbers that were given twice: nobody's data go."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from offloaderd.core.errors import IdentityRefused, NotFound
from offloaderd.format.head import PlaceMarker
from offloaderd.metadata.identity import deployment, ensure_deployment
from offloaderd.metadata.records.identity import Deployment
from offloaderd.objects import keys, marker
from offloaderd.upkeep.gc.findings import Finding, Kind, Verdict
from tests.unit.format.builders import Run
from tests.unit.upkeep.site import BUCKET, CLUSTER, OURS, PREFIX, Ground, all_keys, data_key, runs

if TYPE_CHECKING:
    from offloaderd.objects.port import ObjectInfo

HERE, THERE = UUID(int=1), UUID(int=2)


def kinds(finds: list[Finding]) -> dict[str, tuple[Kind, Verdict]]:
    """Return what was found, by key."""
    return {find.key: (find.kind, find.verdict) for find in finds}


async def deployed(ground: Ground, deployment_id: UUID = HERE) -> None:
    """Make the metadata a deployment's, and mark the place as its own."""
    await ensure_deployment(ground.metadata, Deployment(deployment_id=deployment_id, made_ms=1, made_by="one"))
    ours = PlaceMarker(deployment_id=str(deployment_id), cluster=CLUSTER, daemon_id="one", since_ms=1)
    await marker.ensure(ground.objects.at(BUCKET), PREFIX, ours)


async def test_objects_of_another_deployment_stay(ground: Ground) -> None:
    """Same cluster name, same topic, same numbers, another id: foreign, whatever our map says (P5)."""
    await deployed(ground)
    await ground.store(2, runs(1, 0, 5), metadata=keys.segment_metadata(CLUSTER, str(THERE)))
    await ground.store(3, runs(1, 0, 5), metadata=keys.segment_metadata(CLUSTER, str(HERE)))
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds)[data_key(2)] == (Kind.FOREIGN, Verdict.KEEP)
    assert kinds(finds)[data_key(3)] == (Kind.SUPERSEDED, Verdict.DELETED)
    assert set(all_keys(1, 2)) <= set(await ground.keys())


async def test_nothing_is_collected_in_a_place_of_another_deployment(ground: Ground) -> None:
    """The second one to come says who is there, and touches nothing, not even what is rubbish by its metadata (P5)."""
    await deployed(ground)
    theirs = PlaceMarker(deployment_id=str(THERE), cluster=CLUSTER, daemon_id="two", since_ms=1)
    await marker.put(ground.objects.at(BUCKET), PREFIX, theirs)
    await ground.store(2, runs(1, 0, 5))
    await ground.objects.create_upload(data_key(9), metadata=OURS)
    await ground.age()
    with pytest.raises(IdentityRefused, match=f"deployment {THERE}"):
        await ground.collect()
    assert set(all_keys(1, 2)) <= set(await ground.keys())
    assert len([one async for one in ground.objects.list_uploads()]) == 1


async def test_uploads_from_before_the_marker_stay(ground: Ground) -> None:
    """Uploads do not say whose they are: only those go that began while the place was this deployment's (P5)."""
    await ground.objects.create_upload(data_key(8), metadata=OURS)
    await ground.age()
    await deployed(ground)
    await ground.objects.create_upload(data_key(9), metadata=OURS)
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == {data_key(8): (Kind.FOREIGN, Verdict.KEEP), data_key(9): (Kind.UPLOAD, Verdict.DELETED)}
    assert [one.key async for one in ground.objects.list_uploads()] == [data_key(8)]


async def test_uploads_in_a_place_with_a_provisional_marker_stay(ground: Ground) -> None:
    """A second deployment that has nothing but an upload yet has put its marker: it is not aborted (P5)."""
    await deployed(ground)
    theirs = PlaceMarker(deployment_id=str(THERE), cluster=CLUSTER, daemon_id="two", since_ms=1)
    for _ in range(2):
        whose = await marker.ensure(ground.objects.at(BUCKET), PREFIX, theirs)
        assert whose.other_than(str(THERE)).startswith(f"deployment {HERE}")
    await ground.objects.create_upload(data_key(9), metadata=OURS)
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == {data_key(9): (Kind.FOREIGN, Verdict.KEEP)}
    assert list(await marker.provisional_deployments(ground.objects.at(BUCKET), PREFIX, CLUSTER)) == [str(THERE)]


async def test_an_upload_in_a_place_without_a_marker_stays(ground: Ground) -> None:
    """Nobody knows whose the place was meanwhile."""
    await ensure_deployment(ground.metadata, Deployment(deployment_id=HERE, made_ms=1, made_by="one"))
    await ground.objects.create_upload(data_key(9), metadata=OURS)
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds) == {data_key(9): (Kind.FOREIGN, Verdict.KEEP)}


async def test_other_entries_under_the_same_numbers_are_not_superseded(ground: Ground) -> None:
    """A segment that the map seems to cover, with other content, is an alarm, not rubbish (P1)."""
    await ground.store(2, [Run(1, 0, [f"else:{entry}".encode() for entry in range(10)])])
    await ground.store(3, runs(1, 0, 10))
    await ground.age()
    finds, _ = await ground.collect()
    assert kinds(finds)[data_key(2)] == (Kind.UNCOVERED, Verdict.ALARM)
    assert kinds(finds)[data_key(3)] == (Kind.SUPERSEDED, Verdict.DELETED)
    assert set(await ground.keys()) == set(all_keys(1, 2))


async def test_a_deployment_is_made_once(ground: Ground) -> None:
    """Of two first starts at a time one wins, and both know which."""
    first = await ensure_deployment(ground.metadata, Deployment(deployment_id=HERE, made_ms=1, made_by="one"))
    second = await ensure_deployment(ground.metadata, Deployment(deployment_id=THERE, made_ms=2, made_by="two"))
    assert first == second == await deployment(ground.metadata)
    assert first.deployment_id == HERE


async def test_a_marker_is_put_once(ground: Ground) -> None:
    """Who finds one leaves it, and knows whose it is."""
    store = ground.objects.at(BUCKET)
    ours = PlaceMarker(deployment_id=str(HERE), cluster=CLUSTER, daemon_id="one", since_ms=1)
    theirs = PlaceMarker(deployment_id=str(THERE), cluster=CLUSTER, daemon_id="two", since_ms=2)
    assert (await marker.ensure(store, PREFIX, ours)).other_than(str(HERE)) == ""
    assert str(HERE) in (await marker.ensure(store, PREFIX, theirs)).other_than(str(THERE))


async def test_of_two_that_mark_a_place_at_a_time_the_first_one_has_it(ground: Ground) -> None:
    """The second one, which saw no marker, replaces none: it becomes a guest (P5)."""
    store, sound, seen = ground.memory, ground.memory.head, 0
    ours = PlaceMarker(deployment_id=str(HERE), cluster=CLUSTER, daemon_id="one", since_ms=1)
    theirs = PlaceMarker(deployment_id=str(THERE), cluster=CLUSTER, daemon_id="two", since_ms=2)

    async def head(key: str) -> ObjectInfo:
        nonlocal seen
        seen += 1
        if seen == 1:
            raise NotFound("not yet")
        return await sound(key)

    await marker.ensure(store, PREFIX, ours)
    store.head = head  # type: ignore[method-assign]
    assert (await marker.ensure(store, PREFIX, theirs)).marker == ours
    assert list(await marker.provisional_deployments(store, PREFIX, CLUSTER)) == [str(THERE)]


async def test_a_marker_that_was_damaged_on_its_way_is_put_again(ground: Ground) -> None:
    """Nothing would ever be collected in a place whose marker cannot be read; just put, nobody else's can be lost."""
    store = ground.memory
    sound, tries = store.put, 0

    async def put(key: str, data: bytes, **rest: object) -> object:
        nonlocal tries
        tries += 1
        return await sound(key, data if tries > 1 else data[:-1] + b"?", **rest)  # type: ignore[arg-type]

    store.put = put  # type: ignore[method-assign,assignment]
    ours = PlaceMarker(deployment_id=str(HERE), cluster=CLUSTER, daemon_id="one", since_ms=1)
    assert (await marker.ensure(store.at(BUCKET), PREFIX, ours)).marker == ours
    assert tries == 2
