"""What a verification by Spark found damaged is kept at its source by the job itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offloaderd.spark import verify
from offloaderd.spark.scan.snapshot import Snapshot, Stores
from offloaderd.upkeep.flaws import Flaw, Kind
from offloaderd.upkeep.grants import records as grant_records
from offloaderd.upkeep.grants.revoke_on_damage import JobKeeper
from tests.unit.upkeep.site import TOPIC, Ground, data_key, runs, segment_id


async def kept(ground: Ground, *flaws: Flaw, metadata: bool = True, dry_run: bool = False) -> list[tuple[int, str]]:
    """Have the driver end a verification that found these; returns what became of which ledger."""
    topic_map = await ground.map()
    looked = [
        verify.Inspected(TOPIC, one, tuple(flaw for flaw in flaws if flaw.segment_id == one.segment_id), None, 0)
        for one in topic_map.segments
    ]
    stores = Stores(ground.objects, ground.metadata if metadata else None)
    found = await verify._revoke_grants(stores, [Snapshot(topic_map)], looked, dry_run=dry_run)
    return [(one.ledger_id, one.fate.value) for one in found]


@pytest.fixture
async def ground() -> Ground:
    """Three ledgers, one a segment."""
    site = Ground()
    await site.enable()
    for number in (1, 2, 3):
        await site.segment(number, runs(number, 0, 4))
    return site


def flaw(number: int, kind: Kind = Kind.BLOCK) -> Flaw:
    """Something that is wrong with a segment."""
    return Flaw(kind=kind, key=data_key(number), found="other bytes", segment_id=segment_id(number))


async def test_the_source_keeps_what_is_damaged(ground: Ground) -> None:
    """Not what lacks labels only, or could not be looked at."""
    found = await kept(ground, flaw(1, Kind.LABELS), flaw(2), flaw(3, Kind.UNREACHABLE))
    assert found == [(2, "kept")]
    assert await grant_records.damaged(ground.metadata, TOPIC) == (2,)


async def test_nobody_grants_the_deletion_of_what_a_broker_has_offloaded(ground: Ground) -> None:
    """So there is nothing to take back."""
    found = await ground.map()
    theirs = replace(found, segments=tuple(replace(one, driver="aws-s3") for one in found.segments))
    keeper = JobKeeper(ground.metadata, ground.clock, job="a test")
    assert await keeper.keep(theirs, {segment_id(2): "other bytes"}) == []
    assert await grant_records.damaged(ground.metadata, TOPIC) == ()


async def test_a_job_that_does_not_write_says_what_is_to_be_done(ground: Ground) -> None:
    """In a dry run, and with a bucket alone; of a sound bucket there is nothing to say."""
    assert await kept(ground, flaw(2), dry_run=True) == [(2, "dry-run")]
    assert await kept(ground, flaw(2), metadata=False) == [(2, "not-kept")]
    assert await kept(ground) == []
    assert await grant_records.damaged(ground.metadata, TOPIC) == ()
