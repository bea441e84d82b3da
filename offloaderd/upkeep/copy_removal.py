"""Deletion of a copy of a segment that stays in the map: nobody makes a copy of the topic meanwhile.

The keys of a copy are used again when its place is named once more. So a deletion holds the node `mirror` of the topic,
which each copy needs before its first byte. It is given back when the store has answered everything. A deletion that
broke off leaves it, and its last request may still arrive: another one takes the node over only when the caller says
that this was long enough ago (`REMOVAL_S`). A deletion ends before, however slow the store is, or its process was.
"""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

from offloaderd.core.errors import Conflict, NotFound, OffloaderError, Transient
from offloaderd.core.model import TopicName
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import copy as copy_record
from offloaderd.metadata.records.copy import REMOVAL_S, CopyAttempt


async def removed(
    store: MetadataStore,
    topic: TopicName,
    removal: CopyAttempt,
    *,
    broke_off: Callable[[CopyAttempt], bool],
    named: Callable[[], Awaitable[bool]],
    remove: Callable[[], Awaitable[None]],
    answered: Callable[[], None] = lambda: None,
) -> bool:
    """Delete a copy by `remove` while none can begin, unless the map has it (`named`); return whether it is gone.

    False as well if a copy is being made, or a removal is under way of which `broke_off` does not say that it ended. An
    error of `remove` leaves the node: what was asked of the store may still be carried out. `answered` is called once
    nothing is on its way, as the node may be left then as well. Raises Transient when half of `REMOVAL_S` was not
    enough, and the errors of `named` and `remove`.
    """
    path, value = paths.mirror(topic), copy_record.encode(removal)
    try:
        if not await _taken(store, path, value, broke_off):
            return False
    except OffloaderError:
        answered()
        raise
    try:
        async with asyncio.timeout(REMOVAL_S / 2):
            try:
                there = await named()
            except OffloaderError:
                answered()
                await _ended(store, path, value)  # no request for a deletion is on its way: no copy has to wait
                raise
            if not there:
                await remove()
    except TimeoutError:
        raise Transient(f"the store did not delete the copy of segment {removal.segment_id} in time") from None
    answered()
    await _ended(store, path, value)
    return not there


def removal_of(segment_id: UUID, place: tuple[str, str], begun_ms: int) -> CopyAttempt:
    """Return the record of the removal of a segment's copy in a place."""
    bucket, prefix = place
    return CopyAttempt(
        segment_id=segment_id, bucket=bucket, prefix=prefix, part_bytes=1, begun_ms=begun_ms, removing=True
    )


async def _ended(store: MetadataStore, path: str, value: bytes) -> None:
    """Delete the record of a removal, unless an owner has taken it for broken off."""
    node = await nodes.node(store, path)
    if node is not None and node.value == value:
        await store.delete(path, node.version)


async def _taken(store: MetadataStore, path: str, value: bytes, broke_off: Callable[[CopyAttempt], bool]) -> bool:
    """Create the record, or replace that of a removal that was broken off; False if a copy, or a removal, is under way.

    Whoever began that one has died, and an owner that has nothing to copy does not read the record.
    """
    try:
        await store.create(path, value)
    except Conflict:
        pass
    else:
        return True
    node = await nodes.node(store, path)
    if node is None:
        return False
    left = copy_record.decode(node.value, path=path)
    if not left.removing or not broke_off(left):
        return False
    try:
        await store.replace(path, value, node.version)
    except (Conflict, NotFound):
        return False
    return True
