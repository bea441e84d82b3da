"""The supervisor of one topic on this daemon: claim it, resume what an earlier owner left, offload, release, and again.

An error of one topic stalls that topic alone. A topic leaves in one of two ways: stopped, which seals and commits its
open segment first, or abandoned, which leaves the open segment to the next owner as a crash would.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from offloaderd.core.aio import Event, Group, Signal, both, race
from offloaderd.core.clock import Timer
from offloaderd.core.errors import Closed, Fenced, IdentityRefused, OffloaderError, first_of
from offloaderd.core.limits import FLOW
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.fleet import ownership
from offloaderd.history import plan as history
from offloaderd.history.adoption import adopt_head
from offloaderd.metadata.port import Session
from offloaderd.metadata.records.ownership import DaemonNode
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy.policies import Effective, OffloadPolicies
from offloaderd.policy.records import Paused, TopicPolicy
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.segment import resume
from offloaderd.segment.claim.attempt_log import attempt_log
from offloaderd.segment.claim.fence import Claim, Fence
from offloaderd.segment.claim.head import HeadKeeper
from offloaderd.segment.claim.refusals import TopicIdentity
from offloaderd.segment.failures import Failure
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.source_check import listing
from offloaderd.topic.idle import Cause, IdleTopic, KeptMap, State, state_of
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.topic.outage import TopicContext
from offloaderd.topic.status import TopicStatus, bare, idle

log = structlog.get_logger(__name__)

TAKEN_UP_AT_ONCE = 20
"""Topics that are loaded in parallel, each until it proves to have work or none (see topic/idle.py)."""
TURN_S = 0.5
"""So long after it was loaded a topic holds up others at most: its source or its bucket may not answer."""
SAME_FAILURE_S = 120.0
"""A claim that fails this soon after the last failure continues that failure; pauses are 30 s at most."""

Duty = Callable[["TopicOffloader"], Coroutine[Any, Any, None]]
"""Task beside the offloading of a topic for as long as this daemon owns it; it ends by cancellation.

It must not raise because something is unreachable. Any other OffloaderError of it stalls the topic.
"""


class Abandoned(Closed):
    """The topic was released with its open segment unsealed."""


class Suspended(Closed):
    """The topic is suspended: its owner keeps only the claim."""


@dataclass(slots=True, kw_only=True)
class SharedContext:
    """State that all topics of a daemon share; `changed` fires when one of them was claimed or released.

    `ended` are the sessions of former runs of this daemon, and those that this one has lost.
    """

    context: TopicContext
    book: PolicyResolver
    duties: Mapping[str, Duty]
    me: DaemonNode
    changed: Signal = field(default_factory=Signal)
    taken_up: "Callable[[Supervisor], None]" = lambda _: None
    turns: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, TAKEN_UP_AT_ONCE))
    ended: set[str] = field(default_factory=set)


class Supervisor:
    """Keeps one topic offloaded until it is stopped."""

    __slots__ = (
        "_abandon",
        "_claims_late",
        "_clock",
        "_failed_s",
        "_holds",
        "_home",
        "_last",
        "_metrics",
        "_stop",
        "_suspend",
        "_turn",
        "ended",
        "error",
        "failure",
        "identity",
        "idle_topic",
        "last_map",
        "offloader",
        "policy",
        "provisional",
        "session",
        "topic",
        "untouched",
        "used",
    )

    def __init__(
        self, home: SharedContext, topic: TopicName, policy: TopicPolicy, *, provisional: bool = False
    ) -> None:
        """A `provisional` topic belongs to another daemon: it is released at its first failure."""
        self.topic = topic
        self.policy = policy
        self.provisional = provisional
        self.offloader: TopicOffloader | None = None
        self.identity: TopicIdentity | None = None
        """Refusals under the last claim."""
        self.idle_topic: IdleTopic | None = None
        """State of the suspended topic, until there is an offloader again."""
        self.untouched: State | None = None
        """State of the topic when it was loaded, if that was only for its regular check."""
        self.session: Session
        """Session of the claim, once there is one."""
        self.used = 0
        """Number of requests for the offloader."""
        self.last_map: KeptMap | None = None
        """The map when the topic was suspended or the session was lost, until it is active again."""
        self._last: TopicStatus | None = None
        self.error: OffloaderError | None = None
        self.failure: Failure | None = None
        """The last failure of claims, and since when; reported while `error` is set."""
        self.ended = Event()
        self._home = home
        self._clock = home.context.upload_context.clock
        self._metrics = home.context.upload_context.metrics
        self._failed_s = 0.0
        self._holds: tuple[OffloadPolicies, Paused | None] | None = None  # what the offloader applies
        self._claims_late = False  # the next session may carry a claim out that nobody waits for
        self._stop = Event()
        self._abandon = Event()
        self._suspend = Event()
        self._turn: Timer | None = None  # which ends it

    @property
    def owns(self) -> bool:
        """Whether this daemon owns the topic, active or suspended."""
        return self.offloader is not None or self.idle_topic is not None

    @property
    def stopping(self) -> bool:
        """Whether it was stopped."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Seal and commit the open segment, then release the topic."""
        self._stop.set()
        self._wake(Cause.LEAVING)

    def abandon(self) -> None:
        """Release the topic now; the next owner resumes the open segment."""
        self.stop()
        self._abandon.set()

    def suspend(self, idle_topic: IdleTopic, topic_map: TopicMap) -> None:
        """Keep only the claim and what readers need; from now on the offloader is not found."""
        self.idle_topic, self.offloader, self.last_map = idle_topic, None, KeptMap(topic_map)
        self.untouched = None
        if self.identity is not None:
            self.identity.failure_tracker = None
        self.end_turn()
        self._suspend.set()

    def end_turn(self) -> None:
        """Let another topic be loaded, if this one is what others wait for."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.cancel()
            self._home.turns.release()

    def use(self) -> None:
        """Wake the topic, and keep it active for some time."""
        self.used += 1
        self._wake(Cause.USED)

    def grants_changed(self) -> None:
        """Make the topic read its grants now, because another process has changed one."""
        if self.offloader is not None:
            self.offloader.grants_changed.set()
        self._wake(Cause.USED)

    def _wake(self, cause: Cause) -> None:
        if self.idle_topic is not None:
            self.idle_topic.wake(cause)

    def status(self, now_s: float) -> TopicStatus:
        """Return the status of the topic at a monotonic time."""
        if self.offloader is not None:
            return self.offloader.status()
        if self.idle_topic is not None:
            return self.idle_topic.status(now_s)
        refusals = self.identity.refusals if self.identity is not None else ()
        last = self._last or TopicStatus(topic=self.topic, state="")
        return idle(last, self.error, self.failure, refusals=refusals, now_s=now_s)

    def change(self, policy: TopicPolicy) -> None:
        """Continue under another policy, of the topic or of a level above it."""
        self.policy = policy
        if not self.owns:
            return
        effective = self._home.book.effective(self.topic, policy)
        if (effective.values, self._paused) == self._holds:
            return
        if self.offloader is None:
            self._wake(Cause.POLICY)
            return
        self.offloader.follow(self._take(effective))
        self.offloader.outage.follow(effective.values.outage)

    def _take(self, effective: Effective) -> RollPolicy:
        """Return the roll policy for the offloader, and record what it follows from."""
        self._holds = (effective.values, self._paused)
        return RollPolicy.of(effective).held(self._paused, push_only=self._home.context.source is None)

    @property
    def _paused(self) -> Paused | None:
        """The pause by an operator, or by the quota of stored bytes."""
        account = self._home.context.accounts.of(self.topic)
        if self.policy.paused is not None or not account.over_stored:
            return self.policy.paused
        return Paused(account.over_since_ms, account.over_stored)

    async def run(self) -> None:
        """Claim and offload until stopped, as a part of the namespace's flow."""
        FLOW.set(self._home.context.accounts.of(self.topic))
        backoff = Backoff(self._clock)
        try:
            while not self._stop.is_set():
                try:
                    await self._own()
                    self.error = None
                    backoff.reset()
                except Fenced as error:
                    log.warning("topic.fenced", topic=str(self.topic), error=str(error))
                    self.error = None
                except (Abandoned, history.Replanned) as error:
                    log.warning("topic.abandoned", topic=str(self.topic), error=str(error))
                    self.error = None
                except OffloaderError as error:
                    self._note(error)
                    log.error(  # noqa: TRY400 - an operator needs the message; a trace of expected errors hides it
                        "topic.stalled", topic=str(self.topic), error=str(error), error_class=type(error).__name__
                    )
                    if not self.provisional:
                        await self._stop.wait_at_most(self._clock, backoff.pause_s(error))
                if self.provisional:
                    break
            if self._claims_late:
                await self._release_unclaimed(await self._home.context.metadata.session())
        finally:
            self.ended.set()

    def _note(self, error: OffloaderError) -> None:
        """Record an error, as a new failure or as a repetition of a recent one."""
        now_s, known = self._clock.monotonic(), self.failure
        self.error = error
        if known is None or now_s - self._failed_s > SAME_FAILURE_S:
            known = self.failure = Failure(error, self._clock.wall_ms(), now_s, tries=0)
        known.error, self._failed_s = error, now_s
        known.tries += 1

    async def _own(self) -> None:
        """Own the topic for as long as this session lasts.

        A claim may be carried out after its session was lost: the owner node then names an ended session, and would
        stay for as long as this daemon lives. So the session is recorded as ended.
        """
        session = await self._home.context.metadata.session()
        try:
            await self._own_in(session)
        finally:
            if session.lost.is_set():
                self._home.ended.add(session.session_id)

    async def _own_in(self, session: Session) -> None:
        """Claim the topic, offload until stopped, with suspensions in between, release."""
        store = self._home.context.metadata
        claim = await self._claim(session)
        if claim is None:
            return
        self.session = session
        fence = Fence(store, claim, clock=self._clock, metrics=self._metrics)
        identity = TopicIdentity(fence, clock=self._clock, metrics=self._metrics, before=self.identity)
        self.identity = identity
        head = HeadKeeper(self._home.context, identity, epoch=claim.epoch)
        self._metrics.ownership_changes.labels(direction="gained").inc()
        try:
            await self._stay_active(claim, session, identity, head)
            while self.idle_topic is not None:
                await self.idle_topic.woken.wait()
                if self._stop.is_set():
                    return
                await self._check(claim, session)
                self._metrics.topic_wakes.labels(cause=str(self.idle_topic.cause)).inc()
                await self._stay_active(claim, session, identity, head)
        finally:
            self.end_turn()
            if session.lost.is_set():
                self._last = bare(self.status(self._clock.monotonic()))
                self.last_map = KeptMap(self.offloader.map) if self.offloader is not None else self.last_map
            else:
                self.last_map = None
            self.offloader = self.idle_topic = None
            self._metrics.ownership_changes.labels(direction="lost").inc()
            self._home.changed.notify()
            if not session.lost.is_set():
                await ownership.release(store, claim, session, self._clock)

    async def _check(self, claim: Claim, session: Session) -> None:
        """Check that the claim of a suspended topic still holds. Raises Fenced."""

        found: int | None = None

        async def version() -> None:
            nonlocal found
            found = (await self._home.context.metadata.get(claim.path)).version

        if not session.lost.is_set():
            await race(until_answered(self._clock, version), session.lost.wait())
        if session.lost.is_set() or found != claim.epoch_version:
            raise Fenced(
                f"the claim on {self.topic} has ended while it slept",
                hint="nothing to do: the topic is claimed again as soon as it can be",
            )

    async def _stay_active(self, claim: Claim, session: Session, identity: TopicIdentity, head: HeadKeeper) -> None:
        """Resume what an earlier owner, or this one before its suspension, left; offload until stopped or suspended."""
        store, topic = self._home.context.metadata, self.topic
        attempts = attempt_log(self._home.context, claim, head=head)
        await self._home.turns.acquire()
        try:
            reading = until_answered(self._clock, lambda: catalog.load(store, topic))
            topic_map, _ = await both(reading, identity.load())
            head.take_up(topic_map)
            left = await resume.take_over(attempts, topic_map.standing, self._home.context)
        except BaseException:
            self._home.turns.release()
            raise
        self._turn = self._clock.call_later(TURN_S, self.end_turn)
        effective = self._home.book.effective(topic, self.policy)
        policy, me = self._take(effective), self._home.me.daemon_id
        ledgers = listing(self._home.context, identity, topic_map, left.attempt)
        if left.begin is None and policy.method is not OffloadMethod.NONE:
            topic_map = await adopt_head(self._home.context, attempts, topic_map, ledgers)
        undecided = False
        try:
            topic_map = await history.prepare(self._home.context, attempts, topic_map, left, policy, me, ledgers)
        except history.Undecided:
            undecided = True
        offloader = TopicOffloader(self._home.context, attempts, topic_map, policy, left, identity)
        offloader.record.history_undecided = undecided
        sourced, streams = self._home.context.source is not None, policy.method is OffloadMethod.STREAMING
        offloader.record.history_unplanned = sourced and not streams
        identity.failure_tracker = offloader.failure_tracker
        cause = self.idle_topic.cause if self.idle_topic is not None else Cause.DUE
        if self.idle_topic is not None:
            before = self.idle_topic.record
            offloader.lag.watch(before.confirmed)
            offloader.writer.moved = before.taken_entries, before.taken_bytes
        offloader.outage.follow(effective.values.outage)
        self._suspend.clear()
        self.offloader, self.idle_topic, self.error = offloader, None, None
        self._last = self.last_map = None
        self.untouched = state_of(self, offloader) if cause is Cause.DUE else None
        self._home.taken_up(self)
        self.change(self.policy)
        self._home.changed.notify()
        try:
            await self._work(offloader, session)
        except IdentityRefused:
            await identity.load()  # the refusal may have been read and written elsewhere
            raise

    async def _claim(self, session: Session) -> Claim | None:
        """Become the owner; None when stopped, or the session is lost, before that."""
        home, store, wait, claim = self._home, self._home.context.metadata, not self.provisional, None

        async def claiming() -> None:
            nonlocal claim
            claim = await ownership.claim(store, self.topic, home.me, session, self._clock, wait=wait, ended=home.ended)

        await race(claiming(), self._stop.wait(), session.lost.wait())
        self._claims_late = claim is None and session.lost.is_set()
        if claim is None and not session.lost.is_set():
            await self._release_unclaimed(session)
        return claim

    async def _release_unclaimed(self, session: Session) -> None:
        metadata, ended = self._home.context.metadata, self._home.ended
        await ownership.release_unclaimed(metadata, self.topic, session, self._clock, ended=ended)

    async def _work(self, offloader: TopicOffloader, session: Session) -> None:

        async def stop_on_request() -> None:
            await self._stop.wait()
            offloader.stop()
            await self._abandon.wait()
            raise Abandoned(f"{self.topic} is given up here before its open segment was sealed")

        async def suspend_on_request() -> None:
            await self._suspend.wait()
            raise Suspended(f"{self.topic} is suspended")

        async def fence_when_lost() -> None:
            await session.lost.wait()
            raise Fenced(
                f"the metadata session that held {offloader.topic} is lost",
                hint="nothing to do: the topic is claimed again as soon as there is a session",
            )

        try:
            async with Group() as group:
                helpers = [
                    group.create_task(stop_on_request(), name=f"stop {self.topic}"),
                    group.create_task(suspend_on_request(), name=f"suspension of {self.topic}"),
                    group.create_task(fence_when_lost(), name=f"session of {self.topic}"),
                ]
                for name, duty in self._home.duties.items():
                    helpers.append(group.create_task(duty(offloader), name=f"{name} of {self.topic}"))
                    offloader.rest.begun(helpers[-1])
                await offloader.run()
                for helper in helpers:
                    helper.cancel()
        except BaseExceptionGroup as errors:
            if isinstance(first_of(errors), Suspended):
                return
            raise first_of(errors) from None
