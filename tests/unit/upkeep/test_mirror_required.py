"""Grants where the policy demands the mirror: the source keeps a ledger until every segment of it has its copy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.core.errors import Transient
from offloaderd.core.model import MirrorRequired, Position
from offloaderd.format.parsing import filled
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.objects.places import Place, Places
from offloaderd.objects.retrying import RetryingReader
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.protocol.status import mirror_text
from offloaderd.protocol.v1 import admin_pb2
from offloaderd.segment.roll import RollPolicy
from offloaderd.testing.clock import FakeClock
from offloaderd.topic.mirror import MirrorProgress
from offloaderd.upkeep.explain import Explainer, Held
from offloaderd.upkeep.grants import records as grant_records
from offloaderd.upkeep.grants.copy_check import awaited_copy
from offloaderd.upkeep.grants.grants import Grants
from offloaderd.upkeep.settings import GrantSettings
from tests.unit.metadata.segments import made
from tests.unit.rigs.owned import Owned, offload_more
from tests.unit.rigs.rig import TOPIC, Rig, until
from tests.unit.upkeep.test_mirror import AWAY, HOME, breaking, buckets_of, lag, mended, mirroring
from tests.unit.upkeep.test_mirrored import SITES, mirrored, segments_of

if TYPE_CHECKING:
    from offloaderd.core.model import TopicName
    from offloaderd.metadata.records.grant import Grant
    from offloaderd.metadata.topic_map.map import TopicMap

DEMAND = {"mirror": "/".join(AWAY), "mirror_required": MirrorRequired.YES, "deletion_lag_s": 0.0}


async def looked(owned: Owned, **said: object) -> dict[int, Grant]:
    """Look once for ledgers to grant; return the grants that are there afterwards."""
    options = GrantSettings(interval_s=1.0)
    grants = Grants(owned.context, owned.ledgers, options, owned.book(**{**DEMAND, **said}), daemon_id="one")
    await grants.run_once(owned.offloader, {})
    return await grant_records.load_all(owned.rig.tree.connect(), TOPIC)


async def demanding(rig: Rig) -> Owned:
    """Claim the topic under a policy that demands the mirror."""
    rig.policy = replace(rig.policy, mirror_required=True)
    return await Owned.claim(rig)


def denied(rig: Rig, reason: str) -> float:
    """Return how often a ledger was not granted for a reason."""
    return float(rig.metrics.source_delete_denied.labels(reason=reason)._value.get())


def told(owned: Owned) -> str:
    """Return the mirror's line of the status."""
    status = owned.offloader.status().mirror
    assert status is not None
    return mirror_text(
        admin_pb2.MirrorSummary(
            place=status.place,
            bucket=status.bucket,
            prefix=status.prefix,
            segments=status.segments,
            lag_segments=status.lag_segments,
            required=status.required,
            waiting_ledgers=status.waiting_ledgers,
        )
    )


async def test_a_ledger_is_granted_once_every_segment_of_it_has_its_copy() -> None:
    """The ledger whose second segment lacks one waits, the status names it, and then it is granted."""
    rig = await mirrored(15)
    await offload_more(rig, (10, 8), seed=7)
    owned = await demanding(rig)
    assert (await looked(owned)).keys() == {0}
    assert denied(rig, "mirror") == 2
    assert "SOURCE KEEPS ledgers 1, 2 until their copies are there" in told(owned)
    async with mirroring(rig, owned):
        await until(lambda: not lag(owned))
    assert (await looked(owned)).keys() == {0, 1, 2}
    assert "SOURCE" not in told(owned)


async def test_without_the_demand_nothing_waits() -> None:
    """A mirror alone holds up no grant."""
    rig = await mirrored(15)
    await offload_more(rig, (10, 8), seed=7)
    owned = await Owned.claim(rig)
    assert (await looked(owned, mirror_required=MirrorRequired.NO)).keys() == {0, 1, 2}


async def test_the_copy_is_verified_as_the_segment_is() -> None:
    """What the record says of a copy is not enough: one that lost an object holds up the grant."""
    rig = await mirrored(15)
    [segment] = await segments_of(rig)
    assert segment.copy is not None
    await buckets_of(rig).at(AWAY[0]).delete([segment.copy.keys.index])
    owned = await demanding(rig)
    assert await looked(owned) == {}
    assert denied(rig, "missing_object") == 1


async def test_grants_wait_while_the_mirror_is_away() -> None:
    """It cannot be asked, so nothing is granted; afterwards it is."""
    rig = await mirrored(15)
    breaking(rig, AWAY[0], lambda *_: Transient("down"))
    owned = await demanding(rig)
    assert await looked(owned) == {}
    assert denied(rig, "unreachable") == 1
    mended(rig)
    assert (await looked(owned)).keys() == {0}


async def test_a_grant_that_was_given_stays() -> None:
    """A demand that comes later takes nothing back, and the embedded store deletes by the grant."""
    rig = await mirrored(15)
    await offload_more(rig, (10,), seed=7)
    owned = await Owned.claim(rig)
    before = await looked(owned, mirror_required=MirrorRequired.NO, deletion_lag_s=3600.0)
    assert before.keys() == {0, 1}
    owned = await demanding(rig)
    after = await looked(owned)
    assert {one: grant.segments for one, grant in after.items()} == {one: it.segments for one, it in before.items()}
    await looked(owned)
    assert [info.ledger_id for info in await owned.ledgers.ledgers(TOPIC)] == [2]


async def test_a_demand_without_a_mirror_grants_nothing_and_says_so() -> None:
    """The level that named the mirror may have lost it: doubt never deletes."""
    rig = await mirrored(15)
    rig.policy = replace(rig.policy, mirror=None)
    owned = await demanding(rig)
    assert await looked(owned, mirror="") == {}
    assert told(owned).startswith("none, and the policy demands one (mirror_required): no ledger is granted")


async def test_a_mirror_that_is_the_place_of_the_segments_grants_nothing() -> None:
    """Levels that do not know of each other may say so, and then no copy is made."""
    rig = await mirrored(15)
    await offload_more(rig, (10,), seed=7)
    owned = await demanding(rig)
    assert (await looked(owned, bucket=HOME[0], prefix=HOME[1], mirror="/".join(HOME))).keys() == {0}
    assert denied(rig, "mirror") == 1


def test_what_a_broker_wrote_is_never_granted_under_the_demand() -> None:
    """It cannot have a copy, and its reason says so."""
    theirs = replace(made(1, (3, 0, 9)), driver="aws-s3")
    assert "a broker's own object" in awaited_copy(
        [theirs], OffloadPolicies(mirror="eu/topics/", mirror_required=MirrorRequired.YES)
    )
    assert awaited_copy([theirs], OffloadPolicies(mirror="eu/topics/")) == ""


async def test_explain_says_which_copy_a_grant_waits_for() -> None:
    """By the policy that holds for the topic; a granted ledger waits for nothing."""
    rig = await mirrored(15)
    await offload_more(rig, (10,), seed=7)
    owned = await demanding(rig)
    await looked(owned)

    class Maps:
        """The map as it is stored."""

        async def topic_map(self, topic: TopicName) -> TopicMap:
            """See Maps."""
            return await catalog.load(owned.context.metadata, topic)

    async def held(_: TopicName, __: Position) -> Held:
        return Held(buffer=False, source=True, in_source=True, ended=None, newest=None)

    reader = RetryingReader(rig.store, clock=rig.clock)
    explainer = Explainer(Maps(), held, owned.context.metadata, reader, SITES, owned.book(**DEMAND).of)
    granted, waiting = [await explainer.explain(TOPIC, Position(one, 0)) for one in (0, 1)]
    assert granted.grant_waits == ""
    assert "no copy in the mirror eu/topics/ yet" in waiting.grant_waits


def test_a_mirror_in_a_directory_without_a_name_is_a_mirror() -> None:
    """Its bucket is empty, as is that of a policy that names none; a daemon of before says the bucket alone."""
    here = MirrorProgress(Places(Place(driver={"bucket": "b"})), FakeClock())
    policy = RollPolicy(segment_bytes_max=1, segment_age_max_s=1.0, mirror=("", ""), mirror_required=True)
    status = here.status((), policy, wall_ms=1)
    assert status is not None
    assert mirror_text(filled(admin_pb2.MirrorSummary, status)) == "/, 0 copies, all there"
    without = here.status((), replace(policy, mirror=None), wall_ms=1)
    assert mirror_text(filled(admin_pb2.MirrorSummary, without)).startswith("none, and the policy demands one")
    assert mirror_text(admin_pb2.MirrorSummary(bucket="eu", prefix="p/")) == "eu/p/, 0 copies, all there"
