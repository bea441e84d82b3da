"""The bucket as a client reads it: the daemon says which segment holds which entries, and sends none of them.

Blocks are fetched and checked as the daemon would do it (`read/segments.py`), with the client's own access to the
bucket, and its own memory. The client passes on to the daemon what it cannot read here (`client/reading.py`).
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from offloaderd.client.reading import InBucket
from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.errors import Closed, CorruptData, InvalidInput
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import EntryBatch, TopicName
from offloaderd.daemon.log import quieted
from offloaderd.format.pulsar import broker_entry
from offloaderd.objects.opening import bucket_store
from offloaderd.objects.port import ObjectReader
from offloaderd.objects.settings import ServiceSettings
from offloaderd.protocol.conversion import from_position
from offloaderd.protocol.v1 import read_pb2
from offloaderd.read.cache import ReadAhead
from offloaderd.read.planned import committed
from offloaderd.read.reader import BATCH_BYTES
from offloaderd.read.segments import BlockWindow, FetchAhead, SegmentOptions, SegmentReader

MIB = 1024 * 1024
OPTIONS = SegmentOptions(cache_bytes=48 * MIB, tables_bytes=16 * MIB, read_ahead_bytes=24 * MIB)
"""Memory of all direct reads of one client together; two at a time read as fast as one alone."""
PLAN = "the daemon's plan"


class BucketReads:
    """Reads segments for any number of direct reads; made by `bucket_reads`."""

    def __init__(self, segments: SegmentReader) -> None:
        self._segments = segments

    def sequence(self) -> "Sequence":
        """Return the reader of one read.

        It fetches as much ahead as it may from its beginning on: a direct read is for long ranges, and a window that
        grows with each block leaves the bucket idle at first.
        """
        segments = self._segments
        return Sequence(segments, ReadAhead(segments.read_ahead_bytes), FetchAhead(segments.loader))


@dataclass(frozen=True, slots=True)
class Sequence:
    """Reads the segments of one read, one after the other."""

    segments: SegmentReader
    pace: ReadAhead
    ahead: FetchAhead
    """Of all segments of the read: when it ends in one, what was begun in an earlier one ends as well."""

    async def read(
        self, request: read_pb2.ReadRequest, stored: read_pb2.StoredSegment, following: InBucket | None = None
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield the entries of a request with both ends, which a segment holds, in batches as Read gives them framed.

        What the read goes on with (`following`) is checked when it is read.

        Raises NotFound (BucketMissing for a bucket that the settings do not have), CorruptData, Denied, Transient, and
        InvalidInput once the bucket was closed.
        """
        given, then = False, None
        try:
            topic, segment = TopicName.parse(request.topic), committed(stored, where=PLAN)
            first, last = from_position(request.first), from_position(request.last)
            if first > last or not segment.holds(first) or not segment.holds(last):
                raise CorruptData(
                    key=PLAN, offset=0, expected=f"entries of {segment.range}", found=f"{first} to {last}"
                )
            limit = min(request.batch_bytes or BATCH_BYTES, BATCH_BYTES)
            if following is not None:
                then = partial(self.ahead.begin, partial(self._fetch_begin, topic, following))
            read = self.segments.read_framed(topic, segment, first, last, self.pace, bytes_max=limit, then=then)
            async with aclosing(read) as batches:
                async for batch in batches:
                    yield broker_entry.without_heads(batch) if request.client_bytes else batch.decoded()
            given = True
        except Closed:
            hint = "keep bucket_reads open until the last read has ended"
            raise InvalidInput("the bucket of a direct read was closed", hint=hint) from None
        finally:
            if not given:
                await self.ahead.end()

    async def _fetch_begin(self, topic: TopicName, following: InBucket, before: BlockWindow | None) -> None:
        segment = committed(following.stored, where=PLAN)
        first, last = from_position(following.run.first), from_position(following.run.last)
        if first <= last and segment.holds(first) and segment.holds(last):
            await self.segments.fetch_begin(topic, segment, first, last, before)


@asynccontextmanager
async def bucket_reads(
    objects: ServiceSettings, *, clock: Clock | None = None, options: SegmentOptions = OPTIONS
) -> AsyncIterator[BucketReads]:
    """Open the bucket of these settings for direct reads. Raises InvalidConfig.

    Warnings go to standard error, unless structlog is configured.
    """
    quieted()
    clock = clock or SystemClock()
    async with bucket_store(objects, clock) as store, segments_of(store, clock, options) as reads:
        yield reads


@asynccontextmanager
async def segments_of(
    store: ObjectReader, clock: Clock, options: SegmentOptions = OPTIONS
) -> AsyncIterator[BucketReads]:
    """Yield direct reads of a store that is open."""
    async with SegmentReader(store, clock=clock, metrics=Metrics(), options=options) as segments:
        yield BucketReads(segments)
