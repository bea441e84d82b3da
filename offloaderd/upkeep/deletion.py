"""Decided deletions of a topic: the trash record comes first, then the objects are deleted, then the record.

Only segments on a topic's trash list are deleted, and never one of its map; of a segment that stays in the map a place
that its record does not name any more (`Trash.of_copy`). Each step may be repeated, so a crash
between two of them only repeats work. Objects that were part of the map stay for some time, for readers that were sent
to them. Objects in places that this daemon does not have stay with their record, until a daemon with that place or an
operator deletes them.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple
from uuid import UUID

import structlog

from offloaderd.core.aio import race
from offloaderd.core.errors import CorruptData, NotFound, OffloaderError, Transient
from offloaderd.core.model import TopicName
from offloaderd.core.retry import Backoff
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.identity import deletion_refused
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import deletion
from offloaderd.metadata.records.copy import CopyAttempt
from offloaderd.metadata.records.deletion import Trash
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.last_copy import last_copy
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.removal import holds
from offloaderd.objects.keys import SegmentKeys
from offloaderd.objects.places import Places
from offloaderd.segment.context import OffloadContext
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.upkeep.copy_removal import removal_of, removed

log = structlog.get_logger(__name__)


KEPT_S = 60.0
"""How often to check records that stay."""


class Emptied(NamedTuple):
    """Result of emptying a topic's trash: records deleted, and records that stay for an operator to inspect.

    Of those that stay, `held` segments are still in the map: their owner may be about to learn of its own transaction.
    `kept` may be deleted later without any notification: finished segments whose entries no other segment has yet, and
    all of a topic with a refusal. `due_s`: seconds until the first record that stays only for readers may be deleted,
    None without one.
    """

    gone: int
    left: int
    held: int = 0
    kept: int = 0
    due_s: float | None = None


async def empty_trash(
    context: OffloadContext, current: Callable[[], TopicMap], dues_s: dict[str, float] | None = None
) -> Emptied:
    """Delete the objects of every trash record, then the record. Safe to repeat; an error leaves the record.

    The caller owns the topic, whose map `current` returns, and keeps `dues_s`: when (monotonic) the records that stay
    for readers may be deleted, which are not read again before. A place that fails keeps only the records that need it;
    its error is raised after the others were handled.
    """
    gone = left = held = kept = 0
    failed: dict[frozenset[str], OffloaderError] = {}
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
            record = await _record(store, topic, name)
        except CorruptData as error:
            log.error("trash.blocked", topic=str(topic), segment_id=name, why=str(error), hint=_HINT)  # noqa: TRY400
            left += 1
            continue
        if record is None:
            continue
        if why := reason_to_leave(record, current(), context.places):
            log.error("trash.blocked", topic=str(topic), segment_id=str(record.segment_id), why=why, hint=_HINT)
            left += 1
            held += holds(current(), record)
            continue
        if wait_s := readers_wait_s(record, context):
            dues_s[name] = now_s + wait_s
            continue
        buckets = frozenset(bucket for bucket, _ in _places(context, record))
        if any(buckets >= needed for needed in failed):
            continue
        try:
            stays = await _emptied(context, record, current)
        except OffloaderError as error:
            failed[buckets] = error
            continue
        if stays:
            log.error("trash.blocked", topic=str(topic), segment_id=str(record.segment_id), why=stays, hint=_HINT)
            left, kept = left + 1, kept + 1
        if stays is None:
            dues_s[name] = now_s + KEPT_S
        if stays != "":
            continue
        waiting.dec()
        gone += 1
    if failed:
        raise next(iter(failed.values()))
    return Emptied(gone, left, held, kept, next_due_s(dues_s.values(), now_s))


def next_due_s(dues_s: Iterable[float], now_s: float) -> float | None:
    """Return the seconds until the first of later times, None without one.

    A difference of times is not exact: without rounding, some records that are due after KEPT_S seem due later.
    """
    return min((round(due_s - now_s, 3) for due_s in dues_s if due_s > now_s), default=None)


async def _record(store: MetadataStore, topic: TopicName, name: str) -> Trash | None:
    """Read a trash record, None for one that was deleted meanwhile or is none. Raises CorruptData, Transient."""
    path = f"{paths.trash(topic)}/{name}"
    try:
        UUID(name.partition(".")[0])
    except ValueError:
        log.warning("metadata.foreign_node", path=path, hint="not a segment; delete it")
        return None
    return await nodes.record(store, path, deletion.decode_trash)


def _due(names: Sequence[str], dues_s: dict[str, float], now_s: float) -> list[str]:
    """Return the records that may be due, and drop deleted ones from `dues_s`."""
    for name in dues_s.keys() - set(names):
        del dues_s[name]
    return [name for name in names if dues_s.get(name, now_s) <= now_s]


_HINT = "nothing of it was deleted"


def readers_wait_s(record: Trash, context: OffloadContext) -> float:
    """Return for how many seconds readers may still use the objects of a record; 0 for none."""
    if record.readable is False:
        return 0.0
    age_s = (context.upload_context.clock.wall_ms() - record.decided_ms) / 1000
    return min(
        context.reader_grace_s, max(0.0, context.reader_grace_s - age_s)
    )  # the deciding daemon's clock may run ahead


def reason_to_leave(record: Trash, topic_map: TopicMap, places: Places) -> str:
    """Return why this daemon must not delete the objects of a record, empty if it may."""
    if holds(topic_map, record):
        return "the segment is part of the topic"
    for bucket, _ in record.places((places.home.bucket, places.home.prefix)):
        if bucket not in places.buckets:
            known = ", ".join(map(repr, sorted(places.buckets)))
            return f"its objects are in bucket {bucket!r}, this daemon works with {known}"
    return ""


def _places(context: OffloadContext, record: Trash) -> list[tuple[str, SegmentKeys]]:
    """Return the bucket and the keys of a segment's objects, and of its copy."""
    home = context.places.home
    return [(bucket, record.keys(prefix)) for bucket, prefix in record.places((home.bucket, home.prefix))]


async def _last_copy(context: OffloadContext, record: Trash, topic_map: TopicMap) -> str:
    """Describe the entries that only the segment of a record holds, in any of its places; empty without any."""
    for bucket, keys in _places(context, record):
        if why := await last_copy(context.upload_context.objects, topic_map, bucket, keys):
            return why
    return ""


async def _emptied(context: OffloadContext, record: Trash, current: Callable[[], TopicMap]) -> str | None:
    """Delete the objects of a record, then the record; return why they stay instead, empty if they are gone.

    None: they stay for a while, as copies of the topic are made, or deleted, elsewhere.
    """
    up, topic = context.upload_context, current().topic
    if why := await _last_copy(context, record, current()):
        return why
    if record.of_copy and not await _copy_removed(context, record, current):
        return None
    if not record.of_copy:
        await _delete_objects(context, record)
    path = record.path(topic)
    try:
        await context.metadata.delete(path)
    except NotFound:
        log.debug("trash.already_deleted", path=path)
    log.info("trash.emptied", topic=str(topic), segment_id=str(record.segment_id), reason=record.reason)
    up.metrics.trash_emptied.inc()
    return ""


async def _copy_removed(context: OffloadContext, record: Trash, current: Callable[[], TopicMap]) -> bool:
    """Delete a copy while none of the topic can begin; False if that is not possible now.

    The map is read anew: an owner that was fenced and does not know it has an old one, and its successor may have made
    the copy again.
    """
    clock, topic = context.upload_context.clock, current().topic
    [place] = record.places(("", ""))
    removal = removal_of(record.segment_id, place, clock.wall_ms())

    async def named() -> bool:
        return holds(await catalog.load(context.metadata, topic), record)

    def broke_off(other: CopyAttempt) -> bool:
        return context.removals.broke_off(topic, other, clock.monotonic())

    return await removed(
        context.metadata,
        topic,
        removal,
        broke_off=broke_off,
        named=named,
        remove=partial(_delete_objects, context, record),
        answered=partial(context.removals.answered, topic, removal),
    )


async def _delete_objects(context: OffloadContext, record: Trash) -> None:
    """Abort the segment's uploads, then delete its objects, in all its places; missing ones are no error."""
    for bucket, keys in _places(context, record):
        store = context.upload_context.objects.at(bucket)
        async for upload in store.list_uploads(keys.data):
            if upload.key == keys.data:
                await store.abort_upload(upload.key, upload.upload_id)
        if record.upload_id and (bucket, keys) == _places(context, record)[0]:
            await store.abort_upload(keys.data, record.upload_id)
        await store.delete(keys.every)


async def keep_trash_empty(context: OffloadContext, offloader: TopicOffloader) -> None:
    """Empty the topic's trash now and after each change of it, until cancelled.

    A job that rewrites segments changes the folder with each exchange, so the map is read again before anything is
    deleted. Records that stay for readers do not keep a topic active: they are deleted when it wakes next.
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
                # The answer to the transaction that recorded it may be on its way, and comes without a notification; or
                # who waited for it was cancelled, and the map lacks what is recorded.
                seen = -1
                await backoff.wait(Transient("the map has a segment that is in the trash"))
        # What a copy is in the way of is tried again soon; what stays for readers waits until the topic wakes.
        due_s = (
            inf if done.due_s is None or done.due_s > KEPT_S else context.upload_context.clock.monotonic() + done.due_s
        )
        with offloader.rest.until(due_s):
            if done.due_s is None:
                await anext(changes)
                continue
            await race(_next(changes), context.upload_context.clock.sleep(done.due_s))
        await changes.aclose()  # a cancelled wait has ended it
        changes = context.metadata.watch(folder)
        await anext(changes)


async def _next(changes: AsyncGenerator[None, None]) -> None:
    await anext(changes)
