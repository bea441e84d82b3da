"""Whose the places and the metadata are: what an examination says before anything is deleted by mistake."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast
from uuid import UUID

import pytest

from offloaderd.core.model import TopicName
from offloaderd.daemon.doctor import zookeeper
from offloaderd.daemon.doctor.bucket import owner
from offloaderd.daemon.doctor.finding import Case, Verdict
from offloaderd.daemon.doctor.zookeeper import places_of_segments, refusals
from offloaderd.daemon.settings import Settings
from offloaderd.format.head import PlaceMarker
from offloaderd.metadata import paths
from offloaderd.metadata.records import identity
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.unnamed import unnamed_places
from offloaderd.objects import keys, marker
from offloaderd.policy.records import TopicPolicy, encode_policy
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.metadata.segments import made

if TYPE_CHECKING:
    from offloaderd.metadata.port import MetadataStore

MINE, THEIRS = UUID(int=1), UUID(int=2)
TOPICS = [TopicName.parse(f"public/default/{name}") for name in "abcde"]


def case() -> Case:
    """Return an examination of a daemon with the usual settings."""
    return Case(Settings.model_validate({"objects": {"bucket": "offload"}}), FakeClock())


async def test_refusals_are_named_with_the_way_out() -> None:
    """The first few; before there is a deployment, and without a refusal, all is well."""
    one = case()
    home = f"{one.settings.metadata.root}/{one.settings.daemon.cluster}"
    async with MemoryTree().connect() as store:
        for topic in TOPICS:
            await store.create(home + paths.policy(topic), encode_policy(TopicPolicy(enabled=True)))
        found = await refusals(one, store)
        assert (found.verdict, one.deployment_id) == (Verdict.OK, "")
        made = identity.Deployment(deployment_id=MINE, made_ms=1, made_by="d")
        await store.create(home + paths.IDENTITY, identity.encode_deployment(made))
        found = await refusals(one, store)
        assert (found.verdict, one.deployment_id) == (Verdict.OK, str(MINE))
        assert "nothing is refused of 5 topics" in found.found
        doubt = identity.Refusal(kind="list-behind", found="x", evidence="y", since_ms=1)
        record = identity.encode(identity.TopicIdentityRecord(refusals=(doubt,)))
        for topic in TOPICS[:4]:
            await store.create(home + paths.identity(topic), record)
        await store.create(home + paths.identity(TOPICS[4]), b"\xff")
        found = await refusals(one, store)
        assert found.verdict is Verdict.FAIL
        assert f"{TOPICS[0]}: list-behind" in found.found
        assert "and 2 more" in found.found
        assert "identity accept" in found.what_to_do


async def test_another_deployment_in_a_place_is_named() -> None:
    """Also a marker that nobody can read; one's own is no trouble."""
    one, store = case(), MemoryStore(FakeClock())
    one.deployment_id = str(MINE)
    cluster, prefix = one.settings.daemon.cluster, one.settings.objects.prefix
    assert (await owner(one, store)).verdict is Verdict.OK
    for whose, verdict in ((MINE, Verdict.OK), (THEIRS, Verdict.FAIL)):
        put = PlaceMarker(deployment_id=str(whose), cluster=cluster, daemon_id="d-7", since_ms=1)
        await marker.put(store, prefix, put)
        found = await owner(one, store)
        assert found.verdict is verdict
        assert "d-7" in found.found
    await store.put(keys.marker(prefix, cluster), b"what")
    assert (await owner(one, store)).verdict is Verdict.WARN


async def test_places_that_the_settings_do_not_name_are_found_without_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the maps of all topics, before a start with other settings; of many topics as far as the time reaches."""
    one = case()
    async with MemoryTree().connect() as store:
        for number, topic in enumerate(TOPICS[:3]):
            steps, _ = TopicMap(topic).with_commit(made(number, (1, 0, 9)))
            for step in steps:
                await store.create(f"{one.home}{step.path}", step.value)  # type: ignore[union-attr]  # all create
        await store.create(f"{one.home}{paths.ledger(TOPICS[3], 1)}", b"\xff")
        found = await places_of_segments(one, store)
        assert found.verdict is Verdict.FAIL
        assert found.found.startswith(
            "of all topics: the settings do not name the place bucket/p/, where parts of 3 topics"
        )
        assert "objects.places" in found.what_to_do
        monkeypatch.setattr(zookeeper, "MAPS_S", -1.0)
        assert (await places_of_segments(one, store)).found.startswith("of the first 1 of 4 topics: ")
        named = Settings.model_validate({"objects": {"bucket": "offload", "places": "bucket/p/"}})
        assert (await places_of_segments(Case(named, FakeClock()), store)).verdict is Verdict.OK


async def test_a_daemon_that_serves_reports_its_own_counts() -> None:
    """Nothing is read; what has a copy elsewhere is a warning."""
    one, store = case(), cast("MetadataStore", None)
    one.unnamed = {}
    assert (await places_of_segments(one, store)).verdict is Verdict.OK
    copied = replace(made(1, (1, 0, 9)), mirror=("offload", ""))
    one.unnamed = {TOPICS[0]: unnamed_places([copied], {"offload"})}
    found = await places_of_segments(one, store)
    assert found.verdict is Verdict.WARN
    assert found.found.startswith(
        f"of this daemon's topics: the settings do not name the place bucket/p/, where parts of 1 topic ({TOPICS[0]})"
    )
