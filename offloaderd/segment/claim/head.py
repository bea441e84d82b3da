"""The head of a topic: a small object in the bucket that names the newest segment, independent of the metadata.

It is put between the verification of a segment and the transaction that commits it. It is read once under each claim
before the first commit or deletion, and again if a topic wakes with an older map. A head that is ahead of the map was
put by owners whose records are lost: the metadata went back. A head of another deployment means that this one writes
the topic as well. A topic without a head is accepted, since earlier versions had none. With an unreadable head, no
segment is committed before an operator confirms the metadata.

A late put, or one of a fenced owner, replaces no newer head in a store with conditional writes. In others a head may be
older than the map, and then does not show that metadata went back. A segment that only the head has may have been given
up: then it is on the trash list, or its manifest is deleted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import TypeVar
from uuid import UUID

import google_crc32c
import structlog

from offloaderd.core.errors import BucketMissing, Conflict, CorruptData, Denied, NoSpace, NotFound, Transient
from offloaderd.core.model import OffloadMethod, Position, RefusalKind
from offloaderd.core.retry import Backoff
from offloaderd.format import head as head_format
from offloaderd.format.head import HeadSegment, TopicHead
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records.identity import head_evidence
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import keys
from offloaderd.objects.keys import SegmentKeys
from offloaderd.objects.places import Place
from offloaderd.objects.port import find, md5
from offloaderd.objects.whole import Get, read_sure
from offloaderd.segment.claim.fence import Claim, Fence
from offloaderd.segment.claim.refusals import TopicIdentity
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import METADATA, error_class

T = TypeVar("T")
EndOf = Callable[[TopicMap], Position | None]
log = structlog.get_logger(__name__)

AGAIN_S = 60.0
"""Time for which nothing is asked for the head of a topic that does not use the bucket, after that did not answer."""
_NOWHERE: frozenset[tuple[str, str]] = frozenset()
"""One for all topics: each empty set that Python makes has 216 bytes."""
_RETRIED = (Transient, Denied, NoSpace, BucketMissing)


class HeadKeeper:
    """Reads and puts one topic's head under one claim. `epoch` is the owner's, None for the driver of a job.

    A suspended topic keeps it, so what only a comparison needs is there only during one.
    """

    __slots__ = (
        "_checked",
        "_clock",
        "_compared",
        "_context",
        "_counting",
        "_epoch",
        "_etags",
        "_failed_s",
        "_identity",
        "_known_epoch",
        "_locks",
        "_put",
        "_seen",
        "_topic",
    )

    def __init__(self, context: OffloadContext, identity: TopicIdentity, *, epoch: int | None) -> None:
        self._context = context
        self._identity = identity
        self._topic = identity.topic
        self._epoch = epoch
        self._clock = context.upload_context.clock
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._checked = False
        self._compared = _NOWHERE
        """Places whose head was compared with the map, until all of them were."""
        self._failed_s: dict[tuple[str, str], float] = {}
        """When the heads of other places could not be read."""
        self._counting = _NOWHERE
        """Places whose head the topic waits for."""
        self._seen: Position | None = None
        """The offloaded position of the last map."""
        self._known_epoch = 0
        self._put: tuple[object, ...] = ()
        self._etags: dict[tuple[str, str], str] = {}
        """ETags of the heads as read or put last, by bucket and key; "" where there is none."""

    def take_up(self, topic_map: TopicMap) -> None:
        """Begin with this map, after a claim or a wake-up; one that is older than before is compared again."""
        if self._seen is not None and (topic_map.offloaded is None or topic_map.offloaded < self._seen):
            self._checked = False
            self._identity.checked.clear()
            self._compared = _NOWHERE
        self._seen = topic_map.offloaded

    async def check(
        self,
        topic_map: TopicMap,
        committing: UUID | None = None,
        *,
        storing: str | None = None,
        in_background: bool = False,
    ) -> None:
        """Compare the heads with the map, once under a claim; `committing` is the segment that is committed next.

        With `storing`, the bucket of that segment, a bucket that the topic does not use may not answer: its heads are
        left out, and nothing of the topic is deleted or granted before they too were compared. They are not where
        another deployment has marked the place: only a head says whether the topic is the other's. `in_background`:
        nothing waits for this check, so such a bucket does not count as a failure of the topic. Raises IdentityRefused,
        Fenced.
        """
        if self._checked:
            return
        used, missing = self._buckets_of(topic_map, storing), False
        every = storing is None or storing in self._context.shared
        for place in self._context.places:
            needed = place.bucket in used
            patient, counts = needed or every, needed or not in_background
            done = await self._compared_with(place, topic_map, committing, patient=patient, counts=counts)
            missing = missing or not done
        if missing:
            return
        self._checked = True
        self._compared, self._counting, self._locks = _NOWHERE, _NOWHERE, {}
        for kind in (RefusalKind.METADATA_WENT_BACK, RefusalKind.OTHER_DEPLOYMENT, RefusalKind.HEAD_UNREADABLE):
            await self._identity.clear(kind, about="head ")
        self._identity.checked.set()

    def _buckets_of(self, topic_map: TopicMap, storing: str | None) -> AbstractSet[str]:
        """Return the buckets with segments of the topic, or else the daemon's own; those of mirrors do not count."""
        places = self._context.places
        buckets = {segment.bucket for segment in topic_map.segments} | ({storing} if storing is not None else set())
        return buckets & places.buckets or {places.home.bucket}

    async def _compared_with(
        self, place: Place, topic_map: TopicMap, committing: UUID | None, *, patient: bool, counts: bool
    ) -> bool:
        """Compare the head of a place, once under a claim; returns whether that was done.

        If it cannot be read, a `patient` caller tries until it can, any other does without for a while.
        """
        where = place.bucket, place.prefix
        if self._is_compared(where):
            return True
        if not patient:
            failed_s = self._failed_s.get(where)
            if failed_s is not None and self._clock.monotonic() - failed_s < AGAIN_S:
                return False
            try:
                found = await self._read_once(place)
            except _RETRIED as error:
                self._failed_s[where] = self._clock.monotonic()
                kind = error_class(error)
                log.warning("head.retried", topic=str(self._topic), error_class=kind, error=str(error))
                return False
            await self._compare(found, topic_map, committing)
            self._compared |= {where}
            return True
        if counts:
            self._counting |= {where}  # also for a caller that does not count, and is already trying
        async with self._locks.setdefault(where, asyncio.Lock()):
            if not self._is_compared(where):
                ask = partial(self._read_once, place)
                found = await self._persist(ask, counts=lambda: where in self._counting)
                await self._compare(found, topic_map, committing)
                self._compared |= {where}
        return True

    def _is_compared(self, where: tuple[str, str]) -> bool:
        return self._checked or where in self._compared

    async def before_commit(self, before: TopicMap, after: TopicMap, segment: CommittedSegment) -> None:
        """Put the head for the map after a commit. Raises IdentityRefused, Fenced."""
        await self.check(before, segment.segment_id, storing=segment.bucket)
        newest, self._seen = after.segments[-1], after.offloaded
        history = after.history_end  # also of finished history: metadata from before its end lack it
        value = TopicHead(
            managed_ledger=self._topic.managed_ledger,
            cluster=self._context.cluster,
            epoch=self._told_epoch,
            newest=_described(newest),
            history=_described(after.find(history)) if history is not None else None,
            deployment_id=self._context.deployment_id,
            put_ms=self._clock.wall_ms(),
        )
        told = (value.newest, value.history, value.epoch)
        if told == self._put:
            return
        home = self._context.places.home
        ours = self._context.places.find(newest.bucket, newest.prefix) if not newest.foreign else None
        await self._replace(ours or home, value, before, segment.segment_id)
        self._put = told

    @property
    def _told_epoch(self) -> int:
        """The owner's epoch; for a job, which has none, the highest of the heads."""
        return self._known_epoch if self._epoch is None else self._epoch

    async def _replace(self, place: Place, value: TopicHead, before: TopicMap, committing: UUID) -> None:
        """Replace the head that was read last; a put that arrives late cannot replace a newer one.

        If the head has changed since it was read, it is compared, and the newer segments of both are put. Raises
        IdentityRefused, Fenced.
        """
        store, key = self._context.upload_context.objects.at(place.bucket), self._key(place)
        labels = keys.segment_metadata(self._context.cluster, self._context.deployment_id)
        etag: str | None = self._etags.get((place.bucket, key), "")
        while True:
            put = partial(store.put, key, head_format.encode_head(value), metadata=labels, if_etag=etag)
            try:
                self._etags[place.bucket, key] = (await self._persist(put)).etag
                return
            except Conflict:
                known = etag
            info = await self._persist(lambda: find(store, key))
            found = await self._persist(lambda: self._read_once(place))
            etag = info.etag if info is not None else ""
            if found == value:  # an earlier try
                self._etags[place.bucket, key] = etag
                return
            await self._compare(found, before, committing)
            if found is not None:
                value = replace(
                    value,
                    newest=await self._newer(value.newest, found.newest),
                    history=await self._newer(value.history, found.history),
                    epoch=self._told_epoch,
                )
            if etag == known:
                etag = None  # the store's condition failed without a reason

    async def _newer(self, ours: HeadSegment | None, theirs: HeadSegment | None) -> HeadSegment | None:
        """Return the newer of two segments: an owner and a job each commit to the map that they have read.

        A segment that the other is about to commit counts: its head is put before its commit and not again.
        """
        if ours is None or theirs is None or theirs.end <= ours.end or theirs.segment_id == ours.segment_id:
            return ours
        if await self._persist(lambda: self._is_recorded(theirs.segment_id), METADATA):
            return theirs
        current = await self._persist(lambda: catalog.load(self._context.metadata, self._topic), METADATA)
        return theirs if _holds(current, theirs) else ours

    def _key(self, place: Place) -> str:
        return keys.head(place.prefix, self._context.cluster, self._topic.managed_ledger)

    async def _read_once(self, place: Place) -> TopicHead | None:
        """Return the head in a place; None without one, or if an operator accepted that it is damaged.

        Raises IdentityRefused for one that stays unreadable, and the errors of _RETRIED.
        """
        key = self._key(place)
        get, damaged = partial(self._context.upload_context.objects.at(place.bucket).get, key, 0), b""

        async def take(get: Get) -> TopicHead:
            nonlocal damaged
            damaged = await get(None)
            return head_format.decode_head(damaged, key=key)

        try:
            found = await read_sure(take, get)
        except BucketMissing:
            raise
        except NotFound:
            self._etags[place.bucket, key] = ""
            return None
        except CorruptData as error:
            self._etags[place.bucket, key] = md5(damaged)
            await self._identity.stop(
                RefusalKind.HEAD_UNREADABLE,
                f"what says in the bucket how far the topic is, and whose it is, cannot be read: {error}",
                f"head of {len(damaged)} bytes in {place}, CRC-32C {google_crc32c.value(damaged):08x}",
            )
            return None
        self._etags[place.bucket, key] = md5(damaged)  # another kind of ETag fails the first put, which corrects it
        return found if found.managed_ledger == self._topic.managed_ledger else None

    async def _compare(self, found: TopicHead | None, topic_map: TopicMap, committing: UUID | None) -> None:
        """Raise IdentityRefused for a head that does not fit the map."""
        if found is None:
            return
        ours = self._context.deployment_id
        if ours and found.deployment_id and found.deployment_id != ours:
            await self._identity.stop(
                RefusalKind.OTHER_DEPLOYMENT,
                f"deployment {found.deployment_id} commits segments of this topic below the same prefix, this one is "
                f"{ours}",
                f"head of deployment {found.deployment_id}",
            )
        self._known_epoch = max(self._known_epoch, found.epoch)
        evidence = f"head of epoch {found.epoch}"
        stands = any(one.evidence == evidence for one in self._identity.refusals)
        if self._epoch is not None and (found.epoch > self._epoch or stands):
            await self._identity.stop(
                RefusalKind.METADATA_WENT_BACK,
                f"an owner of epoch {found.epoch} has committed segments of this topic, and the metadata were at "
                "a lower one",
                evidence,
            )
        for head, end_of in ((found.newest, _newest_end), (found.history, _history_end)):
            if head is not None and await self._is_ahead(head, end_of, topic_map, committing):
                await self._identity.stop(
                    RefusalKind.METADATA_WENT_BACK,
                    f"segment {head.segment_id} was committed up to {head.end}, and the metadata say that the topic "
                    f"is offloaded up to {end_of(topic_map) or 'nothing'}",
                    head_evidence(head.segment_id),
                )

    async def _is_ahead(self, head: HeadSegment, end_of: EndOf, topic_map: TopicMap, committing: UUID | None) -> bool:
        """Return whether a committed segment is missing in the map: neither open, nor given up, nor deleted again.

        A manifest is no proof: one whose put had no answer may come when the segment was deleted since.
        """
        if head.segment_id == committing or _accounts_for(topic_map, head, end_of):
            return False
        if await self._persist(lambda: self._is_recorded(head.segment_id), METADATA):
            return False
        where = SegmentKeys(head.prefix, head.segment_id, head.begin.ledger_id if head.ledger_based else None)
        objects = self._context.upload_context.objects.at(head.bucket)
        if await self._persist(lambda: find(objects, where.manifest)) is None:
            return False
        # Since the map was read, it may have been committed by a job, and merged or deleted after that.
        current = await self._persist(lambda: catalog.load(self._context.metadata, self._topic), METADATA)
        return not _accounts_for(current, head, end_of)

    async def _is_recorded(self, segment_id: UUID) -> bool:
        """Return whether a segment is an attempt of the owner or of a job, or on the trash list."""
        store, topic = self._context.metadata, self._topic
        for path in (paths.trash_record(topic, segment_id), paths.history_job_attempt(topic, segment_id)):
            if await nodes.node(store, path) is not None:
                return True
        for path in (paths.attempt(topic), paths.history_attempt(topic), paths.rollback_attempt(topic)):
            attempt = await nodes.record(store, path, attempt_record.decode)
            if attempt is not None and attempt.segment_id == segment_id:
                return True
        return False

    async def _persist(
        self, request: Callable[[], Awaitable[T]], what: str = "", *, counts: Callable[[], bool] = lambda: True
    ) -> T:
        """Retry a request until it is answered; without `what` it goes to the store.

        It `counts` as a failure of the topic as long as it is not answered.
        """
        backoff, failure_tracker, failure = Backoff(self._clock), self._identity.failure_tracker, what or object()
        try:
            while True:
                try:
                    return await request()
                except _RETRIED as error:
                    kind = error_class(error)
                    self._context.upload_context.metrics.upload_retries.labels(**{"class": kind}).inc()
                    log.warning("head.retried", topic=str(self._topic), error_class=kind, error=str(error))
                    if failure_tracker is not None and counts():
                        failure_tracker.record(error, failure)
                    await backoff.wait(error)
        finally:
            if failure_tracker is not None:
                failure_tracker.clear(failure)


def identity_of(context: OffloadContext, claim: Claim) -> TopicIdentity:
    """Return a topic's refusals under the claim of a job's driver that has no head yet."""
    clock, metrics = context.upload_context.clock, context.upload_context.metrics
    return TopicIdentity(Fence(context.metadata, claim, clock=clock, metrics=metrics), clock=clock, metrics=metrics)


def head_of(context: OffloadContext, claim: Claim) -> HeadKeeper:
    """Return the keeper of a topic's head under the claim of a job's driver."""
    return HeadKeeper(context, identity_of(context, claim), epoch=None)


def _newest_end(topic_map: TopicMap) -> Position | None:
    return topic_map.offloaded


def _history_end(topic_map: TopicMap) -> Position | None:
    return topic_map.history_end


def _accounts_for(topic_map: TopicMap, head: HeadSegment, end_of: EndOf) -> bool:
    """Whether a map has a segment, or one of its kind behind it, or retention has deleted up to its end."""
    known = (end_of(topic_map), topic_map.floor)
    return any(end is not None and head.end <= end for end in known) or _holds(topic_map, head)


def _holds(topic_map: TopicMap, head: HeadSegment) -> bool:
    return any(one.segment_id == head.segment_id for one in topic_map.segments)


def _described(segment: CommittedSegment | None) -> HeadSegment | None:
    if segment is None:
        return None
    return HeadSegment(
        segment_id=segment.segment_id,
        begin=segment.begin,
        end=segment.end,
        bucket=segment.bucket,
        prefix=segment.prefix,
        ledger_based=segment.method is OffloadMethod.LEDGER_BASED,
    )
