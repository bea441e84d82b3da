"""Adoption: ledgers that a broker has offloaded itself (PIP-17) become part of a topic's map, and their objects stay.

Rules:
- Only the next ledger is adopted: whole, from entry 0, between two segments, and after a check of its objects: format
  version, lengths, index, and the entries of the last block, where Pulsar's writer has cut ledgers short and reported
  success.
- A ledger that BookKeeper has deleted still counts as the topic's while its objects exist.
- A ledger that cannot be adopted is offloaded from BookKeeper like any other. If BookKeeper has deleted it, the topic
  stops before it with an error until an operator has acted.
- It is lost only if its objects are missing in the right place. Pulsar's list names a bucket, and of Azure no account:
  another account or service may have a bucket of that name. The place is right if an earlier and a later ledger that
  the list has in the same bucket are found there at the same time, or if an operator accepts it; else it is refused.
- The objects belong to the broker: this module neither writes nor deletes them.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice

import structlog

from offloaderd.core.errors import (
    BucketMissing,
    CorruptData,
    Fenced,
    InvalidConfig,
    NotFound,
    OffloaderError,
    Transient,
)
from offloaderd.core.model import (
    EntryBatch,
    LedgerEnd,
    LedgerInfo,
    LedgerOffload,
    Loss,
    OffloadMethod,
    Position,
    RefusalKind,
    TopicName,
)
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.format.v1 import BlockScan, LedgerObjectIndex, block_spans, decode_index
from offloaderd.ledgers.chain import Run
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.records.identity import SEPARATOR
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import keys
from offloaderd.objects.keys import SegmentKeys
from offloaderd.objects.kinds import broker_drivers
from offloaderd.objects.port import ObjectInfo, ObjectReader
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.refusals import TopicIdentity
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.source_check import Listing


async def read_copy(
    objects: ObjectReader, where: SegmentKeys, index: LedgerObjectIndex, first: int, last: int, *, batch_bytes: int
) -> AsyncGenerator[EntryBatch, None]:
    """Yield the entries `first` to `last`, in order, in batches of about `batch_bytes`.

    Blocks are read from their begin. Raises NotFound, CorruptData, Transient and Denied; yielded entries are right.
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

FAILURE = "adoption"
RETRY_S = 30.0
"""Pause before another try with a ledger that could not be adopted and that BookKeeper has deleted."""
WITNESSES_MAX = 3
"""Ledgers on each side of a missing one that are looked for in its place."""
ACCEPTED_AT_ONCE_MAX = 50
"""Ledgers that one acceptance of a place is for."""


class Adoption:
    """The ledgers of one topic that brokers have offloaded and that are not adopted yet."""

    def __init__(
        self,
        context: OffloadContext,
        record: TopicRecord,
        failure_tracker: FailureTracker,
        identity: TopicIdentity,
        position: Callable[[], Position],
    ) -> None:
        """`position` returns the newest entry that was taken or is committed."""
        self._context = context
        self._record = record
        self._topic = record.map.topic
        self._failure_tracker = failure_tracker
        self._identity = identity
        self._position = position
        self._clock = context.upload_context.clock
        self._backoff = Backoff(self._clock)
        self._listed: Sequence[LedgerInfo] = ()  # all that brokers have offloaded, by id
        self._found: dict[int, LedgerInfo] = {}
        self._copies: dict[int, LedgerInfo] = {}  # those that BookKeeper has deleted
        self._readable: set[int] = set()
        self._left: set[int] = set()  # not adopted: offloaded from BookKeeper, or lost
        self._refused: dict[int, float] = {}  # nowhere else either: when to try again (monotonic)

    async def with_copies(self, infos: Sequence[LedgerInfo]) -> list[LedgerInfo]:
        """Refresh the ledgers that brokers have offloaded; return `infos` with those of them that only the tier has.

        Raises what the source raises, and Fenced.
        """
        offloads = self._context.offloads
        if offloads is None:
            return list(infos)
        taken = self._position()
        self._listed = found = await offloads.offloaded(self._topic)
        self._readable = {info.ledger_id for info in infos}
        self._left.intersection_update(info.ledger_id for info in found)
        new = (info for info in found if info.ledger_id > taken.ledger_id)
        self._found = {info.ledger_id: info for info in new if info.ledger_id not in self._left}
        gone = {info.ledger_id: info for info in found if info.ledger_id not in self._readable | self._left}
        # The last one that was taken is kept as well: the ledger after it in the list follows it.
        self._copies = {one: info for one, info in gone.items() if Position(one, info.entries - 1) >= taken}
        if all(Position(one, info.entries - 1) <= taken for one, info in self._copies.items()):
            await self._identity.clear(RefusalKind.UNKNOWN_PLACE)  # nothing that only the tier has is wanted
        return sorted([*infos, *self._copies.values()], key=lambda info: info.ledger_id)

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, *, batch_bytes: int
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield entries from the source, or from a broker's copy where the source has none; see LedgerSource.

        So the rest of a ledger that was offloaded in part is not lost with BookKeeper's copy.
        """
        source, topic, info = self._context.source, self._topic, self._copies.get(ledger_id)
        assert source is not None  # noqa: S101 - topics without a source are not read
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
            segment = await self._verified(info)
            objects = self._context.upload_context.objects.at(segment.bucket)
            index = decode_index(await objects.get(segment.keys.index), key=segment.keys.index)
            copy = read_copy(objects, segment.keys, index, first, last, batch_bytes=batch_bytes)
            async with aclosing(copy) as batches:
                async for batch in batches:
                    yield batch
        except BucketMissing as error:
            raise Transient(str(error), hint=error.hint) from error
        except NotFound:
            self._left.add(info.ledger_id)  # it is in neither tier
            raise

    @property
    def claimed(self) -> Collection[int]:
        """Ledgers to be adopted, which must not be read meanwhile."""
        return self._found.keys()

    def due(self) -> LedgerInfo | None:
        """Return the ledger to adopt now: the next one, with no open segment before it."""
        standing = self._record.map.standing
        if not self._found or (standing is not None and standing != self._position()):
            return None
        step = self._record.chain.next_after(self._position())
        if not isinstance(step, Run) or step.first_entry_id:
            return None
        again_s = self._refused.get(step.ledger_id, 0.0)
        return self._found.get(step.ledger_id) if self._clock.monotonic() >= again_s else None

    async def adopt(self, info: LedgerInfo) -> Position | None:
        """Adopt a ledger, or decide how it is offloaded else; return its end if it is part of the topic now.

        Raises Fenced, Conflict.
        """
        try:
            segment = await self._verified(info)
        except Transient as error:
            self._failure_tracker.record(error, FAILURE)
            await self._backoff.wait(error)
            return None
        except Fenced:
            raise
        except OffloaderError as error:
            await self._refuse(info, error)
            return None
        following = self._record.chain.end_of(info.ledger_id)
        await self._record.adopt(segment, LedgerEnd(segment.entries, following.next_ledger_id if following else None))
        self._settled(info.ledger_id)
        await self._identity.clear(RefusalKind.UNKNOWN_PLACE)
        _log_adopted(self._context, self._topic, info, segment)
        return segment.end

    async def _verified(self, info: LedgerInfo) -> CommittedSegment:
        """As `verified`; NotFound for a ledger that BookKeeper has deleted means that it is lost.

        Raises IdentityRefused where that is not certain, and Fenced.
        """
        try:
            return await verified(self._context, self._topic, info)
        except BucketMissing:
            raise
        except NotFound as error:
            if info.ledger_id not in self._readable:
                await self._check_place(info, error)
            raise

    async def _check_place(self, info: LedgerInfo, missing: NotFound) -> None:
        """Raise IdentityRefused unless the place that lacks a ledger is known to be the one that brokers wrote to."""
        place, kind = _described(self._context, info), RefusalKind.UNKNOWN_PLACE
        if await self._identity.accepted(kind, _evidence(info, place)) or await self._is_proven(info):
            await self._identity.clear(kind)
            return
        later = [one for one in self._beside(info) if one.ledger_id > info.ledger_id and one.ledger_id in self._copies]
        later = later[: ACCEPTED_AT_ONCE_MAX - 1]
        driver, _, endpoint = _written_to(info)
        by_list = f"driver {driver!r}" + (f" and endpoint {endpoint!r}" if endpoint else "")
        more = f". {len(later)} later ledgers that BookKeeper has deleted should lie there as well" if later else ""
        found = (
            f"ledger {info.ledger_id} is neither in BookKeeper nor in {place} ({missing.message}). Pulsar's list says "
            f"{by_list}, and no ledger before it and after it was found there: account or endpoint may be wrong{more}"
        )
        await self._identity.stop(kind, found, SEPARATOR.join(_evidence(one, place) for one in (info, *later)))

    def _beside(self, info: LedgerInfo) -> Sequence[LedgerInfo]:
        """Return the other ledgers that Pulsar's list has in the same place, by id."""
        return [one for one in self._listed if one is not info and _written_to(one) == _written_to(info)]

    async def _is_proven(self, info: LedgerInfo) -> bool:
        """Whether an earlier and a later ledger are in the place that lacks one. Raises Transient."""
        beside = self._beside(info)
        before = [one for one in reversed(beside) if one.ledger_id < info.ledger_id]
        after = [one for one in beside if one.ledger_id > info.ledger_id]
        return await self._is_there(before) and await self._is_there(after)

    async def _is_there(self, ledgers: Iterable[LedgerInfo]) -> bool:
        """Whether one of the first few ledgers is in its place. Raises Transient."""
        for one in islice(ledgers, WITNESSES_MAX):
            try:
                await verified(self._context, self._topic, one)
            except Transient:
                raise
            except OffloaderError:
                continue
            return True
        return False

    def _settled(self, ledger_id: int) -> None:
        self._found.pop(ledger_id, None)
        self._refused.pop(ledger_id, None)
        self._backoff.reset()
        self._failure_tracker.clear(FAILURE)

    async def _refuse(self, info: LedgerInfo, error: OffloaderError) -> None:
        """Leave a ledger to BookKeeper's copy; without one it is lost, or the topic stops before it."""
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
        """Return the loss of a ledger that is in no tier; None while no entry is known to follow it."""
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
    """Adopt the first ledgers of a topic without offloaded entries; return the map with them.

    A ledger that a broker deleted from BookKeeper is in no list of readable ledgers, so it has to be in the map before
    history is planned by such a list. The first ledger that cannot be adopted ends this. Raises Fenced, Conflict, and
    IdentityRefused when `ledgers` are of another history.
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
    for info, following in zip(infos, [*infos[1:], None], strict=False):  # no ledgers yet: none follows
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
        _log_adopted(context, topic, info, segment)
    return topic_map


async def verified(context: OffloadContext, topic: TopicName, info: LedgerInfo) -> CommittedSegment:
    """Return a broker's offloaded ledger as a segment, after the check of its objects.

    A context of the first releases names no driver: it means the broker's own driver, as in Pulsar. Raises
    InvalidConfig for objects in another place, NotFound, CorruptData, Transient and Denied.
    """
    assert info.offloaded is not None  # noqa: S101 - callers pass offloaded ledgers only
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
    """Return such a ledger by `offload`, which describes its objects; `info` None: its length is not known.

    `named`: `offload` is a caller's claim alone, so the objects have to name the topic. Raises what `verified` does.
    """
    places = context.places
    bucket = offload.properties.get("bucket", "") if offload.driver else places.home.bucket
    there = places.of_bucket(bucket) or places.home
    drivers = broker_drivers(there.driver.get("driver", ""))
    driver = offload.driver or drivers[0]
    if driver.lower() not in drivers or bucket not in places.buckets:
        ours = {one.bucket: one.driver.get("driver", "") for one in places}
        raise InvalidConfig(
            f"ledger {ledger_id} of {topic} was offloaded by driver {driver!r} into bucket {bucket!r}, not into "
            f"{' or '.join(f'{name!r} ({kind})' for name, kind in sorted(ours.items()))}",
            hint="name that bucket in objects.places, or in objects.services with the kind that its driver writes to, "
            "or let a broker serve it",
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


def _written_to(info: LedgerInfo) -> tuple[str, str, str]:
    """Return driver, bucket and endpoint by Pulsar's list, which names no account."""
    assert info.offloaded is not None  # noqa: S101 - callers pass offloaded ledgers only
    named = info.offloaded.properties
    return info.offloaded.driver.lower(), named.get("bucket", ""), named.get("serviceEndpoint", "")


def _described(context: OffloadContext, info: LedgerInfo) -> str:
    """Return the place that the settings have for such a ledger, with all that tells it from others of its name."""
    _, bucket, _ = _written_to(info)
    place = context.places.of_bucket(bucket) or context.places.home
    service = ", ".join(f"{name} {value}" for name, value in place.service.items() if value)
    return f"bucket {place.bucket!r} ({service})"


def _evidence(info: LedgerInfo, place: str) -> str:
    return f"ledger {info.ledger_id} in {place}"


def _log_adopted(context: OffloadContext, topic: TopicName, info: LedgerInfo, segment: CommittedSegment) -> None:
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


PIECE_BYTES = 1 << 20
MANAGED_LEDGER = "pulsar/managed-ledger"
"""Key of BookKeeper's custom metadata with the name of the ledger's topic (LedgerMetadataUtils)."""


async def verified_index(
    objects: ObjectReader,
    where: keys.SegmentKeys,
    *,
    managed_ledger: str,
    info: LedgerInfo | None = None,
    named: bool = False,
) -> tuple[LedgerObjectIndex, int]:
    """Check the objects of a ledger; return its index and the length of the data object.

    `info` is the broker's record of the ledger, None if no broker can be asked. Objects of Pulsar before 2.2 do not
    name their topic: they need only be in Pulsar's list of ledgers, unless `named` requires the name. Reads the last
    block. Raises NotFound for a missing object, CorruptData for another format, ledger or length, Transient and Denied.
    """
    data = await objects.head(where.data)
    _check_metadata(await objects.head(where.index), managed_ledger)
    _check_metadata(data, managed_ledger)
    index = decode_index(await objects.get(where.index), key=where.index)
    ledger = index.ledger()
    if index.data_bytes != data.size_bytes:
        raise _differs(where.data, data.size_bytes, f"an object of {index.data_bytes} bytes", f"{data.size_bytes}")
    if info is not None and ledger.lastEntryId != info.entries - 1:
        raise _differs(where.index, 32, f"a ledger up to entry {info.entries - 1}", ledger.lastEntryId)
    if info is not None and info.size_bytes and ledger.length != info.size_bytes:
        raise _differs(where.index, 32, f"a ledger of {info.size_bytes} bytes", ledger.length)
    names = {pair.key: pair.value for pair in ledger.customMetadata}
    if names.get(MANAGED_LEDGER, managed_ledger.encode()) != managed_ledger.encode():
        raise _differs(where.index, 32, f"a ledger of {managed_ledger}", names[MANAGED_LEDGER])
    if named and MANAGED_LEDGER not in names and keys.MANAGED_LEDGER_KEY not in data.metadata:
        raise _differs(where.data, 0, f"a ledger that names {managed_ledger} as its topic", "one that names none")
    await _check_last_block(objects, where, index)
    return index, data.size_bytes


def _check_metadata(found: ObjectInfo, managed_ledger: str) -> None:
    """Check the metadata as Pulsar's readers do, and that the object names no other topic. Raises CorruptData."""
    version = found.metadata.get(keys.FORMAT_VERSION_KEY)
    if version != keys.FORMAT_VERSION:
        expected = f"user metadata {keys.FORMAT_VERSION_KEY} of {keys.FORMAT_VERSION}"
        raise _differs(found.key, 0, expected, "none" if version is None else version)
    name = found.metadata.get(keys.MANAGED_LEDGER_KEY, managed_ledger)
    if name != managed_ledger:
        raise _differs(found.key, 0, f"a ledger of {managed_ledger}", name)


async def _check_last_block(objects: ObjectReader, where: keys.SegmentKeys, index: LedgerObjectIndex) -> None:
    """Read from the last index entry to the end, which has to be that of the ledger's last entry."""
    assert where.ledger_id is not None  # noqa: S101 - the object of a ledger
    span, last = block_spans(index)[-1], index.entries[-1]
    inside = last.first_entry_id > span.first_entry_id
    at = last.offset + index.header_bytes
    first = last.first_entry_id if inside else None
    scan = BlockScan(span, ledger_id=where.ledger_id, key=where.data, entry_id=first, at=at)
    while not scan.done:
        scan.feed(await objects.get(where.data, scan.wanted_at, min(PIECE_BYTES, span.end - scan.wanted_at)))


def _differs(key: str, offset: int, expected: object, found: object) -> CorruptData:
    hint = "the object is not what the broker's metadata says; keep it, and find out who wrote it"
    return CorruptData(key=key, offset=offset, expected=expected, found=found, hint=hint)
