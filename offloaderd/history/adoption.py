"""Adopts ledgers that a broker has offloaded itself (PIP-17): they become part of a topic's map where they lie.

Rules:
- Only the ledger that comes next is adopted, whole, from entry 0, between two segments and after its objects were
  looked at: their format version, lengths and index, and the entries of the last block, where Pulsar's writer has cut
  ledgers short and reported success.
- What BookKeeper has no more is still there while its objects are: such a ledger counts as one of the topic's.
- What cannot be adopted is offloaded from BookKeeper like any other. Where BookKeeper has it no more, it is lost if its
  objects are missing; else the topic stops before it, loudly, until somebody has looked.
- The objects stay the broker's: nothing here writes or deletes them.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from functools import partial

import structlog

from offloaderd.core.errors import BucketMissing, InvalidConfig, NotFound, OffloaderError, Transient
from offloaderd.core.model import (
    EntryBatch,
    LedgerEnd,
    LedgerInfo,
    LedgerOffload,
    Loss,
    OffloadMethod,
    Position,
    TopicName,
)
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.format.v1.index import LedgerObjectIndex, decode_index
from offloaderd.format.v1.scan import BlockScan, block_spans
from offloaderd.ledgers.chain import Run
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import keys
from offloaderd.objects.broker_ledger import verified_index
from offloaderd.objects.keys import SegmentKeys
from offloaderd.objects.port import ObjectReader
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.source_check import Listing


async def read_copy(
    objects: ObjectReader, where: SegmentKeys, index: LedgerObjectIndex, first: int, last: int, *, batch_bytes: int
) -> AsyncGenerator[EntryBatch, None]:
    """Yield the entries `first` to `last`, in order, in batches of about `batch_bytes`.

    Blocks are read from their begin. Raises NotFound, CorruptData, Transient and Denied; what was yielded is right.
    """
    assert where.ledger_id is not None  # noqa: S101 - the object of a ledger
    for span in block_spans(index):
        if span.last_entry_id < first or span.first_entry_id > last:
            continue
        scan = BlockScan(span, ledger_id=where.ledger_id, key=where.data)
        while scan.inside and scan.next_entry_id <= last:
            length = min(batch_bytes, span.end - scan.wanted_at)
            batch = scan.feed(await objects.get(where.data, scan.wanted_at, length)).between(first, last)
            if batch.count:
                yield batch.decoded()


log = structlog.get_logger(__name__)

DRIVERS = frozenset({"aws-s3", "s3"})
"""Pulsar's drivers for S3, by their names in lower case."""
DRIVER_DEFAULT = "aws-s3"
FAILURE = "adoption"
RETRY_S = 30.0
"""How soon what could not be adopted, and is nowhere else, is looked at again."""


class Adoption:
    """What brokers have offloaded of one topic, and has not been adopted yet."""

    def __init__(
        self,
        context: OffloadContext,
        record: TopicRecord,
        failure_tracker: FailureTracker,
        *,
        position: Callable[[], Position],
    ) -> None:
        """`position` is the newest entry that was taken, or is committed."""
        self._context = context
        self._record = record
        self._topic = record.map.topic
        self._failure_tracker = failure_tracker
        self._position = position
        self._clock = context.upload_context.clock
        self._backoff = Backoff(self._clock)
        self._found: dict[int, LedgerInfo] = {}
        self._copies: dict[int, LedgerInfo] = {}  # of which BookKeeper has nothing
        self._readable: set[int] = set()
        self._left: set[int] = set()  # not adopted, and offloaded from BookKeeper, or lost
        self._refused: dict[int, float] = {}  # nowhere else either: when to look again (monotonic)

    async def look(self, infos: Sequence[LedgerInfo]) -> list[LedgerInfo]:
        """Take in what brokers say; returns the source's ledgers with those that only tiered storage has.

        Raises what the source raises.
        """
        offloads = self._context.offloads
        if offloads is None:
            return list(infos)
        taken = self._position()
        found = await offloads.offloaded(self._topic)
        self._readable = {info.ledger_id for info in infos}
        self._left.intersection_update(info.ledger_id for info in found)
        new = (info for info in found if info.ledger_id > taken.ledger_id)
        self._found = {info.ledger_id: info for info in new if info.ledger_id not in self._left}
        gone = {info.ledger_id: info for info in found if info.ledger_id not in self._readable | self._left}
        # The last one that was taken is among them as well: what the list has next to it follows it.
        self._copies = {one: info for one, info in gone.items() if Position(one, info.entries - 1) >= taken}
        return sorted([*infos, *self._copies.values()], key=lambda info: info.ledger_id)

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, *, batch_bytes: int
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield entries of the source, or of a broker's copy where the source has none; see LedgerSource.

        So what is left of a ledger that was offloaded in part is not lost with BookKeeper's copy.
        """
        source, topic, info = self._context.source, self._topic, self._copies.get(ledger_id)
        assert source is not None  # noqa: S101 - else nobody reads it
        if info is None:
            entries = source.read(topic, ledger_id, first_entry_id, last_entry_id, batch_bytes=batch_bytes)
        else:
            entries = self._of_copy(info, first_entry_id, last_entry_id, batch_bytes)
        async with aclosing(entries) as batches:
            async for batch in batches:
                yield batch

    async def _of_copy(
        self, info: LedgerInfo, first: int, last: int, batch_bytes: int
    ) -> AsyncGenerator[EntryBatch, None]:
        try:
            segment = await verified(self._context, self._topic, info)
            objects = self._context.upload_context.objects.at(segment.bucket)
            index = decode_index(await objects.get(segment.keys.index), key=segment.keys.index)
            copy = read_copy(objects, segment.keys, index, first, last, batch_bytes=batch_bytes)
            async with aclosing(copy) as batches:
                async for batch in batches:
                    yield batch
        except BucketMissing as error:
            raise Transient(str(error), hint=error.hint) from error
        except NotFound:
            self._left.add(info.ledger_id)  # neither tier has it
            raise

    @property
    def claimed(self) -> Collection[int]:
        """The ledgers that are to be adopted, so that nobody begins to read them."""
        return self._found.keys()

    def due(self) -> LedgerInfo | None:
        """Return the ledger that is to be adopted now: the next one, with nothing open before it."""
        standing = self._record.map.standing
        if not self._found or (standing is not None and standing != self._position()):
            return None
        step = self._record.chain.next_after(self._position())
        if not isinstance(step, Run) or step.first_entry_id:
            return None
        again_s = self._refused.get(step.ledger_id, 0.0)
        return self._found.get(step.ledger_id) if self._clock.monotonic() >= again_s else None

    async def adopt(self, info: LedgerInfo) -> Position | None:
        """Make a ledger part of the topic, or decide what becomes of it; returns its end if it is part of the topic.

        Raises Fenced, Conflict.
        """
        try:
            segment = await verified(self._context, self._topic, info)
        except Transient as error:
            self._failure_tracker.record(error, FAILURE)
            await self._backoff.wait(error)
            return None
        except OffloaderError as error:
            await self._refuse(info, error)
            return None
        following = self._record.chain.end_of(info.ledger_id)
        await self._record.adopt(segment, LedgerEnd(segment.entries, following.next_ledger_id if following else None))
        self._settled(info.ledger_id)
        _tell(self._context, self._topic, info, segment)
        return segment.end

    def _settled(self, ledger_id: int) -> None:
        self._found.pop(ledger_id, None)
        self._refused.pop(ledger_id, None)
        self._backoff.reset()
        self._failure_tracker.clear(FAILURE)

    async def _refuse(self, info: LedgerInfo, error: OffloaderError) -> None:
        """Leave a ledger to the other ways there are; without one it is lost, or the topic stops before it."""
        ledger_id = info.ledger_id
        loss = self._loss(info) if isinstance(error, NotFound) and not isinstance(error, BucketMissing) else None
        outcome = "waiting" if loss is None else "lost"
        outcome = "offloaded_again" if ledger_id in self._readable else outcome
        self._context.upload_context.metrics.broker_ledgers.labels(outcome=outcome).inc()
        log.error(
            "ledger.not_adopted",
            topic=str(self._topic),
            ledger_id=ledger_id,
            error=str(error),
            outcome=outcome,
            hint=error.hint or "look what became of the objects that the broker's metadata names",
        )
        if ledger_id not in self._readable:
            if loss is None:
                self._refused[ledger_id] = self._clock.monotonic() + RETRY_S
                self._failure_tracker.record(error, FAILURE)
                return
            await self._record.lost(loss)
        self._settled(ledger_id)
        self._left.add(ledger_id)

    def _loss(self, info: LedgerInfo) -> Loss | None:
        """Return what is lost with a ledger that no tier has; None while nothing is known to follow it."""
        following = self._record.chain.next_after(Position(info.ledger_id, info.entries - 1))
        if following is None:
            return None
        before = following.before if isinstance(following, Loss) else following.first
        more = following.entries if isinstance(following, Loss) else 0
        return Loss(self._position(), before, info.entries + more)


async def adopt_head(
    context: OffloadContext,
    attempts: AttemptLog,
    topic_map: TopicMap,
    ledgers: Listing,
    on_error: Callable[[Transient], None] | None = None,
) -> TopicMap:
    """Adopt the ledgers with which a topic begins of which nothing is offloaded yet; returns the map with them.

    What a broker has deleted from BookKeeper is in no list of what can be read, so it has to be in the map before
    anybody plans by such a list. The first ledger that cannot be adopted is left to the owner's own way. Raises Fenced,
    Conflict, IdentityRefused when `ledgers` are of another history.
    """
    offloads, topic = context.offloads, topic_map.topic
    if context.source is None or offloads is None or topic_map.standing is not None or topic_map.losses:
        return topic_map
    clock = context.upload_context.clock

    async def listed() -> list[LedgerInfo]:
        try:
            known = {info.ledger_id: info for info in await ledgers() if info.entries or not info.closed}
            known |= {info.ledger_id: info for info in await offloads.offloaded(topic)}
        except NotFound:
            return []
        return [known[ledger_id] for ledger_id in sorted(known)]

    infos = await until_answered(clock, listed, on_error=on_error)
    for info, following in zip(infos, [*infos[1:], None], strict=False):  # no ledgers yet: nothing follows
        if info.offloaded is None:
            break
        try:
            segment = await until_answered(clock, lambda info=info: verified(context, topic, info), on_error=on_error)  # type: ignore[misc]
        except OffloaderError as error:
            log.warning(
                "ledger.not_adopted", topic=str(topic), ledger_id=info.ledger_id, error=str(error), outcome="later"
            )
            break
        end = LedgerEnd(segment.entries, following.ledger_id if following is not None else None)
        adopted = partial(TopicMap.with_commit, segment=segment, ends={info.ledger_id: end})
        topic_map = await attempts.change(topic_map, adopted)
        _tell(context, topic, info, segment)
    return topic_map


async def verified(context: OffloadContext, topic: TopicName, info: LedgerInfo) -> CommittedSegment:
    """Return a ledger that a broker has offloaded as a segment, once its objects are what they should be.

    A context of the first releases names no driver: then it is whatever the broker is set to, as for Pulsar itself.
    Raises InvalidConfig when they lie elsewhere, NotFound, CorruptData, Transient and Denied.
    """
    assert info.offloaded is not None  # noqa: S101 - nobody asks of others
    return await located(context, topic, info.ledger_id, info.offloaded, info)


async def located(
    context: OffloadContext,
    topic: TopicName,
    ledger_id: int,
    offload: LedgerOffload,
    info: LedgerInfo | None = None,
    *,
    named: bool = False,
) -> CommittedSegment:
    """Return such a ledger by the word of whoever knows where it lies; `info` None: nobody says how long it is.

    `named`: it is a caller's word alone, so the objects have to name the topic. Raises what `verified` does.
    """
    driver, places = offload.driver or DRIVER_DEFAULT, context.places
    bucket = offload.properties.get("bucket", "") if offload.driver else places.home.bucket
    if driver.lower() not in DRIVERS or bucket not in places.buckets:
        raise InvalidConfig(
            f"ledger {ledger_id} of {topic} was offloaded by driver {driver!r} into bucket {bucket!r}, not into "
            f"{' or '.join(map(repr, sorted(places.buckets)))}",
            hint="name that bucket in objects.places, copy its objects into ours, or let a broker serve it",
        )
    where = keys.SegmentKeys("", offload.object_id, ledger_id)
    index, data_bytes = await verified_index(
        context.upload_context.objects.at(bucket), where, managed_ledger=topic.managed_ledger, info=info, named=named
    )
    ledger = index.ledger()
    return CommittedSegment(
        segment_id=offload.object_id,
        slices=(LedgerSlice(ledger_id, 0, ledger.lastEntryId, ledger.length),),
        object_bytes=data_bytes,
        assigned_ms=offload.offloaded_ms,
        offloaded_ms=offload.offloaded_ms,
        bucket=bucket,
        prefix="",
        method=OffloadMethod.LEDGER_BASED,
        driver=driver,
    )


def _tell(context: OffloadContext, topic: TopicName, info: LedgerInfo, segment: CommittedSegment) -> None:
    context.upload_context.metrics.broker_ledgers.labels(outcome="adopted").inc()
    log.info(
        "ledger.adopted",
        topic=str(topic),
        ledger_id=info.ledger_id,
        object_id=str(segment.segment_id),
        entries=segment.entries,
        object_bytes=segment.object_bytes,
        driver=segment.driver,
    )
