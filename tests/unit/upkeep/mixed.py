"""A topic of both methods, made by engines: streamed segments, whole ledgers, the rest of a ledger, and again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random  # noqa: TID251 - a seed of the test's own
from typing import TYPE_CHECKING

from offloaderd.core.model import OffloadMethod, Position, TopicName
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.segment.roll import RollPolicy
from offloaderd.upkeep.stored import Site
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, offloader_of, payloads, turn, until_offloaded

if TYPE_CHECKING:
    from offloaderd.metadata.topic_map.map import TopicMap

SITE = Site(cluster="test", bucket="b", prefix="seg/")
STREAMING = RollPolicy(segment_bytes_max=1 << 30, segment_age_max_s=0.05)
WHOLE = replace(STREAMING, method=OffloadMethod.LEDGER_BASED, threshold_bytes=0)


@dataclass
class Mixed:
    """The topic's rig, and its model: every entry in order."""

    rig: Rig
    entries: dict[Position, bytes]

    async def map(self) -> TopicMap:
        """Return what is committed."""
        return await catalog.load(self.rig.tree.connect(), TOPIC)

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return it, as a daemon's maps do."""
        return await catalog.load(self.rig.tree.connect(), topic)

    async def flip(self, key: str, at: int) -> bytes:
        """Flip a bit of an object; returns how it was."""
        before, info = await self.rig.store.get(key), await self.rig.store.head(key)
        data = bytearray(before)
        data[at] ^= 1 << at % 8
        await self.rig.store.put(key, bytes(data), metadata=info.metadata)
        return before


async def mixed_topic() -> Mixed:
    """Stream a ledger and a half, take the rest of that ledger and three more whole, and stream again."""
    rig = Rig(policy=STREAMING, readback=True)
    source = rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=40)
    entries: dict[Position, bytes] = {}

    async def append(count: int, seed: int) -> Position:
        for payload in payloads(count, seed=seed):
            entries[await source.append(TOPIC, [payload])] = payload
        return max(entries)

    last = await append(60, 1)
    async with rig.engine("one") as engine:
        topic = await enabled(engine)
        await until_offloaded(topic, last)
        topic.follow(WHOLE)
        await append(140, 2)
        await source.roll(TOPIC)
        await until_offloaded(topic, max(entries))
    last = await append(55, 3)
    async with rig.engine("two") as engine:
        await until_offloaded(await offloader_of(engine), last)
    return Mixed(rig, entries)


async def random_topic(seed: int) -> Mixed:
    """Let a few owners work on a topic, each by a method of its own, whose ledgers close, and sometimes vanish."""
    chance = Random(seed)  # noqa: S311 - repeatable on purpose
    rig = Rig(policy=STREAMING)
    source = rig.ledgers = memory_ledgers(rig.clock, ledger_entries_max=chance.choice([7, 20, 45]))
    entries: dict[Position, bytes] = {}
    for number in range(5):
        for payload in payloads(chance.randrange(1, 60), seed=number):
            entries[await source.append(TOPIC, [payload])] = payload
        last = max(entries)
        by_ledger = chance.random() < 0.6
        if by_ledger:
            await source.roll(TOPIC)
        if number and chance.random() < 0.4:
            old = [one.ledger_id for one in await source.ledgers(TOPIC) if one.ledger_id < last.ledger_id]
            for ledger_id in old[: chance.randrange(len(old) + 1)]:
                await source.delete(TOPIC, ledger_id)
        rig.policy = replace(WHOLE if by_ledger else STREAMING, segment_bytes_max=chance.choice([800, 3000, 100_000]))
        async with rig.engine(f"owner-{number}") as engine:
            topic = await (offloader_of(engine) if number else enabled(engine))
            while topic.offloaded is None or topic.offloaded < last:
                await topic.request_roll()
                await turn()
    return Mixed(rig, entries)


def whole(topic_map: TopicMap) -> list[int]:
    """Return the ledgers that lie in objects of their own."""
    return [one.begin.ledger_id for one in topic_map.segments if one.method is OffloadMethod.LEDGER_BASED]
