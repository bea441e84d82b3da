"""How a new owner resumes, completes or gives up the attempt that an earlier owner left.

A recorded attempt was not committed: the commit deletes it in the same transaction. It is resumed if everything that
decides its bytes is known and its place is one of this daemon. Else it is given up: its objects go to the trash list
(see `upkeep/deletion.py`), and its entries begin the next attempt.

A segment may be finished although its record does not show it, as after a restore of the metadata from a backup. The
end is recorded before any object under the key can be complete. So a readable manifest beside a record without a seal
comes from an owner whose records are lost: the segment may have been committed, reported durable, and deleted at its
source. It is committed again from its manifest, after all of it was read back. A segment that cannot be proven stops
the topic; it is never given up, since that would delete it. For a sealed record whose parts lack entries, the manifest
replaces a read of these from a source that may have deleted them.
"""

from dataclasses import dataclass, replace
from functools import partial

import structlog

from offloaderd.core.errors import CorruptData
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Loss, OffloadMethod, Position, RefusalKind, TopicName
from offloaderd.core.retry import until_answered
from offloaderd.format import manifest_bytes
from offloaderd.format.manifest import SegmentManifest
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.verify import check_block
from offloaderd.metadata.records.attempt import Attempt, Seal, StoredPart
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.refusals import TopicIdentity
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.failures import FailureTracker
from offloaderd.segment.states import state_of
from offloaderd.segment.upload import SegmentFailed, SegmentUpload

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """The rest of earlier owners: the begin of their unfinished segment, and its attempt if it can be resumed.

    `failures` is how often the segment that begins there has failed, and why the last time.
    """

    begin: Position | None = None
    attempt: Attempt | None = None
    failures: tuple[int, str] = (0, "")


async def take_over(attempts: AttemptLog, standing: Position | None, context: OffloadContext) -> LeftBehind:
    """Return the attempt of an earlier owner; one that cannot be resumed is given up. Raises Fenced, CorruptData.

    `standing` is the offloaded position.
    """
    found = await until_answered(context.upload_context.clock, attempts.load)
    if found is None:
        return LeftBehind()
    reason = reason_to_give_up(found, standing, context)
    if not reason:
        return LeftBehind(found.begin, found, (found.tries, found.last_error))
    await abandon(attempts, found, reason, context.upload_context.metrics)
    return LeftBehind(found.begin, None, (found.tries + 1, reason))


async def abandon(attempts: AttemptLog, found: Attempt, reason: str, metrics: Metrics) -> None:
    """Give up an attempt of an earlier owner. Raises Fenced."""
    topic, epoch = str(attempts.fence.claim.topic), found.epoch
    log.warning(
        "attempt.abandoned",
        topic=topic,
        segment_id=str(found.segment_id),
        state=state_of(found),
        epoch=epoch,
        reason=reason,
    )
    metrics.uploads_aborted.labels(reason="takeover").inc()
    await attempts.give_up(found, reason)


def reason_to_give_up(found: Attempt, end: Position | None, context: OffloadContext) -> str:
    """Return why an attempt cannot be resumed; empty if it can, as far as its record shows."""
    if found.layout is None:
        return "an earlier version began it, and did not record how it is cut"
    if obstacle := context.places.obstacle(found.driver_properties):
        return obstacle
    if end is None:
        return ""
    if found.begin not in {(end.ledger_id, end.entry_id + 1), (max(found.begin.ledger_id, end.ledger_id + 1), 0)}:
        return f"it begins at {found.begin}, and the topic is offloaded up to {end}"
    return ""


async def as_finished(
    context: OffloadContext, found: Attempt, *, failure_tracker: FailureTracker, identity: TopicIdentity
) -> Attempt:
    """Return an attempt with the end and the blocks of its manifest if there is one, else as it is recorded.

    A part that was recorded before it was put as the object is left out unless the object is there. The record stays as
    it was, so each later reader does the same. Raises IdentityRefused for a finished segment that cannot be proven,
    Fenced, CorruptData.
    """
    if found.layout is None or (found.whole and found.upload_id):
        return found
    upload = SegmentUpload(
        context.upload_context, found.bucket, found.keys, failure_tracker=failure_tracker, labels=lambda _: {}
    )
    try:
        if found.alone_bytes is not None:
            return found if await upload.is_stored(found.alone_bytes) else replace(found, parts=())
        described = await _proven(context, identity.topic, found, upload)
    except (SegmentFailed, CorruptData) as error:
        if found.seal is None:
            await identity.stop(
                RefusalKind.METADATA_WENT_BACK,
                f"segment {found.segment_id} that begins at {found.begin} has a manifest in the bucket, its record in "
                f"the metadata says that it was never finished, and it cannot be verified: {error}",
                f"segment {found.segment_id}",
            )
        return found
    if described is None or (found.seal is not None and not _agrees(found.seal, described)):
        return found
    await identity.clear(RefusalKind.METADATA_WENT_BACK, about=f"segment {found.segment_id}")
    log.warning(
        "segment.rolled_forward",
        topic=str(identity.topic),
        segment_id=str(found.segment_id),
        range=str(described.range),
        sealed=found.seal is not None,
        hint="its record is older than its objects: the metadata may have been restored from a backup"
        if found.seal is None
        else "",
    )
    return _with_manifest(found, described, chunk_bytes=context.chunk_bytes)


def unrecorded(topic_map: TopicMap, found: Attempt) -> list[Loss]:
    """Return the losses that the manifest of a proven attempt has and the map lacks.

    Each without the entries of those in the map that it includes: recording it adds these again.
    """
    known = {(one.after, one.before) for one in topic_map.losses}
    described = found.seal.losses if found.proven and found.seal is not None else ()
    missing = []
    for one in described:
        counted = sum(
            part.entries for part in topic_map.losses if one.after <= part.after and part.before <= one.before
        )
        if (one.after, one.before) not in known:
            missing.append(one._replace(entries=max(0, one.entries - counted)))
    return missing


async def _proven(
    context: OffloadContext, topic: TopicName, found: Attempt, upload: SegmentUpload
) -> SegmentManifest | None:
    """Return the manifest under the attempt's key, after all of its data was read; None when there is none.

    The index is not read: it follows from the manifest, and is put again. Raises SegmentFailed or CorruptData if it is
    another segment, or incomplete.
    """
    data_key, _, manifest_key = found.keys.all
    if await upload.find(found.bucket, manifest_key) is None:
        return None
    described = await upload.checked(partial(manifest_bytes.decode, key=manifest_key), manifest_key)
    whole = described.method is OffloadMethod.LEDGER_BASED
    ours = (
        found.segment_id,
        topic.managed_ledger,
        context.cluster,
        found.begin,
        isinstance(found.layout, LedgerLayout),
    )
    theirs = (described.segment_id, described.managed_ledger, described.cluster, described.range.begin, whole)
    if ours != theirs:
        raise SegmentFailed(f"{manifest_key} describes segment {theirs}, not {ours}")
    await upload.verify(data_key, described.data_bytes)
    for block in described.blocks:
        check = partial(check_block, info=block, key=data_key)
        await upload.checked(check, data_key, block.offset, block.length)
    return described


def _agrees(seal: Seal, described: SegmentManifest) -> bool:
    """Return whether a manifest belongs to a seal."""
    theirs = (described.data_bytes, described.sealed_ms, described.epoch, described.ledgers)
    return (seal.data_bytes, seal.sealed_ms, seal.epoch, seal.ledgers) == theirs


def _with_manifest(found: Attempt, described: SegmentManifest, *, chunk_bytes: int) -> Attempt:
    """Return the attempt as sealed, with all of its blocks in one stored part."""
    seal = Seal(
        sealed_ms=described.sealed_ms,
        epoch=described.epoch,
        software_version=described.software_version,
        data_bytes=described.data_bytes,
        part_count=1,
        ledgers=described.ledgers,
        losses=described.losses,
        ends=described.ends,
        past=described.past,
        replaces=described.replaces,
    )
    blocks = described.blocks
    if described.chunk_bytes != chunk_bytes:
        blocks = tuple(replace(block, chunks=b"") for block in blocks)
    part = StoredPart("", described.data_bytes, blocks, b"")
    return replace(found, seal=seal, parts=(part,), proven=True)
