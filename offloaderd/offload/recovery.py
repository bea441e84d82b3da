"""What a new owner does with what it finds, and how decided deletions are carried out.

An attempt that is still recorded was not committed, for the commit ends it in the same transaction. Its objects go to
the trash list first; only what is on that list is ever deleted, and deleting may be repeated until the list is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from offloaderd.errors import NotFound, OffloaderError
from offloaderd.metadata import paths
from offloaderd.metadata.records import trash as trash_record
from offloaderd.objects import keys
from offloaderd.offload.budget import Backoff

if TYPE_CHECKING:
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.metrics import Metrics
    from offloaderd.model import Position, TopicName
    from offloaderd.offload.commit import AttemptLog
    from offloaderd.offload.uploader import Uplink

log = structlog.get_logger(__name__)


async def take_over(attempts: AttemptLog, topic: TopicName, metrics: Metrics) -> Position | None:
    """End the attempt of an earlier owner, if there is one; its objects go to the trash. Raises Fenced.

    Returns where it began, which is the first entry that has to be offloaded again.
    """
    found = await attempts.load()
    if found is None:
        return None
    log.info("attempt.abandoned", topic=str(topic), segment_id=str(found.segment_id), epoch=found.epoch)
    metrics.uploads_aborted.labels(reason="takeover").inc()
    await attempts.give_up(found, f"its owner (epoch {found.epoch}) went away before the segment was committed")
    return found.begin


async def empty_trash(store: MetadataStore, uplink: Uplink, topic: TopicName) -> int:
    """Delete the objects of every trash record, then the record; returns how many went. Safe to repeat.

    The caller owns the topic. Errors leave the record for the next try.
    """
    gone = 0
    for name in await store.children(paths.trash(topic)):
        try:
            path = paths.trash_record(topic, UUID(name))
            node = await store.get(path)
        except ValueError:
            log.warning("metadata.foreign_node", path=f"{paths.trash(topic)}/{name}", hint="not a segment; delete it")
            continue
        except NotFound:
            continue
        record = trash_record.decode(node.value, path=path)
        data_key = keys.data_key(uplink.prefix, record.segment_id)
        async for upload in uplink.objects.list_uploads(data_key):
            if upload.key == data_key:
                await uplink.objects.abort_upload(upload.key, upload.upload_id)
        if record.upload_id:
            await uplink.objects.abort_upload(data_key, record.upload_id)
        index_key = keys.index_key(uplink.prefix, record.segment_id)
        await uplink.objects.delete([data_key, index_key, keys.manifest_key(uplink.prefix, record.segment_id)])
        try:
            await store.delete(path)
        except NotFound:
            log.debug("trash.gone", path=path)
        log.info("trash.emptied", topic=str(topic), segment_id=str(record.segment_id), reason=record.reason)
        gone += 1
    return gone


async def keep_trash_empty(store: MetadataStore, uplink: Uplink, topic: TopicName) -> None:
    """Empty the topic's trash now and whenever something lands in it, until cancelled."""
    backoff = Backoff(uplink.clock)
    async for _ in store.watch(paths.trash(topic)):
        while True:
            try:
                await empty_trash(store, uplink, topic)
            except OffloaderError as error:
                log.warning("trash.retried", topic=str(topic), error=str(error))
                await backoff.wait(error)
            else:
                backoff.reset()
                break
