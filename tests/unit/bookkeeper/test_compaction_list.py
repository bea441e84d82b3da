"""The list of a compaction's topic: the ledgers that its cursor names, or may name after a recovery."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from offloaderd.bookkeeper.metadata import LedgerState
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.errors import NotFound, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.names.managed_ledgers import COMPACTED_LEDGER, topic_path
from offloaderd.format.pb.pulsar import cursors_pb2 as pb
from offloaderd.ledgers.pulsar.internal_ledgers import ENDS_MAX
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.testing import FakeClock, payloads
from tests.unit.bookkeeper.fake_cluster import TOPIC, FakeCluster, FakeLedger, Shape

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

COMPACTION = replace(TOPIC, local=f"{TOPIC.local}/__compaction")


@pytest.fixture
def cluster() -> FakeCluster:
    """An empty cluster."""
    return FakeCluster()


@pytest.fixture
async def source(cluster: FakeCluster) -> AsyncIterator[BookKeeperLedgers]:
    """A source on the cluster."""
    async with BookKeeperLedgers(
        cluster.znodes, cluster.bookies, clock=FakeClock(), metrics=Metrics(), options=BookkeeperSettings()
    ) as opened:
        yield opened


def mark(ledger_id: int) -> pb.PositionInfo:
    """Return a position of the compaction's cursor that names a compacted ledger."""
    properties = [pb.LongProperty(name=COMPACTED_LEDGER, value=ledger_id)]
    return pb.PositionInfo(ledgerId=3, entryId=9, properties=properties)


async def test_the_list_of_a_compaction_is_the_ledger_that_its_cursor_names(
    source: BookKeeperLedgers, cluster: FakeCluster
) -> None:
    """In its node while the topic is closed, in the last entry of its ledger while it is loaded."""
    with pytest.raises(NotFound):
        await source.ledgers(COMPACTION)
    compacted = await cluster.ledger(ledger_id=70)
    written = payloads(5, 10)
    await compacted.write(written)
    await compacted.close()
    node = pb.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=3, markDeleteEntryId=9)
    path = f"{topic_path(TOPIC)}/__compaction"
    await cluster.znodes.create(path, node.SerializeToString())
    assert (list(await source.ledgers(COMPACTION)), list(await source.listed(COMPACTION))) == ([], [])
    node.properties.extend(mark(70).properties)
    await cluster.znodes.replace(path, node.SerializeToString(), (await cluster.znodes.get(path)).version)
    (info,) = await source.ledgers(COMPACTION)
    assert (info.ledger_id, info.entries, info.closed, info.replaces) == (70, 5, True, True)
    (batch,) = [batch async for batch in source.read(COMPACTION, 70, 0, 4, batch_bytes=1000)]
    assert batch.payloads == written
    assert "compaction" in (await source.reserved(COMPACTION) or "")

    cursors = await cluster.ledger(ledger_id=80)
    await cursors.write([mark(70).SerializeToString(), mark(75).SerializeToString()])
    node.cursorsLedgerId = 80
    await cluster.znodes.replace(path, node.SerializeToString(), (await cluster.znodes.get(path)).version)
    assert list(await source.listed(COMPACTION)) == [75]
    assert list(await source.ledgers(COMPACTION)) == []  # BookKeeper does not have it
    cluster.bookies.down |= {*cursors.metadata.ensembles[0].bookies}
    with pytest.raises(Transient, match="cannot read which ledger the last compaction made"):
        await source.listed(COMPACTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursors:
    """The ledger of a compaction's cursor, on three bookies; two have to store an entry before its writer goes on."""

    cluster: FakeCluster
    source: BookKeeperLedgers
    ledger: FakeLedger

    async def write(self, ledger_id: int, *on: str, lac: int | None = None) -> None:
        """Write a position that names a compacted ledger, to some bookies, or all."""
        await self.ledger.write([mark(ledger_id).SerializeToString()], on=on or None, lac=lac)

    async def listed(self) -> list[int]:
        """Return the list of the compaction's topic."""
        return list(await self.source.listed(COMPACTION))


@pytest.fixture
async def cursors(source: BookKeeperLedgers, cluster: FakeCluster) -> Cursors:
    """A cursor with one position, which all bookies have and which names ledger 70; its node names ledger 65."""
    ledger = await cluster.ledger(Shape(ensemble=3, write_quorum=3, ack_quorum=2), ledger_id=80)
    node = pb.ManagedCursorInfo(cursorsLedgerId=80, markDeleteLedgerId=3, markDeleteEntryId=9)
    node.properties.extend(mark(65).properties)
    await cluster.znodes.create(f"{topic_path(TOPIC)}/__compaction", node.SerializeToString())
    found = Cursors(cluster=cluster, source=source, ledger=ledger)
    await found.write(70)
    return found


async def test_a_position_that_its_writer_waited_for_is_the_only_one(cursors: Cursors) -> None:
    """Two bookies have it, as the writer asked for: no recovery drops it, though no entry says that it is confirmed."""
    assert await cursors.listed() == [70]
    await cursors.write(75, "b0", "b2")
    assert await cursors.listed() == [75]


async def test_both_ledgers_are_listed_until_the_newest_position_cannot_get_lost(cursors: Cursors) -> None:
    """The broker crashes in the write; whatever its recovery makes of it, the ledger that counts was always listed."""
    await cursors.write(75, "b2")
    assert await cursors.listed() == [70, 75]
    assert await cursors.listed() == [70, 75]  # however long nobody recovers it
    await cursors.ledger.change(state=LedgerState.IN_RECOVERY)
    assert await cursors.listed() == [70, 75]
    cursors.cluster.bookies.down.add("b2")
    assert await cursors.listed() == [70]  # what is of 75 is not below the newest ledger, so it is not deleted
    await cursors.ledger.close(0)
    assert await cursors.listed() == [70]


async def test_the_ledger_before_is_listed_no_more_once_a_recovery_has_kept_the_newest_position(
    cursors: Cursors,
) -> None:
    """It stores the entry on the other bookies first, and closes the ledger with it then."""
    await cursors.write(75, "b2")
    await cursors.ledger.change(state=LedgerState.IN_RECOVERY)
    cursors.ledger.store("b1", 1)
    assert await cursors.listed() == [75]
    cursors.cluster.bookies.down.add("b1")
    assert await cursors.listed() == [70, 75]  # one of the two cannot be asked: a doubt
    await cursors.ledger.close()
    assert await cursors.listed() == [75]


async def test_a_later_entry_that_knows_a_position_as_confirmed_is_believed(cursors: Cursors) -> None:
    """Also where the bookies that have both cannot be asked, but one."""
    await cursors.write(75, "b1", "b2")
    cursors.cluster.bookies.down.add("b1")
    assert await cursors.listed() == [70, 75]
    await cursors.write(78, "b2", lac=1)
    assert await cursors.listed() == [75, 78]


async def test_all_positions_that_may_get_lost_have_their_ledgers_listed(cursors: Cursors) -> None:
    """Down to the newest that cannot; one of them that cannot be read leaves the list unknown."""
    await cursors.write(75, "b1", lac=-1)
    await cursors.write(78, "b1", lac=-1)
    assert await cursors.listed() == [70, 75, 78]
    cursors.ledger.lose("b1", 1)
    with pytest.raises(Transient, match="cannot read which ledger the last compaction made"):
        await cursors.listed()


async def test_a_position_behind_one_that_may_get_lost_may_get_lost_as_well(cursors: Cursors) -> None:
    """A recovery ends before the first entry that is missing, on however many bookies the next ones are."""
    await cursors.write(75, "b1", lac=-1)
    await cursors.write(78, "b1", "b2", lac=-1)
    assert await cursors.listed() == [70, 75, 78]
    cursors.ledger.store("b0", 1, lac=-1)
    assert await cursors.listed() == [78]
    for bookie_id in ("b1", "b2"):
        cursors.ledger.lose(bookie_id, 0)
    assert await cursors.listed() == [65, 70, 75, 78]


async def test_a_new_ensemble_confirms_what_was_before_it(cursors: Cursors) -> None:
    """Its first entry may get lost, and so the position before it counts too, but none before that."""
    await cursors.write(75, "b1", lac=-1)
    await cursors.ledger.next_ensemble(["b1", "b2", "b4"])
    assert await cursors.listed() == [75]
    await cursors.write(78, "b4", lac=-1)
    assert await cursors.listed() == [75, 78]


async def test_the_node_of_a_cursor_counts_while_its_ledger_may_turn_out_empty(cursors: Cursors) -> None:
    """The first entry of its ledger is on one bookie alone."""
    for bookie_id in ("b1", "b2"):
        cursors.ledger.lose(bookie_id, 0)
    assert await cursors.listed() == [65, 70]


async def test_more_positions_than_a_cursor_leaves_unconfirmed_are_a_doubt(cursors: Cursors) -> None:
    """They are not read without a limit."""
    for number in range(ENDS_MAX):
        await cursors.write(100 + number, "b1", lac=-1)
    with pytest.raises(Transient, match="may be dropped by a recovery"):
        await cursors.listed()


async def test_a_compacted_ledger_that_may_be_named_again_is_no_loss(cursors: Cursors) -> None:
    """Both are offloaded, in their order, from BookKeeper; the later one replaces the other."""
    for ledger_id in (70, 75):
        compacted = await cursors.cluster.ledger(ledger_id=ledger_id)
        await compacted.write(payloads(2))
        await compacted.close()
    await cursors.write(75, "b2")
    first, second = await cursors.source.ledgers(COMPACTION)
    assert (first.ledger_id, first.closed, first.replaces) == (70, True, True)
    assert (second.ledger_id, second.closed, second.replaces) == (75, True, True)
