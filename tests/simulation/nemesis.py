"""What goes wrong with processes, services and topics while a run is busy, and how it all heals."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from offloaderd.core.errors import Conflict, NotFound, OffloaderError
from offloaderd.core.model import OffloadMethod
from offloaderd.core.names.patterns import Scope, of_topic
from offloaderd.core.quotas import NONE, Quotas, named
from offloaderd.metadata import paths
from offloaderd.objects import keys
from offloaderd.policy import quotas
from offloaderd.policy.records import TopicPolicy, decode_policy
from offloaderd.upkeep.grants import records as grant_records
from tests.simulation import moving
from tests.simulation.bookies import ANOTHER, HISTORIES, NAMELESS, NOWHERE
from tests.simulation.bucket import PREFIXES, SERVICES
from tests.simulation.daemon import CLUSTER, SimDaemon
from tests.simulation.zookeeper import Tree

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from offloaderd.core.model import TopicName
    from tests.simulation.world import World

CONDITIONS = ("s3 outage", "s3 full", "s3 denied", "s3 expired", "s3 slow", "s3 throttling", "bucket missing")
MAY_SWITCH = ("roll", "change policy", "collect", "mark ledgers", "revoke", "disable topic")
"""Events in whose place a cluster with a mirror may have places exchanged, copies deleted, or a topic moved."""
MOVES_WITHIN_S = 60.0
"""Then the operator interrupts the command."""
AWAITED = ("misled", "restore", "second deployment")
"""Events that need something to be committed before them."""
DAY_MS = 86_400_000
LEVELS = (Scope(), Scope("t"), Scope("t", "n"))
"""The broker level, the tenant and the namespace of all topics."""
QUOTAS = (
    Quotas(write_bytes_per_s=100),
    Quotas(write_bytes_per_s=1000, weight=3),
    Quotas(stored_bytes=0),
    Quotas(stored_bytes=3000),
    Quotas(topics=1),
    NONE,
)
"""What users set; with some of them nothing goes on until others are set."""
SNAPSHOTS, LATELY = 8, 150
"""So many states of the tree are looked at for one to go back to, and as many of the newest."""


class Nemesis:
    """Draws one event after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.chance.stream("nemesis")
        self._conditions: Counter[str] = Counter()
        self._busy = 0
        self._lifts: Counter[tuple[TopicName, int]] = Counter()
        self._lifted: Counter[tuple[TopicName, int]] = Counter()
        """How often users began to lift revocations, and ended that with an answer."""
        self.has_moved = False
        """Whether a topic was to be moved: the end may have been missing."""
        self.waiting: set[str] = set()
        """Events that are to come as soon as they can."""

    async def run(self) -> None:
        """Let things go wrong until cancelled."""
        world = self._world
        if world.faults.upgrade:
            self._begin(self._once_possible("upgrade"))
        if world.faults.misled:
            self._begin(self._once_possible("misled"))
        if world.cluster is not None:
            self._begin(world.cluster.fail())
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / world.faults.every_s))  # noqa: TID251 - the loop's own time
            event = self._rng.choice(world.faults.events)
            daemon = self._rng.choice(world.daemons)
            self._happen(event, daemon)

    async def heal(self) -> None:
        """Let everything work again: services answer, processes run, topics are enabled.

        What is enabled as it should be is left alone: only its source wakes what sleeps.
        """
        world = self._world
        world.faults.on = False
        world.conditions.clear()
        world.cuts.clear()
        if world.cluster is not None:
            world.cluster.heal()
        for daemon in world.daemons:
            self._lead_back(daemon)
            self._upgrade_one(daemon)
        while self._busy or not all(daemon.up for daemon in world.daemons):
            for daemon in world.daemons:
                daemon.resume()
                if not self._busy:
                    self._start(daemon)
            await asyncio.sleep(0.5)  # noqa: TID251 - the loop's own time
        if any(account.over_since_ms for daemon in world.daemons for account in daemon.engine.context.accounts):
            world.faults.count("stored bytes used up")
        for level in LEVELS:
            node = paths.quota(named(level))
            while node in world.tree.nodes and not await self._set_quotas(self._rng.choice(world.daemons), level, NONE):
                await asyncio.sleep(0.5)  # noqa: TID251 - the loop's own time
        for topic in world.topics:
            while not await self._enabled(topic):
                await asyncio.sleep(0.5)  # noqa: TID251 - the loop's own time
        await asyncio.sleep(13.0)  # noqa: TID251 - the loop's own time; requests that are late have arrived then

    def _is_right(self, topic: TopicName) -> bool:
        """Say whether all of a topic is offloaded as it is; a policy that is written again would wake it."""
        node = self._world.tree.nodes.get(path := paths.policy(topic))
        policy = decode_policy(node.value, path=path) if node is not None else None
        return policy is not None and policy.active and policy.method in {None, OffloadMethod.STREAMING}

    async def _set_some_quotas(self, daemon: SimDaemon) -> None:
        await self._set_quotas(daemon, self._rng.choice(LEVELS), self._rng.choice(QUOTAS))

    async def _set_quotas(self, daemon: SimDaemon, level: Scope, chosen: Quotas) -> bool:
        """Set the quotas of a level; say whether it came to its end."""
        try:
            return await self._world.within(
                daemon, lambda: quotas.put(daemon.zookeeper, daemon.clock, level, chosen, by="user")
            )
        except OffloaderError as error:
            self._world.trace("user", f"quotas of {named(level)} not set: {error}")
            return False

    async def _enabled(self, topic: TopicName) -> bool:
        if self._is_right(topic):
            return True
        daemon = self._rng.choice(self._world.daemons)
        try:
            streaming = TopicPolicy(enabled=True, method=OffloadMethod.STREAMING)
            return await self._world.within(daemon, lambda: daemon.engine.select(of_topic(topic), streaming))
        except OffloaderError as error:
            self._world.trace("user", f"not enabled: {error}")
            return False

    def _happen(self, event: str, daemon: SimDaemon) -> None:
        world, rng = self._world, self._rng
        world.faults.count(event)
        world.trace("fate", f"{event} ({daemon.name})")
        if event in AWAITED:
            self._begin(self._once_possible(event))
        elif event == "crash":
            daemon.crash()
            world.loop.in_world(rng.choice([0.1, 1.0, 6.0]), self._start, daemon)
        elif event in {"pause", "long pause"}:
            daemon.pause()
            world.loop.in_world(rng.uniform(0.1, 3.0) if event == "pause" else rng.uniform(4.0, 12.0), daemon.resume)
        elif event.endswith(" cut"):
            self._cut(daemon, event.removesuffix(" cut"))
        elif event == "expire session" and daemon.process is not None:
            daemon.expire()
        elif event == "clock jump":
            daemon.offset_ms = rng.choice([0, -DAY_MS, DAY_MS, -3000, 60_000])
            if daemon.process is not None:
                daemon.clock.offset_ms = daemon.offset_ms
        elif event == "delete topic":
            # Not while daemons read another history: as World._trim says, nobody could tell.
            if world.options.retention == "blind" and world.oracle.commits and not world.misled:
                world.ledgers.delete_topic(rng.choice(world.topics))
        elif event in CONDITIONS:
            self._strike(event.removeprefix("s3 "))
        else:
            work = {"drain": self._drain, "set quotas": self._set_some_quotas}.get(event)
            self._begin(work(daemon) if work is not None else self._ask(event, daemon))

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Start something that takes its time; healing waits for it."""

        def ended(task: asyncio.Task[object]) -> None:
            self._busy -= 1
            if not task.cancelled() and task.exception() is not None:
                self._world.oracle.fail("run", f"an event ended with {task.exception()!r}")

        self._busy += 1
        self._world.loop.create_task(work).add_done_callback(ended)

    def _start(self, daemon: SimDaemon) -> None:
        if daemon.process is None:
            daemon.start()

    async def _once_possible(self, event: str) -> None:
        """Let something happen as soon as it can: the run lasts a while longer for it."""
        happen = {
            "misled": self._mislead,
            "restore": self._restore,
            "second deployment": self._second,
            "upgrade": self._upgrade,
        }[event]
        if event in self.waiting or (event == "misled" and not self._can_mislead()):
            return
        self.waiting.add(event)
        while self._world.faults.on and not (self._tellable(event) and happen()):
            await asyncio.sleep(0.3)  # noqa: TID251 - the loop's own time
        self.waiting.discard(event)

    def _can_mislead(self) -> bool:
        """Say whether a source can show another history: not the real one, nor where brokers push."""
        return self._world.options.push == "no" and self._world.cluster is None

    def _tellable(self, event: str) -> bool:
        """Say whether daemons with ids have told by now what an event shows by."""
        return event == "upgrade" or not self._world.faults.upgrade or self._world.knows_all()

    def _upgrade(self) -> bool:
        """Start one daemon after the other again, of the release with ids; some of them on wrong ledgers at first.

        Old ones and new ones work side by side meanwhile. By a list alone, without ids and times, only another
        cluster's shows.
        """
        world, rng = self._world, self._rng
        known = [found is not None and bool(found.segments) for found in map(world.oracle.maps.get, world.topics)]
        if not any(known):
            return False
        misled = rng.choice(["", "", ANOTHER, NOWHERE, NAMELESS]) if all(known) and self._can_mislead() else ""
        world.faults.count(f"upgraded, and reads {misled}" if misled else "upgraded")
        world.put_strays()
        for daemon in world.daemons:
            world.loop.in_world(rng.uniform(0.0, 10.0), self._upgrade_one, daemon, misled)
        return True

    def _upgrade_one(self, daemon: SimDaemon, misled: str = "") -> None:
        if daemon.old:
            misled = misled if self._world.faults.on and self._world.shares_ledgers() else ""
            daemon.old, daemon.misled = False, misled
            self._begin(self._restart(daemon))
            if misled:
                self._world.loop.in_world(self._rng.uniform(5.0, 12.0), self._lead_back, daemon)

    async def _restart(self, daemon: SimDaemon) -> None:
        if self._rng.random() < 0.5:
            await daemon.drain()
        daemon.crash()
        self._start(daemon)

    def _mislead(self) -> bool:
        """Start all daemons on ledgers of another history, and some time later on the right ones again.

        By its list alone nobody can tell that of what nothing is offloaded, nor where pushes came before any list.
        """
        world = self._world
        maps = [world.oracle.maps.get(topic) for topic in world.topics]
        known = all(found and found.segments and found.created.keys() == found.contexts.keys() for found in maps)
        if not known or world.misled or not world.shares_ledgers():
            return False
        misled = self._rng.choice(HISTORIES)
        world.faults.count(f"reads {misled}")
        world.trace("fate", f"all read {misled}")
        for daemon in world.daemons:
            daemon.crash()
            daemon.misled = misled
            self._start(daemon)
            world.loop.in_world(self._rng.uniform(9.0, 16.0), self._lead_back, daemon)
        return True

    def _restore(self) -> bool:
        """Stop all daemons, restore the metadata of one topic or of all from a snapshot, and start them again.

        Not from before a retention deleted something: what the restored map has of that is gone for good.
        """
        world, rng = self._world, self._rng
        tree, oracle = world.tree, world.oracle
        if world.misled or not oracle.maps:
            return False
        oldest = [0] * SNAPSHOTS + [max(0, tree.number - LATELY)] * SNAPSHOTS
        chosen = sorted(rng.randrange(first, tree.number + 1) for first in oldest)
        found = {number: topics for number in chosen if (topics := oracle.restorable(number))}
        caught = [number for number, topics in found.items() if any(oracle.finished_since(number, t) for t in topics)]
        numbers = caught if caught and rng.random() < 0.7 else list(found)
        if not numbers:
            return False
        number = rng.choice(numbers)
        below = rng.choice(["", paths.topic(rng.choice(found[number]))])
        for daemon in world.daemons:
            daemon.crash()
        world.faults.count("metadata restored")
        world.trace("fate", f"restores {below or 'everything'} as it was at {tree.history[number].since:.3f} s")
        if rng.random() < 0.7:
            world.trim_offloaded()
        tree.restore(number, below)
        oracle.restored(list(oracle.maps))
        for topic in world.topics:
            world.lose_grants(topic)
        for daemon in world.daemons:
            world.loop.in_world(rng.choice([0.1, 2.0]), self._start, daemon)
        return True

    def _second(self) -> bool:
        """Start a daemon of another deployment, which has the same names of everything and metadata of its own.

        After the first one, and where nothing is damaged in the bucket itself: on its way it may be.
        """
        world, names = self._world, self._world.buckets.names()
        marked = all(keys.marker(prefix, CLUSTER) in names for prefix in PREFIXES)
        known = [world.oracle.maps.get(topic) for topic in world.topics]
        if not marked or not all(found and found.segments for found in known):
            return False
        if world.second is None and not world.faults.rotten:
            world.faults.count("two deployments")
            world.second = SimDaemon(world, "Z", tree=Tree(world, watched=False))
            world.second.start()
            self._begin(self._both(world.second))
        return True

    async def _both(self, second: SimDaemon) -> None:
        """Have the second one offload and collect what it finds, until the world heals."""
        enabled: set[TopicName] = set()
        while self._world.faults.on:
            for topic in self._world.topics:
                try:
                    policy = TopicPolicy(enabled=True)
                    if topic not in enabled and await self._world.within(
                        second, partial(second.engine.select, of_topic(topic), policy)
                    ):
                        enabled.add(topic)
                    await self._world.within(second, second.collects_nothing)
                except OffloaderError as error:
                    self._world.trace("user", f"of the second deployment: {error}")
            await asyncio.sleep(self._rng.uniform(0.2, 2.0))  # noqa: TID251 - the loop's own time
        second.crash()

    def _lead_back(self, daemon: SimDaemon) -> None:
        if daemon.misled:
            daemon.misled = ""
            daemon.crash()
            self._start(daemon)

    def _struck(self) -> Sequence[str]:
        """Return the names of the stores that something happens to: where places are apart, one or both."""
        names = [SERVICES[bucket] for bucket in dict(self._world.options.places)]
        return self._rng.choice([names, *([one] for one in names)]) if len(names) > 1 else names

    def _strike(self, condition: str) -> None:
        """Have something be wrong with a store for a while, and for long where that does not stop everything."""
        world = self._world
        for name in self._struck():
            self._conditions[name] += 1
            world.conditions[name] = condition
            most_s = self._rng.choice([8.0, 8.0, 30.0]) if world.options.apart else 8.0
            world.trace("fate", f"{name}: {condition}")
            world.loop.in_world(self._rng.uniform(0.5, most_s), self._over, name, self._conditions[name])

    def _over(self, name: str, number: int) -> None:
        if number == self._conditions[name]:
            self._world.conditions.pop(name, None)
            self._world.trace("fate", f"{name}: condition over")

    def _cut(self, daemon: SimDaemon, service: str) -> None:
        world = self._world
        if service == "zk":
            daemon.cut_zookeeper()
        for name in self._struck() if service == "s3" else [service]:
            world.cuts.add((daemon.name, name))
            world.loop.in_world(self._rng.uniform(0.5, 10.0), world.cuts.discard, (daemon.name, name))

    async def _drain(self, daemon: SimDaemon) -> None:
        await daemon.drain()
        await asyncio.sleep(self._rng.choice([0.1, 2.0, 6.0]))  # noqa: TID251 - the loop's own time
        self._start(daemon)

    async def _ask(self, event: str, daemon: SimDaemon) -> None:
        """Have a user ask a daemon for something."""
        world = self._world
        topic = self._rng.choice(world.topics)
        if world.options.mirror and event in MAY_SWITCH and self._rng.random() < 0.5:
            owners = (one for one in world.daemons if one.up and one.engine.find(topic) is not None)
            daemon = next(owners, daemon)
            event = self._rng.choice(["switch places", "delete copies", "move"])
        try:
            if event == "switch places":
                await world.within(daemon, lambda: moving.switch(world, daemon, topic))
            elif event == "delete copies":
                pause_s = self._rng.choice([0.0, 0.5, 4.0])
                await world.within(daemon, lambda: moving.delete_copies(world, daemon, topic, pause_s))
            elif event == "move":
                self.has_moved = True
                await world.within(daemon, lambda: moving.move(world, daemon, topic), limit_s=MOVES_WITHIN_S)
            elif event == "disable topic":
                await world.within(daemon, lambda: daemon.engine.deselect(of_topic(topic)))
                await asyncio.sleep(self._rng.uniform(0.1, 3.0))  # noqa: TID251 - the loop's own time
                await world.within(daemon, lambda: daemon.engine.select(of_topic(topic), TopicPolicy(enabled=True)))
            elif event == "roll":
                found = daemon.engine.find(topic)
                if found is not None:
                    await world.within(daemon, found.request_roll)
            elif event == "change policy":
                size = self._rng.choice([1000, 4000])
                method = self._rng.choice(world.options.methods)
                bucket, prefix = self._rng.choice([(None, None), *world.options.places])
                policy = TopicPolicy(enabled=True, segment_bytes_max=size, method=method, bucket=bucket, prefix=prefix)
                await world.within(daemon, lambda: daemon.engine.select(of_topic(topic), policy))
            elif event == "collect":
                grace_s = self._rng.choice([0.0, 1.0])
                await world.within(daemon, lambda: daemon.collect(grace_s=grace_s))
            elif event == "mark ledgers":
                await world.within(daemon, lambda: self._mark(daemon, topic))
            elif event == "revoke":
                await world.within(daemon, lambda: self._revoke(daemon, topic))
        except OffloaderError as error:
            world.trace("user", f"{event}: {type(error).__name__}")

    async def _mark(self, daemon: SimDaemon, topic: TopicName) -> None:
        """Delete from the tier what the source has not got any more, as an operator would."""
        world, found = self._world, daemon.engine.find(topic)
        gone = [one.ledger_id for one in world.ledgers.topics[topic] if one.deleted]
        if found is None or not gone:
            return
        chosen = gone[: self._rng.randint(1, len(gone))]
        chosen = [one for one in chosen if one in found.map.contexts]
        world.marked.update((topic, one) for one in chosen)
        await daemon.retention.mark(found, chosen, dry_run=False)

    async def _revoke(self, daemon: SimDaemon, topic: TopicName) -> None:
        """Take the permission to delete a ledger back, and sometimes give it again later."""
        world = self._world
        there = [one.ledger_id for one in world.ledgers.topics[topic] if not one.deleted]
        if not there:
            return
        ledger_id = self._rng.choice(there)
        key = topic, ledger_id
        ended = self._lifted[key]
        await grant_records.revoke(
            daemon.zookeeper, topic, ledger_id, reason="simulated", now_ms=daemon.clock.wall_ms()
        )
        if self._lifts[key] == ended:  # else another user has lifted one meanwhile: either may have come first
            world.revoked.add(key)
        world.trace("user", f"revoked {ledger_id}")
        await daemon.clock.sleep(self._rng.uniform(1.0, 6.0))
        world.revoked.discard(key)
        self._lifts[key] += 1
        try:
            await grant_records.allow(daemon.zookeeper, topic, ledger_id)
        except (Conflict, NotFound) as error:
            world.trace("user", f"not lifted: {error}")
        self._lifted[key] += 1
