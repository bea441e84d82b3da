"""The engine: keeps one offloader running for every enabled topic that this daemon can claim.

Topics are enabled by a policy node; a counter on the topics' root node tells every daemon that the set changed. Each
topic has a supervisor task: claim, recover, offload, release, and again. An error of one topic stalls that topic alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from offloaderd.errors import Closed, Conflict, CorruptData, Fenced, NotFound, OffloaderError, Transient, first_of
from offloaderd.metadata import catalog, paths
from offloaderd.metadata.records.daemon import DaemonNode
from offloaderd.offload import deletion, ownership, recovery
from offloaderd.offload.budget import Backoff, until_answered
from offloaderd.offload.commit import AttemptLog, Claim
from offloaderd.offload.discovery import Discovery
from offloaderd.offload.report import Reporter
from offloaderd.offload.roll import RollPolicy
from offloaderd.offload.selector import Selector
from offloaderd.offload.signal import Signal, race
from offloaderd.offload.status import idle
from offloaderd.offload.topic import TopicOffloader, Workshop
from offloaderd.patterns import of_topic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offloaderd.metadata.catalog import TopicMap
    from offloaderd.metadata.port import Session
    from offloaderd.metadata.records.owner import Owner
    from offloaderd.metadata.records.policy import TopicPolicy
    from offloaderd.model import TopicName
    from offloaderd.offload.selection import Change
    from offloaderd.offload.status import TopicStatus
    from offloaderd.patterns import TopicPattern

log = structlog.get_logger(__name__)


Duty = Callable[["TopicOffloader"], Coroutine[Any, Any, None]]
"""Work that goes on beside the offloading of a topic for as long as this daemon owns it; it ends by cancellation.

It must not raise because something is unreachable. What it raises of ours stalls the topic.
"""


@dataclass(slots=True)
class _Supervised:
    """One enabled topic of this daemon."""

    policy: TopicPolicy
    stop: asyncio.Event
    offloader: TopicOffloader | None = None
    error: OffloaderError | None = None


class Engine:
    """All topics of one daemon."""

    def __init__(self, shop: Workshop, defaults: RollPolicy, *, duties: Mapping[str, Duty] | None = None) -> None:
        """Take what all topics work with, the limits of their segments, and further duties towards each, by name."""
        self._shop = shop
        self._duties: dict[str, Duty] = {"trash": self._keep_trash_empty, **(duties or {})}
        self._me = DaemonNode(daemon_id="", address="", version="", started_ms=0)
        self._defaults = defaults
        self._clock = shop.uplink.clock
        self._metrics = shop.uplink.metrics
        self._supervised: dict[TopicName, _Supervised] = {}
        self._draining = False
        self._reporter = Reporter(shop, self.statuses)
        self._selector = Selector(shop.metadata, shop.source, self._clock)
        self.changed = Signal()

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
        held = {topic: self._supervised[topic] for topic in ended if topic in self._supervised and not dry_run}
        for one in held.values():
            one.stop.set()
        while any(self._supervised.get(topic) is one for topic, one in held.items()):
            await self.changed.wait()
        return changes

    def topics(self) -> Sequence[TopicName]:
        """Return the topics that this daemon owns at the moment."""
        return sorted(topic for topic, held in self._supervised.items() if held.offloader is not None)

    def find(self, topic: TopicName) -> TopicOffloader | None:
        """Return the topic's offloader if this daemon owns it."""
        held = self._supervised.get(topic)
        return held.offloader if held else None

    async def owned(self, topic: TopicName) -> TopicOffloader:
        """Return the topic's offloader. Raises NotFound when it is not enabled, Conflict when it is owned elsewhere."""
        found = self.find(topic)
        if found is not None:
            return found
        owner = await self.owner_of(topic)
        if owner is not None and owner.daemon_id != self._me.daemon_id:
            raise Conflict(f"{topic} is owned by daemon {owner.daemon_id}", hint=f"ask it at {owner.address}")
        return self.offloader(topic)

    def offloader(self, topic: TopicName) -> TopicOffloader:
        """Return the topic's offloader. Raises NotFound when it is not enabled, Transient while it is being claimed."""
        held = self._supervised.get(topic)
        if held is None:
            raise NotFound(f"{topic} is not enabled on this daemon", hint=f"offloadctl topics enable {topic}")
        if held.offloader is None:
            if held.error is not None:
                raise held.error
            raise Transient(f"{topic} has no owner yet, or another daemon owns it", hint="try again in a moment")
        return held.offloader

    async def owner_of(self, topic: TopicName) -> Owner | None:
        """Return who owns a topic, None when nobody does."""
        return await ownership.owner_of(self._shop.metadata, topic)

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return what is committed of a topic: the owner's live map, else as stored."""
        found = self.find(topic)
        return found.map if found is not None else await catalog.load(self._shop.metadata, topic)

    def statuses(self) -> list[TopicStatus]:
        """Describe every enabled topic that this daemon works on or waits for."""
        found = []
        for topic, held in sorted(self._supervised.items()):
            if held.offloader is not None:
                found.append(held.offloader.status())
            else:
                found.append(idle(topic, held.error))
        return found

    async def run(self, me: DaemonNode) -> None:
        """Supervise all enabled topics as `me` until `drain` has been called and every topic is released."""
        self._me = me
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(self._follow_topics(group), name="enabled topics")
            reporter = group.create_task(self._reporter.run(), name="topic metrics")
            discovery = group.create_task(Discovery(self._selector).run(), name="discovery of topics")
            while not (self._draining and not self._supervised):
                await self.changed.wait()
            watcher.cancel()
            reporter.cancel()
            discovery.cancel()

    def drain(self) -> None:
        """Complete every open segment, release every topic, then let `run` return."""
        self._draining = True
        for held in self._supervised.values():
            held.stop.set()
        self.changed.notify()

    async def _follow_topics(self, group: asyncio.TaskGroup) -> None:
        store = self._shop.metadata
        async with aclosing(store.watch(paths.TOPICS)) as changes:
            async for _ in changes:
                backoff = Backoff(self._clock)
                while True:
                    try:
                        await self._look(group)
                    except OffloaderError as error:
                        log.warning("topics.unreadable", error=str(error))
                        await backoff.wait(error)
                    else:
                        break

    async def _look(self, group: asyncio.TaskGroup) -> None:
        """Compare the enabled topics with the supervised ones: start, stop, or hand over a changed policy."""
        enabled: dict[TopicName, TopicPolicy] = {}
        for topic, policy in (await catalog.topic_policies(self._shop.metadata)).items():
            if isinstance(policy, CorruptData):
                log.error("policy.corrupt", topic=str(topic), error=str(policy), hint="enable the topic again")
                if topic in self._supervised:
                    enabled[topic] = self._supervised[topic].policy
            elif policy.active:
                enabled[topic] = policy
        for topic, held in self._supervised.items():
            if topic not in enabled:
                held.stop.set()
            elif held.policy != enabled[topic]:
                held.policy = enabled[topic]
                if held.offloader is not None:
                    held.offloader.policy = self._roll_policy(held.policy)
                    held.offloader.buffer.changed.notify()
        for topic in sorted(enabled.keys() - self._supervised.keys()):
            if not self._draining:
                held = self._supervised[topic] = _Supervised(enabled[topic], asyncio.Event())
                group.create_task(self._supervise(topic, held), name=f"topic {topic}")

    def _roll_policy(self, policy: TopicPolicy) -> RollPolicy:
        default = self._defaults
        return RollPolicy(
            segment_bytes_max=policy.segment_bytes_max or default.segment_bytes_max,
            segment_age_max_s=policy.segment_age_max_s or default.segment_age_max_s,
            segment_age_min_s=(
                default.segment_age_min_s if policy.segment_age_min_s is None else policy.segment_age_min_s
            ),
        )

    async def _supervise(self, topic: TopicName, held: _Supervised) -> None:
        """Claim and offload one topic until it is disabled or the daemon drains."""
        backoff = Backoff(self._clock)
        try:
            while not held.stop.is_set():
                try:
                    await self._own(topic, held)
                    held.error = None
                    backoff.reset()
                except Fenced as error:
                    log.warning("topic.fenced", topic=str(topic), error=str(error))
                    held.error = None
                except OffloaderError as error:
                    held.error = error
                    log.error(  # noqa: TRY400 - an operator needs the message; a trace of expected errors hides it
                        "topic.stalled", topic=str(topic), error=str(error), error_class=type(error).__name__
                    )
                    await race(held.stop.wait(), self._clock.sleep(backoff.pause_s(error)))
        finally:
            del self._supervised[topic]
            self._reporter.forget(topic)
            self.changed.notify()

    async def _own(self, topic: TopicName, held: _Supervised) -> None:
        """Claim the topic, take over what an earlier owner left, offload until told to stop, release."""
        store = self._shop.metadata
        session = await store.session()
        claim: Claim | None = None

        async def claiming() -> None:
            nonlocal claim
            claim = await ownership.claim(store, topic, self._me, session, self._clock)

        await race(claiming(), held.stop.wait(), session.lost.wait())
        if claim is None:
            return
        self._metrics.ownership_changes.labels(direction="gained").inc()
        try:
            begin = await recovery.take_over(
                AttemptLog(store, claim, clock=self._clock, metrics=self._metrics), topic, self._metrics
            )
            topic_map = await until_answered(self._clock, lambda: catalog.load(store, topic))
            offloader = TopicOffloader(self._shop, claim, topic_map, self._roll_policy(held.policy), begin=begin)
            held.offloader, held.error = offloader, None
            self.changed.notify()
            await self._work(offloader, held.stop, session)
        finally:
            held.offloader = None
            self._metrics.ownership_changes.labels(direction="lost").inc()
            self.changed.notify()
            if not session.lost.is_set():
                await ownership.release(store, claim, self._clock)

    async def _work(self, offloader: TopicOffloader, stop: asyncio.Event, session: Session) -> None:
        async def stop_when_told() -> None:
            await stop.wait()
            offloader.stop()

        async def fence_when_lost() -> None:
            await session.lost.wait()
            raise Fenced(
                f"the metadata session that held {offloader.topic} is lost",
                hint="nothing to do: the topic is claimed again as soon as there is a session",
            )

        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(stop_when_told(), name=f"stop {offloader.topic}"),
                    group.create_task(fence_when_lost(), name=f"session of {offloader.topic}"),
                ]
                helpers += [
                    group.create_task(duty(offloader), name=f"{name} of {offloader.topic}")
                    for name, duty in self._duties.items()
                ]
                await offloader.run()
                for helper in helpers:
                    helper.cancel()
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None

    async def _keep_trash_empty(self, offloader: TopicOffloader) -> None:
        await deletion.keep_trash_empty(self._shop, offloader)
