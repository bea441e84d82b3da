"""Who drives a job on a topic, a backfill or a conversion: one driver at a time, fenced like a topic's owner.

A claim raises the number in `history/driver` and creates the ephemeral `history/holder` in one transaction; each later
write of the driver and of its executors checks the version of the former. A driver that was paused, or cut off, and
comes back changes nothing. The holder's node only spares two drivers the trouble of deposing each other.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from offloaderd.core.aio.signal import race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, NotFound, OffloaderError, Transient
from offloaderd.core.model import TopicName
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import Check, Create, Delete, MetadataStore, Replace, Step
from offloaderd.metadata.records import epoch as epoch_record
from offloaderd.segment.claim.fence import Claim

TRIES = 10


class Driven(Conflict):
    """Another driver works on the topic."""


async def check_free(store: MetadataStore, topic: TopicName) -> None:
    """Raise Driven when somebody drives the topic now; whoever claims it finds out for certain."""
    held = await node(store, paths.history_holder(topic))
    if held is not None:
        raise _driven(topic, held.value)


def _driven(topic: TopicName, who: bytes) -> Driven:
    return Driven(
        f"driver {who.decode(errors='replace')} works on the history or the segments of {topic}",
        hint=f"see offloadctl backfill status {topic} and offloadctl convert status {topic}; cancel of either ends it",
    )


async def as_driver(
    store: MetadataStore,
    topic: TopicName,
    me: str,
    clock: Clock,
    work: Callable[[Claim], Coroutine[Any, Any, None]],
    *,
    job: str,
    failed: type[OffloaderError],
) -> None:
    """Do a job's work as the topic's driver. Raises `failed` as soon as the session is lost, and as `claim` does."""
    session = await store.session()

    async def lost() -> None:
        await session.lost.wait()
        raise failed(
            f"the driver lost its session with the metadata store, and with it the {job} of {topic}",
            hint="run it again: it goes on where it stood",
        )

    async with claimed(store, topic, me, clock) as held:
        await race(work(held), lost())


@asynccontextmanager
async def claimed(
    store: MetadataStore, topic: TopicName, me: str, clock: Clock, *, depose: bool = False
) -> AsyncIterator[Claim]:
    """Be the topic's driver until the end of the context; see `claim`."""
    held = await claim(store, topic, me, clock, depose=depose)
    try:
        yield held
    finally:
        await release(store, held)


async def claim(store: MetadataStore, topic: TopicName, me: str, clock: Clock, *, depose: bool = False) -> Claim:
    """Become the topic's driver; `me` is an id that nobody else ever has.

    Raises Driven when somebody else is it and is not to be deposed, Transient.
    """
    for folder in (paths.history_attempts(topic), paths.history_writers(topic)):
        await _ensure(store, folder, clock)
    path, backoff = paths.history_driver(topic), Backoff(clock)
    for _ in range(TRIES):
        try:
            found = await _try(store, topic, me, clock, depose=depose)
        except Transient as error:
            await backoff.wait(error)
            continue
        if found is not None:
            return found
    raise Transient(f"{path} changes faster than it can be claimed")


async def _try(store: MetadataStore, topic: TopicName, me: str, clock: Clock, *, depose: bool) -> Claim | None:
    path, holder = paths.history_driver(topic), paths.history_holder(topic)
    known, held = await node(store, path), await node(store, holder)
    before = epoch_record.decode(known.value, path=path) if known is not None else None
    steps: list[Step] = []
    if held is not None:
        if held.value == me.encode() and before is not None and before.daemon_id == me and known is not None:
            return Claim(topic, before.epoch, known.version, path)  # a claim whose answer was lost
        if not depose:
            raise _driven(topic, held.value)
        steps.append(Delete(holder))
    epoch = before.epoch + 1 if before is not None else 1
    value = epoch_record.encode(epoch_record.Epoch(epoch=epoch, daemon_id=me, claimed_ms=clock.wall_ms()))
    raised = Replace(path, value, known.version) if known is not None else Create(path, value)
    try:
        await store.transact([raised, *steps, Create(holder, me.encode(), ephemeral=True)])
    except (Conflict, NotFound):
        return None
    return Claim(topic, epoch, known.version + 1 if known is not None else 0, path)


async def release(store: MetadataStore, held: Claim) -> None:
    """Let others claim it at once. What fails is left to the end of the session."""
    try:
        await store.transact([Check(held.path, held.epoch_version), Delete(paths.history_holder(held.topic))])
    except OffloaderError:
        return


async def _ensure(store: MetadataStore, folder: str, clock: Clock) -> None:
    async def made() -> None:
        try:
            await store.create(folder, b"")
        except Conflict:
            return

    await until_answered(clock, made)
