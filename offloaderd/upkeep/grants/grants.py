"""Grants: permission to delete a ledger from its source, given only for a verified copy (P3).

The owner verifies the copy of every closed ledger that is offloaded to its end (`copy_check.py`), and writes a grant
under its epoch: the result, the time, the daemon, and until when the source keeps the ledger. A ledger with an unsound
copy gets none; the reason is logged, and the copy is verified again later. Where the policy demands the mirror, a
ledger is granted only once every segment of it has its copy there, and both are verified. The embedded store deletes by
grant. The decision is one transaction that compares the grant's version, so an earlier revocation wins; objects and map
are checked once more right before. For BookKeeper grants are only published.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from weakref import WeakKeyDictionary

import structlog

from offloaderd.core.aio import each, race
from offloaderd.core.errors import (
    BucketMissing,
    Conflict,
    CorruptData,
    Denied,
    Fenced,
    NoSpace,
    NotFound,
    OffloaderError,
    Transient,
    Unsound,
)
from offloaderd.ledgers.port import LedgerStore
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.identity import deletion_refused
from offloaderd.metadata.port import Check, Create, Delete, Replace, Step
from offloaderd.metadata.records import grant as grant_record
from offloaderd.metadata.records.grant import Grant
from offloaderd.metadata.topic_map.conversion import holders_of
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.segment.context import OffloadContext
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.upkeep.grants import records as grant_records
from offloaderd.upkeep.grants.copy_check import CopyChecker, awaited_copy, demanded_copies, segments_of
from offloaderd.upkeep.grants.records import Stored
from offloaderd.upkeep.settings import GrantSettings

log = structlog.get_logger(__name__)

NEVER_MS = 253_402_300_799_000
"""The last second of the year 9999, for ledgers that the source keeps for ever."""
AWAITS_COPY = "mirror"
"""Reason for a ledger of which a segment lacks the copy that its topic's policy demands."""
HEADS_AT_A_TIME = 8
"""Segments of one ledger whose objects are checked in parallel before it is deleted."""
CHECKS_AT_A_TIME = 2
"""Ledgers of all topics whose copies are verified in parallel; the source keeps the others meanwhile."""


class Grants:
    """Grants of each topic. `store` is the embedded store, if there is one.

    `book` has the time for which the source keeps an offloaded ledger. When that changes, existing grants change with
    it.
    """

    def __init__(
        self,
        context: OffloadContext,
        store: LedgerStore | None,
        options: GrantSettings,
        book: PolicyResolver,
        *,
        daemon_id: str,
    ) -> None:
        self._context = context
        self._book = book
        self._store = store if options.delete_source else None
        self._options = options
        self._daemon_id = daemon_id
        self._clock = context.upload_context.clock
        self._metrics = context.upload_context.metrics
        self._checker = CopyChecker(context, readback=options.readback)
        self._turns = asyncio.Semaphore(CHECKS_AT_A_TIME)
        self._versions: WeakKeyDictionary[TopicOffloader, int] = WeakKeyDictionary()

    def follow(self, options: GrantSettings) -> None:
        """Use other intervals and checks; `enabled` stays as it is."""
        self._options = options.model_copy(update={"enabled": self._options.enabled})
        self._checker.readback = options.readback

    async def run(self, offloader: TopicOffloader) -> None:
        """Verify, grant and delete until cancelled; without grants, only read which are revoked. Raises Fenced."""
        known: dict[int, Grant] = {}
        await offloader.identity.checked.wait()
        while True:
            offloader.grants_changed.clear()
            holds, patience_s = offloader.policy, 0.0
            try:
                known = await (self.run_once if self._options.enabled else self._load)(offloader, known)
                patience_s = self._patience_s(offloader, known) if self._options.enabled else inf
            except Fenced:
                raise
            except OffloaderError as error:
                log.warning("grants.retried", topic=str(offloader.topic), error=str(error))
            if offloader.policy is holds:
                pause_s = self._clock.jitter(2 * self._options.interval_s) * 2 / 3
                with offloader.rest.until(self._clock.monotonic() + max(pause_s, patience_s)):
                    policy_or_pause = offloader.policy_changed.wait_at_most(self._clock, pause_s)
                    await race(policy_or_pause, offloader.grants_changed.wait())

    def _patience_s(self, offloader: TopicOffloader, known: Mapping[int, Grant]) -> float:
        """Return in how many seconds something may be due, if the source and the map stay as they are."""
        topic_map, listed = offloader.map, offloader.record.chain.ledgers
        theirs = topic_map.deleted.keys() | {one.end.ledger_id for one in topic_map.segments if one.foreign}
        wanted = (topic_map.ends.keys() & topic_map.contexts.keys()) - theirs - known.keys()
        if any(self._context.source is None or one in listed for one in wanted):
            return 0.0
        if self._store is None:
            return inf
        due_ms = [one.not_before_ms for one in known.values() if one.in_force and one.ledger_id in listed]
        return (min(due_ms, default=NEVER_MS) - self._clock.wall_ms()) / 1000

    async def run_once(self, offloader: TopicOffloader, known: dict[int, Grant]) -> dict[int, Grant]:
        """Do once what is due; return the grants, `known` being the last ones. Raises Fenced, Transient, Denied."""
        topic_map, known = offloader.map, await self._load(offloader, known)
        if not topic_map.ends:
            return known
        if why := await deletion_refused(self._context.metadata, offloader.topic):
            log.error("grants.refused", topic=str(offloader.topic), why=why)
            return known
        present = await self._present(offloader)
        policy = (await self._book.of(offloader.topic, fresh=True)).values
        known = {one: await self._of_copy(offloader, one, grant, policy) for one, grant in known.items()}
        known = {one: await self._on_time(offloader, one, grant, policy) for one, grant in known.items()}
        theirs = topic_map.deleted.keys() | {one.end.ledger_id for one in topic_map.segments if one.foreign}
        waiting = []
        for ledger_id in sorted(topic_map.ends.keys() & topic_map.contexts.keys() - theirs):
            if ledger_id not in known and (present is None or ledger_id in present):
                await self._verify(offloader, ledger_id, policy)
                waiting += [ledger_id] if awaited_copy(holders_of(offloader.map, ledger_id), policy) else []
        offloader.mirror.waiting = tuple(waiting)
        if self._store is not None and present is not None:
            for ledger_id, grant in known.items():
                if ledger_id in present and grant.allows(self._clock.wall_ms()) and has_successor(topic_map, ledger_id):
                    await self._delete_source(offloader, self._store, ledger_id)
        for ledger_id, grant in known.items():
            if ledger_id not in topic_map.contexts and not (present and ledger_id in present):
                await self._forget(offloader, ledger_id, grant)
        return known

    async def _load(self, offloader: TopicOffloader, known: dict[int, Grant]) -> dict[int, Grant]:
        """Return the grants. All are read again when the folder's version shows a revocation."""
        folder = await nodes.node(self._context.metadata, paths.grants(offloader.topic))
        version = folder.version if folder is not None else 0
        if self._versions.get(offloader) != version:
            known = {}
        found = await grant_records.load_all(self._context.metadata, offloader.topic, known)
        self._versions[offloader] = version
        offloader.damaged_ledgers = grant_records.damaged_of(found)
        self._metrics.damaged_ledgers.labels(topic=str(offloader.topic)).set(len(offloader.damaged_ledgers))
        return found

    async def _present(self, offloader: TopicOffloader) -> set[int] | None:
        """Return the closed ledgers that the source has, None without a source. Raises Transient, IdentityRefused."""
        if self._context.source is None:
            return None
        try:
            infos = await offloader.source_check.ledgers(self._context.source)
        except NotFound:
            return set()
        return {info.ledger_id for info in infos if info.closed}

    async def _on_time(self, offloader: TopicOffloader, ledger_id: int, grant: Grant, policy: OffloadPolicies) -> Grant:
        """Return a grant with the time from which it holds by the present lag, stored if that has changed."""
        if not grant.in_force or grant.source_deleted_ms or ledger_id not in offloader.map.contexts:
            return grant
        topic_map = offloader.map
        try:
            not_before_ms = self._not_before_ms(topic_map, ledger_id, policy.deletion_lag_s)
        except Unsound:
            return grant
        if grant.not_before_ms == not_before_ms:
            return grant
        moved = replace(grant, not_before_ms=not_before_ms)
        moved = await self._exchanged(offloader, topic_map, ledger_id, grant, moved)
        if moved is not grant:
            log.info("grant.moved", topic=str(offloader.topic), ledger_id=ledger_id, not_before_ms=not_before_ms)
        return moved

    async def _of_copy(self, offloader: TopicOffloader, ledger_id: int, grant: Grant, policy: OffloadPolicies) -> Grant:
        """Return the grant of the present copy. Raises Fenced.

        It is verified again if it was rewritten, or its places were exchanged.
        """
        topic_map = offloader.map
        if not grant.in_force or ledger_id not in topic_map.contexts.keys() - topic_map.deleted.keys():
            return grant
        try:
            held = segments_of(topic_map, ledger_id)
            if grant.is_of([one.segment_id for one in held]) and grant.is_in([one.place for one in held]):
                return grant
        except Unsound as error:
            self._denied(offloader, ledger_id, error.reason, error)
            return grant
        try:
            fresh = await self.verified(offloader, topic_map, ledger_id, policy)
        except (Unsound, Transient, Denied, BucketMissing) as error:
            self._denied(offloader, ledger_id, _reason(error), error)
            return grant
        renewed = replace(fresh, source_deleted_ms=grant.source_deleted_ms)
        renewed = await self._exchanged(offloader, topic_map, ledger_id, grant, renewed)
        if renewed is not grant:
            log.info("grant.renewed", topic=str(offloader.topic), ledger_id=ledger_id, segments=renewed.segment_count)
        return renewed

    async def _exchanged(
        self, offloader: TopicOffloader, topic_map: TopicMap, ledger_id: int, grant: Grant, other: Grant
    ) -> Grant:
        """Store `other` in place of a grant and return it; the grant itself if it was changed meanwhile."""
        found = await grant_records.load(self._context.metadata, offloader.topic, ledger_id)
        if found is None or found.grant != grant:
            return grant
        return other if await self._replaced(offloader, topic_map, ledger_id, found, other) else grant

    def _not_before_ms(self, topic_map: TopicMap, ledger_id: int, lag_s: float | None) -> int:
        """Return from when the source may delete a ledger, by the lag of the topic's policy. Raises Unsound."""
        if lag_s is None or lag_s < 0:
            return NEVER_MS
        offloaded_ms = max(segment.offloaded_ms for segment in segments_of(topic_map, ledger_id))
        return min(NEVER_MS, offloaded_ms + int(lag_s * 1000))

    async def _verify(self, offloader: TopicOffloader, ledger_id: int, policy: OffloadPolicies) -> None:
        """Verify a ledger's copy and grant its deletion. The reason for an unsound copy is logged.

        The transaction compares the ledger's context, which retention or a job that rewrites segments may have changed
        meanwhile. Then no grant is written, and the next call verifies again.
        """
        topic, topic_map = offloader.topic, offloader.map
        try:
            await offloader.source_check.ledger(ledger_id)
        except NotFound:
            return  # the source has deleted it and needs no grant any more
        async with self._turns:
            try:
                grant = await self.verified(offloader, topic_map, ledger_id, policy)
            except (Unsound, Transient, Denied, BucketMissing) as error:
                self._denied(offloader, ledger_id, _reason(error), error)
                return  # other ledgers may be in another bucket
        await grant_records.ensure_folder(self._context.metadata, topic)
        step = Create(paths.grant(topic, ledger_id), grant_record.encode(grant))
        if not await self._written(offloader, topic_map, ledger_id, step, grant):
            return
        self._metrics.grants.inc()
        log.info(
            "ledger.granted",
            topic=str(topic),
            ledger_id=ledger_id,
            entries=grant.entries,
            segments=grant.segment_count,
            readback=grant.readback,
            not_before_ms=grant.not_before_ms,
        )

    async def verified(
        self, offloader: TopicOffloader, topic_map: TopicMap, ledger_id: int, policy: OffloadPolicies
    ) -> Grant:
        """Return the grant for the ledger's copy in this map. Raises Unsound, Transient, Denied.

        With a policy that demands the mirror, the copies there are verified as well; the grant names the first place.
        """
        holding = segments_of(topic_map, ledger_id)
        if why := awaited_copy(holding, policy):
            raise Unsound(AWAITS_COPY, why)
        granted = tuple([await self._checker.check(topic_map, segment, ledger_id) for segment in holding])
        for copy in demanded_copies(holding, policy):
            await self._checker.check(topic_map, copy, ledger_id)
        grant = Grant(
            ledger_id=ledger_id,
            entries=topic_map.ends[ledger_id].entries,
            segments=granted,
            readback=self._options.readback,
            verified_ms=max(1, self._clock.wall_ms()),
            daemon_id=self._daemon_id,
            epoch=offloader.claim.epoch,
            not_before_ms=self._not_before_ms(topic_map, ledger_id, policy.deletion_lag_s),
            places_sha256=grant_record.of_places([one.place for one in holding]),
        )
        return grant_record.fitted(grant)

    async def _delete_source(self, offloader: TopicOffloader, store: LedgerStore, ledger_id: int) -> None:
        """Delete a ledger from the embedded store, if its grant still allows it and its copy still exists."""
        topic, topic_map = offloader.topic, offloader.map
        found = await grant_records.load(self._context.metadata, topic, ledger_id)
        if found is None or not found.grant.allows(self._clock.wall_ms()):
            return
        held = await self._is_held(offloader, topic_map, ledger_id, found.grant)
        if not held or await deletion_refused(self._context.metadata, topic):
            return
        if not found.grant.source_deleted_ms:
            decided = replace(found.grant, source_deleted_ms=max(1, self._clock.wall_ms()))
            if not await self._replaced(offloader, topic_map, ledger_id, found, decided):
                return
        await offloader.record.note_source_deleted([ledger_id])
        await store.delete(topic, ledger_id)
        self._metrics.source_ledgers_deleted.inc()
        log.info("ledger.deleted_at_source", topic=str(topic), ledger_id=ledger_id, verified_ms=found.grant.verified_ms)

    async def _is_held(self, offloader: TopicOffloader, topic_map: TopicMap, ledger_id: int, grant: Grant) -> bool:
        """Whether the verified copy still exists; also for a deletion that an earlier owner decided."""
        try:
            held = segments_of(topic_map, ledger_id)
        except Unsound as error:
            self._denied(offloader, ledger_id, error.reason, error)
            return False
        if not grant.is_of(one.segment_id for one in held):
            self._denied(offloader, ledger_id, "gap", Unsound("gap", "other segments hold it than were verified"))
            return False
        seen = await each(held, lambda one: self._checker.seen(one, ledger_id), in_flight_max=HEADS_AT_A_TIME)
        found = [one for one in seen if one is not None]
        if len(found) == len(held) and grant.finds(found):
            return True
        gone = [f", {one.segment_id} lacks one" for one, there in zip(held, seen, strict=True) if there is None]
        changed = Unsound("missing_object", f"objects of its segments are not what was verified{''.join(gone[:1])}")
        self._denied(offloader, ledger_id, "missing_object", changed)
        return False

    async def _replaced(
        self, offloader: TopicOffloader, topic_map: TopicMap, ledger_id: int, found: Stored, grant: Grant
    ) -> bool:
        step = Replace(paths.grant(offloader.topic, ledger_id), grant_record.encode(grant), found.version)
        return await self._written(offloader, topic_map, ledger_id, step, grant)

    async def _written(
        self, offloader: TopicOffloader, topic_map: TopicMap, ledger_id: int, step: Step, grant: Grant
    ) -> bool:
        """Write a grant; False if the stored one, or the ledger's context, was changed. Raises Fenced."""

        async def recorded() -> bool:
            current = await grant_records.load(self._context.metadata, offloader.topic, ledger_id)
            return current is not None and current.grant == grant

        try:
            unchanged = Check(paths.ledger(topic_map.topic, ledger_id), topic_map.contexts[ledger_id].version)
            await offloader.record.fence.settle([unchanged, step], recorded)
        except Fenced:
            raise
        except (Conflict, NotFound, NoSpace) as error:
            self._denied(offloader, ledger_id, "no_space" if isinstance(error, NoSpace) else "revoked", error)
            if isinstance(error, Conflict):
                await offloader.record.reload()  # who changed the context may have been cancelled before the answer
            return False
        return True

    async def _forget(self, offloader: TopicOffloader, ledger_id: int, grant: Grant) -> None:
        """Delete the grant of a ledger that is deleted here and at its source."""
        floor = offloader.map.floor
        if floor is None or ledger_id > floor.ledger_id:
            return
        path = paths.grant(offloader.topic, ledger_id)

        async def recorded() -> bool:
            return await grant_records.load(self._context.metadata, offloader.topic, ledger_id) is None

        try:
            await offloader.record.fence.settle([Delete(path)], recorded)
        except NotFound:
            log.debug("grant.already_deleted", path=path)
        log.info("grant.deleted", topic=str(offloader.topic), ledger_id=ledger_id, verified_ms=grant.verified_ms)

    def _denied(self, offloader: TopicOffloader, ledger_id: int, reason: str, error: OffloaderError) -> None:
        self._metrics.source_delete_denied.labels(reason=reason).inc()
        write = log.error if isinstance(error, Unsound | CorruptData) else log.warning
        write = log.info if reason == AWAITS_COPY else write  # nothing is wrong with it
        write("ledger.not_granted", topic=str(offloader.topic), ledger_id=ledger_id, reason=reason, error=str(error))


def has_successor(topic_map: TopicMap, ledger_id: int) -> bool:
    """Whether it is recorded which ledger follows a ledger of the map.

    The source's list shows that only as long as it has the ledger. An owner that finds neither would take a later
    ledger for the end of a gap, and report a possible loss.
    """
    end, offloaded, plan = topic_map.ends.get(ledger_id), topic_map.offloaded, topic_map.unfinished
    if plan is not None and ledger_id < plan.boundary:
        offloaded = topic_map.history_end
    if offloaded is not None and ledger_id < offloaded.ledger_id:
        return True
    return end is not None and end.next_ledger_id is not None


def _reason(error: OffloaderError) -> str:
    return error.reason if isinstance(error, Unsound) else "unreachable"
