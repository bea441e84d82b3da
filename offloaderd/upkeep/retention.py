"""Tier retention: marks ledgers that the source has deleted, and removes the oldest segments from the map.

- A segment is removed when all its ledgers are marked deleted, by the source or by an operator. A topic with limited
  retention also loses its oldest segments by age or size. The oldest is always first, so that no hole appears.
- A limited topic keeps its newest segment and every ledger that the source still has. So the tier never holds less than
  the source, and a grant that the source has not used yet stays true.
- A ledger counts as deleted at the source only while the source's list, read fresh, has later ledgers without it, or
  has no such topic, for the whole lag. A list that cannot be read or contradicts the map deletes nothing.
- An age is measured by two clocks, this machine's and the store's; the younger age counts.
- Limits from a policy in the metadata store hold only after the same lag. Otherwise everybody with access to the store,
  or an operator who mistypes a size, could have all segments deleted at once.

`ledger_rows` and `deletion_plan` show an operator the state of each ledger, and the effect of marking some.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, cast

import structlog

from offloaderd.core.aio import Signal, race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, Fenced, IdentityRefused, NotFound, OffloaderError, Transient
from offloaderd.core.model import LedgerInfo, TierRetention, TopicName
from offloaderd.core.names.managed_ledgers import compacted_of
from offloaderd.ledgers.port import LedgerRegister
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.identity import deletion_refused
from offloaderd.metadata.records.context import LedgerContext
from offloaderd.metadata.records.grant import Grant
from offloaderd.metadata.topic_map import removal
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import keys
from offloaderd.policy.policies import Effective, Origin
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.segment.context import OffloadContext
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.upkeep.grants.records import deleted_by_us
from offloaderd.upkeep.settings import RetentionSettings
from offloaderd.upkeep.stored import store_now_ms

log = structlog.get_logger(__name__)


class Limits(NamedTuple):
    """Retention of a topic; None is no limit."""

    kind: TierRetention = TierRetention.KEEP
    age_s: float | None = None
    size_bytes: int | None = None


def limits_of(effective: Effective) -> Limits:
    """Return the retention that a policy gives a topic."""
    values = effective.values
    return Limits(cast("TierRetention", values.retention), values.retention_age_s, values.retention_bytes)


def tighter(now: Limits, before: Limits) -> bool:
    """Whether `now` may delete a segment that `before` keeps."""
    if now.kind is not TierRetention.LIMITED:
        return False
    if before.kind is not TierRetention.LIMITED:
        return True
    pairs = ((now.age_s, before.age_s), (now.size_bytes, before.size_bytes))
    return any(one is not None and (other is None or one < other) for one, other in pairs)


class Standing:
    """Since when each topic has had its present limits, as this daemon has seen it; limits of settings hold at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[TopicName, tuple[Limits, float]] = {}

    def note(self, topic: TopicName, effective: Effective) -> None:
        """Record a topic's present limits; tighter ones begin to stand now."""
        now_s, limits, said_at = self._clock.monotonic(), limits_of(effective), effective.levels["retention"]
        before, since_s = self._since.get(topic, (Limits(), now_s))
        if said_at.origin in {Origin.SETTINGS, Origin.DEFAULT}:
            since_s = -inf
        elif tighter(limits, before):
            since_s = now_s
            log.info("retention.limits_changed", topic=str(topic), said_at=str(said_at), **limits._asdict())
        self._since[topic] = limits, since_s

    def left_s(self, topic: TopicName, lag_s: float) -> float:
        """Return how many seconds a topic's limits still have to stand until `lag_s` is over; 0 or less: they hold."""
        limits, since_s = self._since.get(topic, (Limits(), -inf))
        return since_s + lag_s - self._clock.monotonic() if limits.kind is TierRetention.LIMITED else 0.0


def missing_ledgers(topic_map: TopicMap, listed: Collection[int] | None) -> set[int]:
    """Return the ledgers of the map that the source's list shows as deleted; `listed` is None when there is no topic.

    Ledgers are trimmed from the front, so a list that is empty, or ends before one of ours, proves nothing.
    """
    if listed is None:
        return set(topic_map.contexts)
    newest = max(listed, default=-1)
    return {one for one in topic_map.contexts if one < newest and one not in listed}


def over_limit(topic_map: TopicMap, limits: Limits, kept: Collection[int], *, now_ms: int) -> str | None:
    """Return why the oldest segment exceeds a limit (`age` or `size`), else None. `kept`: the source's ledgers."""
    if limits.kind is not TierRetention.LIMITED or len(topic_map.segments) < 2 or topic_map.unfinished is not None:
        return None
    oldest = topic_map.segments[0]
    if any(part.ledger_id in kept for part in oldest.slices):
        return None
    if limits.age_s is not None and now_ms - oldest.offloaded_ms > limits.age_s * 1000:
        return "age"
    total = sum(segment.object_bytes for segment in topic_map.segments)
    return "size" if limits.size_bytes is not None and total > limits.size_bytes else None


def checked_marks(topic_map: TopicMap, ledger_ids: Iterable[int], kept: Collection[int] | None) -> list[int]:
    """Return which of the ledgers an operator may still mark deleted. `kept`: ledgers of the source; None without one.

    Raises NotFound for a ledger that was never offloaded, Conflict for one that the source has, or that is still
    written.
    """
    wanted = []
    for ledger_id in sorted(set(ledger_ids)):
        if ledger_id not in topic_map.contexts:
            if topic_map.floor is not None and ledger_id <= topic_map.floor.ledger_id:
                continue
            raise NotFound(
                f"the map of {topic_map.topic} has nothing of ledger {ledger_id}", hint="offloadctl ledgers list"
            )
        if kept is not None and ledger_id in kept:
            raise Conflict(
                f"the source still has ledger {ledger_id} of {topic_map.topic}",
                hint="delete it there first: the tier never holds less than the source",
            )
        if kept is None and ledger_id == topic_map.segments[-1].end.ledger_id and ledger_id not in topic_map.ends:
            raise Conflict(
                f"ledger {ledger_id} of {topic_map.topic} may still be written",
                hint="close it, or wait for the next one",
            )
        if ledger_id not in topic_map.deleted:
            wanted.append(ledger_id)
    return wanted


@dataclass(slots=True, eq=False)
class _Order:
    """An operator's order to mark ledgers deleted; `done` gets those that were not marked before."""

    ledger_ids: list[int]
    done: asyncio.Future[list[int]]

    def fail(self, error: OffloaderError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class _Desk:
    """Orders for a topic, until its task carries them out: a caller that leaves interrupts no transaction."""

    def __init__(self) -> None:
        self.orders: list[_Order] = []
        self.signal = Signal()


def _believes(offloader: TopicOffloader, listed: Collection[int] | None) -> bool:
    """Whether ledgers that are not in a list, or a missing topic (None), were deleted."""
    believed = offloader.source_check.believes(listed)
    if not believed:
        hint = "no ledger of the source's list was offloaded: is it the list of this topic, in this cluster?"
        log.warning("retention.list_implausible", topic=str(offloader.topic), hint=hint)
    return believed


def _released(topic: TopicName) -> Transient:
    return Transient(f"{topic} is being released", hint="ask its next owner; what was marked stays marked")


class Retention:
    """Retention of each topic. `register` None: a ledger that the source does not list proves nothing."""

    def __init__(
        self, context: OffloadContext, register: LedgerRegister | None, options: RetentionSettings, book: PolicyResolver
    ) -> None:
        self._context = context
        self._book = book
        self._register = register
        self.options = options
        self._clock = context.upload_context.clock
        self._desks: dict[TopicName, _Desk] = {}
        self._standing = Standing(self._clock)

    async def run(self, offloader: TopicOffloader) -> None:
        """Check a topic at an interval and after each order, until cancelled. Raises Fenced."""
        absent: dict[int, float] = {}
        desk = self._desks[offloader.topic] = _Desk()
        try:
            await offloader.identity.checked.wait()
            while True:
                holds, patience_s = offloader.policy, 0.0
                try:
                    while desk.orders:
                        await self._carry_out(offloader, desk.orders.pop(0))
                    patience_s = self._patience_s(offloader, await self.run_once(offloader, absent), absent)
                except Fenced:
                    raise
                except OffloaderError as error:
                    log.warning("retention.retried", topic=str(offloader.topic), error=str(error))
                if not desk.orders and offloader.policy is holds:
                    pause_s = self._clock.jitter(2 * self.options.interval_s) * 2 / 3
                    with offloader.rest.until(self._clock.monotonic() + max(pause_s, patience_s)):
                        await race(desk.signal.wait(), offloader.policy_changed.wait(), self._clock.sleep(pause_s))
        finally:
            del self._desks[offloader.topic]
            for order in desk.orders:
                order.fail(_released(offloader.topic))

    def _patience_s(self, offloader: TopicOffloader, limits: Limits, absent: dict[int, float]) -> float:
        """Return in how many seconds something may be due, if the source and the map stay as they are."""
        if absent or self._standing.left_s(offloader.topic, self.options.follow_lag_s) > 0:
            return 0.0
        known = offloader.map.segments
        if limits.kind is not TierRetention.LIMITED or limits.age_s is None or len(known) < 2:
            return inf
        if any(part.ledger_id in offloader.record.chain.ledgers for part in known[0].slices):
            return inf
        return limits.age_s - (self._clock.wall_ms() - known[0].offloaded_ms) / 1000

    async def run_once(self, offloader: TopicOffloader, absent: dict[int, float]) -> Limits:
        """Do what is due; return the limits. `absent`: since when (monotonic), by ledger. Raises Fenced, Transient."""
        effective = await self._book.of(offloader.topic, fresh=True)
        limits = limits_of(effective)
        self._standing.note(offloader.topic, effective)
        if why := await deletion_refused(self._context.metadata, offloader.topic):
            log.error("retention.refused", topic=str(offloader.topic), why=why)
            absent.clear()
            return limits
        follows = limits.kind is TierRetention.FOLLOW
        partly = any(one.foreign for one in offloader.map.segments) or compacted_of(offloader.topic) is not None
        if self._register is not None and (follows or partly):
            try:
                await self._kept(offloader)
            except IdentityRefused:
                absent.clear()
                raise
            await self._follow(offloader, self._register, absent, everything=follows)
        else:
            absent.clear()
        await offloader.record.note_source_deleted(offloader.record.trimmed())
        await self.remove_marked(offloader)
        left_s = self._standing.left_s(offloader.topic, self.options.follow_lag_s)
        if limits.kind is TierRetention.LIMITED and left_s <= 0:
            await self._remove_over(offloader, limits)
        return limits

    async def mark(self, offloader: TopicOffloader, ledger_ids: Iterable[int], *, dry_run: bool) -> list[int]:
        """Mark ledgers by order, also if the caller leaves; return those not marked before. Raises as `mark_now`."""
        ledger_ids = list(ledger_ids)
        if dry_run:
            await self._check_identity(offloader.topic)
            return checked_marks(offloader.map, ledger_ids, await self._kept(offloader))
        desk = self._desks.get(offloader.topic)
        if desk is None:
            raise Transient(f"{offloader.topic} is being taken over", hint="try again in a moment")
        order = _Order(ledger_ids, asyncio.get_running_loop().create_future())
        desk.orders.append(order)
        desk.signal.notify()
        return await order.done

    async def mark_now(self, offloader: TopicOffloader, ledger_ids: Iterable[int]) -> list[int]:
        """Mark ledgers deleted and remove what can be. Raises as `checked_marks`, IdentityRefused, Fenced."""
        wanted = checked_marks(offloader.map, ledger_ids, await self._kept(offloader))
        await self._check_identity(offloader.topic)
        if wanted:
            await offloader.record.mark_deleted(wanted)
            log.info("ledgers.marked_deleted", topic=str(offloader.topic), ledger_ids=wanted, why="asked for")
        await self.remove_marked(offloader)
        return wanted

    async def _check_identity(self, topic: TopicName) -> None:
        if why := await deletion_refused(self._context.metadata, topic):
            raise IdentityRefused(f"nothing of {topic} is deleted for the time being: {why}")

    async def _carry_out(self, offloader: TopicOffloader, order: _Order) -> None:
        """Carry out an order and set its result. Raises Fenced."""
        try:
            marked = await self.mark_now(offloader, order.ledger_ids)
        except OffloaderError as error:
            order.fail(error)
            if isinstance(error, Fenced):
                raise
        except BaseException:
            order.fail(_released(offloader.topic))
            raise
        else:
            if not order.done.done():
                order.done.set_result(marked)

    async def remove_marked(self, offloader: TopicOffloader) -> None:
        """Remove the oldest segments while all their ledgers are marked deleted.

        None is removed before history is done: the floor ends what was deleted, and later history would be below it.
        """
        while (known := offloader.map).segments and known.unfinished is None:
            if not removal.is_marked(known, known.segments[0]):
                return
            await self._remove(offloader, known.segments[0], "ledgers_deleted")

    async def _follow(
        self,
        offloader: TopicOffloader,
        register: LedgerRegister,
        absent: dict[int, float],
        *,
        everything: bool,
    ) -> None:
        """Mark ledgers that have been missing at the source for the whole lag.

        Whatever else is kept (`everything` is False), two kinds are not: ledgers that brokers have offloaded
        themselves, and compacted ledgers, once a later one has replaced them.
        """
        topic_map = offloader.map
        if not topic_map.contexts.keys() - topic_map.deleted.keys():
            return
        try:
            listed: Collection[int] | None = set(await register.listed(offloader.topic))
        except NotFound:
            listed = None
        if not _believes(offloader, listed):
            absent.clear()
            return
        missing = missing_ledgers(topic_map, listed) - topic_map.deleted.keys()
        if not everything and (listed is None or compacted_of(offloader.topic) is None):
            missing &= {one.end.ledger_id for one in topic_map.segments if one.foreign}
        now_s = self._clock.monotonic()
        for ledger_id in absent.keys() - missing:
            del absent[ledger_id]
        for ledger_id in missing - absent.keys():
            absent[ledger_id] = now_s
        due = sorted(one for one, since_s in absent.items() if now_s - since_s >= self.options.follow_lag_s)
        due = [one for one in due if not await deleted_by_us(self._context.metadata, offloader.topic, one)]
        if due:
            await offloader.record.mark_deleted(due)
            log.info(
                "ledgers.marked_deleted", topic=str(offloader.topic), ledger_ids=due, why="the source has not got them"
            )

    async def _remove_over(self, offloader: TopicOffloader, limits: Limits) -> None:
        kept = await self._kept(offloader)
        may_be_another = kept is not None and self._context.known_source is not None
        if may_be_another and not _believes(offloader, kept or None):
            return
        while True:
            why = over_limit(offloader.map, limits, kept or set(), now_ms=self._clock.wall_ms())
            if why is None:
                return
            oldest = offloader.map.segments[0]
            if why == "age" and limits.age_s is not None and not await self._stored_for(oldest, limits.age_s):
                log.warning("retention.clocks_differ", topic=str(offloader.topic), segment_id=str(oldest.segment_id))
                return
            await self._remove(offloader, oldest, why)

    async def _kept(self, offloader: TopicOffloader) -> Collection[int] | None:
        """Return the ledgers of the source; None without a source. Raises Transient, IdentityRefused."""
        if self._context.source is None:
            return None
        kept: set[int] = set()
        try:
            kept |= {info.ledger_id for info in await offloader.source_check.ledgers(self._context.source)}
            if self._register is not None:
                kept |= set(await self._register.listed(offloader.topic))
        except NotFound:
            log.debug("retention.not_at_source", topic=str(offloader.topic))
        return kept

    async def _stored_for(self, segment: CommittedSegment, age_s: float) -> bool:
        """Whether a segment is that old by the store's own clock."""
        store = self._context.upload_context.objects.at(segment.bucket)
        stored = await store.head(segment.keys.data if segment.foreign else segment.keys.manifest)
        place = self._context.places.of_bucket(segment.bucket) or self._context.places.home
        now_ms = await store_now_ms(store, f"{place.prefix}{keys.RETENTION_CLOCK}")
        return now_ms - stored.modified_ms > age_s * 1000

    async def _remove(self, offloader: TopicOffloader, segment: CommittedSegment, why: str) -> None:
        if not await offloader.record.remove_oldest(segment, why):
            return
        self._context.upload_context.metrics.segments_removed.labels(reason=why).inc()
        log.info(
            "segment.removed",
            topic=str(offloader.topic),
            segment_id=str(segment.segment_id),
            range=str(segment.range),
            reason=why,
        )
        offloader.changed.notify()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One ledger. `entries` None: unknown; `at_source` None: no source, or no answer from it."""

    ledger_id: int
    state: str
    entries: int | None
    offloaded_entries: int
    payload_bytes: int
    segments: int
    at_source: bool | None
    deleted_ms: int
    grant: Grant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPlan:
    """Effect of marking ledgers deleted: segments to remove, and unmarked ledgers that keep others waiting."""

    segments: tuple[CommittedSegment, ...]
    waits_for: tuple[int, ...]


def ledger_rows(
    ledger_ids: Iterable[int],
    contexts: Mapping[int, LedgerContext],
    source: Sequence[LedgerInfo] | None,
    grants: Mapping[int, Grant],
    *,
    newest: int,
) -> list[LedgerRow]:
    """Return these ledgers, as the source and their contexts in the tier have them; those in neither are left out.

    `newest` is the newest ledger of the topic with offloaded entries, -1 without any.
    """
    at_source = {info.ledger_id: info for info in source or ()}
    found = []
    for ledger_id in ledger_ids:
        info, context, grant = at_source.get(ledger_id), contexts.get(ledger_id), grants.get(ledger_id)
        if info is None and context is None:
            continue
        tier = context or LedgerContext()
        entries = info.entries if info is not None else tier.end.entries if tier.end is not None else None
        found.append(
            LedgerRow(
                ledger_id=ledger_id,
                state=_state_of(tier, info, grant, is_newest=ledger_id >= newest),
                entries=entries,
                offloaded_entries=sum(one.end_entry_id + 1 - one.begin_entry_id for one in tier.segments),
                payload_bytes=sum(one.payload_bytes for one in tier.segments),
                segments=len(tier.segments),
                at_source=None if source is None else info is not None,
                deleted_ms=tier.deleted_ms or 0,
                grant=grant,
            )
        )
    return found


def _state_of(tier: LedgerContext, info: LedgerInfo | None, grant: Grant | None, *, is_newest: bool) -> str:
    if tier.deleted_ms is not None:
        return "deleted"
    if grant is not None and (grant.revoked_ms or grant.in_force):
        return "revoked" if grant.revoked_ms else "granted"
    if tier.end is not None:
        return "offloaded"
    if info is None:  # a ledger before the newest cannot grow
        return "open" if is_newest else "closed"
    return "closed" if info.closed else "open"


def deletion_plan(topic_map: TopicMap, ledger_ids: Iterable[int]) -> DeletionPlan:
    """Return the effect of marking these ledgers as well."""
    if topic_map.unfinished is not None:
        return DeletionPlan(segments=(), waits_for=())  # nothing is removed until history is done
    _, marked = removal.mark_deleted(topic_map, ledger_ids, now_ms=0)
    going: list[CommittedSegment] = []
    for segment in marked.segments:
        if not removal.is_marked(marked, segment):
            waiting = {part.ledger_id for other in marked.segments[len(going) :] for part in other.slices}
            held = bool(waiting & marked.deleted.keys())
            keeping = [part.ledger_id for part in segment.slices if part.ledger_id not in marked.deleted]
            return DeletionPlan(segments=tuple(going), waits_for=tuple(keeping) if held else ())
        going.append(segment)
    return DeletionPlan(segments=tuple(going), waits_for=())
