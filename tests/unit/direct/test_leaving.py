"""A direct read that ends in its second segment stops what it began to fetch in the first one."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from offloaderd.client.reading import InBucket
from offloaderd.core.model import Position
from offloaderd.core.read_options import Tier
from offloaderd.direct.bucket import BucketReads
from offloaderd.protocol.v1 import read_pb2
from offloaderd.read.plan import Run
from offloaderd.read.planned import plan_message
from tests.unit.read.build import TOPIC, turns
from tests.unit.read.test_reading_on import BATCH_S, BLOCK_BYTES, BLOCKS, pieces_of, shelf

if TYPE_CHECKING:
    import pytest


def asked(run: InBucket) -> read_pb2.ReadRequest:
    """Return the request for a run."""
    return read_pb2.ReadRequest(topic=str(TOPIC), first=run.run.first, last=run.run.last)


async def test_a_read_that_leaves_in_a_later_segment_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a slow store is cancelled, though the segment before it was given to its end."""
    rig, store = await shelf(monkeypatch, [pieces_of(1)], [pieces_of(1, BLOCKS)])
    first, second = rig.map.segments
    runs = [Run(Tier.OBJECTS, 1, 0, BLOCKS - 1, first), Run(Tier.OBJECTS, 1, BLOCKS, 2 * BLOCKS - 1, second)]
    plan = plan_message(runs, complete=True)
    one, other = (InBucket(run, plan.segments[run.segment]) for run in plan.runs)
    store.silent = {second.keys.data: 3 * BLOCK_BYTES}
    store.answers.clear()
    async with rig.reader:
        sequence = BucketReads(rig.reader.segments).sequence()
        async for _ in sequence.read(asked(one), one.stored, other):
            await asyncio.sleep(BATCH_S)  # noqa: TID251 - virtual time
        async with aclosing(sequence.read(asked(other), other.stored)) as reading:
            assert (await anext(reading)).first == Position(1, BLOCKS)
        await turns(20)
        assert rig.reader.segments.pinned_bytes == 0
