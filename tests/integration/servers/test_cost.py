"""The cost model against the requests that a real S3 server is sent."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from offloaderd.core.model import EntryBatch, Position
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.policy.cost import HOUR_S, Cutting, Load, estimate, per_segment
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.settings import Prices
from offloaderd.segment.builder import SegmentLayout
from tests.unit.rigs.rig import Rig, enabled, until_offloaded

if TYPE_CHECKING:
    from tests.servers import S3Server

MIB = 1024 * 1024
ENTRY_BYTES = 64 * 1024
ENTRIES = 200
LAYOUT = SegmentLayout(block_bytes=MIB, part_bytes=5 * MIB)


class Counted:
    """RequestMetrics that count by operation."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()

    def request_begun(self) -> None:
        """Only what has ended counts."""

    def request(self, operation: str, code: str, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """Count one."""
        del code, seconds, bytes_in, bytes_out
        self.operations[operation] += 1


async def test_requests_per_gib_and_per_topic_hour_are_those_of_the_model(s3_server: S3Server, s3_bucket: str) -> None:
    """Two segments of 12.5 MiB each: what the second asks of the server, every operation of it, is what is planned."""
    counted = Counted()
    options = ObjectsSettings(
        bucket=s3_bucket,
        endpoint=s3_server.endpoint,
        access_key=s3_server.access_key,
        secret_key=s3_server.secret_key,
    )
    async with S3Store(options, counted) as store:
        rig = Rig(objects=store, layout=LAYOUT, buffer_bytes=64 * MIB, upload_bytes=32 * MIB)
        rig.places = ((s3_bucket, "seg/"),)
        async with rig.engine(push_only=True) as engine:
            topic = await enabled(engine, TopicPolicy(enabled=True, segment_bytes_max=1 << 30))
            for first in (0, ENTRIES):
                counted.operations.clear()
                topic.offer(EntryBatch(1, first, [bytes(ENTRY_BYTES)] * ENTRIES))
                await topic.request_roll()
                await until_offloaded(topic, Position(1, first + ENTRIES - 1))
            asked = dict(counted.operations)
    assert asked == {
        "CreateMultipartUpload": 1,
        "UploadPart": 3,
        "CompleteMultipartUpload": 1,
        "PutObject": 3,
        "HeadObject": 1,
        "GetObject": 2,
    }
    cutting = Cutting(
        segment_bytes_max=1 << 30,
        segment_age_max_s=HOUR_S,
        block_bytes=LAYOUT.block_bytes,
        part_bytes=LAYOUT.part_bytes,
    )
    payload_bytes = ENTRIES * ENTRY_BYTES
    wanted = per_segment(payload_bytes, ENTRY_BYTES, cutting)
    assert sum(asked.values()) == wanted.all - wanted.deletes
    hourly = Load(topics=1, bytes_per_s=payload_bytes / HOUR_S, entry_bytes=ENTRY_BYTES)
    free = Prices(put_1000=0, get_1000=0, delete_1000=0, stored_gib_month=0)
    takes = estimate([hourly], cutting, free)
    assert takes.requests_per_topic_hour == sum(asked.values()) + 1
    assert round(takes.requests_per_gib) == round((sum(asked.values()) + 1) * (1 << 30) / payload_bytes)
