"""Live queries of ledgers that nobody lists, or not all of them: their entries are in a daemon's buffer alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.model import EntryBatch
from offloaderd.protocol.v1 import retention_pb2
from offloaderd.testing.builders import payloads
from tests.unit.read.build import TOPIC
from tests.unit.spark.lake import entries, options
from tests.unit.spark.live_daemon import LiveTopic

if TYPE_CHECKING:
    from offloaderd.core.model import TopicName


@pytest.mark.parametrize("committed", [0, 5, 10])
async def test_entries_that_only_a_buffer_has_are_waited_for(committed: int) -> None:
    """Pulsar has deleted their ledger, and their segment is open: nobody lists it, and they are not left out."""
    topic = LiveTopic(ledger_entries_max=10)
    async with topic.reader:
        await topic.arrive(payloads(25, ledger_id=1))
        await topic.commit(committed)
        gone = committed // 10
        held = [one for one in topic.entries[committed:] if one[0].ledger_id == gone]
        before = topic.entries[committed - 1][0] if committed else None
        topic.hot.add(EntryBatch(gone, held[0][0].entry_id, [data for _, data in held]), before)
        for ledger_id in range(gone + 1):
            await topic.source.delete(TOPIC, ledger_id)
        with pytest.raises(Transient, match=f"has {held[0][0]}, before {gone + 1}:0, and its ledger"):
            await topic.planned(options())


class Unlisting(LiveTopic):
    """A daemon whose list of ledgers lacks what it has: `fewer` entries of ledger 2, or all of it."""

    fewer = 0
    lists = True

    async def ledgers(self, topic: TopicName | str) -> retention_pb2.ListLedgersResponse:
        """Answer as RetentionService."""
        found = await super().ledgers(topic)
        kept = [one for one in found.ledgers if one.ledger_id != 2 or self.lists]
        for one in kept:
            one.entries -= self.fewer if one.ledger_id == 2 else 0
        return retention_pb2.ListLedgersResponse(ledgers=kept)


@pytest.mark.parametrize("partition_bytes", [150, 10**9])
async def test_what_is_missing_inside_the_live_end_is_told(partition_bytes: int) -> None:
    """At the end of an inner ledger, and between two: tasks begin there, and none of them reads over it."""
    topic = Unlisting(ledger_entries_max=10)
    wish = options(partition_bytes=partition_bytes)
    async with topic.reader:
        await topic.arrive(payloads(45, ledger_id=1))
        await topic.commit(5)
        topic.fewer = 1
        with pytest.raises(Transient, match="has 2:9, before 3:0, and its ledger is neither"):
            await topic.planned(wish)
        topic.fewer, topic.lists = 0, False
        with pytest.raises(Transient, match="has 2:0, before 3:0, and its ledger is neither"):
            await topic.planned(wish)
        topic.lists = True
        assert entries(await topic.rows(wish)) == [(at.ledger_id, at.entry_id, data) for at, data in topic.entries]
