"""Live queries of topics whose newest entries are in a daemon's buffer alone."""

from __future__ import annotations

import pytest

from offloaderd.core.errors import Transient
from offloaderd.core.model import EntryBatch
from offloaderd.testing.builders import payloads
from tests.unit.read.build import TOPIC
from tests.unit.spark.lake import options
from tests.unit.spark.live_daemon import LiveTopic


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
