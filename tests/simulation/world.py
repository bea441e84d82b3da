"""One run: brokers write, daemons offload, readers read, things go wrong; then everything heals and is checked."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from offloaderd.core.errors import (
    Conflict,
    CorruptData,
    EntriesLost,
    EntriesMissing,
    NotFound,
    OffloaderError,
    Transient,
)
from offloaderd.core.model import Position, TierRetention, TopicName
from offloaderd.core.names.patterns import of_topic
from offloaderd.format import manifest_bytes
from offloaderd.metadata import paths
from offloaderd.metadata.records import attempt
from offloaderd.objects import keys
from offloaderd.policy.records import TopicPolicy
from offloaderd.upkeep.stored import Site
from tests.simulation import losing, moving, rebuilding
from tests.simulation.bookies import Ledgers
from tests.simulation.bucket import PREFIXES, Buckets, manifest_of, parsed
from tests.simulation.chance import Chance, Faults, Rng
from tests.simulation.daemon import ANOTHER_DEPLOYMENT, CLUSTER, SimClock, SimDaemon
from tests.simulation.loop import VirtualLoop
from tests.simulation.nemesis import Nemesis
from tests.simulation.operator import Operator
from tests.simulation.options import Options
from tests.simulation.oracle import START, Oracle
from tests.simulation.pulsar import Cluster
from tests.simulation.pushing import Pusher
from tests.simulation.zookeeper import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from offloaderd.core.metrics.metrics import Metrics
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.objects.port import UploadInfo
    from tests.simulation.kill_points import Trap

START_MS = 1_800_000_000_000
HEALED_S = 400.0
"""Longest that a healed world may take to bring everything into the bucket."""
LONGER_S = 20.0
"""How much longer a run is busy where an event waits for something to be committed."""
JUST_S = 1.0
TAIL = 300
SILENT = 0.08
"""How likely it is, where topics may sleep, that nothing follows an entry for some seconds."""


class ServerClock(SimClock):
    """The clock of the services, which is right."""

    def __init__(self, world: World) -> None:
        self._world, self._rng, self.offset_ms = world, world.chance.stream("server"), 0

    def jitter(self, seconds: float) -> float:
        """Return the same duration."""
        return seconds


class World:
    """All that exists in one run."""

    real_source = False
    """Whether daemons have the real ledger source, and a Pulsar cluster to read."""

    def __init__(self, seed: int, metrics: Metrics, *, verbose: bool = False, loop: VirtualLoop | None = None) -> None:
        self.loop = loop or VirtualLoop()
        self.chance = Chance(seed)
        self.faults = Faults(self.chance)
        self.options = self.draw_options()
        self.trap: Trap | None = None
        """Where a daemon dies, if it does at a certain request."""
        self.metrics = metrics
        self.cuts: set[tuple[str, str]] = set()
        self.conditions: dict[str, str] = {}
        """What is wrong with a service, by its name."""
        self._verbose = verbose
        self._hash = hashlib.blake2b(digest_size=8)
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.oracle = Oracle(self)
        self.buckets = Buckets(ServerClock(self), apart=bool(self.options.apart), part_bytes_min=1)
        self.tree = Tree(self)
        self.ledgers = Ledgers(self)
        self.cluster = self.ledgers.cluster = Cluster(self) if self.real_source else None
        self.topics = [TopicName.parse(f"t/n/{name}") for name in ("one", "two")[: self.options.topics]]
        self.daemons = [SimDaemon(self, name) for name in ("A", "B", "C")[: self.options.daemons]]
        self.second: SimDaemon | None = None
        """The daemon of another deployment with the same names of everything, if there was one."""
        self.untold: set[UUID] = set()
        """Segments that were committed without a head."""
        self.strays: set[str] = set()
        """Uploads of which nobody knows whose they are: they were there before the place was marked."""
        self.last_copies: set[UUID] = set()
        """Finished segments of which restored metadata know nothing, and that hold entries that are nowhere else."""
        self.operator = Operator(self)
        self._rng = self.chance.stream("workload")
        self.writing = True
        self.marked: set[tuple[TopicName, int]] = set()
        self.revoked: set[tuple[TopicName, int]] = set()

    def draw_options(self) -> Options:
        """Draw what daemons and users are set to."""
        pushes = self.real_source or not self.faults.misled
        return Options.draw(self.chance.stream("options"), readback=self.faults.rotten, pushes=pushes)

    def wall_ms(self) -> int:
        """The right time."""
        return START_MS + round(self.loop.time() * 1000)

    def trace(self, who: str, what: str) -> None:
        """Note what happened; the hash of it all tells two runs of one seed apart, should they differ."""
        line = f"{self.loop.time():10.4f} {who:<4} {what}"
        self._hash.update(line.encode())
        self.tail.append(line)
        if self._verbose:
            print(line)  # noqa: T201 - what --verbose is for

    def trace_hash(self) -> str:
        """Return the hash of the trace so far."""
        return self._hash.hexdigest()

    @property
    def sites(self) -> Sequence[Site]:
        """The places, as commands name them."""
        return [Site(cluster=CLUSTER, bucket=bucket, prefix=prefix) for bucket, prefix in self.options.places]

    @property
    def misled(self) -> bool:
        """Whether a daemon reads another history."""
        return any(daemon.misled for daemon in self.daemons)

    def shares_ledgers(self) -> bool:
        """Whether the source has a ledger of each map: else nothing offloaded tells its list from another one's."""
        held = {topic: found.contexts for topic, found in self.oracle.maps.items()}
        ledgers = self.ledgers.topics.items()
        return all(
            any(not one.deleted and one.ledger_id in held.get(topic, ()) for one in all_) for topic, all_ in ledgers
        )

    def is_deleted(self, topic: TopicName, position: Position) -> bool:
        """Say whether the source has deleted the ledger of an entry."""
        return any(ledger.deleted for ledger in self.ledgers.topics[topic] if ledger.ledger_id == position.ledger_id)

    def may_go(self, topic: TopicName, ledger_id: int) -> bool:
        """Say whether the tier may delete a ledger at all."""
        kind, marked = self.options.tier.kind, (topic, ledger_id) in self.marked
        if kind is TierRetention.FOLLOW and self.options.retention == "granted":
            return marked or self.cluster is not None  # else it was us who deleted it from the source
        return marked or kind is not TierRetention.KEEP

    def lose_grants(self, topic: TopicName) -> None:
        """Note what old or rebuilt metadata cannot know: revoked grants, and what grants had deleted.

        `follow` takes the latter for the broker's doing. In production no source has both.
        """
        self.revoked = {one for one in self.revoked if one[0] != topic}
        self.marked.update((topic, one.ledger_id) for one in self.ledgers.topics[topic] if one.deleted)

    async def live(self) -> None:
        """Live through the whole run."""
        for topic in self.topics:
            self.ledgers.create(topic)
        brokers = [self.loop.create_task(self._push())]
        if self.cluster is not None and self.options.retention == "granted":
            brokers.append(self.loop.create_task(self.cluster.delete_granted()))
        for broker in brokers:
            broker.add_done_callback(self._ended)
        nemesis = Nemesis(self)
        await self.work(nemesis)
        self.trace("world", "heals")
        await nemesis.heal()
        await self.until_offloaded()
        await losing.each(self)
        await moving.in_the_end(self, begun=nemesis.has_moved)
        for broker in brokers:
            broker.cancel()
        await asyncio.sleep(1.0)  # noqa: TID251 - the loop's own time; servers that lag behind have caught up
        await self.read_all(self.topics)
        await self.collect()
        self._check_leftovers()
        for daemon in self.daemons:
            await daemon.drain()
        waiting = [one for one in self.oracle.maps.values() if one.unfinished is not None]  # a gap stops a rebuild
        if not waiting and not self._unfinished():  # what a retention was just about to delete would come back
            await rebuilding.check(self, self.operator.bucket, self.sites)

    async def work(self, nemesis: Nemesis) -> None:
        """Write, offload and read, while things go wrong."""
        for daemon in self.daemons:
            daemon.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.enable_all())
            for topic in self.topics:
                group.create_task(self._write(topic))
            reading = group.create_task(self._read_now_and_then())
            failure_tracker = group.create_task(nemesis.run())
            await asyncio.sleep(self.options.busy_s)  # noqa: TID251 - the loop's own time
            while nemesis.waiting and self.loop.time() < self.options.busy_s + LONGER_S:
                await asyncio.sleep(0.5)  # noqa: TID251 - the loop's own time
            self.writing = False
            failure_tracker.cancel()
            reading.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Take note of something of the world that was not to end."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.oracle.fail("run", f"the world's own work ended with {error!r}")

    async def _push(self) -> None:
        """Have brokers push, if they do in this run."""
        if self.options.push == "no":
            return
        async with asyncio.TaskGroup() as group:
            for topic in self.topics:
                group.create_task(Pusher(self, topic).run())

    async def enable_all(self) -> None:
        """Enable all topics, after a while."""
        await asyncio.sleep(self.options.late_s)  # noqa: TID251 - the loop's own time; until then it becomes history
        for topic in self.topics:
            while self.writing:  # a topic that a quota refuses until then is enabled once all is healed
                try:
                    daemon = self.daemons[self._rng.randrange(len(self.daemons))]
                    if await self.within(daemon, partial(self.enable, daemon, topic)):
                        break
                except OffloaderError as error:
                    self.trace("user", f"not enabled: {error}")
                await asyncio.sleep(0.3)  # noqa: TID251 - the loop's own time

    async def enable(self, daemon: SimDaemon, topic: TopicName) -> None:
        """Have a daemon enable a topic."""
        method = self.chance.stream(f"method of {topic}").choice(self.options.methods)
        await daemon.engine.select(of_topic(topic), TopicPolicy(enabled=True, method=method))

    async def within(
        self, daemon: SimDaemon, call: Callable[[], Coroutine[Any, Any, object]], *, limit_s: float = 20.0
    ) -> bool:
        """Do something as a call to a daemon, which may die with it; says whether it came to its end."""
        process = daemon.process
        if process is None or not process.runs():
            return False
        task = process.start(call())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        deadline = self.loop.time() + limit_s
        while not task.done() and process.runs() and self.loop.time() < deadline:
            await asyncio.sleep(0.05)  # noqa: TID251 - the loop's own time
        if task.done():
            await task
            return True
        if process.alive:
            task.cancel()
        return False

    async def _write(self, topic: TopicName) -> None:
        rng = self.chance.stream(f"writer of {topic}")
        pause_s = rng.choice([0.1, 0.3, 0.6])
        retention = self.chance.stream(f"retention of {topic}")
        left = rng.choice([60, 120, 200])
        silences = self.chance.stream(f"silences of {topic}")
        while self.writing and left > 0:
            if self.options.sleep_s and silences.random() < SILENT:
                await asyncio.sleep(silences.uniform(4.0, 14.0))  # noqa: TID251 - the loop's own time
            await asyncio.sleep(rng.expovariate(1 / pause_s))  # noqa: TID251 - the loop's own time
            sizes = [rng.choice([20, 60, 150, 500]) for _ in range(rng.choice([1, 1, 3, 8]))]
            self.ledgers.append(topic, sizes)
            left -= len(sizes)
            if rng.random() < 0.15:
                self.ledgers.roll(topic)
            if retention.random() < 0.3:
                self._trim(topic, retention)
        self.ledgers.confirm(topic)

    def _trim(self, topic: TopicName, rng: Rng) -> None:
        """Delete the oldest closed ledger as the retention of this run says.

        While daemons read another history, one that is offloaded stays: by a list that has nothing of what is offloaded
        nobody can tell another history from the own one after its retention.
        """
        left = [one for one in self.ledgers.topics[topic] if not one.deleted]
        oldest = left[0] if left else None
        if oldest is None or not oldest.closed or self.options.retention in {"keep", "granted"}:
            return
        found, last = self.oracle.maps.get(topic), Position(oldest.ledger_id, len(oldest.entries) - 1)
        offloaded = found.offloaded if found is not None else None
        shared = found is not None and any(one.ledger_id in found.contexts for one in left[1:])
        if self.misled and not shared:
            return
        done = found is not None and offloaded is not None and offloaded >= last and not found.awaits(last)
        if done or (self.options.retention == "blind" and rng.random() < 0.15):
            self.trace("broker", f"deletes ledger {oldest.ledger_id} of {topic.local}")
            self.ledgers.delete(topic, oldest.ledger_id)

    def trim_offloaded(self) -> None:
        """Delete all that is offloaded from the source, where its retention goes by that."""
        if self.options.retention not in {"offloaded", "blind"}:
            return
        for topic, found in self.oracle.maps.items():
            for one in self.ledgers.topics[topic]:
                last = Position(one.ledger_id, len(one.entries) - 1)
                if one.closed and found.offloaded is not None and last <= found.offloaded and not found.awaits(last):
                    self.ledgers.delete(topic, one.ledger_id)

    async def _read_now_and_then(self) -> None:
        rng = self.chance.stream("readers")
        while True:
            await asyncio.sleep(rng.uniform(0.5, 3.0))  # noqa: TID251 - the loop's own time
            daemon = self.daemons[rng.randrange(len(self.daemons))]
            topic = self.topics[rng.randrange(len(self.topics))]
            ledgers = [one for one in self.ledgers.topics[topic] if one.entries]
            if not daemon.up or daemon.misled or not ledgers:
                continue
            ledger = ledgers[rng.randrange(len(ledgers))]
            first = Position(ledger.ledger_id, rng.randrange(len(ledger.entries)))
            count = rng.choice([1, 5, 20])
            try:
                await self.within(daemon, partial(self.read, daemon, topic, first, count), limit_s=10.0)
            except OffloaderError as error:
                self.trace("user", f"read of {first}: {type(error).__name__}")

    async def read(self, daemon: SimDaemon, topic: TopicName, first: Position, count: int) -> Position:
        """Read from a position on, checking every batch; returns the last position read."""
        after = START
        reading = daemon.reader.read(topic, first=first, entries_max=count, framed=True)
        async with aclosing(reading) as batches:
            async for batch, _ in batches:
                self.oracle.read(topic, batch, first if after == START else None, after)
                after = batch.last
        return after

    def done(self, topic: TopicName) -> bool:
        """Say whether every entry is in the map, or recorded as lost."""
        if self.operator.refuses_old_metadata(topic) or self.oracle.is_unplanned(topic):
            return False
        newest = self.ledgers.newest(topic)
        found = self.oracle.maps.get(topic)
        if found is not None and found.unfinished is not None:
            return self.history_waits(topic)
        offloaded = (found.offloaded if found else None) or START
        at = self.ledgers.following(topic, offloaded)
        while at is not None and newest is not None and at <= newest:
            if not self.is_deleted(topic, at):
                return False
            at = self.ledgers.following(topic, at)
        return True

    async def until_offloaded(self) -> None:
        """Wait until everything is offloaded and copied, and nothing is left to do."""
        deadline = self.loop.time() + HEALED_S
        while (
            not all(self.done(topic) for topic in self.topics)
            or self._unfinished()
            or self._unmarked()
            or self._uncopied()
        ):
            if self.loop.time() > deadline:
                behind = [f"{one.local} to {self.ledgers.newest(one)}" for one in self.topics if not self.done(one)]
                behind += [*self._unfinished(), *self._unmarked(), *self._uncopied()]
                self.oracle.fail("P8", f"not everything is done {HEALED_S:g} s after all healed: {behind}")
                return
            for topic in self.topics:  # also of one that is done: what is refused of it keeps its trash
                await self._lifted(topic)
            await asyncio.sleep(0.5)  # noqa: TID251 - the loop's own time

    async def _lifted(self, topic: TopicName) -> None:
        try:
            await self.operator.lift(topic)
        except OffloaderError as error:
            self.trace("user", f"not lifted: {error}")

    def history_waits(self, topic: TopicName) -> bool:
        """Say whether the history of a topic that was deleted at the source waits for a list of its ledgers."""
        found = self.oracle.maps.get(topic)
        return topic in self.ledgers.gone and found is not None and found.unfinished is not None

    def _waiting(self) -> set[str]:
        """Return the attempts of history that waits: it may have begun."""
        waiting = [paths.history_attempt(topic) for topic in self.topics if self.history_waits(topic)]
        return {path for path in self.tree.nodes if path.endswith(tuple(waiting))} if waiting else set()

    def _unfinished(self) -> list[str]:
        """Return the nodes that a topic at rest does not have."""
        left = [path for path in self.tree.nodes if path.endswith(("/attempt", "/mirror")) or "/trash/" in path]
        return [path for path in left if path not in self._waiting()]

    def _uncopied(self) -> list[str]:
        """Return the segments without the copy that their topic's owner wants, where owners make copies."""
        found = []
        for daemon in self.daemons:
            engine = daemon.engine if self.options.mirror and daemon.up and not daemon.old else None
            for topic in self.topics if engine is not None else ():
                owned = engine.find(topic) if engine is not None else None
                due = owned.mirror.due(owned.map.segments, owned.policy) if owned is not None else ()
                found += [f"copy of {one.range}" for one in due]
        return found

    def _unmarked(self) -> list[str]:
        """Return the markers that nobody has put yet: after a bucket was missing, pauses are up to a minute."""
        names = self.buckets.names()
        return [key for prefix in PREFIXES if (key := keys.marker(prefix, CLUSTER)) not in names]

    async def read_all(self, topics: Sequence[TopicName]) -> None:
        """P1 and P6: read topics to their ends."""
        for number, topic in enumerate(topics):
            daemon = self.daemons[(self.chance.seed + number) % len(self.daemons)]
            for read in (self._read_ends, self._read_topic):
                if not await self.within(daemon, partial(read, daemon, topic), limit_s=200.0):
                    self.oracle.fail("P6", f"{topic} could not be read in 200 s")

    async def _read_ends(self, daemon: SimDaemon, topic: TopicName) -> None:
        """P1: the first and the last entry of each segment, by as little of their blocks as can be checked."""
        found = self.oracle.maps.get(topic)
        for at in [at for one in (found.segments if found else ()) for at in (one.begin, one.end)]:
            try:
                async with aclosing(daemon.reader.read(topic, first=at, last=at)) as batches:
                    async for batch, _ in batches:
                        self.oracle.read(topic, batch, at, START)
            except OffloaderError as error:
                self._goes_on(topic, self.oracle.maps[topic], error, at, START)

    async def _read_topic(self, daemon: SimDaemon, topic: TopicName) -> None:
        """P1 and P6: everything in the map can be read from its begin to its end, through the daemon's own reader."""
        found = self.oracle.maps.get(topic)
        if found is None or not found.segments:
            return
        at, last = found.segments[0].begin, found.segments[-1].end
        while True:
            after = START
            try:
                async with aclosing(daemon.reader.read(topic, first=at, last=last)) as batches:
                    async for batch, _ in batches:
                        self.oracle.read(topic, batch, at if after == START else None, after)
                        after = batch.last
            except OffloaderError as error:
                found = self.oracle.maps[topic]
                at_next = self._goes_on(topic, found, error, at, after)
                if at_next is None:
                    return
                at = at_next
                continue
            if after != last:
                self.oracle.fail("P6", f"a read of {topic} from {at} to {last} ended at {after}")
            return

    def _goes_on(
        self, topic: TopicName, found: TopicMap, error: OffloaderError, at: Position, after: Position
    ) -> Position | None:
        """Say where a read that ended with an error has to go on; None where it is at its end."""
        if isinstance(error, NotFound) and found.floor is not None and found.floor >= at:
            return found.segments[0].begin if found.segments else None  # a limited retention has gone on meanwhile
        if isinstance(error, EntriesLost) or (isinstance(error, EntriesMissing) and self.history_waits(topic)):
            reached = after if after != START else Position(at.ledger_id, at.entry_id - 1)
            return next((one.begin for one in found.segments if one.begin > max(reached, at)), None)
        self.oracle.fail("P1", f"{topic} cannot be read from {at}: {error!r}")
        return None

    async def collect(self) -> None:
        """Collect once: after that, nothing is left that nobody refers to."""
        daemon = self.daemons[self.chance.seed % len(self.daemons)]
        if not await self.within(daemon, partial(self._collected, daemon), limit_s=200.0):
            self.oracle.fail("P5", "no collection in 200 s")

    async def _collected(self, daemon: SimDaemon) -> None:
        while True:
            try:
                await daemon.collect(grace_s=0.0)
                return
            except (Conflict, Transient):
                await daemon.clock.sleep(0.5)  # the scheduled one is under way, or a map changes while it is read
            except CorruptData as error:
                if keys.MARKERS not in error.key:
                    raise
                await daemon.mark_again()  # what an operator does whose marker cannot be read any more

    def just_stored(self) -> set[str]:
        """Return what was stored within the last moments: somebody is at work with it."""
        return {key for key in self.buckets.names() if self.buckets.age_s(key) < JUST_S}

    def provisional_since_ms(self, name: str) -> int | None:
        """Return since when the place of a key says that the second deployment works there too, None: it does not."""
        prefix = next(one for one in sorted(PREFIXES, reverse=True) if name.startswith(one))
        key = keys.provisional_marker(prefix, CLUSTER, str(ANOTHER_DEPLOYMENT))
        return self.buckets.stored_ms(key) if key in self.buckets.names() else None

    def put_strays(self) -> None:
        """Begin an upload in each place as another program would, or another deployment of an old release."""
        for prefix in PREFIXES:
            self.strays.add(self.buckets.of(prefix).begin_upload(prefix))

    def has_head(self, topic: TopicName) -> bool:
        """Whether the bucket says how far a topic is."""
        heads = {keys.head(prefix, CLUSTER, topic.managed_ledger) for prefix in PREFIXES}
        return not heads.isdisjoint(self.buckets.names())

    def is_told(self, found: TopicMap) -> bool:
        """Whether no segment is newest in a map that was committed without a head."""
        return not found.segments or found.segments[-1].segment_id not in self.untold

    def knows_all(self) -> bool:
        """Whether no daemon of an old release is left, and all topics have heads that are as new as their maps."""
        maps = self.oracle.maps
        told = all(map(self.is_told, maps.values())) and all(map(self.has_head, maps))
        return told and not any(daemon.old for daemon in self.daemons)

    def _ours(self, upload: UploadInfo) -> bool:
        """Whether an open upload began after its place was marked: of others nobody knows whose they are."""
        key = keys.marker(next(one for one in sorted(PREFIXES, reverse=True) if upload.key.startswith(one)), CLUSTER)
        if self.provisional_since_ms(upload.key) is not None:
            return False
        return key in self.buckets.names() and upload.initiated_ms >= self.buckets.stored_ms(key)

    def _is_last_copy(self, name: str) -> bool:
        """Whether a segment, of which restored metadata know nothing, holds what is nowhere else, or may: it stays."""
        found = parsed(name)
        if found is None or name not in self.buckets.names() or not self.faults.fired["metadata restored"]:
            return False
        parts = (one for one in self.buckets.names() if (other := parsed(one)) and other.object_id == found.object_id)
        manifest = next((one for one in parts if one == manifest_of(one)), "")
        if (data := self.buckets.data(manifest)) is None:
            return False
        try:
            described = manifest_bytes.decode(data, key=manifest)
        except CorruptData:  # nobody can tell what it holds: an alarm, and no leftover
            return self.faults.rotten
        topic = next(one for one in self.topics if one.managed_ledger == described.managed_ledger)
        held = (
            Position(part.ledger_id, entry_id)
            for part in described.ledgers
            for entry_id in range(part.first_entry_id, part.last_entry_id + 1)
        )
        if not any(self.is_deleted(topic, at) and self.oracle.maps[topic].find(at) is None for at in held):
            return False
        self.last_copies.add(described.segment_id)
        return True

    def _check_leftovers(self) -> None:
        """P5: what is in the bucket is referenced, and what is referenced is there."""
        self.oracle.check_kept()
        segments = [segment for found in self.oracle.maps.values() for segment in found.segments]
        held = {key for segment in segments for one in segment.each_place for key in one.keys.all}
        doomed = {path.rpartition("/")[2] for path in self.tree.nodes if "/trash/" in path}  # by a limited retention
        begun = (attempt.decode(self.tree.nodes[path].value, path=path) for path in self._waiting())
        doomed |= {str(one.segment_id) for one in begun}
        held |= {name for name in self.buckets.names() if (found := parsed(name)) and str(found.object_id) in doomed}
        if missing := held - set(self.buckets.names()):
            self.oracle.fail("P1", f"referenced and not there: {sorted(missing)}")
        clocks = {f"{prefix}{key}" for prefix in PREFIXES for key in (keys.GC_CLOCK, keys.RETENTION_CLOCK)}
        held |= clocks & self.just_stored()
        names, maps = set(self.buckets.names()), self.oracle.maps
        if bare := [
            one for one, found in maps.items() if found.segments and self.is_told(found) and not self.has_head(one)
        ]:
            self.oracle.fail("P5", f"the bucket does not say how far {bare[0]} is")
        markers = {keys.marker(prefix, CLUSTER) for prefix in PREFIXES}
        if unmarked := self._unmarked():
            self.oracle.fail("P5", f"nobody has put {unmarked}")
        held |= {keys.head(prefix, CLUSTER, one.managed_ledger) for prefix in PREFIXES for one in maps} | markers
        theirs = {name for name in names if self.buckets.deployment(name) == str(ANOTHER_DEPLOYMENT)}
        doubtful = {upload.key for upload in self.buckets.uploads() if not self._ours(upload)}
        unclaimed = {it.key for it in self.buckets.uploads() if not self._is_last_copy(manifest_of(it.key))} - doubtful
        uploads = [key for key in unclaimed if (found := parsed(key)) and str(found.object_id) not in doomed]
        kept = {name for name in names - held - theirs if self._is_last_copy(name)}
        if left := [*(names - held - theirs - kept), *uploads]:
            self.oracle.fail("P5", f"nobody refers to {sorted(left)}, and one collection left it")


class RealSourceWorld(World):
    """A run whose daemons have the real ledger source."""

    real_source = True
