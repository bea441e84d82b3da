"""Assignment of the enabled topics to this daemon: those for which it ranks first, and those that no other claims.

The first in the ranking claims at once. A topic of this daemon for which another now ranks first is handed over, a few
at a time, once the daemons have settled: its segment is sealed and committed, then it is released. A topic that the
other does not claim comes back, and that daemon gets no more for some time. The k-th in the ranking checks after k
times a grace whether a topic has an owner, and claims it provisionally if not. Idle topics of other daemons cost
nothing: they have no watch, and checks follow changes of the placement.
"""

from collections.abc import Callable, Sequence
from itertools import islice

import structlog

from offloaderd.core.aio import Group, Signal, each, in_turns
from offloaderd.core.errors import OffloaderError
from offloaderd.core.metrics.service import STANDINGS
from offloaderd.core.model import TopicName
from offloaderd.fleet import ownership
from offloaderd.fleet.placement import Placement, standing
from offloaderd.fleet.supervisor import SharedContext, Supervisor
from offloaderd.policy.records import TopicPolicy

log = structlog.get_logger(__name__)

SCAN_INTERVAL_S = 1.0
"""Pause between two scans for topics to check; each goes over all of them."""
SWEEP_S = 300.0
"""Pause between two checks by the runner-up of topics of a living daemon: rare, as a last resort."""


class Assignment:
    """Starts and stops the supervisors of topics by the placement."""

    def __init__(self, home: SharedContext, placement: Placement, *, forget: Callable[[TopicName], None]) -> None:
        """`forget` is called with every topic that has left this daemon."""
        self.placement = placement
        self.supervised: dict[TopicName, Supervisor] = {}
        self.enabled: dict[TopicName, TopicPolicy] = {}
        self.closing = False
        self._home = home
        self._clock = home.context.upload_context.clock
        self._metrics = home.context.upload_context.metrics
        self._forget = forget
        self._wake = Signal()
        self._misplaced: dict[TopicName, None] = {}  # a set that keeps its order
        self._moving: set[TopicName] = set()
        self._kept_until: dict[TopicName, float] = {}
        self._cooldown_until: dict[str, float] = {}
        self._orphans_watched: set[TopicName] = set()

    async def run(self) -> None:
        """Place topics until cancelled."""
        async with Group() as group:
            self._group = group
            group.create_task(self._follow_placement(), name="placement of topics")
            group.create_task(self._hand_over(), name="hand-over of topics")
            group.create_task(self._adopt_orphans(), name="topics of other daemons")

    async def place_all(self) -> None:
        """Place every topic that is enabled or here."""
        if not self.placement.known:
            return
        async for topics in in_turns([*self.enabled, *(one for one in self.supervised if one not in self.enabled)]):
            for topic in topics:
                self._place(topic)
        self._measure()
        self._wake.notify()

    def close(self) -> None:
        """Seal, commit and release every topic, and claim none any more."""
        self.closing = True
        for supervisor in self.supervised.values():
            supervisor.stop()
        self._wake.notify()

    async def end(self, topics: Sequence[TopicName]) -> None:
        """Stop topics that are no longer enabled; return when they have left."""
        for topic in topics:
            self.enabled.pop(topic, None)
            self._place(topic)
        left = {topic: self.supervised[topic] for topic in topics if topic in self.supervised}
        while any(self.supervised.get(topic) is one for topic, one in left.items()):
            await self._home.changed.wait()

    def reason(self, topic: TopicName, owner: str) -> str:
        """Return why a topic with this owner (empty: none) is not on the daemon that ranks first; empty if it is."""
        first = self._first(topic)
        if owner == first:
            return ""
        if topic in self._moving:
            return f"being handed over to {first}"
        if not owner:
            return f"waits for {first} to take it"
        if owner == self.placement.me.daemon_id and self._stays(topic, self._clock.monotonic()):
            return f"kept for now: {first} does not take topics"
        return f"to be handed over to {first}"

    def _place(self, topic: TopicName) -> None:
        """Start, stop or mark one topic. Decides without awaiting."""
        policy, supervisor = self.enabled.get(topic), self.supervised.get(topic)
        first = self.placement.rank(str(topic)) == 0
        self._misplaced.pop(topic, None)
        if policy is None:
            self._kept_until.pop(topic, None)
            if supervisor is not None:
                supervisor.stop()
        elif supervisor is None:
            if first and topic not in self._moving:
                self._start(topic, policy)
        else:
            supervisor.change(policy)
            if first:
                supervisor.provisional = False
                self._kept_until.pop(topic, None)
            elif not supervisor.provisional and not supervisor.owns:
                supervisor.stop()
            else:
                self._misplaced[topic] = None

    def _start(self, topic: TopicName, policy: TopicPolicy, *, provisional: bool = False) -> None:
        if not self.closing:
            supervisor = self.supervised[topic] = Supervisor(self._home, topic, policy, provisional=provisional)
            self._group.create_task(self._supervise(supervisor), name=f"topic {topic}")

    async def _supervise(self, supervisor: Supervisor) -> None:
        topic = supervisor.topic
        try:
            await supervisor.run()
        finally:
            del self.supervised[topic]
            self._misplaced.pop(topic, None)
            self._orphans_watched.discard(topic)
            self._forget(topic)
            self._home.changed.notify()
        self._place(topic)
        self._measure()
        self._wake.notify()

    def _measure(self) -> None:
        self._metrics.placement_topics.labels(place="first").set(len(self.supervised) - len(self._misplaced))
        self._metrics.placement_topics.labels(place="elsewhere").set(len(self._misplaced))
        for number, name in enumerate(STANDINGS):
            count = sum(standing(one) == number for one in self.placement.members.values())
            self._metrics.placement_daemons.labels(standing=name).set(count)

    async def _follow_placement(self) -> None:
        while True:
            seen = self.placement.version
            self._orphans_watched.clear()
            self._cooldown_until.clear()
            await self.place_all()
            while self.placement.version == seen:
                await self.placement.changed.wait()

    async def _hand_over(self) -> None:
        """Move topics that belong to other daemons, a few at a time."""
        while True:
            now = self._clock.monotonic()
            wait_s = 0.0 if self.placement.me.draining else self.placement.unsettled_s
            if not wait_s:
                due = (one for one in self._misplaced if one not in self._moving and not self._stays(one, now))
                room = self.placement.options.handovers_max - len(self._moving)
                for topic in list(islice(due, max(0, room))):
                    self._moving.add(topic)
                    self._group.create_task(self._move(topic, self.supervised[topic]), name=f"move {topic}")
                ends = [*self._kept_until.values(), *self._cooldown_until.values()]
                wait_s = min((end - now for end in ends if end > now), default=SWEEP_S)
            await self._wake.wait_at_most(self._clock, wait_s)

    async def _move(self, topic: TopicName, supervisor: Supervisor) -> None:
        """Release a topic to the daemon that ranks first; claim it again when that one does not."""
        options, started_s = self.placement.options, self._clock.monotonic()
        target = self._first(topic)
        log.info("topic.handover_started", topic=str(topic), to=target)
        try:
            supervisor.stop()
            if not self.placement.me.impaired:
                await supervisor.ended.wait_at_most(self._clock, options.handover_s)
            supervisor.abandon()
            await supervisor.ended.wait()
            released_s = self._clock.monotonic()
            self._metrics.handover_seconds.observe(released_s - started_s)
            if topic not in self.enabled or self.closing or self.placement.rank(str(topic)) == 0:
                return
            metadata, grace_s = self._home.context.metadata, options.grace_s
            owner = await ownership.next_owner(metadata, topic, self._clock, within_s=grace_s)
            if owner is not None:
                self._metrics.ownership_moves.labels(outcome="moved").inc()
                gap_s = round(self._clock.monotonic() - released_s, 3)
                log.info("topic.moved", topic=str(topic), to=owner.daemon_id, epoch=owner.epoch, gap_s=gap_s)
                return
            self._metrics.ownership_moves.labels(outcome="returned").inc()
            hint = f"daemon {target} did not take it: look at its log"
            log.warning("topic.handover_failed", topic=str(topic), hint=hint)
            self._cooldown_until[target] = self._clock.monotonic() + options.cooldown_s
            self._keep_here(topic)
        finally:
            self._moving.discard(topic)
            self._place(topic)
            self._wake.notify()

    def _stays(self, topic: TopicName, now_s: float) -> bool:
        """Whether a topic stays here although another daemon ranks first: it came back, or would."""
        if self._kept_until.get(topic, 0.0) > now_s:
            return True
        return bool(self._cooldown_until) and self._cooldown_until.get(self._first(topic), 0.0) > now_s

    def _first(self, topic: TopicName) -> str:
        return self.placement.first(str(topic)).daemon_id

    def _keep_here(self, topic: TopicName) -> None:
        """Keep a topic that belongs to another daemon here for some time; claim it if it has no owner."""
        self._kept_until[topic] = self._clock.monotonic() + self.placement.options.cooldown_s
        if topic in self.enabled and topic not in self.supervised:
            self._start(topic, self.enabled[topic], provisional=True)

    async def _adopt_orphans(self) -> None:
        """Claim topics that the daemons of higher ranks leave without an owner, each rank after a grace of its own."""
        while True:
            seen, count = self.placement.version, len(self.placement.members)
            if self.closing or count == 1 or not self._unwatched():
                await self._pause()
                continue
            for rank in range(1, count):
                await self.placement.changed.wait_at_most(self._clock, self.placement.options.grace_s)
                if self.placement.version != seen:
                    break
                await self._adopt(rank)

    async def _pause(self) -> None:
        """Wait until there may be topics to check; after SWEEP_S check again those for which this daemon is second."""
        started_s, pause_s = self._clock.monotonic(), self._clock.jitter(SWEEP_S)
        await self._wake.wait_at_most(self._clock, pause_s)
        if self._clock.monotonic() >= started_s + pause_s:
            self._orphans_watched = {topic for topic in self._orphans_watched if self.placement.rank(str(topic)) != 1}
        await self._clock.sleep(SCAN_INTERVAL_S)

    async def _adopt(self, rank: int) -> None:
        """Claim topics without an owner for which this daemon has a rank."""
        topics = [topic for topic in self._unwatched() if self.placement.rank(str(topic)) == rank]
        try:
            owners = await each(topics, lambda topic: ownership.owner_of(self._home.context.metadata, topic))
        except OffloaderError as error:
            log.warning("topics.owners_unreadable", error=str(error))
            return
        for topic, owner in zip(topics, owners, strict=True):
            if owner is not None:
                self._orphans_watched.add(topic)
            elif topic not in self.supervised and topic not in self._moving and topic in self.enabled:
                hint = f"daemon {self._first(topic)} lives and leaves it alone"
                log.warning("topic.adopted", topic=str(topic), hint=hint)
                self._metrics.ownership_moves.labels(outcome="adopted").inc()
                self._keep_here(topic)

    def _unwatched(self) -> Sequence[TopicName]:
        """Return the topics that are not here, and not known to have an owner."""
        here = self.supervised.keys() | self._moving | self._orphans_watched
        return [topic for topic in self.enabled if topic not in here]
