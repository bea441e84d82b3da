"""How decided deletions are carried out: first the record, then the objects, then the record goes.

Only what is on a topic's trash list is deleted here, and never what the map refers to. Each step may be repeated, so a
crash between any two of them costs nothing but the repetition. What was part of the map stays for a while,
since readers may have been sent to it. What lies where this daemon does not work is left there, with its record, until
a daemon that does, or an operator, takes it away.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple
from uuid import UUID

import structlog

from offloaderd.core.aio.signal import race
from offloaderd.core.errors import CorruptData, NotFound, OffloaderError, Transient
from offloaderd.core.retry import Backoff
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.identity import deletion_refused
from offloaderd.metadata.records import trash as trash_record
from offloaderd.metadata.records.trash import Trash
from offloaderd.metadata.topic_map.last_copy import last_copy
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.keys import SegmentKeys
from offloaderd.objects.places import Places
from offloaderd.segment.context import OffloadContext
from offloaderd.topic.offloader import TopicOffloader

log = structlog.get_logger(__name__)


KEPT_S = 60.0
"""How often to look again at what is kept."""


class Emptied(NamedTuple):
    """What became of a topic's trash: records gone, and records that stay for a reason an operator has to look at.

    Of the latter `held` are of segments that the map still has: its owner may be about to learn what it did. `kept` may
    go later, which nobody announces: finished ones with entries that nothing else holds, until later segments hold
    them, and all of a topic while something of it is refused. `due_s` is in how many seconds the first of those may go
    that stay for readers only, None when there is none.
    """

    gone: int
    left: int
    held: int = 0
    kept: int = 0
    due_s: float | None = None


async def empty_trash(
    context: OffloadContext, current: Callable[[], TopicMap], dues_s: dict[str, float] | None = None
) -> Emptied:
    """Delete the objects of every trash record, then the record. Safe to repeat.

    The caller owns the topic, whose map `current` returns. Errors leave the record for the next try. `dues_s` has when
    records that stay for readers may go (monotonic): these are not read again before; it is the caller's to keep.
    """
    gone = left = held = kept = 0
    dues_s = {} if dues_s is None else dues_s
    now_s = context.upload_context.clock.monotonic()
    store, topic = context.metadata, current().topic
    waiting = context.upload_context.metrics.trash_waiting.labels(topic=str(topic))
    names = await store.children(paths.trash(topic))
    waiting.set(len(names))
    if names and (why := await deletion_refused(store, topic)):
        log.error("trash.blocked", topic=str(topic), segments=len(names), why=why, hint=_HINT)
        return Emptied(0, len(names), kept=len(names))
    for name in _due(names, dues_s, now_s):
        try:
            path = paths.trash_record(topic, UUID(name))
            node = await store.get(path)
        except ValueError:
            log.warning("metadata.foreign_node", path=f"{paths.trash(topic)}/{name}", hint="not a segment; delete it")
            continue
        except NotFound:
            continue
        try:
            record = trash_record.decode(node.value, path=path)
        except CorruptData as error:
            log.error("trash.blocked", topic=str(topic), segment_id=name, why=str(error), hint=_HINT)  # noqa: TRY400
            left += 1
            continue
        if why := reason_to_leave(record, current(), context.places):
            log.error("trash.blocked", topic=str(topic), segment_id=str(record.segment_id), why=why, hint=_HINT)
            left += 1
            held += holds(current(), record)
            continue
        if wait_s := readers_wait_s(record, context):
            dues_s[name] = now_s + wait_s
            continue
        bucket, keys = _place(context, record)
        if why := await last_copy(context.upload_context.objects, current(), bucket, keys):
            log.error("trash.blocked", topic=str(topic), segment_id=str(record.segment_id), why=why, hint=_HINT)
            left += 1
            kept += 1
            continue
        await _delete_objects(context, record)
        try:
            await store.delete(path)
        except NotFound:
            log.debug("trash.already_deleted", path=path)
        log.info("trash.emptied", topic=str(topic), segment_id=str(record.segment_id), reason=record.reason)
        context.upload_context.metrics.trash_emptied.inc()
        waiting.dec()
        gone += 1
    left_s = (due_s - now_s for due_s in dues_s.values() if due_s > now_s)
    return Emptied(gone, left, held, kept, min(left_s, default=None))


def _due(names: Sequence[str], dues_s: dict[str, float], now_s: float) -> list[str]:
    """Return the records that are not known to be due later, and forget those that are gone."""
    for name in dues_s.keys() - set(names):
        del dues_s[name]
    return [name for name in names if dues_s.get(name, now_s) <= now_s]


_HINT = "nothing of it was deleted; docs/failures.md says what to do"


def readers_wait_s(record: Trash, context: OffloadContext) -> float:
    """Return for how many seconds readers may still come to the objects of a record; 0 for none."""
    if record.readable is False:
        return 0.0
    age_s = (context.upload_context.clock.wall_ms() - record.decided_ms) / 1000
    grace_s = context.reader_grace_s
    return min(grace_s, max(0.0, grace_s - age_s))  # the clock of who decided it may run ahead


def reason_to_leave(record: Trash, topic_map: TopicMap, places: Places) -> str:
    """Say why the objects of a record must not be deleted by this daemon; empty: they may be."""
    if holds(topic_map, record):
        return "the segment is part of the topic"
    if record.bucket is not None and record.bucket not in places.buckets:
        known = ", ".join(map(repr, sorted(places.buckets)))
        return f"its objects are in bucket {record.bucket!r}, this daemon works with {known}"
    return ""


def holds(topic_map: TopicMap, record: Trash) -> bool:
    """Whether the segment on the trash list is part of the topic."""
    return any(segment.segment_id == record.segment_id for segment in topic_map.segments)


def _place(context: OffloadContext, record: Trash) -> tuple[str, SegmentKeys]:
    """Return the bucket and the keys of a record's objects."""
    home = context.places.home
    prefix = home.prefix if record.prefix is None else record.prefix
    return home.bucket if record.bucket is None else record.bucket, record.keys(prefix)


async def _delete_objects(context: OffloadContext, record: Trash) -> None:
    """End the segment's uploads, then delete its objects; what is not there is no error."""
    bucket, keys = _place(context, record)
    store, objects, data_key = context.upload_context.objects.at(bucket), keys.every, keys.data
    async for upload in store.list_uploads(data_key):
        if upload.key == data_key:
            await store.abort_upload(upload.key, upload.upload_id)
    if record.upload_id:
        await store.abort_upload(data_key, record.upload_id)
    await store.delete(objects)


async def keep_trash_empty(context: OffloadContext, offloader: TopicOffloader) -> None:
    """Empty the topic's trash now and whenever something lands in it, until cancelled.

    A job that rewrites segments changes the folder itself with each exchange: the map is read again before anything
    of it is deleted. What stays for readers keeps no topic awake: it goes when the topic wakes next.
    """
    backoff = Backoff(context.upload_context.clock)
    topic, folder, seen = str(offloader.topic), paths.trash(offloader.topic), 0
    dues_s: dict[str, float] = {}
    changes = context.metadata.watch(folder)
    await anext(changes)
    await offloader.identity.checked.wait()
    while True:
        done = Emptied(0, 0)
        while True:
            try:
                offloader.record.trash_due = False
                found = await nodes.node(context.metadata, folder)
                if found is not None and found.version != seen:
                    await offloader.record.reload()
                    seen = found.version
                    offloader.changed.notify()
                done = await empty_trash(context, lambda: offloader.map, dues_s)
            except OffloaderError as error:
                context.upload_context.metrics.delete_failures.inc()
                log.warning("trash.retried", topic=topic, error=str(error))
                await backoff.wait(error)
            else:
                context.upload_context.metrics.trash_blocked.labels(topic=topic).set(done.left)
                if done.kept and not done.held:
                    with offloader.rest.until(context.upload_context.clock.monotonic() + KEPT_S):
                        await offloader.changed.wait_at_most(context.upload_context.clock, KEPT_S)
                    continue
                if not done.held:
                    backoff.reset()
                    break
                # The answer to the transaction that put it there may be on its way; nothing else wakes us then.
                await backoff.wait(Transient("the map has a segment that is in the trash"))
        with offloader.rest.until():
            if done.due_s is None:
                await anext(changes)
                continue
            await race(_next(changes), context.upload_context.clock.sleep(done.due_s))
        await changes.aclose()  # a cancelled wait has ended it
        changes = context.metadata.watch(folder)
        await anext(changes)


async def _next(changes: AsyncGenerator[None, None]) -> None:
    """Wait for a change."""
    await anext(changes)
