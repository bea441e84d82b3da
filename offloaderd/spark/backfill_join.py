"""What an executor has written becomes a segment that joins on to those before it.

An executor knows nothing of other segments, so its manifest says that nothing is known of times before its own begin.
Here, in the order of the topic, it is told what lay before: the entries, the greatest time and the losses; it is the
only object that is written again, before it is committed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from offloaderd.errors import CorruptData, NotFound
from offloaderd.format import manifest
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.objects import keys
from offloaderd.objects.keys import ObjectKind
from offloaderd.offload.sealing import same_bytes
from offloaderd.offload.troubles import Troubles
from offloaderd.offload.uploader import SegmentFailed, SegmentUpload

if TYPE_CHECKING:
    from offloaderd.format.manifest import SegmentManifest
    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.model import TopicName
    from offloaderd.offload.history_record import HistoryRecord
    from offloaderd.offload.workshop import Workshop


async def stored(shop: Workshop, topic: TopicName, attempt: Attempt) -> tuple[SegmentUpload, SegmentManifest]:
    """Return the manifest of a segment that a job has written, with what reaches its objects.

    Raises SegmentFailed when it is not there, or is another's.
    """
    where = attempt.keys
    named = partial(keys.labels, where, cluster=shop.cluster, managed_ledger=topic.managed_ledger)
    troubles = Troubles(topic, shop.uplink.clock, lambda: None)
    upload = SegmentUpload(shop.uplink, attempt.bucket, where, troubles=troubles, labels=named)
    data = await upload.find(attempt.bucket, where.manifest)
    if data is None:
        raise SegmentFailed(f"{where.manifest} is gone")
    try:
        written = manifest.decode(data, key=where.manifest)
    except CorruptData as error:
        raise SegmentFailed(str(error)) from error
    if (written.segment_id, written.range.begin) != (attempt.segment_id, attempt.begin):
        raise SegmentFailed(f"{where.manifest} is of another segment")
    return upload, written


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

    def __init__(self, shop: Workshop, history: HistoryRecord) -> None:
        self._shop = shop
        self._history = history

    async def join(self, attempt: Attempt) -> CommittedSegment:
        """Complete a segment's manifest and look whether all of it is there; returns what is to be committed.

        Raises SegmentFailed when it is not, or is another.
        """
        shop, topic = self._shop, self._history.map.topic
        where = attempt.keys
        upload, written = await stored(shop, topic, attempt)
        past = await shop.pasts.before(self._history.map, attempt.begin, self._history.chain.ledgers, upload.find)
        joined = replace(written, past=past, losses=self._history.losses_before(written.ledgers))
        if joined != written:
            encoded = manifest.encode(joined)
            await upload.put(ObjectKind.MANIFEST, encoded)
            await upload.verify(where.manifest, len(encoded), lambda found: same_bytes(where.manifest, found, encoded))
        segment = await verified(upload, attempt, joined)
        shop.pasts.note(joined)
        return segment
