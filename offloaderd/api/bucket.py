"""Services of a daemon that has the bucket alone (`offloaderd serve --read-only`): its state, topics and segments, and
a broker's reads of offloaded ledgers. Reads of entries are those of `ReadService`.

The bucket has no record of deletions, so a ledger that it lacks is never reported to a broker as deleted: only as
unknown, after which the broker tries again.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from offloaderd.api.admin import DaemonSnapshot, checked_prefix, committed_segment, lost_range
from offloaderd.api.broker import named
from offloaderd.api.calls import Context
from offloaderd.api.paging import page
from offloaderd.api.read import BATCH_BYTES_MAX, ReadService
from offloaderd.core.errors import BucketMissing, EntriesMissing, InvalidInput, MapUnknown, NotFound, TopicNotFound
from offloaderd.core.model import START, Gap, Position, TopicName
from offloaderd.core.read_options import ReadPriority
from offloaderd.format.parsing import filled
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.protocol.conversion import encoded_read_response, to_position
from offloaderd.protocol.status import READ_ONLY
from offloaderd.protocol.v1 import admin_pb2, broker_pb2
from offloaderd.read.reader import TopicReader
from offloaderd.upkeep.bucket_topics import BucketTopics
from offloaderd.upkeep.grants.broker_request import Extent, extent_of

GAPS_MAX = 100
"""Gaps of one topic in a status."""
UNKNOWN_HINT = (
    "is daemon.cluster the name of the cluster that offloaded it? `offloadctl topics list` shows what there is"
)


@dataclass(eq=False)
class BucketAdminService:
    """Topics and segments of the bucket, and the state of the daemon."""

    topics: BucketTopics
    snapshot: Callable[[], DaemonSnapshot]

    async def ListTopics(self, request: admin_pb2.ListTopicsRequest, context: Context) -> admin_pb2.ListTopicsResponse:
        """Return the topics with a readable segment or a gap, in name order."""
        prefix = checked_prefix(request.prefix)
        within = [one for one in self.topics.topics if (one.tenant, one.namespace)[: len(prefix)] == prefix]
        wanted, token = page(request, sorted(within, key=str), str)
        rows = [self._summary(self._known(topic)) for topic in wanted]
        return admin_pb2.ListTopicsResponse(topics=rows, next_page_token=token)

    async def ListSelections(
        self, request: admin_pb2.ListSelectionsRequest, context: Context
    ) -> admin_pb2.ListSelectionsResponse:
        """Return no selection: the bucket knows none, and `offloadctl topics list` asks for both."""
        return admin_pb2.ListSelectionsResponse()

    @staticmethod
    def _summary(found: TopicMap) -> admin_pb2.TopicSummary:
        ledgers = {part.ledger_id for segment in found.segments for part in segment.slices}
        entries = sum(segment.entries for segment in found.segments)
        return admin_pb2.TopicSummary(
            topic=str(found.topic), policy_unknown=True, ledgers=len(ledgers), entries=entries
        )

    async def ListSegments(
        self, request: admin_pb2.ListSegmentsRequest, context: Context
    ) -> AsyncIterator[admin_pb2.Segment]:
        """Yield the readable segments in order. Raises TopicNotFound, Transient before the first listing."""
        topic = TopicName.parse(request.topic)
        found = await self.topics.topic_map(topic)
        self._known(topic)
        for segment in found.segments:
            yield committed_segment(segment)

    async def Status(self, request: admin_pb2.StatusRequest, context: Context) -> admin_pb2.StatusResponse:
        """Return the daemon's state, with one topic if it is named. Raises TopicNotFound, Transient."""
        rows = []
        if request.topic:
            topic = TopicName.parse(request.topic)
            found = await self.topics.topic_map(topic)
            self._known(topic)
            rows.append(_status(found))
        return filled(
            admin_pb2.StatusResponse,
            self.snapshot(),
            topics=rows,
            alarms=[problem.text for problem in self.topics.problems],
            tables=None,
            bucket=filled(
                admin_pb2.BucketListing,
                self.topics.counts,
                listed_ms=self.topics.listed_ms,
                failure=str(self.topics.failure) if self.topics.failure is not None else "",
            ),
        )

    def _known(self, topic: TopicName) -> TopicMap:
        found = self.topics.known(topic)
        if found is None:
            hint = "`offloadctl topics list` shows what there is; a topic that is new shows after the next listing"
            raise TopicNotFound(f"no segment of {topic} in the bucket", hint=hint)
        return found


def _status(found: TopicMap) -> admin_pb2.TopicStatus:
    return admin_pb2.TopicStatus(
        topic=str(found.topic),
        state=READ_ONLY,
        offloaded=to_position(found.offloaded),
        segments_committed=len(found.segments),
        lag_unknown=True,
        lag_age_unknown=True,
        losses=map(lost_range, found.losses),
        gaps=map(_gap, found.gaps[:GAPS_MAX]),
    )


def _gap(gap: Gap) -> admin_pb2.EntryGap:
    after = gap.after if gap.after != START else None
    return admin_pb2.EntryGap(after=to_position(after), before=to_position(gap.before), reason=gap.why)


@dataclass(eq=False)
class BucketBrokerService:
    """Reads for a broker's LedgerOffloader. Nothing is offloaded or deleted."""

    topics: BucketTopics
    reader: TopicReader
    reads: ReadService

    async def OpenLedger(
        self, request: broker_pb2.OpenLedgerRequest, context: Context
    ) -> broker_pb2.OpenLedgerResponse:
        """Return the last entry and the length of a ledger. Raises InvalidInput, MapUnknown, Transient."""
        extent = await self._extent(*named(request.ledger))
        return broker_pb2.OpenLedgerResponse(last_entry_id=extent.entries - 1, length_bytes=extent.length_bytes)

    async def ReadLedger(self, request: broker_pb2.ReadLedgerRequest, context: Context) -> AsyncIterator[bytes]:
        """Stream entries of a ledger, serialized already. Raises as OpenLedger, and as reads do."""
        topic, ledger_id, object_id = named(request.ledger)
        if request.batch_bytes > BATCH_BYTES_MAX:
            raise InvalidInput(f"batch_bytes of {request.batch_bytes} is too large", hint=f"at most {BATCH_BYTES_MAX}")
        await self._extent(topic, ledger_id, object_id)
        with self.reads.counted():
            reading = self.reader.read(
                topic,
                first=Position(ledger_id, request.first_entry_id).checked(),
                last=Position(ledger_id, request.last_entry_id).checked(),
                priority=ReadPriority.TIERED_STORAGE_FIRST,
                batch_bytes=request.batch_bytes,
                framed=request.framed,
            )
            try:
                async with aclosing(reading) as batches:
                    async for batch, tier in batches:
                        yield encoded_read_response(batch, tier)
            except (BucketMissing, EntriesMissing):
                raise
            except NotFound as error:
                raise EntriesMissing(error.message, hint=error.hint) from error

    async def _extent(self, topic: TopicName, ledger_id: int, object_id: UUID) -> Extent:
        """Return how far a ledger reaches of which the bucket has all. Raises MapUnknown, Transient."""
        found = extent_of(await self.topics.topic_map(topic), ledger_id, object_id)
        if found is None:
            raise MapUnknown(
                f"the bucket does not have all of ledger {ledger_id} of {topic}, or does not show that it was closed",
                hint=UNKNOWN_HINT,
            )
        return found
