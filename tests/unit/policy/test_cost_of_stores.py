"""The cost model of Azure and Google against what a segment asks of their services."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.model import EntryBatch, Position
from offloaderd.policy.cost import Cutting, Requests, parts_of, per_segment
from offloaderd.policy.prices import TABLE
from offloaderd.policy.records import TopicPolicy
from offloaderd.segment.builder import SegmentLayout
from tests.unit.rigs.rig import Rig, enabled, until_offloaded
from tests.unit.rigs.services import BUCKET, store_of

if TYPE_CHECKING:
    from collections.abc import Iterable

REAL_TIME = "the services in the process listen on sockets"
LAYOUT = SegmentLayout(block_bytes=4096, part_bytes=16_384)
ENTRY_BYTES = 1000
CHARGED = {
    "puts": {"InsertObject", "ComposeObjects", "ListObjects", "PUT", "PUT block", "PUT blocklist", "GET containerlist"},
    "gets": {"HeadObject", "GetObject", "HEAD", "GET", "GET blocklist"},
    "deletes": {"DeleteObject", "DELETE"},
}


def charged(asked: Iterable[str]) -> Requests:
    """Sort the requests as the services charge them."""
    found = Counter(asked)
    assert set(found) <= set().union(*CHARGED.values())
    return Requests(**{name: sum(found[one] for one in of) for name, of in CHARGED.items()})


@pytest.mark.parametrize("entries", [12, 60], ids=["one part", "several"])
@pytest.mark.parametrize("kind", ["azure", "gcs"])
async def test_a_segment_costs_the_requests_of_the_model(kind: str, entries: int) -> None:
    """Of two segments, writing the second, and deleting it, takes what is planned."""
    async with store_of(kind) as (store, requests):
        rig = Rig(objects=store, layout=LAYOUT, upload_bytes=1 << 20)
        rig.places = ((BUCKET, "seg/"),)
        async with rig.engine(push_only=True) as engine:
            topic = await enabled(engine, TopicPolicy(enabled=True, segment_bytes_max=1 << 20))
            for first in (0, entries):
                requests.clear()
                topic.offer(EntryBatch(1, first, [bytes(ENTRY_BYTES)] * entries))
                await topic.request_roll()
                await until_offloaded(topic, Position(1, first + entries - 1))
        written = charged(requests.elements() if isinstance(requests, Counter) else requests)
    cutting = Cutting(
        segment_bytes_max=1 << 20,
        segment_age_max_s=3600,
        block_bytes=LAYOUT.block_bytes,
        part_bytes=LAYOUT.part_bytes,
        kind=kind,
    )
    assert (parts_of(entries * ENTRY_BYTES, ENTRY_BYTES, cutting) == 1) is (entries == 12)
    objects = 3  # deleted one by one
    wanted = per_segment(entries * ENTRY_BYTES, ENTRY_BYTES, cutting)
    assert written.plus(Requests(deletes=objects)) == wanted


def test_prices_of_a_service_are_for_its_kind_of_store() -> None:
    """The service of S3's prices is AWS."""
    assert {row.service: row.kind for row in TABLE.values()} == {"aws": "s3", "azure": "azure", "gcs": "gcs"}
