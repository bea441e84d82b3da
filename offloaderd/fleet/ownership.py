"""Ownership of topics: claims and their release.

A claim is one transaction that creates the topic's ephemeral owner node and raises its epoch. From then on every commit
of an earlier owner fails on the epoch's version. The end of the session ends all claims at once.
"""

import asyncio
from collections.abc import Container, Coroutine
from contextlib import aclosing
from typing import Any

import structlog

from offloaderd.core.aio import both, race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, NotFound, OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.core.retry import until_answered
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import Check, Create, Delete, MetadataStore, Replace, Session, Step
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records.ownership import DaemonNode, Owner
from offloaderd.segment.claim.fence import Claim

log = structlog.get_logger(__name__)

CUT_SHORT_S = 5.0
"""How long a cancelled task tries to release a topic: its session is about to end as well."""


async def owner_of(store: MetadataStore, topic: TopicName) -> Owner | None:
    """Return the owner of a topic, None without one."""
    return await nodes.record(store, paths.owner(topic), ownership.decode_owner)


async def claim(
    store: MetadataStore,
    topic: TopicName,
    me: DaemonNode,
    session: Session,
    clock: Clock,
    *,
    wait: bool = True,
    ended: Container[str] = (),
) -> Claim | None:
    """Become the topic's owner. While another daemon is, wait for its end, or return None without `wait`.

    Claims of sessions in `ended`, those of former runs of this daemon, are taken over at once. Cancellation may leave
    the claim with the session: see `release_unclaimed`.
    """

    async def attempt() -> Claim | None:
        return await until_answered(clock, lambda: _try_claim(store, topic, me, session, clock, ended))

    claimed = await attempt()  # most topics of a daemon that starts have no owner: they need no watch
    if claimed is not None or not wait:
        return claimed
    async with aclosing(store.watch(paths.owner(topic))) as changes:
        async for _ in changes:
            claimed = await attempt()
            if claimed is not None:
                return claimed
    raise Conflict(f"the watch on {topic}'s owner ended")


async def _try_claim(
    store: MetadataStore, topic: TopicName, me: DaemonNode, session: Session, clock: Clock, ended: Container[str]
) -> Claim | None:
    """Claim a topic without an owner; None if there is one. A claim whose answer was lost is found again."""
    epoch_path, owner_path = paths.epoch(topic), paths.owner(topic)
    node, held = await both(nodes.node(store, epoch_path), owner_of(store, topic))
    before = ownership.decode_epoch(node.value, path=epoch_path).epoch if node else 0
    steps: list[Step] = []
    if held is not None:
        ours = held.daemon_id == me.daemon_id and held.epoch == before
        if not ours or node is None:
            return None
        if held.session_id == session.session_id:
            return Claim(topic, before, node.version)
        if held.session_id not in ended:
            return None
        steps.append(Delete(owner_path))
    epoch = ownership.Epoch(
        epoch=before + 1, daemon_id=me.daemon_id, claimed_ms=clock.wall_ms(), format=ownership.format_of(topic)
    )
    owner = Owner(daemon_id=me.daemon_id, address=me.address, session_id=session.session_id, epoch=epoch.epoch)
    encoded = ownership.encode_epoch(epoch)
    raised = Replace(epoch_path, encoded, node.version) if node else Create(epoch_path, encoded)
    try:
        await store.transact([raised, *steps, Create(owner_path, ownership.encode_owner(owner), ephemeral=True)])
    except (Conflict, NotFound):
        return None
    log.info("topic.claimed", topic=str(topic), epoch=epoch.epoch)
    return Claim(topic, epoch.epoch, node.version + 1 if node else 0)


async def release(store: MetadataStore, held: Claim, session: Session, clock: Clock) -> None:
    """Release a topic so that another daemon can claim it at once; else the end of the session does it.

    It is repeated as long as the session lasts, because others would wait as long; a cancelled task tries for some
    seconds only. The same transaction checks the epoch: once that has moved, the node is another daemon's.
    """
    steps: list[Step] = [Check(paths.epoch(held.topic), held.epoch_version), Delete(paths.owner(held.topic))]

    async def releasing() -> None:
        try:
            await until_answered(clock, lambda: store.transact(steps))
        except (Conflict, NotFound):
            log.debug("topic.already_released", topic=str(held.topic))

    await _while_held(releasing(), held.topic, session, clock)


async def _while_held(giving_up: Coroutine[Any, Any, None], topic: TopicName, session: Session, clock: Clock) -> None:
    """Run until done or the session is lost; for CUT_SHORT_S when the caller is cancelled."""
    done = False

    async def run() -> None:
        nonlocal done
        await giving_up
        done = True

    task = asyncio.current_task()
    limits = [clock.sleep(CUT_SHORT_S)] if task is not None and task.cancelling() else []
    await race(run(), session.lost.wait(), *limits)
    if not done and not session.lost.is_set():
        log.warning("topic.release_unknown", topic=str(topic), hint="it becomes free when the session ends")


async def release_unclaimed(
    store: MetadataStore, topic: TopicName, session: Session, clock: Clock, *, ended: Container[str] = ()
) -> None:
    """Release what a cancelled claim may have left with the session, so that no daemon waits for it.

    A claim of one of the sessions in `ended` may have been carried out under this one.
    """

    async def look() -> tuple[int, Owner | None]:
        return (await store.get(paths.epoch(topic))).version, await owner_of(store, topic)

    async def letting_go() -> None:
        version, owner = await until_answered(clock, look)
        if owner is not None and (owner.session_id == session.session_id or owner.session_id in ended):
            await release(store, Claim(topic, owner.epoch, version), session, clock)

    try:
        await _while_held(letting_go(), topic, session, clock)
    except NotFound:
        log.debug("topic.never_claimed", topic=str(topic))
    except OffloaderError as error:
        hint = "it becomes free with the session"
        log.warning("topic.release_unknown", topic=str(topic), error=str(error), hint=hint)


async def next_owner(store: MetadataStore, topic: TopicName, clock: Clock, *, within_s: float) -> Owner | None:
    """Wait until a topic has an owner and return it; None after `within_s` seconds."""
    found: Owner | None = None

    async def look() -> None:
        nonlocal found
        async with aclosing(store.watch(paths.owner(topic))) as changes:
            async for _ in changes:
                found = await until_answered(clock, lambda: owner_of(store, topic))
                if found is not None:
                    return

    await race(look(), clock.sleep(within_s))
    return found
