"""What the role offload can make of a daemon by asking for ledgers of topics that nobody spoke of."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from offloaderd.api.broker import NAME_BYTES_MAX
from offloaderd.core.errors import Conflict, DomainNotCovered, InvalidInput, OffloaderError, TopicUnknown
from offloaderd.metadata import paths
from offloaderd.protocol.errors import code_of
from offloaderd.protocol.v1 import broker_pb2
from tests.unit.api.test_broker_service import Listing, Served, served
from tests.unit.api.test_manual import CALLER
from tests.unit.read.build import sample
from tests.unit.rigs.rig import TOPIC, Rig
from tests.unit.topic.test_triggers import ledger_rig

if TYPE_CHECKING:
    from offloaderd.core.model import TopicName

REAL_TIME = "gRPC"


async def ensure(one: Served, topic: str, ledger_id: int = 0) -> broker_pb2.EnsureLedgerResponse:
    """Return the first report about a ledger."""
    request = broker_pb2.EnsureLedgerRequest(topic=topic, ledger_id=ledger_id, last_entry_id=9, length_bytes=9)
    async for report in one.service.EnsureLedger(request, CALLER):
        return report
    raise AssertionError


async def known(rig: Rig, topic: TopicName = TOPIC) -> int:
    """Return how many topics of a namespace have nodes."""
    return len(await rig.tree.connect().children(paths.namespace(topic)))


def counted(rig: Rig, outcome: str) -> float:
    """Return how often it ended so."""
    return sample(rig.metrics, "offloaderd_broker_topics_total", {"outcome": outcome})


async def test_nothing_is_made_of_what_pulsars_list_has_not() -> None:
    """Neither a topic nor a ledger that somebody has thought out; what the list has is enabled."""
    rig = ledger_rig(Rig().policy)
    async with served(rig, register=Listing(None)) as one:
        with pytest.raises(TopicUnknown, match="Pulsar's list has no persistent://public/default/made-up"):
            await ensure(one, "made-up")
        one.service.topics._register = Listing({3})
        with pytest.raises(TopicUnknown, match="no ledger 0"):
            await ensure(one, "orders")
        assert (await known(rig), counted(rig, "unlisted")) == (0, 2)
        assert "being enabled" in (await ensure(one, "orders", 3)).message
        assert (await known(rig), counted(rig, "enabled")) == (1, 1)


async def test_a_namespace_holds_so_many_topics_of_brokers() -> None:
    """However many are asked for at once, and also where no list can be read; another namespace has its own number."""
    rig = ledger_rig(Rig().policy)
    async with served(rig) as one:
        one.service.topics.namespace_topics_max = 3
        answers = await asyncio.gather(  # noqa: TID251 - what they raise is looked at
            *(ensure(one, f"t-{number}") for number in range(9)), return_exceptions=True
        )
        refused = [answer for answer in answers if isinstance(answer, OffloaderError)]
        assert len(refused) == 6
        assert all(isinstance(error, Conflict) and "namespace_topics_max" in error.hint for error in refused)
        assert (await known(rig), counted(rig, "full"), counted(rig, "enabled")) == (3, 6, 3)
        assert "being enabled" in (await ensure(one, "public/other/t")).message
        assert (await ensure(one, "t-0")).message != ""  # what is enabled goes on


async def test_a_tenant_holds_so_many_namespaces_of_brokers() -> None:
    """Else whoever may offload a tenant's topics fills ZooKeeper with them; what is there already goes on growing."""
    rig = ledger_rig(Rig().policy)
    async with served(rig) as one:
        one.service.topics.tenant_namespaces_max = 2
        for namespace in ("a", "b"):
            assert "being enabled" in (await ensure(one, f"public/{namespace}/t")).message
        for name in ("public/c/t", "public/d/t"):
            with pytest.raises(Conflict, match="public has 2 namespaces here") as refused:
                await ensure(one, name)
            assert "tenant_namespaces_max" in refused.value.hint
        assert "being enabled" in (await ensure(one, "public/b/t2")).message
        assert "being enabled" in (await ensure(one, "other/a/t")).message
        with pytest.raises(Conflict, match="this deployment has 2 tenants here"):
            await ensure(one, "third/a/t")
        assert await rig.tree.connect().children(paths.TOPICS) == ["other", "public"]
        assert counted(rig, "full") == 3


async def test_a_topic_of_another_domain_is_refused_and_never_called_gone() -> None:
    """Pulsar 5.0's segments: the broker keeps the ledger, and nothing is made of the name."""
    rig = ledger_rig(Rig().policy)
    async with served(rig) as one:
        with pytest.raises(DomainNotCovered, match="not 'segment'") as refused:
            await ensure(one, "segment://public/default/orders/0000-7fff-1")
        assert code_of(refused.value) is grpc.StatusCode.FAILED_PRECONDITION
        assert "BookKeeper" in refused.value.hint
        assert await known(rig) == 0


async def test_a_name_is_as_long_as_an_object_can_hold() -> None:
    """Each of its characters may be nine in ZooKeeper, and a folder of such names could not be listed."""
    rig = ledger_rig(Rig().policy)
    async with served(rig) as one:
        with pytest.raises(InvalidInput, match="too long"):
            await ensure(one, "€" * (NAME_BYTES_MAX // 9))
        assert await known(rig) == 0
        assert "being enabled" in (await ensure(one, "x" * 900)).message


async def test_a_compacted_ledger_is_offloaded_where_pulsars_list_is_read() -> None:
    """Under a name of its own; without the list nothing would keep its copy for as long as it is needed."""
    compaction = "public/default/orders/__compaction"
    rig = ledger_rig(Rig().policy)
    async with served(rig) as one:
        with pytest.raises(Conflict, match="which compacted ledger of persistent://public/default/orders is still"):
            await ensure(one, compaction, 3)
        assert await known(rig) == 0
    async with served(rig, register=Listing({3})) as one:
        assert "being enabled" in (await ensure(one, compaction, 3)).message
        assert await known(rig) == 1
