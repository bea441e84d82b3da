"""The exercises of a drill, one for each promise: faults in the stores, and a comparison with the written entries.

Every exercise leaves the stores sound. A Broken that it raises is its outcome; so is any other error of ours, since
none may last in a drill.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from offloaderd.client import DaemonClient, TimedOut
from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.model import START, Position
from offloaderd.daemon.daemon import Daemon
from offloaderd.drill.s3_proxy import Fault, S3Proxy, Shaking
from offloaderd.drill.scratch import SEGMENT_AGE_S, SESSION_S, TOPIC, Scratch
from offloaderd.drill.tcp_proxy import Link
from offloaderd.metadata import paths
from offloaderd.metadata.port import Delete, Replace
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records.ownership import Epoch
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects import keys
from offloaderd.objects.opening import bucket_store
from offloaderd.protocol.v1 import admin_pb2, ledgers_pb2, retention_pb2
from offloaderd.upkeep import rebuild
from offloaderd.upkeep.stored import Site

BATCH = 100
WITHIN_S = 90.0
"""Longest wait for an expected event; after it the promise counts as broken."""
LOOK_S = 0.2


class Broken(OffloaderError):
    """A promise was not kept."""


@dataclass(kw_only=True)
class Ground:
    """A running drill. `written` has every entry in order, `last` is the position of the newest."""

    scratch: Scratch
    daemon: Daemon
    client: DaemonClient
    s3: S3Proxy
    zookeeper: Link
    clock: Clock
    written: list[bytes] = field(default_factory=list)
    last: Position = field(default_factory=lambda: Position(0, 0))
    memory_max_bytes: int = 0

    async def write(self, count: int, size_bytes: int) -> None:
        """Append unique entries."""
        first = len(self.written)
        payloads = [f"{self.scratch.name}/{first + number}/".encode().ljust(size_bytes, b"%d" % (number % 10))
                    for number in range(count)]  # fmt: skip

        async def batches() -> AsyncIterator[Sequence[bytes]]:
            for begin in range(0, count, BATCH):
                yield payloads[begin : begin + BATCH]

        def note(response: ledgers_pb2.AppendResponse) -> None:
            self.last = Position(response.last.ledger_id, response.last.entry_id)

        await self.client.append(TOPIC, batches(), note, timeout_s=WITHIN_S)
        self.written += payloads

    async def offload(self) -> None:
        """Offload all entries, and wait. Raises Broken if it fails or takes too long."""
        try:
            async for progress in self.client.offload(TOPIC, wait=True, timeout_s=WITHIN_S):
                if progress.done and progress.outcome == "failed":
                    raise Broken(f"the offload failed: {progress.reason}")
        except TimedOut:
            raise Broken(f"not all was offloaded within {WITHIN_S:g} s of the last fault") from None
        await self.until(self.all_durable, "everything to be durable")

    async def all_durable(self) -> bool:
        """Return whether the daemon has reported the newest entry as durable."""
        offloaded = (await self.topic()).offloaded
        return Position(offloaded.ledger_id, offloaded.entry_id) >= self.last

    async def topic(self) -> admin_pb2.TopicStatus:
        """Return the topic's status."""
        return (await self.client.status(TOPIC)).topics[0]

    async def read_back(self) -> int:
        """Read all entries and compare them with the written ones; return their number. Raises Broken."""
        count, before = 0, START
        async for response in self.client.read(TOPIC, timeout_s=WITHIN_S):
            batch = response.batch
            for number, payload in enumerate(batch.payloads):
                position = Position(batch.ledger_id, batch.first_entry_id + number)
                if position <= before:
                    raise Broken(f"{position} came behind {before}")
                if count >= len(self.written) or payload != self.written[count]:
                    raise Broken(f"entry {position} is not what was written as number {count}")
                count, before = count + 1, position
        if count != len(self.written):
            raise Broken(f"{count} of {len(self.written)} entries came back")
        return count

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for a condition. Raises Broken if it does not become true; failed calls are repeated."""
        try:
            async with asyncio.timeout(WITHIN_S):
                while True:
                    try:
                        if await condition():
                            return
                    except Broken:
                        raise
                    except OffloaderError:
                        pass  # the condition could not be checked at this moment
                    await self.clock.sleep(LOOK_S)
        except TimeoutError:
            raise Broken(f"waited {WITHIN_S:g} s for {what}") from None

    def metric(self, name: str) -> float:
        """Return one of the daemon's metrics."""
        return self.daemon.metrics.registry.get_sample_value(f"offloaderd_{name}") or 0.0

    async def watch_memory(self) -> None:
        """Record the greatest memory of the pools of the daemon, until cancelled."""
        while True:
            self.memory_max_bytes = max(self.memory_max_bytes, self.daemon.snapshot().memory_used_bytes)
            await self.clock.sleep(0.05)


OVERHEAD_S = 10.0
"""Allowed time, beyond a segment's age, until its commit is known."""
SMALL, LARGE = 2048, 8192
UPLOADS = (
    ("create_upload", Fault.LOST),
    ("upload_part", Fault.SLOW_DOWN),
    ("upload_part", Fault.LOST),
    ("upload_part", Fault.CUT),
    ("complete_upload", Fault.LOST),
    ("put data", Fault.LOST),
    ("put index", Fault.ERROR),
    ("put manifest", Fault.LOST),
)
READS = (("get data", Fault.FLIPPED), ("get data", Fault.TRUNCATED), ("get data", Fault.SLOW_DOWN))


@dataclass(frozen=True, slots=True)
class Exercise:
    """One promise, the fault, and the function that returns the finding. `run` None: it cannot be tried here."""

    promise: str
    done: str
    run: Callable[[Ground], Awaitable[str]] | None


async def in_time(ground: Ground) -> str:
    """No request is made: the age of the segment alone seals it."""
    started_s = ground.clock.monotonic()
    await ground.write(300, SMALL)
    await ground.until(ground.all_durable, "the age of a segment to have it sealed")
    took_s = ground.clock.monotonic() - started_s
    if took_s > SEGMENT_AGE_S + OVERHEAD_S:
        raise Broken(f"durable after {took_s:.1f} s")
    return f"durable after {took_s:.1f} s; {SEGMENT_AGE_S:g} s of age and {OVERHEAD_S:g} s are allowed"


async def durable(ground: Ground) -> str:
    """Each step of an upload fails once, before or after the service did it."""
    for operation, fault in UPLOADS:
        ground.s3.spoil(operation, fault)
    await ground.write(3600, LARGE)
    await ground.offload()
    missed, count = ground.s3.planned, await ground.read_back()
    ground.s3.heal()
    if missed:
        raise Broken(f"faults that never came, so nothing was tried: {', '.join(missed)}")
    return f"{count} entries were reported durable and came back, bit by bit"


async def read(ground: Ground) -> str:
    """Answers of the bucket are damaged while all entries are read; an error reports those that no other tier has."""
    before, errors = sum(ground.s3.counts.faults.values()), []
    for operation, fault in READS:
        ground.s3.spoil(operation, fault)
    count = 0
    while not count:
        try:
            count = await ground.read_back()
        except Broken:
            raise
        except OffloaderError as error:
            errors.append(type(error).__name__.removeprefix("Remote"))
            if len(errors) > len(READS):
                raise
    ground.s3.heal()
    done = sum(ground.s3.counts.faults.values()) - before
    if not done:
        raise Broken("no answer was spoilt, so nothing was tried")
    typed = f"; reads that ended with an error that says so, and were made again: {', '.join(errors)}" if errors else ""
    return f"{count} entries, each once and in order; {done} of {len(READS)} answers were spoilt on the way{typed}"


async def source(ground: Ground) -> str:
    """The bucket cannot be reached while a ledger closes, and can be reached again later."""
    ground.s3.shake(Shaking(seed=1, rate=1.0, faults=(Fault.RESET,)))
    await ground.write(200, SMALL)
    closed = ground.last.ledger_id
    await ground.client.roll(TOPIC)
    await ground.clock.sleep(3.0)
    row = await _ledger(ground, closed)
    ground.s3.heal()
    if row is None or not row.at_source:
        raise Broken(f"ledger {closed} left the source before it was in the bucket")
    await ground.write(100, SMALL)  # the newest ledger stays in the source
    await ground.offload()

    async def deleted() -> bool:
        found = await _ledger(ground, closed)
        return found is not None and not found.at_source

    await ground.until(deleted, f"ledger {closed} to be verified and deleted from the source")
    count = await ground.read_back()
    return f"ledger {closed} stayed while the bucket was away, went once its copy was verified; {count} entries read"


async def _ledger(ground: Ground, ledger_id: int) -> retention_pb2.Ledger | None:
    found = await ground.client.ledgers(TOPIC)
    return next((one for one in found.ledgers if one.ledger_id == ledger_id), None)


async def owner(ground: Ground) -> str:
    """The session is cut for longer than its timeout; then another owner claims and releases the topic meanwhile."""
    before = (await ground.topic()).epoch
    ground.zookeeper.cut()
    await ground.write(100, SMALL)
    await ground.clock.sleep(SESSION_S + 2.0)
    ground.zookeeper.mend()

    async def again() -> bool:
        return (await ground.topic()).epoch > before and (await ground.topic()).state == "offloading"

    await ground.until(again, "the topic to be claimed again after its session was lost")
    refused = ground.metric("fenced_writes_total")
    async with ground.scratch.metadata_store() as store:
        node = await store.get(paths.epoch(TOPIC))
        epoch = ownership.decode_epoch(node.value, path=paths.epoch(TOPIC)).epoch
        rival = Epoch(epoch=epoch + 1, daemon_id="drill-rival", claimed_ms=ground.clock.wall_ms())
        held = await store.get(paths.owner(TOPIC))
        raised = Replace(paths.epoch(TOPIC), ownership.encode_epoch(rival), node.version)
        await store.transact([raised, Delete(paths.owner(TOPIC), held.version)])
        known = (await catalog.load(store, TOPIC)).segments
    await ground.write(100, SMALL)

    async def deposed() -> bool:
        return ground.metric("fenced_writes_total") > refused and (await ground.topic()).epoch > rival.epoch

    await ground.until(deposed, "a write of the deposed owner to be refused")
    await ground.offload()
    count = await ground.read_back()
    segments = (await _map(ground)).segments
    if segments[: len(known)] != known:
        raise Broken("segments that were committed before the other claim are not what they were")
    return f"its write was refused, epoch {rival.epoch + 1} went on; {count} entries read"


async def contiguous(ground: Ground) -> str:
    """The map in ZooKeeper is read after all these faults."""
    segments, entries = (await _map(ground)).segments, len(ground.written)
    for before, after in pairwise(segments):
        if after.range.begin <= before.range.end:
            raise Broken(f"segments {before.segment_id} and {after.segment_id} overlap")
    held = sum(part.last_entry_id - part.first_entry_id + 1 for one in segments for part in one.slices)
    if held != entries:
        raise Broken(f"the segments hold {held} entries of {entries}")
    return f"{len(segments)} segments hold each of the {entries} entries once"


async def garbage(ground: Ground) -> str:
    """An object and an open upload without a reference are put beside the others; then garbage collection runs."""
    scratch = ground.scratch
    labels = keys.segment_metadata(scratch.cluster)
    stray, open_one = (keys.SegmentKeys(scratch.prefix, ground.clock.uuid()).data for _ in range(2))
    async with bucket_store(scratch.settings.objects, ground.clock) as store:
        await store.put(stray, b"nobody refers to it", metadata=labels)
        await store.create_upload(open_one, metadata=labels)
        events = [event async for event in ground.client.gc(apply=True, grace_s=0.0, timeout_s=WITHIN_S)]
        finds = [event.find for event in events if event.HasField("find")]
        alarms = [find.key for find in finds if find.verdict != "deleted"]
        left = {info.key async for info in store.list(scratch.prefix)}
        uploads = {upload.key async for upload in store.list_uploads(scratch.prefix)}
    referred = {key for one in (await _map(ground)).segments for key in one.keys.all}
    if alarms or stray in left or open_one in uploads:
        raise Broken(f"rubbish was left: {', '.join(alarms or [stray, open_one])}")
    if not referred <= left:
        raise Broken(f"objects that are referred to are gone: {', '.join(sorted(referred - left))}")
    count = await ground.read_back()
    return f"both went, the {len(referred)} objects of the map stayed; {count} entries read"


async def rebuilt(ground: Ground) -> str:
    """The map is rebuilt from the manifests alone, and compared with the one in ZooKeeper."""
    scratch = ground.scratch
    site = Site(cluster=scratch.cluster, bucket=scratch.settings.objects.bucket, prefix=scratch.prefix)
    async with bucket_store(scratch.settings.objects, ground.clock) as store:
        found = await rebuild.read_buckets(store, [site], lambda _: None)
    plans = rebuild.make_plan(found).topics
    known = [(one.segment_id, one.range) for one in (await _map(ground)).segments]
    restored = [(one.segment_id, one.range) for one in plans[0].map.segments] if plans else []
    if len(plans) != 1 or plans[0].blocked or restored != known:
        raise Broken(f"the bucket gives {len(restored)} segments, ZooKeeper has {len(known)}")
    return f"{len(restored)} segments, the same as in ZooKeeper; nothing was written"


async def memory(ground: Ground) -> str:
    """More was written than the pools may hold, much of it during an outage of the bucket."""
    budget = ground.daemon.snapshot().memory_budget_bytes
    written = sum(map(len, ground.written))
    if written <= budget:
        raise Broken(f"{written} bytes were written, and {budget} fit: nothing was tried")
    if ground.memory_max_bytes > budget:
        raise Broken(f"the pools held {ground.memory_max_bytes} bytes of {budget}")
    return f"at most {ground.memory_max_bytes} of {budget} bytes were held, {written} were written"


async def _map(ground: Ground) -> TopicMap:
    """Read the map directly, without the daemon and the proxies."""
    async with ground.scratch.metadata_store() as store:
        return await catalog.load(store, TOPIC)


EXERCISES = (
    Exercise("P8", "300 entries are written and nothing is asked for.", in_time),
    Exercise(
        "P1",
        "30 MB are offloaded while " + ", ".join(f"{name} is {fault.value}" for name, fault in UPLOADS) + ".",
        durable,
    ),
    Exercise("P6", "Everything is read while answers are flipped, truncated and refused.", read),
    Exercise("P3", "A ledger closes while every request to the bucket is reset, for three seconds.", source),
    Exercise(
        "P4",
        f"ZooKeeper is cut off for {SESSION_S + 2:g} s, longer than the session; then another's claim is written.",
        owner,
    ),
    Exercise("P5", "Rubbish is put below the prefix, and garbage of any age is collected.", garbage),
    Exercise("P2", "The map in ZooKeeper is compared with what was written.", contiguous),
    Exercise("P9", "The map is made anew from the bucket's manifests alone.", rebuilt),
    Exercise("P7", "The pools were watched all the time.", memory),
    Exercise("P10", "It needs objects of older releases; the project's own tests keep some of each.", None),
)
