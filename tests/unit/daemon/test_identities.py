"""Whose the places and the metadata are: what an examination says before anything is deleted by mistake."""

from __future__ import annotations

from uuid import UUID

from offloaderd.core.model import TopicName
from offloaderd.daemon.doctor.bucket import owner
from offloaderd.daemon.doctor.finding import Case, Verdict
from offloaderd.daemon.doctor.zookeeper import refusals
from offloaderd.daemon.settings import Settings
from offloaderd.format.head import PlaceMarker
from offloaderd.metadata import paths
from offloaderd.metadata.records import identity
from offloaderd.objects import keys, marker
from offloaderd.policy.records import TopicPolicy, encode_policy
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.testing.memory.objects import MemoryStore

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
