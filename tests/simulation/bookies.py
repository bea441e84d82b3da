"""Simulated ledgers: what brokers wrote, what retention left of it, and what each process sees of it.

The history of a topic is kept whole for the model, also after the source has deleted a ledger.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from offloaderd.core.errors import Denied, NotFound
from offloaderd.core.model import Confirmed, Edge, EntryBatch, LedgerInfo, Position, TopicName
from offloaderd.ledgers.book import plain_metadata
from tests.simulation.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Sequence

    from tests.simulation.loop import Process
    from tests.simulation.pulsar import Cluster
    from tests.simulation.world import World


ANOTHER, AGAIN, TWICE, BELOW = "another cluster", "ids again", "ids twice", "closed below"
NOWHERE, NAMELESS = "a cluster without the topics", "a cluster without a name"
HISTORIES = (ANOTHER, AGAIN, TWICE, BELOW, NOWHERE, NAMELESS)
"""What a misled source reads: another cluster, a restored one whose ids begin again, or are given to other ledgers, and
one whose newest ledgers were closed before what they had confirmed; another one that knows none of the topics, and one
that does not say which it is."""
OTHER_IDS = {ANOTHER: "another", NOWHERE: "another", NAMELESS: None}


def label(what: str) -> str:
    """Name a request as kill points do."""
    return "delete source" if what.startswith("delete ") else what.partition(" ")[0]


@dataclass(slots=True)
class Ledger:
    """One ledger with all it ever held. `hidden` newest entries of an open one are not yet known to be confirmed.

    `told`: as many of its entries as any daemon has seen, confirmed or not; all of them if it was listed as closed.
    `listed`: whether it was in a list that a daemon got.
    """

    ledger_id: int
    entries: list[bytes] = field(default_factory=list)
    created_ms: int | None = None
    closed_ms: int = 0
    deleted: bool = False
    hidden: int = 0
    told: int = 0
    listed: bool = False

    @property
    def closed(self) -> bool:
        """Whether nothing is added any more."""
        return self.closed_ms > 0

    def show(self, info: LedgerInfo) -> None:
        """Note what a list that a daemon got has of it."""
        self.listed, self.told = True, max(self.told, info.entries)

    @property
    def confirmed(self) -> int:
        """Number of entries that may be read."""
        return len(self.entries) if self.closed else max(0, len(self.entries) - self.hidden)

    def info(self) -> LedgerInfo:
        """Return the ledger as a list has it."""
        return LedgerInfo(
            ledger_id=self.ledger_id,
            closed=self.closed,
            entries=len(self.entries) if self.closed else 0,
            size_bytes=sum(map(len, self.entries)) if self.closed else 0,
            closed_at_ms=self.closed_ms,
            created_ms=self.created_ms,
        )


class Ledgers:
    """All topics as brokers see them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.chance.stream("ledgers")
        self._next_id = self._rng.randrange(1, 50)
        self.topics: dict[TopicName, list[Ledger]] = {}
        self.gone: set[TopicName] = set()
        self.unseen: set[tuple[TopicName, Position]] = set()
        """What was deleted before anybody could see it."""
        self.sources: list[Source] = []
        self.cluster: Cluster | None = None
        """The nodes and bookies that have all this, where daemons have the real source."""
        self.cluster_id = "simulated"

    def create(self, topic: TopicName) -> None:
        """Make a topic known."""
        self.topics.setdefault(topic, [])
        self._changed(topic)

    def ended(self, topic: TopicName, ledger_id: int) -> int | None:
        """Return how many entries a ledger has got for good, None while it is open."""
        ledger = next(one for one in self.topics[topic] if one.ledger_id == ledger_id)
        return len(ledger.entries) if ledger.closed else None

    def append(self, topic: TopicName, sizes: Sequence[int]) -> None:
        """Write entries; a topic that was deleted is there again."""
        self.gone.discard(topic)
        ledgers = self.topics[topic]
        if not ledgers or ledgers[-1].closed:
            ledgers.append(Ledger(self._next_id, created_ms=self._world.wall_ms()))
            self._next_id += self._rng.choice([1, 1, 2, 7])
        ledger = ledgers[-1]
        for size in sizes:
            head = f"{topic.local}/{ledger.ledger_id}:{len(ledger.entries)}/".encode()
            ledger.entries.append(head.ljust(size, b"."))
        ledger.hidden = self._rng.choice([0, 0, 0, 1, 2])
        self._changed(topic)

    def confirm(self, topic: TopicName) -> None:
        """Let everybody know what was written."""
        for ledger in self.topics[topic]:
            ledger.hidden = 0
        self._changed(topic)

    def roll(self, topic: TopicName) -> None:
        """Close the open ledger."""
        ledgers = self.topics[topic]
        if ledgers and not ledgers[-1].closed:
            ledgers[-1].closed_ms = self._world.wall_ms()
            self._changed(topic)

    def delete(self, topic: TopicName, ledger_id: int) -> None:
        """Delete a closed ledger, as retention does."""
        for ledger in self.topics[topic]:
            if ledger.ledger_id == ledger_id and ledger.closed:
                self._delete(topic, ledger)
        self._changed(topic)

    def _delete(self, topic: TopicName, ledger: Ledger) -> None:
        ledger.deleted = True
        if not ledger.listed:  # then nothing tells that it ever was: ids of ledgers have gaps
            self.unseen.update((topic, Position(ledger.ledger_id, at)) for at in range(len(ledger.entries)))

    def delete_topic(self, topic: TopicName) -> None:
        """Delete a topic with all its ledgers."""
        for ledger in self.topics[topic]:
            if not ledger.deleted:
                self.unseen.update(
                    (topic, Position(ledger.ledger_id, at)) for at in range(ledger.told, len(ledger.entries))
                )
        self.roll(topic)
        for ledger in self.topics[topic]:
            self._delete(topic, ledger)
        self.gone.add(topic)
        self._changed(topic)

    def find(self, topic: TopicName, ledger_id: int) -> Ledger:
        """Return a ledger that is still there. Raises NotFound."""
        for ledger in self.topics.get(topic, ()):
            if ledger.ledger_id == ledger_id and not ledger.deleted:
                return ledger
        raise NotFound(f"no ledger {ledger_id} in {topic}")

    def payload(self, topic: TopicName, position: Position) -> bytes | None:
        """Return what was written at a position, deleted or not."""
        for ledger in self.topics.get(topic, ()):
            if ledger.ledger_id == position.ledger_id and 0 <= position.entry_id < len(ledger.entries):
                return ledger.entries[position.entry_id]
        return None

    def following(self, topic: TopicName, position: Position) -> Position | None:
        """Return the position of the next entry that was written behind a position."""
        for ledger in self.topics.get(topic, ()):
            if ledger.ledger_id == position.ledger_id and position.entry_id + 1 < len(ledger.entries):
                return Position(ledger.ledger_id, position.entry_id + 1)
            if ledger.ledger_id > position.ledger_id and ledger.entries:
                return Position(ledger.ledger_id, 0)
        return None

    def newest(self, topic: TopicName) -> Position | None:
        """Return the newest entry that may be read."""
        for ledger in reversed(self.topics.get(topic, [])):
            if ledger.confirmed:
                return Position(ledger.ledger_id, ledger.confirmed - 1)
        return None

    def _changed(self, topic: TopicName) -> None:
        if self.cluster is not None:
            self.cluster.changed(topic)
        for source in self.sources:
            source.changed(topic)


class Source:
    """One process's LedgerSource. `misled` names the history that it reads instead of the topics' own, if it does."""

    def __init__(self, world: World, process: Process, misled: str = "") -> None:
        self._misled = misled
        self._world = world
        self._process = process
        self._ledgers = world.ledgers
        self._wire = Wire(world, process, "bk", label)
        self._rng = world.chance.stream(f"source of {process.name}")
        self._watches: dict[asyncio.Event, TopicName] = {}
        self._listed: dict[TopicName, list[LedgerInfo]] = {}
        world.ledgers.sources.append(self)

    def _seen(self, topic: TopicName) -> list[Ledger]:
        """Return the ledgers that are there, as this process sees them."""
        real = [one for one in self._ledgers.topics.get(topic, ()) if not one.deleted]
        if not self._misled or not real:
            return real
        if self._misled == NOWHERE:
            raise NotFound(f"unknown topic {topic}")
        if self._misled == BELOW:
            return [*real[:-1], replace(real[-1], entries=[], hidden=0, closed_ms=1)]
        ids = [one.ledger_id for one in real]
        if self._misled == AGAIN:
            ids = list(range(min(3, ids[-1] + 1)))
        elif self._misled in {ANOTHER, NAMELESS}:
            ids = [one + 1000 for one in ids]
        return [Ledger(one, [b"of another history"] * 30, created_ms=1, closed_ms=int(one != ids[-1])) for one in ids]

    def _find(self, topic: TopicName, ledger_id: int) -> Ledger:
        """Return a ledger that is there. Raises NotFound."""
        found = next((one for one in self._seen(topic) if one.ledger_id == ledger_id), None)
        if found is None:
            raise NotFound(f"no ledger {ledger_id} in {topic}")
        return found

    async def topics(self, *, tenant: str | None = None, namespace: str | None = None) -> Sequence[TopicName]:
        """See LedgerSource."""

        def act() -> list[TopicName]:
            found = [topic for topic in self._ledgers.topics if tenant in {None, topic.tenant}]
            return sorted(topic for topic in found if namespace in {None, topic.namespace})

        return await self._wire.call("topics", act, write=False)

    async def reserved(self, topic: TopicName) -> str | None:
        """See LedgerSource."""
        return None

    async def ledgers(self, topic: TopicName) -> Sequence[LedgerInfo]:
        """See LedgerSource."""

        def act() -> list[LedgerInfo]:
            if topic not in self._ledgers.topics or topic in self._ledgers.gone:
                raise NotFound(f"unknown topic {topic}")
            found = [(one, one.info()) for one in self._seen(topic)]
            for one, info in found:
                one.show(info)
            return [info for _, info in found]

        return await self._wire.call(f"ledgers {topic.local}", act, write=False)

    async def watch(self, topic: TopicName) -> AsyncGenerator[None, None]:
        """See LedgerSource."""
        event = asyncio.Event()
        self._watches[event] = topic
        try:
            while True:
                yield
                await event.wait()
                event.clear()
        finally:
            self._watches.pop(event, None)

    async def confirmed(self, topic: TopicName, ledger_id: int) -> Confirmed:
        """See LedgerSource."""

        def act() -> Confirmed:
            ledger = self._find(topic, ledger_id)
            ledger.told = max(ledger.told, len(ledger.entries))
            return Confirmed(ledger.confirmed - 1, ledger.closed, Edge.EXACT, len(ledger.entries) - ledger.confirmed)

        return await self._wire.call(f"confirmed {topic.local} {ledger_id}", act, write=False)

    async def read(
        self, topic: TopicName, ledger_id: int, first_entry_id: int, last_entry_id: int, *, batch_bytes: int
    ) -> AsyncGenerator[EntryBatch, None]:
        """See LedgerSource."""
        at = first_entry_id
        limit = min(batch_bytes, self._rng.choice([1, 200, 2000]))
        while at <= last_entry_id:

            def act(at: int = at) -> EntryBatch:
                entries = self._find(topic, ledger_id).entries
                end, size = at, 0
                while end <= last_entry_id and (end == at or size + len(entries[end]) <= limit):
                    size += len(entries[end])
                    end += 1
                return EntryBatch(ledger_id, at, entries[at:end])

            batch = await self._wire.call(f"read {topic.local} {ledger_id}:{at}", act, write=False)
            yield batch
            at = batch.last_entry_id + 1

    async def length_at(self, topic: TopicName, ledger_id: int, entry_id: int) -> int:
        """See LedgerSource."""

        def act() -> int:
            return sum(map(len, self._find(topic, ledger_id).entries[: entry_id + 1]))

        return await self._wire.call(f"length {topic.local} {ledger_id}:{entry_id}", act, write=False)

    async def identity(self) -> str | None:
        """See LedgerOrigin."""
        return await self._wire.call(
            "identity", lambda: OTHER_IDS.get(self._misled, self._ledgers.cluster_id), write=False
        )

    async def moved(self, topic: TopicName) -> str | None:
        """See LedgerOrigin."""
        return None

    async def inspected(self, topic: TopicName, ledger_id: int) -> LedgerInfo:
        """See LedgerOrigin."""
        act = lambda: self._find(topic, ledger_id).info()  # noqa: E731 - as short as its name
        return await self._wire.call(f"inspect {topic.local} {ledger_id}", act, write=False)

    async def described(self, topic: TopicName, ledger_id: int) -> bytes:
        """See LedgerDescriber."""
        for info in await self.ledgers(topic):
            if info.ledger_id == ledger_id:
                return plain_metadata(info)
        raise NotFound(f"{topic} has no ledger {ledger_id}")

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """See LedgerSource; as the embedded store does it."""

        def act() -> None:
            if any(one.ledger_id == ledger_id and not one.deleted for one in self._ledgers.topics[topic]):
                self._world.oracle.deleting_source(topic, ledger_id)
                self._ledgers.delete(topic, ledger_id)

        await self._wire.call(f"delete ledger {topic.local} {ledger_id}", act, write=True)

    async def listed(self, topic: TopicName) -> Collection[int]:
        """See LedgerRegister."""

        def act() -> list[int]:
            if topic not in self._ledgers.topics or topic in self._ledgers.gone:
                raise NotFound(f"unknown topic {topic}")
            found = {one.ledger_id for one in self._seen(topic)}
            newest = self._ledgers.topics[topic][-1:] if not self._misled else []  # it stays, whatever became of it
            return sorted(found.union(one.ledger_id for one in newest))

        return await self._wire.call(f"listed {topic.local}", act, write=False)

    async def create(self, topic: TopicName) -> None:
        """See LedgerStore; nobody asks for it."""
        raise Denied(f"{topic} is the broker's")

    async def append(self, topic: TopicName, payloads: Sequence[bytes]) -> Position:
        """See LedgerStore; nobody asks for it."""
        raise Denied(f"{topic} is the broker's; not {len(payloads)} entries")

    async def roll(self, topic: TopicName) -> None:
        """See LedgerStore; nobody asks for it."""
        raise Denied(f"{topic} is the broker's")

    def changed(self, topic: TopicName) -> None:
        """Wake the watches of a topic after a while."""
        told = [event for event, watched in self._watches.items() if watched == topic]
        if told:
            self._world.loop.in_world(0.01 + 0.1 * self._rng.random(), _set, told)

    def gone(self) -> None:
        """The process died."""
        self._world.ledgers.sources.remove(self)


def _set(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()
