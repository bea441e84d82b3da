"""The last step before the commit of a job's segment: its manifest gets the totals of everything before it.

An executor knows nothing of other segments, so the manifest that it puts is a draft without them. The driver adds
them in the order of the topic: the number of entries, the greatest time and the losses. They are recorded in the
attempt before the manifest is put, so that a deposed driver puts the same bytes as the next one.
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
    """Return the manifest of a segment that an executor has written, with the upload for its objects.

    The manifest is the first of the `kinds` that is found. Raises SegmentFailed for none, and for one of another
    segment.
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
    """Verify data and index; return the segment to commit. Raises SegmentFailed."""
    where = attempt.keys
    for key, size in ((where.data, described.data_bytes), (where.index, described.index_bytes)):
        try:
            await upload.verify(key, size)
        except NotFound as error:
            raise SegmentFailed(f"{key} is gone") from error
    return CommittedSegment.described(described, bucket=attempt.bucket, prefix=where.prefix)


class Joiner:
    """Prepares the segments of one topic for their commit, in their order."""

    def __init__(self, context: OffloadContext, history: HistoryRecord) -> None:
        self._context = context
        self._history = history

    async def join(self, attempt: Attempt, attempts: AttemptLog) -> CommittedSegment:
        """Verify a segment and put its manifest; return the segment to commit.

        Raises SegmentFailed when it is incomplete, or another; Fenced.
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
        """Return the segment's seal with the totals before it, which are recorded now. Raises Fenced."""
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
        """Delete the draft of a committed segment; garbage collection deletes it if an answer is lost."""
        try:
            await self._context.upload_context.objects.at(attempt.bucket).delete([attempt.keys.draft])
        except OffloaderError as error:
            log.debug("backfill.draft_not_deleted", key=attempt.keys.draft, error=str(error))
