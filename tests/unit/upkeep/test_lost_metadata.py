"""Who is on call hears that the metadata is lost, and of nothing else."""

from __future__ import annotations

from offloaderd.upkeep.gc import lost_metadata
from offloaderd.upkeep.stored import Site
from tests.unit.upkeep.site import BUCKET, CLUSTER, PREFIX, Ground, runs

SITES = [Site(cluster=CLUSTER, bucket=BUCKET, prefix=PREFIX)]


async def test_segments_and_no_topic_are_an_alarm_with_the_way_out() -> None:
    """An empty bucket is a new deployment, and others' objects are none of ours."""
    ground = Ground()
    assert await lost_metadata.alarm(ground.metadata, ground.objects, SITES) == ""
    await ground.objects.put(f"{PREFIX}0000", b"x")
    await ground.store(1, runs(1, 0, 10))
    said = await lost_metadata.alarm(ground.metadata, ground.objects, SITES)
    assert "knows no topic at all" in said
    assert "offloaderd rebuild" in said
    others = [Site(cluster="other", bucket=BUCKET, prefix=PREFIX)]
    assert await lost_metadata.alarm(ground.metadata, ground.objects, others) == ""
    await ground.enable()
    assert await lost_metadata.alarm(ground.metadata, ground.objects, SITES) == ""
