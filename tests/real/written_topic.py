"""A topic without a broker: its list of ledgers and the ledgers themselves, written as a broker does it.

    topic = await written_topic(writer, "public/default/t", plan=Plan(ensemble=2))
    await topic.add(payloads)              # to the open ledger
    await topic.roll()                     # closes it, opens the next one, and only now lists what the old one holds
    await topic.trim(1)                    # retention: the oldest ledger goes from the list, then from BookKeeper
    topic.ledger                           # the open WrittenLedger, for everything odd

The list says of a ledger what a broker's does at that time: entries, size and time appear at the roll-over, not at the
close. A broker crash is `close` without `roll`; a ledger that a broker takes over is recovered first (`take_over`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offloaderd.core.errors import NotFound
from offloaderd.core.model import TopicName
from offloaderd.core.names.managed_ledgers import MANAGED_LEDGER_KEY, topic_path
from offloaderd.ledgers.pulsar.managed_ledger import ListedLedger, ManagedLedger
from tests.real.pulsar_nodes import encode
from tests.real.writer import Plan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.real.pulsar_nodes import Compression
    from tests.real.writer import LedgerWriter
    from tests.real.written_ledger import WrittenLedger


class WrittenTopic:
    """A topic in the hands of a test. Use `written_topic` to make one."""

    def __init__(self, writer: LedgerWriter, name: TopicName, plan: Plan, compression: Compression | None) -> None:
        self.name = name
        self.path = topic_path(name)
        self.compression = compression
        self.ledgers: list[WrittenLedger] = []
        """All that have been made, trimmed ones too; the last one is open."""
        self.listed = ManagedLedger()
        """What the list says now."""
        self._writer = writer
        custom = {"application": b"pulsar", "component": b"managed-ledger"}
        custom[MANAGED_LEDGER_KEY] = name.managed_ledger.encode()
        self._plan = replace(plan, custom={**custom, **plan.custom})

    @property
    def ledger(self) -> WrittenLedger:
        """The ledger that was opened last."""
        return self.ledgers[-1]

    async def add(self, payloads: Iterable[bytes], *, window: int = 64) -> None:
        """Add entries to the open ledger; returns once all are acknowledged. Raises Refused."""
        await self.ledger.add(payloads, window=window)

    async def roll(self, plan: Plan | None = None) -> WrittenLedger:
        """Close the open ledger, go on in a new one (made by `plan`, if given) and list both."""
        if self.ledgers and not self.ledger.metadata.closed:
            await self.ledger.close()
        how = self._plan if plan is None else replace(plan, custom={**self._plan.custom, **plan.custom})
        new = await self._writer.create(how)
        listed = self.listed.ledgers
        if self.ledgers and listed and listed[-1].ledger_id == self.ledger.ledger_id:
            listed = (*listed[:-1], self._closed(self.ledger))
        self.ledgers.append(new)
        await self.write(replace(self.listed, ledgers=(*listed, ListedLedger(ledger_id=new.ledger_id))))
        return new

    async def take_over(self) -> WrittenLedger:
        """Load the topic as another broker does: recover the open ledger, then roll."""
        self.ledgers[-1] = await self._writer.open(self.ledger.ledger_id)
        await self.ledger.recover()
        return await self.roll()

    async def trim(self, count: int, *, keep_nodes: bool = False) -> None:
        """Drop the oldest ledgers from the list and then delete them, unless `keep_nodes`."""
        gone = {ledger.ledger_id for ledger in self.listed.ledgers[:count]}
        await self.write(replace(self.listed, ledgers=self.listed.ledgers[count:]))
        for ledger in self.ledgers:
            if ledger.ledger_id in gone and not keep_nodes:
                await ledger.delete()

    async def write(self, listed: ManagedLedger) -> None:
        """Write the list as told, whatever it says."""
        value = encode(listed, self.compression)
        store = self._writer.store
        try:
            version = (await store.get(self.path)).version
        except NotFound:
            await store.create(self.path, value)
        else:
            await store.replace(self.path, value, version)
        self.listed = listed

    async def add_cursor(self, encoded: str) -> None:
        """Make a child of the topic's node, which is what a subscription is."""
        await self._writer.store.create(f"{self.path}/{encoded}", b"")

    async def delete(self) -> None:
        """Delete the topic: the ledgers' nodes, then its own with its cursors."""
        for ledger in self.listed.ledgers:
            await (await self._writer.open(ledger.ledger_id)).delete()
        for cursor in await self._writer.store.children(self.path):
            await self._writer.store.delete(f"{self.path}/{cursor}")
        await self._writer.store.delete(self.path)

    def _closed(self, ledger: WrittenLedger) -> ListedLedger:
        metadata = ledger.metadata
        return ListedLedger(
            ledger_id=ledger.ledger_id,
            entries=(-1 if metadata.last_entry_id is None else metadata.last_entry_id) + 1,
            size_bytes=metadata.length_bytes,
            closed_at_ms=self._writer.clock.wall_ms(),
        )


async def written_topic(
    writer: LedgerWriter, name: str, *, plan: Plan | None = None, compression: Compression | None = None
) -> WrittenTopic:
    """Make a topic with one open ledger; every ledger of it is made by `plan`."""
    topic = WrittenTopic(writer, TopicName.parse(name), plan or Plan(), compression)
    await topic.roll()
    return topic
