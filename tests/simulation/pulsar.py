"""A simulated Pulsar cluster under the daemon's real ledger source: its nodes in ZooKeeper, and bookies on the wire.

What brokers wrote stands in `Ledgers`, for the model. Here it becomes what Pulsar and BookKeeper make of it: lists of
ledgers, ledgers' metadata with ensembles, entries with LACs and digests on the bookies of their write sets, explicit
LACs, recoveries of ledgers, new ensembles where a bookie is down. All of it comes to be after the model knows it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from offloaderd.bookkeeper.metadata import Ensemble, Layout, LedgerMetadata, LedgerState, instance_path
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.bookkeeper.wire.entry import DigestType
from offloaderd.core.names.managed_ledgers import MANAGED_LEDGER_KEY, topic_path
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import LedgerInfo, ManagedLedgerInfo
from offloaderd.metadata import paths
from offloaderd.metadata.records import grant as grant_record
from offloaderd.testing.memory import metadata as memory
from tests.real.ledger_nodes import encode
from tests.simulation.bookie import SimBookie
from tests.simulation.tailing import BusyLine
from tests.simulation.zookeeper import Tree
from tests.unit.bookkeeper.entries import package

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.core.model import TopicName
    from tests.simulation.bookies import Ledger
    from tests.simulation.world import World

ROOT = "/ledgers"
BOOKIES = 4
SHAPES = ((1, 1, 1), (2, 2, 2), (3, 2, 2), (3, 3, 2))
"""Size of the ensemble, write quorum, ack quorum."""
RECOVERED = 0.3
"""How likely it is that a ledger is not closed by its writer, but recovered."""
DIGESTS = (DigestType.CRC32C, DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC, DigestType.DUMMY)


@dataclass(frozen=True, slots=True)
class _Made(memory._Node):
    """A node that knows when it was made."""

    created_ms: int = 0


class ClusterTree(Tree):
    """The nodes of Pulsar and BookKeeper."""

    def __init__(self, world: World) -> None:
        super().__init__(world, watched=False)

    def put(self, path: str, value: bytes) -> None:
        """Make a node, with those above it, or replace what it says."""
        now_ms, known = self._world.wall_ms(), self._nodes.get(path)
        if known is not None and known.value == value:
            return
        nodes = {**self._nodes, **{missing: _Made(b"", 0, "", now_ms) for missing in self.missing_parents(path)}}
        nodes[path] = (
            _Made(value, 0, "", now_ms) if known is None else replace(known, value=value, version=known.version + 1)
        )
        self._commit(nodes, [])

    def drop(self, path: str) -> None:
        """Delete a node; a missing one is no error."""
        if path in self._nodes:
            self._commit({**self._nodes}, [path])


@dataclass(slots=True, eq=False)
class _Written:
    """How much of a ledger has come to nodes and bookies."""

    topic: TopicName
    ledger: Ledger
    metadata: LedgerMetadata
    stored: int = 0
    lac: int = -1
    length: int = 0
    gone: bool = False
    lengths: list[int] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Its node."""
        return Layout.HIERARCHICAL.path(ROOT, self.ledger.ledger_id)


class Cluster:
    """The nodes and bookies of one run; `changed` brings them up to what brokers have done with a topic."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = rng = world.chance.stream("cluster")
        self._written: dict[int, _Written] = {}
        world.loop.network.line = BusyLine(world)
        self.tree = ClusterTree(world)
        self.tree.put(instance_path(ROOT), world.ledgers.cluster_id.encode())
        self.tree.put("/managed-ledgers", b"")
        old = rng.random() < 0.2
        self.bookies = [SimBookie(world, number, batches=not old) for number in range(BOOKIES)]
        self.shape = rng.choice(SHAPES)
        self.digest = rng.choice(DIGESTS)
        self.explicit = rng.random() < 0.6
        """Whether writers send explicit LACs; else the broker tells of what is hidden."""
        self.options = BookkeeperSettings.model_construct(
            poll_min_s=rng.choice([0.1, 0.2]),
            poll_max_s=rng.choice([0.5, 2.0]),
            long_poll_s=rng.choice([0.0, 20.0, 120.0]),
            request_timeout_s=rng.choice([2.0, 5.0]),
            hedge_s=rng.choice([0.5, 2.0]),
        )

    def changed(self, topic: TopicName) -> None:
        """Bring nodes and bookies up to date."""
        ledgers = self._world.ledgers
        if topic in ledgers.gone:
            self.tree.drop(topic_path(topic))
        present = [one for one in ledgers.topics[topic] if not one.deleted]
        for ledger in present:
            written = self._written.get(ledger.ledger_id)
            if written is None:
                self._close_all(present)
                written = self._open(topic, ledger)
            self._write(written)
            if ledger.closed and written.metadata.state is LedgerState.OPEN:
                self._end(written)
        if topic not in ledgers.gone:
            self._publish(topic)
        for written in [one for one in self._written.values() if one.ledger.deleted and not one.gone]:
            written.gone = True
            self._world.loop.in_world(self._rng.uniform(0.0, 2.0), self._delete, written)

    @property
    def counts(self) -> Counter[str]:
        """How often what only this source has has happened."""
        return Counter(
            {
                "long polls": sum(one.long_polls for one in self.bookies),
                "answered by a newer LAC": sum(one.answered for one in self.bookies),
                "ledgers recovered": self._world.faults.fired["ledger recovered"],
                "fences": sum(one.fences for one in self.bookies),
            }
        )

    def last_confirmed(self, ledger: Ledger) -> int:
        """Return what the writer of a ledger has confirmed."""
        return len(ledger.entries) - 1 if ledger.closed else self._written[ledger.ledger_id].lac

    async def fail(self) -> None:
        """Have bookies break down and fall silent until the world heals."""
        world, rng = self._world, self._rng
        every_s = rng.choice([2.0, 5.0, None])
        if every_s is None:
            return
        while True:
            await asyncio.sleep(rng.expovariate(1 / every_s))  # noqa: TID251 - the loop's own time
            if not world.faults.on:
                return
            bookie, event = rng.choice(self.bookies), rng.choice(["bookie down", "bookie frozen"])
            world.faults.count(event)
            world.trace("fate", f"{event} ({bookie.bookie_id})")
            if event == "bookie down":
                bookie.stop()
                world.loop.in_world(rng.uniform(0.5, 10.0), bookie.start)
            else:
                bookie.freeze()
                world.loop.in_world(rng.uniform(0.2, 12.0), bookie.thaw)

    def heal(self) -> None:
        """Have all bookies answer."""
        for bookie in self.bookies:
            bookie.start()
            bookie.thaw()

    async def delete_granted(self) -> None:
        """Delete from BookKeeper what has a grant that holds, as whoever goes by grants does."""
        world = self._world
        while True:
            await asyncio.sleep(self._rng.uniform(0.5, 3.0))  # noqa: TID251 - the loop's own time
            for topic in world.topics:
                closed = [one for one in world.ledgers.topics[topic][:-1] if one.closed and not one.deleted]
                for ledger in closed:
                    node = world.tree.nodes.get(path := paths.grant(topic, ledger.ledger_id))
                    if node is not None and grant_record.decode(node.value, path=path).allows(world.wall_ms()):
                        world.trace("broker", f"deletes ledger {ledger.ledger_id} of {topic.local} by its grant")
                        world.oracle.deleting_source(topic, ledger.ledger_id)
                        world.ledgers.delete(topic, ledger.ledger_id)

    def _open(self, topic: TopicName, ledger: Ledger) -> _Written:
        size, write, ack = self.shape
        up = sorted(self.bookies, key=lambda one: (one.down, self._rng.random()))
        metadata = LedgerMetadata(
            format_version=3,
            state=LedgerState.OPEN,
            ensemble_size=size,
            write_quorum=write,
            ack_quorum=ack,
            ensembles=(Ensemble(0, tuple(one.bookie_id for one in up[:size])),),
            digest_type=self.digest,
            password=b"secret",
            custom={MANAGED_LEDGER_KEY: topic.managed_ledger.encode()},
        )
        written = self._written[ledger.ledger_id] = _Written(topic, ledger, metadata)
        self.tree.put(written.path, encode(metadata))
        return written

    def _write(self, written: _Written) -> None:
        """Store what is new, each entry with the LAC before it, or an earlier one."""
        ledger = written.ledger
        count = len(ledger.entries)
        if written.stored < count:
            self._leave_broken(written)
        confirmed = max(written.lac, count - 1 - (0 if ledger.closed else ledger.hidden))
        for entry_id in range(written.stored, count):
            written.length += len(ledger.entries[entry_id])
            written.lengths.append(written.length)
            self._store(written, entry_id, min(entry_id - 1, confirmed), written.metadata.replicas(entry_id))
        written.stored, written.lac = count, confirmed
        if self.explicit and not ledger.closed and confirmed >= 0:
            self._world.loop.in_world(self._rng.uniform(0.05, 1.0), self._tell, written, confirmed)

    def _store(self, written: _Written, entry_id: int, lac: int, bookies: Sequence[str]) -> None:
        ledger, metadata = written.ledger, written.metadata
        stored = package(
            metadata.digest_type or DigestType.CRC32C,
            ledger.ledger_id,
            entry_id,
            ledger.entries[entry_id],
            lac=lac,
            length=written.lengths[entry_id],
            password=metadata.password,
        )
        late = self._rng.randrange(len(bookies)) if metadata.ack_quorum < metadata.write_quorum else None
        for number, bookie in enumerate(self._named(bookies)):
            if number == late and self._rng.random() < 0.3:
                self._world.loop.in_world(self._rng.uniform(0.0, 2.0), bookie.store, ledger.ledger_id, entry_id, stored)
            else:
                bookie.store(ledger.ledger_id, entry_id, stored)

    def _tell(self, written: _Written, lac: int) -> None:
        """Send the explicit LAC."""
        if written.metadata.state is LedgerState.OPEN and not written.gone:
            for bookie in self._named(written.metadata.ensembles[-1].bookies):
                bookie.explicit_lac(written.ledger.ledger_id, lac)

    def _leave_broken(self, written: _Written) -> None:
        """Go on with another bookie in place of one that is down, from the first entry that is not confirmed."""
        metadata = written.metadata
        ensemble = metadata.ensembles[-1]
        spare = [one.bookie_id for one in self.bookies if not one.down and one.bookie_id not in ensemble.bookies]
        down = [one.bookie_id for one in self._named(ensemble.bookies) if one.down]
        swapped = dict(zip(down, spare, strict=False))
        if not swapped:
            return
        first = max(written.lac + 1, ensemble.first_entry_id)
        members = tuple(swapped.get(one, one) for one in ensemble.bookies)
        kept = metadata.ensembles if first > ensemble.first_entry_id else metadata.ensembles[:-1]
        self._world.faults.count("bookie replaced")
        self._change(written, ensembles=(*kept, Ensemble(first, members)))
        for entry_id in range(first, written.stored):
            self._store(written, entry_id, written.lac, written.metadata.replicas(entry_id))

    def _end(self, written: _Written) -> None:
        """Close a ledger, or let it be recovered."""
        if self._rng.random() >= RECOVERED:
            self._close(written)
            return
        self._world.faults.count("ledger recovered")
        self._change(written, state=LedgerState.IN_RECOVERY)
        for bookie in self._named(written.metadata.ensembles[-1].bookies):
            bookie.fence(written.ledger.ledger_id)
        self._world.loop.in_world(self._rng.uniform(0.1, 4.0), self._close, written)

    def _close(self, written: _Written) -> None:
        if written.gone or written.metadata.closed:
            return
        self._change(written, state=LedgerState.CLOSED, last_entry_id=written.stored - 1, length_bytes=written.length)

    def _close_all(self, present: Sequence[Ledger]) -> None:
        """Close what is before a new ledger: no broker opens one before."""
        for ledger in present:
            known = self._written.get(ledger.ledger_id)
            if known is not None and ledger.closed:
                self._close(known)

    def _change(self, written: _Written, **changes: object) -> None:
        written.metadata = replace(written.metadata, **changes)  # type: ignore[arg-type]
        self.tree.put(written.path, encode(written.metadata))

    def _publish(self, topic: TopicName) -> None:
        """Write the list: what a roll-over tells of a ledger comes with the next one. The last one always stays."""
        ledgers = self._world.ledgers.topics[topic]
        listed = [one for one in ledgers if not one.deleted or one is ledgers[-1]]
        infos = [LedgerInfo(ledgerId=one.ledger_id) for one in listed]
        for info, ledger in zip(infos[:-1], listed, strict=False):
            info.entries, info.size = len(ledger.entries), sum(map(len, ledger.entries))
            info.timestamp = ledger.closed_ms
        self.tree.put(topic_path(topic), ManagedLedgerInfo(ledgerInfo=infos).SerializeToString())

    def _delete(self, written: _Written) -> None:
        """Delete a ledger: its node, and some time later what bookies have of it."""
        self.tree.drop(written.path)
        for bookie in self.bookies:
            self._world.loop.in_world(self._rng.uniform(0.0, 5.0), bookie.collect, written.ledger.ledger_id)

    def _named(self, bookie_ids: Sequence[str]) -> list[SimBookie]:
        return [one for bookie_id in bookie_ids for one in self.bookies if one.bookie_id == bookie_id]
