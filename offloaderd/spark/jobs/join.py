"""What an executor has written becomes a segment that joins on to those before it.

An executor knows nothing of other segments, so the draft that it puts says that nothing is known of times before its
own begin. Here, in the order of the topic, what lay before is added: the entries, the greatest time and the losses. It
is recorded in the attempt before the manifest is put, so that a deposed driver puts the same bytes as the next one.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import structlog

from offloaderd.core.errors import CorruptData, NotFound, OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.format.manifest import document as manifest
from offloaderd.format.values import SegmentManifest
from offloaderd.history.record import HistoryRecord
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.records.attempt import Attempt, Seal
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.whole import apart
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.complete import put_manifest
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.upload import SegmentFailed, SegmentUpload

log = structlog.get_logger(__name__)


async def stored(
    context: OffloadContext, topic: TopicName, attempt: Attempt, kinds: Sequence[ObjectKind] = (ObjectKind.MANIFEST,)
) -> tuple[SegmentUpload, SegmentManifest]:
    """Return what a job's executor says of a segment that it has written, with what reaches its objects.

    It is in the first of the `kinds` that is there. Raises SegmentFailed when it is not, or is another's.
    """
    where = attempt.keys
    named = context.labels(where, topic)
    failure_tracker = FailureTracker(topic, context.upload_context.clock, lambda: None)
    upload = SegmentUpload(context.upload_context, attempt.bucket, where, failure_tracker=failure_tracker, labels=named)
    for key in map(where.of, kinds):
        data = await upload.find(attempt.bucket, key)
        if data is None:
            continue
        try:
            written = await apart(partial(manifest.decode, key=key), data)
        except CorruptData as error:
            raise SegmentFailed(str(error)) from error
        if (written.segment_id, written.range.begin) != (attempt.segment_id, attempt.begin):
            raise SegmentFailed(f"{key} is of another segment")
        return upload, written
    raise SegmentFailed(f"{where.of(kinds[0])} is gone")


async def verified(upload: SegmentUpload, attempt: Attempt, described: SegmentManifest) -> CommittedSegment:
    """Look whether data and index are there; returns the segment to be committed. Raises SegmentFailed."""
    where = attempt.keys
    for key, size in ((where.data, described.data_bytes), (where.index, described.index_bytes)):
        try:
            await upload.verify(key, size)
        except NotFound as error:
            raise SegmentFailed(f"{key} is gone") from error
    return CommittedSegment.described(described, bucket=attempt.bucket, prefix=where.prefix)


class Joiner:
    """Prepares the segments of one topic for their commit, one after the other."""

    def __init__(self, context: OffloadContext, history: HistoryRecord) -> None:
        self._context = context
        self._history = history

    async def join(self, attempt: Attempt, attempts: AttemptLog) -> CommittedSegment:
        """Put a segment's manifest and look whether all of it is there; returns what is to be committed.

        Raises SegmentFailed when it is not, or is another; Fenced.
        """
        context = self._context
        upload, written = await stored(
            context, self._history.map.topic, attempt, (ObjectKind.DRAFT, ObjectKind.MANIFEST)
        )
        seal = await self._joined(attempt, attempts, written, upload)
        joined = replace(written, past=seal.past, losses=seal.losses)
        segment = await verified(upload, attempt, joined)
        await put_manifest(upload, attempt, joined)
        context.pasts.note(joined)
        return segment

    async def _joined(
        self, attempt: Attempt, attempts: AttemptLog, written: SegmentManifest, upload: SegmentUpload
    ) -> Seal:
        """Return the segment's seal with what lies before it, as it is recorded from now on. Raises Fenced."""
        seal = attempt.seal
        if seal is None:
            raise SegmentFailed(f"the record of {attempt.segment_id} does not say where it ends")
        if seal.joined:
            return seal
        history = self._history
        past = await self._context.pasts.before(history.map, attempt.begin, history.chain.ledgers, upload.find)
        seal = replace(seal, past=past, losses=history.losses_before(written.ledgers), joined=True)
        await attempts.update(replace(attempt, seal=seal))
        return seal

    async def drop_draft(self, attempt: Attempt) -> None:
        """Delete the draft of a segment that is committed; what a lost answer leaves of it is the collector's."""
        try:
            await self._context.upload_context.objects.at(attempt.bucket).delete([attempt.keys.draft])
        except OffloaderError as error:
            log.debug("backfill.draft_not_deleted", key=attempt.keys.draft, error=str(error))
