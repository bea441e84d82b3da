"""The reader of live segments over a real connection: entries, errors of the daemon, and a daemon that is away."""

from __future__ import annotations

import pickle

import pytest

from offloaderd.client import Trust, Unreachable
from offloaderd.core.errors import CorruptData, EntriesDeleted
from offloaderd.core.model import Position, TopicName
from offloaderd.metadata.committed import LedgerSlice
from offloaderd.spark.scan.live import LiveReader, NotGiven
from offloaderd.spark.scan.share import Daemon as Named
from offloaderd.spark.scan.share import LiveSegment
from tests.unit.client.fleet import Daemon, at, serving

REAL_TIME = "gRPC"
TOPIC = TopicName("public", "default", "orders")


def segment(*slices: tuple[int, int, int]) -> LiveSegment:
    """Return a live segment of these ledgers."""
    held = tuple(LedgerSlice(*one, payload_bytes=1) for one in slices)
    return LiveSegment(slices=held, object_bytes=len(held))


async def test_entries_come_over_breaks_and_errors_as_they_are() -> None:
    """A stream that breaks is opened again; errors keep their kinds; what is passed over is noticed."""
    daemon = Daemon(breaks=[(2, None)])
    wanted = segment((0, 4, 9), (1, 0, 9), (2, 0, 4))
    async with serving(daemon), LiveReader(pickle.dumps(Named((daemon.address,), Trust()))) as live:
        assert not daemon.reads
        found = [one async for one in live.read(TOPIC, wanted, at(4), at(23))]
        assert [int(data) for batch in found for data in batch.payloads] == list(range(4, 24))
        assert len(daemon.reads) == 2
        for error in (EntriesDeleted("gone"), CorruptData(key="k", offset=1, expected="a", found="b")):
            daemon.breaks = [(1, error)]
            with pytest.raises(type(error)):
                [one async for one in live.read(TOPIC, wanted, at(4), at(23))]
        with pytest.raises(NotGiven) as caught:
            [one async for one in live.read(TOPIC, segment((0, 4, 9), (1, 0, 12)), at(4), Position(1, 12))]
        assert caught.value.upto < Position(2, 0)


async def test_a_daemon_that_is_away() -> None:
    """Nobody is there; the address is named."""
    async with LiveReader(Named(("127.0.0.1:1",), Trust())) as live:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
            await anext(live.read(TOPIC, segment((0, 0, 3)), at(0), at(3)))
