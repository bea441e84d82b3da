"""The claim of the driver of a topic's job, backfill or conversion: one at a time, fenced like a topic's owner.

A claim raises the number in `history/driver` and creates the ephemeral `history/holder` in one transaction; each later
write of the driver and of its executors checks the version of the former. A driver that was paused, or cut off, and
comes back changes nothing. The holder's node only keeps two drivers from deposing each other.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, NotFound, OffloaderError, Transient
from offloaderd.core.model import TopicName
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import Check, Create, Delete, MetadataStore, Replace, Step
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.policy.store import ensure
from offloaderd.segment.claim.attempt_log import AttemptLog, attempt_log
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.claim.head import HeadKeeper
from offloaderd.segment.context import OffloadContext

TRIES = 10


class Driven(Conflict):
    """Another driver works on the topic."""

    def __init__(self, topic: TopicName, driver: str) -> None:
        super().__init__(
            f"driver {driver} works on the history or the segments of {topic}",
            hint=f"see offloadctl backfill status {topic} and offloadctl convert status {topic}; "
            "cancel of either ends it",
        )


async def driver_of(store: MetadataStore, topic: TopicName) -> str:
    """Return the id of the topic's driver, empty for none. Raises Transient."""
    held = await node(store, paths.history_holder(topic))
    return held.value.decode(errors="replace") if held is not None else ""


async def check_free(store: MetadataStore, topic: TopicName) -> None:
    """Raise Driven when the topic has a driver now; only a claim excludes a later one."""
    if driver := await driver_of(store, topic):
        raise Driven(topic, driver)


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
    """Become the topic's driver; `me` is an id that no other driver ever has.

    Raises Driven when another one is it and is not to be deposed, Transient.
    """
    for folder in (paths.history_attempts(topic), paths.history_writers(topic)):
        await until_answered(clock, partial(ensure, store, folder))
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
    known, driver = await node(store, path), await driver_of(store, topic)
    before = ownership.decode_epoch(known.value, path=path) if known is not None else None
    steps: list[Step] = []
    if driver:
        if driver == me and before is not None and before.daemon_id == me and known is not None:
            return Claim(topic, before.epoch, known.version, path)  # a claim whose answer was lost
        if not depose:
            raise Driven(topic, driver)
        steps.append(Delete(holder))
    epoch = before.epoch + 1 if before is not None else 1
    value = ownership.encode_epoch(ownership.Epoch(epoch=epoch, daemon_id=me, claimed_ms=clock.wall_ms()))
    raised = Replace(path, value, known.version) if known is not None else Create(path, value)
    try:
        await store.transact([raised, *steps, Create(holder, me.encode(), ephemeral=True)])
    except (Conflict, NotFound):
        return None
    return Claim(topic, epoch, known.version + 1 if known is not None else 0, path)


async def release(store: MetadataStore, held: Claim) -> None:
    """Let other drivers claim the topic at once. After a failure the end of the session does that."""
    try:
        await store.transact([Check(held.path, held.epoch_version), Delete(paths.history_holder(held.topic))])
    except OffloaderError:
        return


async def attempts_of(
    context: OffloadContext, claim: Claim, head: HeadKeeper | None = None
) -> AsyncIterator[tuple[AttemptLog, Attempt]]:
    """Yield the attempts of a topic's jobs that are neither committed nor given up. Raises CorruptData.

    `head`: see `attempt_log`.
    """
    folder, clock = paths.history_attempts(claim.topic), context.upload_context.clock
    for name in await until_answered(clock, lambda: context.metadata.children(folder)):
        attempts = attempt_log(context, claim, f"{folder}/{name}", head)
        found = await until_answered(clock, attempts.load)
        if found is not None:
            yield attempts, found
