"""Shadow topics (PIP-180): a broker reads by the shadow's name what the source has offloaded, and no more."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.access.roles import Grant, Identity, Kind, Rights
from offloaderd.access.tokens import TokenKey
from offloaderd.api.gate import CALLER, Caller, NotAllowed, check_source
from offloaderd.api.roles_needed import NEEDS
from offloaderd.core.errors import Denied, NotFound, TopicUnknown, Transient
from offloaderd.core.model import TopicName
from offloaderd.core.names.managed_ledgers import SHADOW_SOURCE, shadow_source
from offloaderd.protocol.v1 import admin_pb2, broker_pb2
from tests.authority import Authority, token
from tests.unit.api.guarded import Admin, guarded
from tests.unit.api.test_broker_service import OBJECT, Listing, Served, length_of, served
from tests.unit.api.test_manual import CALLER as CONTEXT
from tests.unit.fleet.test_engine import appended
from tests.unit.rigs.rig import TOPIC, Rig, payloads
from tests.unit.topic.test_triggers import ledger_rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

REAL_TIME = "gRPC"

SHADOW = TopicName.parse("other/ns/shadow")
SECRET = bytes(range(1, 33))


class Shadows(Listing):
    """Pulsar's list, in which one topic is the shadow of the one that is offloaded."""

    away = False

    async def source_topic(self, topic: TopicName) -> TopicName | None:
        """Return whose ledgers it reads."""
        if self.away:
            raise Transient("no connection to ZooKeeper")
        if topic == SHADOW:
            return TOPIC
        raise NotFound("no such topic")


@asynccontextmanager
async def covered() -> AsyncIterator[tuple[Served, list[bytes]]]:
    """Serve a topic with a shadow, whose ledger 0 is covered; with its entries."""
    rig = ledger_rig(Rig().policy)
    everything = await appended(rig, payloads(15))
    async with served(rig, register=Shadows({0, 1})) as one:
        await one.ensure(0, 10, length_of(everything, 0))
        yield one, [payload for position, payload in everything if position.ledger_id == 0]


def of(topic: object) -> broker_pb2.OffloadedLedger:
    """Name ledger 0 as a ledger of a topic."""
    return broker_pb2.OffloadedLedger(topic=str(topic), ledger_id=0, object_id=OBJECT)


async def read(one: Served, topic: object) -> list[bytes]:
    """Open ledger 0 and read all of it as one of a topic."""
    opened = await one.service.OpenLedger(broker_pb2.OpenLedgerRequest(ledger=of(topic)), CONTEXT)
    return await one.read_of(of(topic), 0, opened.last_entry_id)


async def test_a_shadow_reads_what_its_source_has_offloaded() -> None:
    """Also while nobody has said anything of the shadow; a topic that is no shadow reads nobody's."""
    async with covered() as (one, entries):
        assert await read(one, SHADOW) == entries
        with pytest.raises(TopicUnknown):
            await read(one, "other/ns/mallory")


async def test_what_was_said_of_a_shadow_stands_while_pulsar_cannot_be_asked() -> None:
    """A topic is made as a shadow: reads go on without Pulsar's metadata, of topics that were asked for before."""
    async with covered() as (one, entries):
        await read(one, SHADOW)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Shadows, "away", True)
            assert await read(one, SHADOW) == entries
            with pytest.raises(Transient):
                await read(one, "other/ns/mallory")


async def test_a_topics_own_ledger_is_read_without_a_word_of_pulsars() -> None:
    """What the map has is the topic's: Pulsar's metadata may be away, nor can it say that it is another's."""
    async with covered() as (one, entries):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Shadows, "away", True)
            assert await read(one, TOPIC) == entries


async def test_who_reads_by_a_shadow_may_read_the_source() -> None:
    """Whoever administers a namespace says whose shadow its topics are: that gives nobody a right to the source."""
    path = "/offloaderd.v1.BrokerService/ReadLedger"
    bob = Identity(Kind.TOKEN, "bob")
    async with covered() as (one, entries):
        for grants, allowed in ((["read bob other/ns/*"], False), (["read bob other/ns/*", f"read bob {TOPIC}"], True)):
            rights = Rights(Grant.parse(text) for text in grants)
            caller = Caller(need=NEEDS[path], path=path, rights=rights, send_s_max=9, name="bob", identities=(bob,))
            CALLER.set(caller)
            if allowed:
                assert await read(one, SHADOW) == entries
                continue
            opening = one.service.OpenLedger(broker_pb2.OpenLedgerRequest(ledger=of(SHADOW)), CONTEXT)
            reading = one.read_of(of(SHADOW), 0, 9)
            planning = one.service.PlanLedger(
                broker_pb2.ReadLedgerRequest(ledger=of(SHADOW), first_entry_id=0, last_entry_id=9), CONTEXT
            )
            for attempt in (opening, reading, planning):
                with pytest.raises(NotAllowed, match="role read"):
                    await attempt
            assert caller.named[-1] == "public/default/orders"


async def test_the_end_of_a_shadow_deletes_nothing_of_its_source() -> None:
    """Its broker drops the ledger from the shadow's list; the source's broker still reads it."""
    async with covered() as (one, entries):
        one.service.register = Shadows(())
        answer = await one.service.DeleteLedger(broker_pb2.DeleteLedgerRequest(ledger=of(SHADOW)), CONTEXT)
        assert answer.outcome == "nothing"
        assert await read(one, TOPIC) == entries


async def test_a_service_checks_the_caller_of_its_own_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the gate, by the grants of who called."""

    async def status(self: Admin, request: Any, context: Any) -> admin_pb2.StatusResponse:  # noqa: ANN401
        check_source(TOPIC)
        return admin_pb2.StatusResponse(daemon_id="d")

    monkeypatch.setattr(Admin, "Status", status)
    ca, keys = Authority(tmp_path), [TokenKey(SECRET, ("HS256",))]
    grants = ("read bob other/ns/*", "read alice *")
    async with guarded(files=ca.server(), grants=grants, token_keys=lambda: keys) as site:
        async with site.client(ca_file=ca.file, token=token(SECRET, "alice")) as client:
            await client.status(SHADOW)
        async with site.client(ca_file=ca.file, token=token(SECRET, "bob")) as client:
            with pytest.raises(Denied, match="orders"):
                await client.status(SHADOW)


def test_a_shadow_is_told_by_a_property_of_its_list() -> None:
    """Partitions of a shadow are shadows of partitions; what is no name is nobody's."""
    named = {SHADOW_SOURCE: "persistent://a/b/c"}
    assert shadow_source(SHADOW, {}) is None
    assert shadow_source(SHADOW, {SHADOW_SOURCE: "a/"}) is None
    assert shadow_source(SHADOW, named) == TopicName.parse("a/b/c")
    assert shadow_source(TopicName.parse("x/y/z-partition-3"), named) == TopicName.parse("a/b/c-partition-3")
    third = {SHADOW_SOURCE: "persistent://a/b/c-partition-3"}
    assert shadow_source(TopicName.parse("x/y/z-partition-3"), third) == TopicName.parse("a/b/c-partition-3")
