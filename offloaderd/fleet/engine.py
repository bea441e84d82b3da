"""The engine: keeps one offloader running for every enabled topic that this daemon should have and can claim.

Topics are enabled by a policy node; a counter on the topics' root node tells every daemon that the set changed. Which
daemon should have which topic follows from the registrations (`placement.py`), and moves with them (`assignment.py`).
Each topic that is here has a supervisor (`supervisor.py`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress

import structlog

from offloaderd.core import humanize as words
from offloaderd.core.aio.groups import Group
from offloaderd.core.aio.signal import Event, race
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
from offloaderd.core.names.patterns import TopicPattern, of_topic
from offloaderd.core.retry import until_answered
from offloaderd.fleet import ownership
from offloaderd.fleet.assignment import Spread
from offloaderd.fleet.markers import mark_places
from offloaderd.fleet.placement import NOBODY, Placement
from offloaderd.fleet.settings import PlacementSettings
from offloaderd.fleet.supervisor import Duty, SharedContext
from offloaderd.history.plan import History
from offloaderd.history.rewriting.rollback import Rollback
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.records.daemon import DaemonNode
from offloaderd.metadata.records.identity import Refusal
from offloaderd.metadata.records.owner import Owner
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.policy import store as policies
from offloaderd.policy.discovery import Discovery
from offloaderd.policy.levels import Levels
from offloaderd.policy.merge import Effective
from offloaderd.policy.records.topic import TopicPolicy
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.policy.selection import Change
from offloaderd.policy.selector import Selector
from offloaderd.policy.store import topic_policies
from offloaderd.topic.compact_map import KeptMap
from offloaderd.topic.context import TopicContext
from offloaderd.topic.idle import IdleOptions, IdleTopics
from offloaderd.topic.offloader import TopicOffloader
from offloaderd.topic.report import Reporter
from offloaderd.topic.requests import requests as asked
from offloaderd.topic.spill.files import HINT
from offloaderd.topic.status import TopicStatus
from offloaderd.upkeep import deletion

log = structlog.get_logger(__name__)

WAKE_S = 10.0
"""How long somebody who wants a topic that sleeps waits for it; it takes a few requests to the metadata store."""

__all__ = ["Duty", "Engine"]


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
        """Take what all topics work with, what holds for those that say nothing, and further duties towards each."""
        self.context = context
        self._clock = context.upload_context.clock
        self._draining = False
        self._looks = 0
        self.rollback = Rollback(context)
        own = {"trash": self._keep_trash_empty, "history": self._keep_history, "requests": self._keep_asked}
        own["rollback"], own["identity"] = self.rollback.run, _keep_identity
        self._home = SharedContext(context=context, book=book, duties={**own, **(duties or {})}, me=NOBODY)
        self._history = History(context, lambda: self._home.me.daemon_id)
        self._reporter = Reporter(context, self.statuses)
        self.book = book
        self._selector = Selector(context.metadata, context.source, self._clock, book)
        self._discovery = Discovery(self._selector, context.upload_context.metrics)
        self.levels = Levels(self._selector, book)
        self.changed = self._home.changed
        self.placement = Placement(context.metadata, self._clock, placement)
        self._spread = Spread(self._home, self.placement, forget=self._reporter.forget)
        self.idle_topics = IdleTopics(
            context, self._spread.supervised, sleep or IdleOptions(), report=self._reporter.report_topic
        )
        self._home.taken_up = self.idle_topics.taken_up

    async def enable(self, topic: TopicName, policy: TopicPolicy) -> None:
        """Start offloading a topic, or change its policy; some daemon takes it up within moments."""
        await self.select(of_topic(topic), policy)

    async def disable(self, topic: TopicName) -> None:
        """Stop offloading a topic; see `deselect`."""
        await self.deselect(of_topic(topic))

    async def select(self, pattern: TopicPattern, policy: TopicPolicy, *, dry_run: bool = False) -> list[Change]:
        """Enable what a pattern matches, or change its policy; see Selector. Raises Closed while draining."""
        if self._draining:
            raise Closed("this daemon is draining", hint="ask another daemon, or try again after its restart")
        return await self._selector.enable(pattern, policy, dry_run=dry_run)

    async def deselect(self, pattern: TopicPattern, *, dry_run: bool = False) -> list[Change]:
        """Take a pattern back, and return when the open segments of its topics that are here are complete.

        What was offloaded stays readable. Raises NotFound when it was not enabled.
        """
        changes = await self._selector.disable(pattern, dry_run=dry_run)
        ended = [change.topic for change in changes if change.policy is not None and not change.policy.active]
        if not dry_run:
            self._looks += 1
            await self._spread.end(ended)
        return changes

    def topics(self) -> Sequence[TopicName]:
        """Return the topics that this daemon owns at the moment."""
        return sorted(topic for topic, one in self._spread.supervised.items() if one.owns)

    def enabled(self) -> Sequence[TopicName]:
        """Return the topics that are enabled, whoever works on them."""
        return list(self._spread.enabled)

    def find(self, topic: TopicName) -> TopicOffloader | None:
        """Return the topic's offloader if this daemon owns it and it is awake."""
        supervisor = self._spread.supervised.get(topic)
        return supervisor.offloader if supervisor else None

    def placed(self, topic: TopicName, owner: str) -> str:
        """Say why an enabled topic with this owner (empty: none) is not where it belongs; empty: it is."""
        return self._spread.reason(topic, owner)

    async def owned(self, topic: TopicName) -> TopicOffloader:
        """Return the topic's offloader, awake. Raises NotFound (not enabled), Conflict (owned elsewhere)."""
        await self.wake(topic)
        found = self.find(topic)
        if found is not None:
            return found
        owner = await self.owner_of(topic)
        if owner is not None and owner.daemon_id != self._home.me.daemon_id:
            raise Conflict(f"{topic} is owned by daemon {owner.daemon_id}", hint=f"ask it at {owner.address}")
        return self.offloader(topic)

    async def wake(self, topic: TopicName) -> None:
        """Have a topic that is here awake for some time, and return when it is, or after WAKE_S."""
        supervisor = self._spread.supervised.get(topic)
        if supervisor is None:
            return
        supervisor.use()

        async def woken() -> None:
            while supervisor.idle_topic is not None:
                await self.changed.wait()

        if supervisor.idle_topic is not None:
            await race(woken(), self._clock.sleep(WAKE_S))

    async def refresh_policy(self, topic: TopicName) -> None:
        """Have a topic that is here follow what is said of it at this moment, which it may not have been told yet.

        Raises Transient, CorruptData.
        """
        supervisor = self._spread.supervised.get(topic)
        if supervisor is None:
            return
        await self._home.book.of(topic, fresh=True)
        said = (await policies.read(self.context.metadata, [topic])).get(topic)
        if isinstance(said, TopicPolicy) and said.active:
            supervisor.change(said)

    def offloader(self, topic: TopicName) -> TopicOffloader:
        """Return the topic's offloader. Raises NotFound when it is not enabled, Transient while it is being claimed."""
        supervisor = self._spread.supervised.get(topic)
        if supervisor is None and topic not in self._spread.enabled:
            raise NotFound(f"{topic} is not enabled on this daemon", hint=f"offloadctl topics enable {topic}")
        if supervisor is None or supervisor.offloader is None:
            if supervisor is not None and supervisor.error is not None:
                raise supervisor.error
            raise Transient(f"{topic} has no owner yet, or another daemon owns it", hint="try again in a moment")
        return supervisor.offloader

    async def owner_of(self, topic: TopicName) -> Owner | None:
        """Return who owns a topic, None when nobody does."""
        return await ownership.owner_of(self.context.metadata, topic)

    async def has_policy(self, topic: TopicName) -> bool:
        """Say whether somebody has enabled or disabled a topic, or one of its patterns did. Raises Transient."""
        return await node(self.context.metadata, paths.policy(topic)) is not None

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return what is committed of a topic: the owner's live map, else as stored; one that sleeps is wanted."""
        if (supervisor := self._spread.supervised.get(topic)) is not None:
            supervisor.use()
        found = self.find(topic)
        return found.map if found is not None else await catalog.load(self.context.metadata, topic)

    def known(self, topic: TopicName) -> TopicMap | None:
        """Return what this daemon knows by itself to be committed, of a topic that it owns or whose claim was lost."""
        found, last = self.find(topic), self.last_map(topic)
        return found.map if found is not None else last.map() if last is not None else None

    def last_map(self, topic: TopicName) -> KeptMap | None:
        """Return what was committed of a topic when it fell asleep, or its claim was lost with the session.

        None once it is taken up again.
        """
        supervisor = self._spread.supervised.get(topic)
        return supervisor.last_map if supervisor is not None else None

    def held_policy(self, topic: TopicName) -> Effective | None:
        """Return what this daemon takes to hold for a topic that it works on or waits for."""
        supervisor = self._spread.supervised.get(topic)
        return self.book.effective(topic, supervisor.policy) if supervisor is not None else None

    def last_refusals(self, topic: TopicName) -> tuple[Refusal, ...]:
        """Return what stood against a topic when it was looked at last under a claim of this daemon."""
        supervisor = self._spread.supervised.get(topic)
        return supervisor.identity.refusals if supervisor is not None and supervisor.identity is not None else ()

    def statuses(self) -> list[TopicStatus]:
        """Describe every enabled topic that this daemon works on or waits for."""
        now_s = self._clock.monotonic()
        return [one.status(now_s) for _, one in sorted(self._spread.supervised.items())]

    def alarms(self) -> list[str]:
        """Say what is wrong with all topics' rules, with the disk that all spill to, and with no topic of its own."""
        found = sorted(self._discovery.unapplied.items())
        told = [f"the selection {pattern} is not applied: {reason}" for pattern, reason in found]
        area = self.context.outage.area
        active = [one.offloader for one in self._spread.supervised.values() if one.offloader is not None]
        held = any(one.outage.spill is not None and one.outage.spill.holds_back for one in active)
        if area is not None and area.refused and held:
            told.append(f"spill.directory {area.directory} takes nothing: {area.refused}. To do: {HINT}")
        return told

    def store_refuses(self) -> str:
        """Say why the store takes nothing of some topics, though it may answer, as one that is full; empty: it does."""
        offloaders = [one.offloader for one in self._spread.supervised.values() if one.offloader is not None]
        outages = [found for one in offloaders if (found := one.failure_tracker.outage) is not None]
        refused = [one for one in outages if not isinstance(one.error, Throttled)]
        if not refused:
            return ""
        longest = min(refused, key=lambda one: one.since_s)
        return f"requests of {words.plural(len(refused), 'topic')} fail, though it answers: {longest.error}"

    async def run(self, me: DaemonNode) -> None:
        """Supervise this daemon's topics as `me` until `drain` has been called and every topic is released."""
        self._home.me = me
        self.placement.become(me)
        async with Group() as group:
            helpers = [
                group.create_task(self._spread.run(), name="spread of topics"),
                group.create_task(self.idle_topics.run(), name="sleep of topics"),
                group.create_task(self.placement.run(), name="placement"),
                group.create_task(self._follow(paths.TOPICS, self._look), name="enabled topics"),
                group.create_task(self._follow(paths.POLICIES, self._look_above), name="policies of levels"),
                group.create_task(self._follow(paths.GRANTS_CHANGED, self._look_at_grants), name="changed grants"),
                group.create_task(self._reporter.run(), name="topic metrics"),
                group.create_task(mark_places(self.context, self._home.me.daemon_id), name="markers of places"),
                group.create_task(self._discovery.run(), name="discovery of topics"),
            ]
            while not (self._draining and not self._spread.supervised):
                await self.changed.wait()
            for helper in helpers:
                helper.cancel()

    def bound_expressions(self, most: int) -> None:
        """Take no further expression of a namespace, or tenant, that has so many."""
        self._selector.expressions_max = most

    def policies_changed(self) -> None:
        """Have the topics that are here follow the book, after the daemon's own levels in it changed."""
        self._spread.refresh_policies()

    def inherit(self, session_id: str) -> None:
        """Take what a session of a former run of this daemon still holds: that run has ended for certain."""
        self._home.ended.add(session_id)

    def drain(self) -> None:
        """Complete every open segment, release every topic, then let `run` return."""
        self._draining = True
        self._spread.close()
        self.changed.notify()

    async def _follow(self, path: str, look: Callable[[], Awaitable[None]]) -> None:
        """Look at once, and whenever the counter at a node moves, until that succeeds."""
        async with aclosing(self.context.metadata.watch(path)) as changes:
            async for _ in changes:
                await until_answered(
                    self._clock,
                    look,
                    passes=OffloaderError,
                    on_error=lambda error: log.warning("topics.unreadable", path=path, error=str(error)),
                )

    async def _look(self) -> None:
        """Read which topics are enabled, again when one was disabled here meanwhile, and have them placed."""
        if not self.book.loaded:
            await self.book.load()
        looked, found = -1, {}
        while looked != self._looks:
            looked = self._looks
            found = await topic_policies(self.context.metadata)
        enabled: dict[TopicName, TopicPolicy] = {}
        for topic, policy in sorted(found.items()):
            if isinstance(policy, CorruptData):
                log.error("policy.corrupt", topic=str(topic), error=str(policy), hint="enable the topic again")
                if topic in self._spread.enabled:
                    enabled[topic] = self._spread.enabled[topic]
            elif policy.active:
                enabled[topic] = policy
        self._spread.enabled = enabled
        await self._spread.place_all()

    async def _look_above(self) -> None:
        """Read what holds for topics that say nothing themselves, and tell those that are here."""
        await self.book.load()
        await self._spread.place_all()

    async def _look_at_grants(self) -> None:
        """Have the topics that are here look at their grants where somebody else has changed one.

        The word is taken away before they look, so that what is changed meanwhile is told anew. They also look if
        nobody knows whether it was.
        """
        for name in await self.context.metadata.children(paths.GRANTS_CHANGED):
            try:
                topic = paths.topic_of_grants_changed(name)
            except InvalidInput:
                path = f"{paths.GRANTS_CHANGED}/{name}"
                log.warning("metadata.foreign_node", path=path, hint="no topic has this name; delete the node")
                continue
            supervisor = self._spread.supervised.get(topic)
            if supervisor is not None and supervisor.owns:
                try:
                    with suppress(NotFound):
                        await self.context.metadata.delete(paths.grants_changed(topic))
                finally:
                    supervisor.grants_changed()

    async def _keep_history(self, offloader: TopicOffloader) -> None:
        await self._history.run(offloader)

    async def _keep_asked(self, offloader: TopicOffloader) -> None:
        await asked.keep(self.context, offloader)

    async def _keep_trash_empty(self, offloader: TopicOffloader) -> None:
        await deletion.keep_trash_empty(self.context, offloader)


async def _keep_identity(offloader: TopicOffloader) -> None:
    """Read the topic's head as soon as the bucket answers. Raises IdentityRefused, Fenced."""
    if offloader.head is not None:
        await offloader.head.check(offloader.map)
    with offloader.rest.until():
        await Event().wait()
