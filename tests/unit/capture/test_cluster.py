"""What is read of a cluster: policies, properties, subscriptions and schemas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from offloaderd.capture.cluster import PulsarMetadata
from offloaderd.capture.records import Kind, cursor_of, schema_of
from offloaderd.core.errors import Conflict, Denied, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position, TopicName
from offloaderd.core.names.managed_ledgers import topic_path
from offloaderd.format.pb.pulsar import cursors_pb2 as pb
from offloaderd.format.pb.pulsar import schemas_pb2
from offloaderd.format.pb.pulsar.ml_data_formats_pb2 import ManagedLedgerInfo
from offloaderd.ledgers.pulsar.managed_ledger import flag_path
from offloaderd.ledgers.pulsar.source import BookKeeperLedgers
from offloaderd.testing import FakeClock
from tests.unit.bookkeeper.fake_cluster import TOPIC, FakeCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.capture.cluster import Taken
    from offloaderd.metadata.port import Versioned
    from tests.unit.bookkeeper.fake_cluster import FakeLedger

PARTITION = TopicName.parse("public/default/trips-partition-1")
WHOLE = TopicName.parse("public/default/trips")
SUBSCRIPTION = (Kind.SUBSCRIPTION, str(TOPIC), "a b")


@pytest.fixture
def cluster() -> FakeCluster:
    """An empty cluster."""
    return FakeCluster()


@pytest.fixture
async def pulsar(cluster: FakeCluster) -> AsyncIterator[PulsarMetadata]:
    """What captures read it with."""
    async with BookKeeperLedgers(cluster.znodes, cluster.bookies, clock=FakeClock(), metrics=Metrics()) as source:
        yield PulsarMetadata(cluster.znodes, source.internal, lists_root="/managed-ledgers/")


async def topic_with_cursor(cluster: FakeCluster, node: pb.ManagedCursorInfo) -> None:
    """Write the list of a topic with a property, and one cursor."""
    listed = ManagedLedgerInfo()
    listed.properties.add(key="colour", value="red")
    await cluster.znodes.create("/admin/policies/public", json.dumps({"allowedClusters": ["c"]}).encode())
    path = topic_path(TOPIC)
    if await cluster.exists(path):  # as that of the cursor's ledger, which the fake lists
        await cluster.znodes.delete(path)
    await cluster.znodes.create(path, listed.SerializeToString())
    await cluster.znodes.create(f"{topic_path(TOPIC)}/a+b", node.SerializeToString())


def at(entry_id: int) -> bytes:
    """Return an entry of a cursor's ledger."""
    return pb.PositionInfo(ledgerId=3, entryId=entry_id).SerializeToString()


async def loaded(cluster: FakeCluster, *entries: bytes) -> FakeLedger:
    """Open a topic whose cursor has a ledger with these entries, and began at 3:0."""
    ledger = await cluster.ledger(ledger_id=70)
    await ledger.write(entries)
    node = pb.ManagedCursorInfo(cursorsLedgerId=70, markDeleteLedgerId=3, markDeleteEntryId=0)
    node.cursorProperties.add(name="owner", value="me")
    await topic_with_cursor(cluster, node)
    return ledger


def mark_delete(taken: Taken) -> Position:
    """Return the captured position of the one cursor."""
    return cursor_of(taken.records[SUBSCRIPTION]).mark_delete


async def test_the_cursor_of_a_closed_topic_is_in_its_node(cluster: FakeCluster, pulsar: PulsarMetadata) -> None:
    """With the properties of the topic; names are as users know them."""
    node = pb.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=3, markDeleteEntryId=41)
    await topic_with_cursor(cluster, node)
    taken = await pulsar.take([TOPIC])
    assert mark_delete(taken) == Position(3, 41)
    assert taken.records[Kind.PROPERTIES, str(TOPIC), ""] == {"colour": "red"}
    assert taken.records[Kind.TENANT, "public", ""] == {"allowedClusters": ["c"]}
    assert not taken.problems


async def test_a_cursor_without_a_position_has_acknowledged_nothing(
    cluster: FakeCluster, pulsar: PulsarMetadata
) -> None:
    """The position is optional, and not that of entry 0 of ledger 0."""
    await topic_with_cursor(cluster, pb.ManagedCursorInfo(cursorsLedgerId=-1))
    assert mark_delete(await pulsar.take([TOPIC])) == Position(-1, -1)


@pytest.mark.parametrize("closed", [False, True])
async def test_the_cursor_of_a_loaded_topic_is_the_last_entry_of_its_ledger(
    cluster: FakeCluster, pulsar: PulsarMetadata, *, closed: bool
) -> None:
    """Confirmed or not: its consumers have acknowledged it. The subscription's own properties are in the node."""
    ledger = await loaded(cluster, at(5), at(9))
    if closed:
        await ledger.close()
    taken = await pulsar.take([TOPIC])
    assert mark_delete(taken) == Position(3, 9)
    assert cursor_of(taken.records[SUBSCRIPTION]).texts == (("owner", "me"),)
    assert not taken.problems


async def test_the_newest_position_of_any_bookie_counts(cluster: FakeCluster, pulsar: PulsarMetadata) -> None:
    """One lacks the last entry, and one is down; after a change of bookies the new ones may have nothing."""
    ledger = await loaded(cluster, at(5), at(9))
    ledger.lose("b0", 1)
    assert mark_delete(await pulsar.take([TOPIC])) == Position(3, 9)
    await ledger.next_ensemble(["b3", "b4"])
    assert mark_delete(await pulsar.take([TOPIC])) == Position(3, 9)
    cluster.bookies.down.add("b1")
    assert mark_delete(await pulsar.take([TOPIC])) == Position(3, 5)
    await ledger.write([at(11)])
    assert mark_delete(await pulsar.take([TOPIC])) == Position(3, 11)


@pytest.mark.parametrize("failure", ["gone", "empty", "closed", "down", "damaged"])
async def test_a_cursor_whose_ledger_cannot_be_read_is_as_it_was_when_that_began(
    cluster: FakeCluster, pulsar: PulsarMetadata, failure: str
) -> None:
    """Consumers get more again, never less. It is a problem unless the ledger has nothing yet."""
    ledger = await loaded(cluster, *([] if failure in {"empty", "closed"} else [at(5)]))
    if failure == "gone":
        await ledger.delete()
    elif failure == "closed":
        await ledger.close()
    elif failure == "down":
        cluster.bookies.down |= {"b0", "b1"}
    elif failure == "damaged":
        ledger.spoil("b0", 0)
        ledger.spoil("b1", 0)
    taken = await pulsar.take([TOPIC])
    assert mark_delete(taken) == Position(3, 0)
    assert len(taken.problems) == (failure not in {"empty", "closed"})


async def test_a_cursor_whose_ledger_is_given_up_meanwhile_is_read_again(
    cluster: FakeCluster, pulsar: PulsarMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its consumer has gone back before that, and would not get again what it asked for."""
    ledger = await loaded(cluster, at(5))
    get, path = cluster.znodes.get, f"{topic_path(TOPIC)}/a+b"
    closed = pb.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=2, markDeleteEntryId=7)

    async def unloaded_after(read: str) -> Versioned:
        found = await get(read)
        if read == path and found.version == 0:
            await cluster.znodes.replace(path, closed.SerializeToString(), 0)
            await ledger.delete()
        return found

    monkeypatch.setattr(cluster.znodes, "get", unloaded_after)
    taken = await pulsar.take([TOPIC])
    assert mark_delete(taken) == Position(2, 7)
    assert not taken.problems


async def test_a_store_that_does_not_answer_ends_the_capture(
    cluster: FakeCluster, pulsar: PulsarMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the newest one would lack subscriptions that the last one has."""
    await topic_with_cursor(cluster, pb.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=3))
    get = cluster.znodes.get

    async def away(path: str) -> Versioned:
        if path.endswith("/a+b"):
            raise Transient("away")
        return await get(path)

    monkeypatch.setattr(cluster.znodes, "get", away)
    with pytest.raises(Transient):
        await pulsar.take([TOPIC])


async def test_a_schema_of_bookies_that_do_not_answer_is_a_problem(
    cluster: FakeCluster, pulsar: PulsarMetadata
) -> None:
    """It changes rarely, and earlier captures have it. Who asks for it alone gets an error, and not none."""
    info = schemas_pb2.SchemaInfo(schema_id="s", user="u", type=3, schema=b"{}", timestamp=1, deleted=False)
    ledger = await cluster.ledger(ledger_id=80)
    await ledger.write([schemas_pb2.SchemaEntry(schema_data=info.SerializeToString()).SerializeToString()])
    entry = schemas_pb2.IndexEntry(version=0, position=schemas_pb2.PositionInfo(ledgerId=80, entryId=0), hash=b"")
    node = schemas_pb2.SchemaLocator(info=entry, index=[entry]).SerializeToString()
    await cluster.znodes.create(f"/schemas/{TOPIC.tenant}/{TOPIC.namespace}/{TOPIC.local}", node)
    cluster.bookies.down |= {"b0", "b1"}
    taken = await pulsar.take([TOPIC])
    assert ["version 0 of the schema" in one for one in taken.problems if "schema" in one] == [True]
    with pytest.raises(Transient, match="no bookie answered"):
        await pulsar.schema_versions(TOPIC)


async def test_bookies_that_want_other_credentials_end_the_capture(
    cluster: FakeCluster, pulsar: PulsarMetadata
) -> None:
    """Else every capture would be old for a reason that an operator has to mend."""
    await loaded(cluster, at(5))
    cluster.bookies.locked |= {"b0", "b1"}
    with pytest.raises(Denied):
        await pulsar.take([TOPIC])


async def test_policies_that_may_not_be_read_are_a_problem_beside_the_rest(
    cluster: FakeCluster, pulsar: PulsarMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that only offloads needs the lists of ledgers alone."""
    await topic_with_cursor(cluster, pb.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=3))
    get = cluster.znodes.get

    async def refused(path: str) -> Versioned:
        if path.startswith(("/admin", "/schemas")):
            raise Denied(f"no right to read {path}")
        return await get(path)

    monkeypatch.setattr(cluster.znodes, "get", refused)
    taken = await pulsar.take([TOPIC])
    assert SUBSCRIPTION in taken.records
    assert ["/admin" in one for one in taken.problems] == [True] * 3


async def test_secrets_are_left_out_of_policies(cluster: FakeCluster, pulsar: PulsarMetadata) -> None:
    """Namespaces may hold the credentials of Pulsar's own offloader."""
    policies = {
        "offload_policies": {
            "managedLedgerOffloadDriver": "aws-s3",
            "s3ManagedLedgerOffloadCredentialId": "id",
            "s3ManagedLedgerOffloadCredentialSecret": "hush",
        },
        "list": [{"password": "hush"}],
    }
    await cluster.znodes.create("/admin/policies/public/default", json.dumps(policies).encode())
    taken = await pulsar.take([TOPIC])
    found = taken.records[Kind.NAMESPACE, "public/default", ""]
    assert "hush" not in json.dumps(found)
    assert found["offload_policies"]["s3ManagedLedgerOffloadCredentialId"] == "id"


async def test_partitions_share_the_schema_and_the_number_of_their_topic(
    cluster: FakeCluster, pulsar: PulsarMetadata
) -> None:
    """Each version is an entry of a ledger; one that is lost is a problem, and the others are there."""
    entries = []
    for number, content in enumerate((b"first", b"second")):
        info = schemas_pb2.SchemaInfo(
            schema_id="trips", user="u", type=3, schema=content, timestamp=number, deleted=False
        )
        entries.append(schemas_pb2.SchemaEntry(schema_data=info.SerializeToString()).SerializeToString())
    ledger = await cluster.ledger(ledger_id=80)
    await ledger.write(entries)
    entry, position = schemas_pb2.IndexEntry, schemas_pb2.PositionInfo
    index = [entry(version=n, position=position(ledgerId=80 + n // 2, entryId=n % 2), hash=b"") for n in range(3)]
    node = schemas_pb2.SchemaLocator(info=index[-1], index=index).SerializeToString()
    await cluster.znodes.create("/schemas/public/default/trips", node)
    await cluster.znodes.create("/admin/partitioned-topics/public/default/persistent/trips", b'{"partitions": 2}')
    taken = await pulsar.take([PARTITION])
    assert taken.records[Kind.PARTITIONS, str(WHOLE), ""] == {"partitions": 2}
    found = {key[2]: schema_of(value) for key, value in taken.records.items() if key[0] == Kind.SCHEMA}
    assert {name: (one.type, one.content) for name, one in found.items()} == {
        "0": ("JSON", b"first"),
        "1": ("JSON", b"second"),
    }
    assert any("ledger 81" in one for one in taken.problems)


async def test_nodes_that_cannot_be_read_are_problems_beside_the_rest(
    cluster: FakeCluster, pulsar: PulsarMetadata
) -> None:
    """A damaged one hides no other."""
    await topic_with_cursor(cluster, pb.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=3))
    await cluster.znodes.create(f"{topic_path(TOPIC)}/broken", b"\xff")
    await cluster.znodes.create("/admin/policies/public/default", b"{")
    await cluster.znodes.create("/admin/partitioned-topics/public/default/persistent/flights", b"[" * 100_000)
    await cluster.znodes.create("/schemas/public/default/flights", b"\xff")
    taken = await pulsar.take([TOPIC])
    assert SUBSCRIPTION in taken.records
    assert len(taken.problems) == 4
    taken.problems *= 100
    assert taken.told()[-1] == "and 300 more"


async def test_a_cluster_that_moves_its_metadata_is_not_captured(cluster: FakeCluster, pulsar: PulsarMetadata) -> None:
    """Cursors do not change here any more; a capture would be old, and say that it is new."""
    await topic_with_cursor(cluster, pb.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=3))
    flag = flag_path("/managed-ledgers")
    await cluster.znodes.create(flag, b'{"phase": "COMPLETED", "targetUrl": "oxia://there"}')
    with pytest.raises(Conflict, match="oxia"):
        await pulsar.take([TOPIC])
    await cluster.znodes.replace(flag, b'{"phase": "FAILED"}', 0)
    assert SUBSCRIPTION in (await pulsar.take([TOPIC])).records


async def test_policies_in_another_store_are_a_problem(cluster: FakeCluster, pulsar: PulsarMetadata) -> None:
    """A cluster may keep them in a configuration store, and then nothing of them is in its own ZooKeeper."""
    taken = await pulsar.take([TOPIC])
    assert ["configuration store" in one for one in taken.problems] == [True]
    assert (await pulsar.take([])).problems == []
