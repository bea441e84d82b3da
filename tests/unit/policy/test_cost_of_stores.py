"""The cost model of Azure and Google against what a segment asks of their services."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.model import EntryBatch, Position
from offloaderd.objects.azure.store import AzureStore
from offloaderd.objects.gcs.store import GcsStore
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.policy.cost import Cutting, Requests, parts_of, per_segment
from offloaderd.policy.prices import TABLE
from offloaderd.policy.records import TopicPolicy
from offloaderd.segment.builder import SegmentLayout
from tests.azure import service as azure
from tests.gcs_server import gcs_server
from tests.unit.rigs.rig import Rig, enabled, until_offloaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from offloaderd.objects.buckets import BucketStore

REAL_TIME = "the services in the process listen on sockets"
BUCKET = "segments"
LAYOUT = SegmentLayout(block_bytes=4096, part_bytes=16_384)
ENTRY_BYTES = 1000
CHARGED = {
    "puts": {"InsertObject", "ComposeObjects", "ListObjects", "PUT", "PUT block", "PUT blocklist", "GET containerlist"},
    "gets": {"HeadObject", "GetObject", "HEAD", "GET", "GET blocklist"},
    "deletes": {"DeleteObject", "DELETE"},
}


@asynccontextmanager
async def store_of(kind: str) -> AsyncIterator[tuple[BucketStore, list[str] | Counter[str]]]:
    """Open a store over its service; yields it and the requests that the service got."""
    if kind == "gcs":
        of = ObjectsSettings(kind="gcs", bucket=BUCKET)
        async with gcs_server(BUCKET) as server, GcsStore(of.model_copy(update={"endpoint": server.endpoint})) as store:
            yield store, server.requests
        return
    service = azure.Service(SystemClock())
    async with azure.serving(service) as endpoint, AzureStore(azure.options(endpoint, BUCKET)) as store:
        await store.create_bucket()
        yield store, service.requests


def charged(asked: Iterable[str]) -> Requests:
    """Sort the requests as the services charge them."""
    found = Counter(asked)
    assert set(found) <= set().union(*CHARGED.values())
    return Requests(**{name: sum(found[one] for one in of) for name, of in CHARGED.items()})


@pytest.mark.parametrize("kind", ["azure", "gcs"])
async def test_a_segment_costs_the_requests_of_the_model(kind: str) -> None:
    """Two segments of several parts: writing the second, and deleting it, takes what is planned."""
    entries = 60
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
    assert parts_of(entries * ENTRY_BYTES, ENTRY_BYTES, cutting) > 1
    objects = 3  # deleted one by one
    wanted = per_segment(entries * ENTRY_BYTES, ENTRY_BYTES, cutting)
    assert written.plus(Requests(deletes=objects)) == wanted


def test_prices_of_a_service_are_for_its_kind_of_store() -> None:
    """The service of S3's prices is AWS."""
    assert {row.service: row.kind for row in TABLE.values()} == {"aws": "s3", "azure": "azure", "gcs": "gcs"}
