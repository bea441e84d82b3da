"""QuotaService over gRPC and a running engine, and the quotas of calls at the gate."""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from offloaderd.access.roles import Grant, Identity, Kind, Rights, Role
from offloaderd.api.gate import Gate
from offloaderd.api.quota import QuotaService
from offloaderd.api.roles_needed import NEEDS
from offloaderd.core.errors import InvalidInput, Throttled
from offloaderd.core.limits import FLOW
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.names.patterns import Scope
from offloaderd.core.quotas import Accounts, Quotas, Usage
from offloaderd.metadata import paths
from offloaderd.policy import quotas
from offloaderd.policy.quotas import DaemonUsage
from offloaderd.protocol.v1 import quota_pb2, quota_pb2_grpc, read_pb2
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryTree
from tests.unit.api.guarded import guarded
from tests.unit.api.serve import Client, serving
from tests.unit.api.test_gate_shares import READ, Caller
from tests.unit.rigs.counted import CountedMetadata
from tests.unit.rigs.rig import Rig, enabled, memory_ledgers, until
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.fleet.engine import Engine
    from offloaderd.metadata.port import MetadataStore

REAL_TIME = "gRPC"

Said = quota_pb2.Quotas


@asynccontextmanager
async def served(metadata: MetadataStore | None = None) -> AsyncIterator[tuple[Client, Engine]]:
    """Run an engine and its service."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine(metadata=metadata) as engine:
        service = QuotaService(engine, "d-1")
        async with serving(
            Metrics(), lambda server: quota_pb2_grpc.add_QuotaServiceServicer_to_server(service, server)
        ) as channel:
            yield Client(channel), engine


async def test_quotas_are_set_shown_and_removed() -> None:
    """Each level with its own values, who set them, those in force, and the use."""
    async with served() as (client, engine):
        await enabled(engine)
        await client.set_quotas("*", Said(readers=5))
        done = await client.set_quotas("public/default", Said(topics=0, calls=-1))
        assert done.notes == ["topics of public/default is 1 already, beyond the quota"]
        assert not (await client.set_quotas("public/new", Said(topics=0), dry_run=True)).notes, (
            "it has none of the tenant's"
        )
        found = {one.name: one for one in (await client.quotas()).namespaces}
        assert found.keys() == {"*", "public", "public/default"}
        assert found["*"].own == Said(readers=5)
        space = found["public/default"]
        assert space.own == Said(topics=0, calls=-1)
        assert space.effective == Said(topics=0, calls=-1, readers=5)
        assert (space.used.topics, space.changed_ms > 0, space.changed_by != "") == (1, True, True)
        assert [one.name for one in (await client.quotas("public/default")).namespaces] == ["public/default"]
        assert (await client.set_quotas("public/default", Said(calls=1), dry_run=True)).before == space.own
        assert (await client.set_quotas("public", Said(calls=1))).notes == [
            "these hold for all namespaces of public together"
        ]
        await client.set_quotas("public/default", Said())
        await until(lambda: engine.context.accounts.at(Scope("public", "default")).limits == Quotas(readers=5))
        with pytest.raises(InvalidInput, match="write_bytes_per_s: 0 is not"):
            await client.set_quotas("public", Said(write_bytes_per_s=0, weight=2000))


async def test_a_page_reads_only_whether_quotas_have_changed() -> None:
    """What another daemon has set is read before it is notified, and nothing without a change."""
    tree = MemoryTree()
    store, other, clock = CountedMetadata(tree), tree.connect(), LoopClock()
    async with served(store) as (client, engine):
        for number in range(20):
            await quotas.put(other, clock, Scope("acme", f"n{number}"), Quotas(calls=number), by="alice")
        await until(lambda: len(engine.quotas.levels) == 20)
        store.below(paths.QUOTAS)
        first = await client._quota.ListQuotas(quota_pb2.ListQuotasRequest(page_size=5))
        assert store.below(paths.QUOTAS) == [paths.QUOTAS]
        request = quota_pb2.ListQuotasRequest(page_size=5, page_token=first.next_page_token)
        assert (await client._quota.ListQuotas(request)).namespaces[0].name == "acme/n11"
        assert store.below(paths.QUOTAS) == [paths.QUOTAS]
        await quotas.put(other, clock, Scope("acme", "n1"), Quotas(calls=99), by="alice")
        assert (await client.quotas("acme/n1")).namespaces[0].own == Said(calls=99)


async def test_sums_without_an_account_are_shown() -> None:
    """A bill has also what another daemon has counted, and this one for a namespace that it no longer works on."""
    async with served() as (client, engine):
        engine.context.accounts.usage[Scope("acme", "old")] = Usage(requests=3, stored_byte_s=7200.0)
        engine.quotas.others["d-2"] = DaemonUsage(
            since_ms=5, at_ms=6, namespaces={Scope("acme", name): Usage(requests=1) for name in ("old", "theirs")}
        )
        await client.set_quotas("*", Said(readers=5))
        found = (await client.quotas("acme")).namespaces
        assert [(one.name, one.requests, one.stored_byte_hours) for one in found] == [
            ("acme/old", 4, 2.0),
            ("acme/theirs", 1, 0.0),
        ]
        assert [(one.effective, one.HasField("used"), one.since_ms) for one in found] == [
            (Said(readers=5), False, 5)
        ] * 2


def test_calls_of_a_namespace_are_counted_at_the_gate() -> None:
    """From the request that names it to the end of the call; the call works in its flow."""
    gate = Gate(Metrics(), FakeClock())
    accounts = gate.accounts = Accounts(FakeClock(), Metrics())
    accounts.follow({Scope("acme", "eu"): Quotas(readers=2)})
    account = accounts.at(Scope("acme", "eu"))
    request = read_pb2.ReadRequest(topic="acme/eu/orders")
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(gate.admitted(READ, Caller("spark"), stream=True)).check(request)
        assert FLOW.get() is account
        third = stack.enter_context(gate.admitted(READ, Caller("spark"), stream=True))
        with pytest.raises(Throttled, match="acme/eu has 2 readers open already: its quota is readers = 2"):
            third.check(request)
        other = stack.enter_context(gate.admitted(READ, Caller("spark"), stream=True))
        other.check(read_pb2.ReadRequest(topic="acme/us/orders"))
        assert account.open == {"calls": 2, "readers": 2}
        assert accounts.at(Scope("acme")).open == {"calls": 3, "readers": 3}, "one of a namespace without an account"
        stack.enter_context(gate.admitted(READ, Caller("spark"), stream=True)).check(
            read_pb2.ReadRequest(topic="umbrella/us/orders")
        )
        assert accounts.nobody.open == {"calls": 1, "readers": 1}
    assert not +account.open
    assert not +accounts.nobody.open


async def test_what_is_sent_to_readers_is_counted() -> None:
    """Messages wait for their rate before they are unpacked, and no more once they hold memory."""
    async with guarded() as site, site.client() as client:
        accounts = site.gate.accounts = Accounts(FakeClock(), Metrics())
        accounts.follow({Scope("acme", "eu"): Quotas(read_bytes_per_s=1 << 20)})
        account = accounts.at(Scope("acme", "eu"))
        reading = client._reads.ReadMessages(read_pb2.ReadRequest(topic="acme/eu/orders"))
        await reading.read()
        while not account.behind_s("read_bytes_per_s"):
            await reading.read()
        assert account.usage.read_bytes > 1 << 20
        assert await reading.read()
        reading.cancel()
        await until(lambda: not +account.open)


async def test_what_is_sent_to_readers_is_paced() -> None:
    """Entries at a megabyte a second: the next ones wait once a second's worth is used up."""
    async with guarded() as site, site.client() as client:
        clock = FakeClock()
        accounts = site.gate.accounts = Accounts(clock, Metrics())
        accounts.follow({Scope("acme", "eu"): Quotas(read_bytes_per_s=1 << 20)})
        account = accounts.at(Scope("acme", "eu"))
        account.sent(2 << 20)
        reading = client._reads.Read(read_pb2.ReadRequest(topic="acme/eu/orders"))
        await until(lambda: clock.sleep_count == 1)
        assert account.usage.read_bytes == 2 << 20
        await clock.advance(1.0)
        assert await reading.read()
        reading.cancel()
        await until(lambda: not +account.open)


def test_nobody_sets_quotas_of_his_own() -> None:
    """Those of a namespace need the role for its tenant, those of a tenant and the broker level that for everything."""
    need = NEEDS["/offloaderd.v1.QuotaService/SetQuotas"]
    rights = Rights(map(Grant.parse, ["admin ns acme/eu/*", "admin tenant acme/*", "admin all *"]))

    def may(name: str, level: str) -> bool:
        wheres = list(need.named(quota_pb2.SetQuotasRequest(level=level)))
        return all(rights.allow([Identity(Kind.TOKEN, name)], Role.ADMIN, where) for where in wheres)

    assert need.role is Role.ADMIN
    assert [may(name, "acme/eu") for name in ("ns", "tenant", "all")] == [False, True, True]
    assert [may(name, "acme") for name in ("ns", "tenant", "all")] == [False, False, True]
    assert [may(name, "*") for name in ("ns", "tenant", "all")] == [False, False, True]
