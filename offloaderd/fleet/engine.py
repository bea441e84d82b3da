"""The engine: runs one offloader for every enabled topic that this daemon should have and can claim.

A policy node enables a topic; a counter on the topics' root node notifies every daemon of changes. The registrations
decide which daemon should have which topic (`placement.py`), and topics move with them (`assignment.py`). Each topic of
this daemon has a supervisor (`supervisor.py`).
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial

import structlog

from offloaderd.core.aio import Event, Group, race
from offloaderd.core.errors import (
    Closed,
    Conflict,
    CorruptData,
    InvalidInput,
    NotFound,
    OffloaderError,
    Throttled,
    Transient,
)
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.core.units import plural
from offloaderd.fleet import ownership
from offloaderd.fleet.assignment import Assignment
from offloaderd.fleet.placement import NOBODY, Placement
from offloaderd.fleet.quotas import QuotaKeeper
from offloaderd.fleet.settings import PlacementSettings
from offloaderd.fleet.supervisor import Duty, SharedContext
from offloaderd.format.head import PlaceMarker
from offloaderd.history.plan import History
from offloaderd.history.rollback import Rollback
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.records.identity import Refusal
from offloaderd.metadata.records.ownership import DaemonNode, Owner
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.metadata.topic_map.unnamed import WHAT_TO_DO, UnnamedPlace, described, unnamed_places
from offloaderd.objects import marker
from offloaderd.objects.places import Place
from offloaderd.policy import store as policies
from offloaderd.policy.discovery import Discovery
from offloaderd.policy.policies import Effective
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.policy.selection import Change
from offloaderd.policy.store import topic_policies
from offloaderd.policy.updates import Levels, Selector
from offloaderd.segment.context import OffloadContext
from offloaderd.topic import requests
from offloaderd.topic.idle import IdleOptions, IdleTopics, KeptMap
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.topic.outage import TopicContext
from offloaderd.topic.spill import HINT
from offloaderd.topic.status import Reporter, TopicStatus
from offloaderd.upkeep import deletion

log = structlog.get_logger(__name__)

WAKE_S = 10.0
"""How long a request waits for a suspended topic to wake, which takes a few requests to the metadata store."""


class Engine:
    """All topics of one daemon."""

    def __init__(
        self,
        context: TopicContext,
        book: PolicyResolver,
        *,
        duties: Mapping[str, Duty] | None = None,
        placement: PlacementSettings | None = None,
        sleep: IdleOptions | None = None,
    ) -> None:
        """`duties` are further tasks for each topic; `book` has the policies of topics without their own."""
        self.context = context
        self._clock = context.upload_context.clock
        self._draining = False
        self._refreshes = 0
        self.rollback = Rollback(context)
        all_duties: dict[str, Duty] = {
            "trash": partial(deletion.keep_trash_empty, context),
            "history": History(context, lambda: self._home.me.daemon_id).run,
            "requests": partial(requests.resume_recorded, context),
            "rollback": self.rollback.run,
            "identity": _keep_identity,
            **(duties or {}),
        }
        self._home = SharedContext(context=context, book=book, duties=all_duties, me=NOBODY)
        self._reporter = Reporter(context, self.each_measured)
        self.book = book
        self._selector = Selector(context.metadata, context.source, self._clock, book)
        self._discovery = Discovery(self._selector, context.upload_context.metrics)
        self.levels = Levels(self._selector, book)
        self.changed = self._home.changed
        self.placement = Placement(context.metadata, self._clock, placement)
        self._assignment = Assignment(self._home, self.placement, forget=self._reporter.forget)
        self.idle_topics = IdleTopics(
            context, self._assignment.supervised, sleep or IdleOptions(), report=self._reporter.report_topic
        )
        self._home.taken_up = self.idle_topics.taken_up
        self.quotas = QuotaKeeper(
            context,
            enabled=lambda: self._assignment.enabled,
            stored=lambda: self._reporter.stored,
            living=lambda: self.placement.members,
            changed=self.policies_changed,
        )
        self._selector.accounts, self._selector.counts = context.accounts, self.quotas.topics

    async def select(self, pattern: TopicPattern, policy: TopicPolicy, *, dry_run: bool = False) -> list[Change]:
        """Enable what a pattern matches, or change its policy; see Selector. Raises Closed while draining."""
        if self._draining:
            raise Closed("this daemon is draining", hint="ask another daemon, or try again after its restart")
        return await self._selector.enable(pattern, policy, dry_run=dry_run)

    async def deselect(self, pattern: TopicPattern, *, dry_run: bool = False) -> list[Change]:
        """Disable a pattern; return when the open segments of its topics on this daemon are complete.

        Offloaded entries stay readable. Raises NotFound when the pattern was not enabled.
        """
        changes = await self._selector.disable(pattern, dry_run=dry_run)
        ended = [change.topic for change in changes if change.policy is not None and not change.policy.active]
        if not dry_run:
            self._refreshes += 1
            await self._assignment.end(ended)
        return changes

    def topics(self) -> Sequence[TopicName]:
        """Return the topics that this daemon owns."""
        return sorted(topic for topic, one in self._assignment.supervised.items() if one.owns)

    def enabled(self) -> Sequence[TopicName]:
        """Return the enabled topics, whoever owns them."""
        return list(self._assignment.enabled)

    def find(self, topic: TopicName) -> TopicOffloader | None:
        """Return the topic's offloader if this daemon owns it and it is not suspended."""
        supervisor = self._assignment.supervised.get(topic)
        return supervisor.offloader if supervisor else None

    def placed(self, topic: TopicName, owner: str) -> str:
        """Return why an enabled topic of this owner (empty: none) is not where it ranks first; empty if it is."""
        return self._assignment.reason(topic, owner)

    async def owned(self, topic: TopicName) -> TopicOffloader:
        """Return the topic's offloader, woken. Raises NotFound (not enabled), Conflict (owned by another daemon)."""
        await self.wake(topic)
        found = self.find(topic)
        if found is not None:
            return found
        owner = await self.owner_of(topic)
        if owner is not None and owner.daemon_id != self._home.me.daemon_id:
            raise Conflict(f"{topic} is owned by daemon {owner.daemon_id}", hint=f"ask it at {owner.address}")
        return self.offloader(topic)

    async def wake(self, topic: TopicName) -> None:
        """Keep a topic of this daemon active for some time; return when it is, or after WAKE_S."""
        supervisor = self._assignment.supervised.get(topic)
        if supervisor is None:
            return
        supervisor.use()

        async def woken() -> None:
            while supervisor.idle_topic is not None:
                await self.changed.wait()

        if supervisor.idle_topic is not None:
            await race(woken(), self._clock.sleep(WAKE_S))

    async def refresh_policy(self, topic: TopicName) -> None:
        """Apply the stored policies to a topic of this daemon now, before their change is notified.

        Raises Transient, CorruptData.
        """
        supervisor = self._assignment.supervised.get(topic)
        if supervisor is None:
            return
        await self._home.book.of(topic, fresh=True)
        said = (await policies.read(self.context.metadata, [topic])).get(topic)
        if isinstance(said, TopicPolicy) and said.active:
            supervisor.change(said)

    def offloader(self, topic: TopicName) -> TopicOffloader:
        """Return the topic's offloader. Raises NotFound when it is not enabled, Transient while it is being claimed."""
        supervisor = self._assignment.supervised.get(topic)
        if supervisor is None and topic not in self._assignment.enabled:
            raise NotFound(f"{topic} is not enabled on this daemon", hint=f"offloadctl topics enable {topic}")
        if supervisor is None or supervisor.offloader is None:
            if supervisor is not None and supervisor.error is not None:
                raise supervisor.error
            raise Transient(f"{topic} has no owner yet, or another daemon owns it", hint="try again in a moment")
        return supervisor.offloader

    async def owner_of(self, topic: TopicName) -> Owner | None:
        """Return the owner of a topic, None without one."""
        return await ownership.owner_of(self.context.metadata, topic)

    async def has_policy(self, topic: TopicName) -> bool:
        """Whether a topic, or a pattern that matches it, was ever enabled or disabled. Raises Transient."""
        return await node(self.context.metadata, paths.policy(topic)) is not None

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return the committed map of a topic: the owner's live one, else the stored one. A suspended topic wakes."""
        if (supervisor := self._assignment.supervised.get(topic)) is not None:
            supervisor.use()
        return await self.present_map(topic)

    async def present_map(self, topic: TopicName) -> TopicMap:
        """Return the committed map of a topic: the owner's live one, else the stored one. Wakes nothing."""
        found = self.find(topic)
        return found.map if found is not None else await catalog.load(self.context.metadata, topic)

    def known(self, topic: TopicName) -> TopicMap | None:
        """Return the map of a topic that this daemon has in memory: of one that it owns, or whose claim was lost."""
        found, last = self.find(topic), self.last_map(topic)
        return found.map if found is not None else last.map() if last is not None else None

    def last_map(self, topic: TopicName) -> KeptMap | None:
        """Return the map at the time when a topic was suspended, or its claim was lost with the session.

        None once it is active again.
        """
        supervisor = self._assignment.supervised.get(topic)
        return supervisor.last_map if supervisor is not None else None

    def held_policy(self, topic: TopicName) -> Effective | None:
        """Return the policy that this daemon applies to a topic that it owns or waits for."""
        supervisor = self._assignment.supervised.get(topic)
        return self.book.effective(topic, supervisor.policy) if supervisor is not None else None

    def last_refusals(self, topic: TopicName) -> tuple[Refusal, ...]:
        """Return the refusals of a topic that were found under the last claim of this daemon."""
        supervisor = self._assignment.supervised.get(topic)
        return supervisor.identity.refusals if supervisor is not None and supervisor.identity is not None else ()

    def status(self, topic: TopicName) -> TopicStatus | None:
        """Return the status of an enabled topic that this daemon owns or waits for, None for others."""
        supervisor = self._assignment.supervised.get(topic)
        return supervisor.status(self._clock.monotonic()) if supervisor is not None else None

    def statuses(self) -> list[TopicStatus]:
        """Return the status of every enabled topic that this daemon owns or waits for."""
        return list(self.each_status())

    def each_status(self) -> Iterator[TopicStatus]:
        """Yield the same, each as it is when it is asked for: of thousands, a few at a time (`aio.in_turns`)."""
        found = (self.status(topic) for topic in sorted(self._assignment.supervised))
        return (one for one in found if one is not None)

    def each_measured(self) -> Iterator[TopicStatus]:
        """Yield the same for gauges and rates, in any order: of suspended topics nothing is made anew."""
        for topic, one in list(self._assignment.supervised.items()):
            if self._assignment.supervised.get(topic) is one:  # others have left meanwhile
                now_s = self._clock.monotonic()
                yield one.status(now_s) if one.idle_topic is None else one.idle_topic.measured(now_s)

    @property
    def unnamed(self) -> Mapping[TopicName, Sequence[UnnamedPlace]]:
        """Places that the settings do not name, by the topics of this daemon that have segments there."""
        return self._reporter.unnamed

    def unnamed_places(self, topic_map: TopicMap) -> Sequence[UnnamedPlace]:
        """Return the places of any topic's segments that the settings of this daemon do not name."""
        return unnamed_places(topic_map.segments, self.context.places.buckets)

    def alarms(self) -> list[str]:
        """Return alarms that concern all topics: unapplied selections, unnamed places, a full spill disk."""
        found = sorted(self._discovery.unapplied.items())
        told = [f"the selection {pattern} is not applied: {reason}" for pattern, reason in found]
        told += [f"{sentence}. To do: {WHAT_TO_DO}" for sentence in described(self.unnamed)]
        area = self.context.outage.area
        active = [one.offloader for one in self._assignment.supervised.values() if one.offloader is not None]
        held = any(one.outage.spill is not None and one.outage.spill.holds_back for one in active)
        if area is not None and area.refused and held:
            told.append(f"spill.directory {area.directory} takes nothing: {area.refused}. To do: {HINT}")
        return told

    def store_refuses(self, bucket: str | None = None) -> str:
        """Return why a service refuses requests of some topics though it may answer (when full), else empty.

        It is the service of a bucket, without one that of the daemon's own.
        """
        reach = self.context.upload_context.service(self.context.places.home.bucket if bucket is None else bucket).reach
        offloaders = [one.offloader for one in self._assignment.supervised.values() if one.offloader is not None]
        there = [one.failure_tracker.outage for one in offloaders if one.reach is reach]
        outages = [found for found in there if found is not None]
        refused = [one for one in outages if not isinstance(one.error, Throttled)]
        if not refused:
            return ""
        longest = min(refused, key=lambda one: one.since_s)
        return f"requests of {plural(len(refused), 'topic')} fail, though it answers: {longest.error}"

    async def run(self, me: DaemonNode) -> None:
        """Supervise this daemon's topics as `me` until `drain` has been called and every topic is released."""
        self._home.me = me
        self.placement.become(me)
        async with Group() as group:
            helpers = [
                group.create_task(self._assignment.run(), name="spread of topics"),
                group.create_task(self.idle_topics.run(), name="suspension of topics"),
                group.create_task(self.placement.run(), name="placement"),
                group.create_task(self._follow(paths.TOPICS, self._refresh_topics), name="enabled topics"),
                group.create_task(self._follow(paths.POLICIES, self._refresh_levels), name="policies of levels"),
                group.create_task(self._follow(paths.QUOTAS, self.quotas.refresh), name="quotas"),
                group.create_task(self.quotas.run(me.daemon_id), name="use of quotas"),
                group.create_task(self._follow(paths.GRANTS_CHANGED, self._refresh_grants), name="changed grants"),
                group.create_task(self._reporter.run(), name="topic metrics"),
                group.create_task(mark_places(self.context, self._home.me.daemon_id), name="markers of places"),
                group.create_task(self._discovery.run(), name="discovery of topics"),
            ]
            while not (self._draining and not self._assignment.supervised):
                await self.changed.wait()
            for helper in helpers:
                helper.cancel()

    def bound_expressions(self, most: int) -> None:
        """Set how many expressions a namespace, or a tenant, may have."""
        self._selector.expressions_max = most

    def policies_changed(self) -> None:
        """Apply the policies again to the topics of this daemon, after the daemon's own levels changed."""
        for supervisor in self._assignment.supervised.values():
            supervisor.change(supervisor.policy)

    def inherit(self, session_id: str) -> None:
        """Take over the claims of a session of a former run of this daemon, which has certainly ended."""
        self._home.ended.add(session_id)

    def drain(self) -> None:
        """Complete every open segment, release every topic, then let `run` return."""
        self._draining = True
        self._assignment.close()
        self.changed.notify()

    async def _follow(self, path: str, look: Callable[[], Awaitable[None]]) -> None:
        """Refresh at once, and whenever the counter at a node moves, until that succeeds."""
        async with aclosing(self.context.metadata.watch(path)) as changes:
            async for _ in changes:
                await until_answered(
                    self._clock,
                    look,
                    passes=OffloaderError,
                    on_error=lambda error: log.warning("topics.unreadable", path=path, error=str(error)),
                )

    async def _refresh_topics(self) -> None:
        """Read which topics are enabled, again when one was disabled here meanwhile, and place them."""
        if not self.book.loaded:
            await self.book.load()
        seen, found = -1, {}
        while seen != self._refreshes:
            seen = self._refreshes
            found = await topic_policies(self.context.metadata)
        enabled: dict[TopicName, TopicPolicy] = {}
        for topic, policy in sorted(found.items()):
            if isinstance(policy, CorruptData):
                log.error("policy.corrupt", topic=str(topic), error=str(policy), hint="enable the topic again")
                if topic in self._assignment.enabled:
                    enabled[topic] = self._assignment.enabled[topic]
            elif policy.active:
                enabled[topic] = policy
        self._assignment.enabled = enabled
        await self._assignment.place_all()

    async def _refresh_levels(self) -> None:
        """Read the policies of the levels above topics, and apply them."""
        await self.book.load()
        await self._assignment.place_all()

    async def _refresh_grants(self) -> None:
        """Make topics of this daemon read their grants where another process has changed one.

        The notification is deleted before they read, so that a later change is notified again. They also read if the
        result of the deletion is unknown.
        """
        for name in await self.context.metadata.children(paths.GRANTS_CHANGED):
            try:
                topic = paths.topic_of_grants_changed(name)
            except InvalidInput:
                path = f"{paths.GRANTS_CHANGED}/{name}"
                log.warning("metadata.foreign_node", path=path, hint="no topic has this name; delete the node")
                continue
            supervisor = self._assignment.supervised.get(topic)
            if supervisor is not None and supervisor.owns:
                try:
                    with suppress(NotFound):
                        await self.context.metadata.delete(paths.grants_changed(topic))
                finally:
                    supervisor.grants_changed()


async def _keep_identity(offloader: TopicOffloader) -> None:
    """Read the topic's head as soon as the bucket answers. Raises IdentityRefused, Fenced."""
    if offloader.head is not None:
        await offloader.head.check(offloader.map, in_background=True)
    with offloader.rest.until():
        await Event().wait()


async def mark_places(context: OffloadContext, daemon_id: str) -> None:
    """Put a marker in every place without one, and log the places of other deployments."""
    clock, gauge = context.upload_context.clock, context.upload_context.metrics.identity_places_refused
    gauge.set(0)

    async def mark(place: Place) -> None:
        ours = PlaceMarker(
            deployment_id=context.deployment_id, cluster=context.cluster, daemon_id=daemon_id, since_ms=clock.wall_ms()
        )
        backoff = Backoff(clock)
        ask = partial(marker.ensure, context.upload_context.objects.at(place.bucket), place.prefix, ours)
        while True:
            try:
                whose = (await ask()).other_than(context.deployment_id)
            except CorruptData as error:
                whose = str(error)
            except OffloaderError as error:
                log.warning("place.not_marked", place=str(place), error=str(error))
                await backoff.wait(error)
                continue
            break
        if whose:
            gauge.inc()
            log.error("place.foreign", place=str(place), found=whose, hint=marker.HINT)
            context.shared.add(place.bucket)

    async with Group() as group:  # a place that does not answer holds up no other
        for place in context.places if context.deployment_id else ():
            group.create_task(mark(place), name=f"marker of {place}")
