"""PolicyService over real gRPC and a running engine: what is said, what holds, who said it, all mistakes at once."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from offloaderd.api.policy import PolicyService
from offloaderd.core.errors import InvalidInput, NotFound, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Retained
from offloaderd.metadata import paths
from offloaderd.policy.rules import Surroundings
from offloaderd.protocol.v1 import policy_pb2, policy_pb2_grpc
from tests.unit.api.serve import Client, serving
from tests.unit.rigs.rig import TOPIC, Rig, enabled, memory_ledgers, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.api.policy import Retention
    from offloaderd.fleet.engine import Engine

REAL_TIME = "gRPC"

BROKER = policy_pb2.PolicyLevel(broker=True)
NAMESPACE = policy_pb2.PolicyLevel(namespace="public/default")
ORDERS = policy_pb2.PolicyLevel(topic="orders")
Said = policy_pb2.OffloadPolicies


@asynccontextmanager
async def served(
    place: Surroundings | None = None, retained: Retention | None = None
) -> AsyncIterator[tuple[Client, Engine]]:
    """Run an engine and its service."""
    rig = Rig()
    rig.ledgers = memory_ledgers(rig.clock)
    async with rig.engine() as engine:
        metadata = rig.tree.connect()
        service = PolicyService(engine.levels, metadata, place or Surroundings(places=(("b", ""),)), retained=retained)
        async with serving(
            Metrics(), lambda server: policy_pb2_grpc.add_PolicyServiceServicer_to_server(service, server)
        ) as channel:
            yield Client(channel), engine


def held(found: policy_pb2.GetPoliciesResponse, name: str) -> tuple[object, str]:
    """Return a value that holds, and who said it."""
    [origin] = [one for one in found.origins if one.field == name]
    return getattr(found.effective, name), f"{origin.origin} {origin.name}".strip()


async def test_what_holds_for_a_topic_comes_from_all_levels() -> None:
    """Each value with its level; what was said of the topic itself apart; it takes effect in the running topic."""
    async with served() as (client, engine):
        topic = await enabled(engine)
        await client.set_policies(
            BROKER, Said(segment_age_max_s=50.0, read_priority="tiered-first", segment_bytes_max=7)
        )
        await client.set_policies(NAMESPACE, Said(segment_age_max_s=40.0, deletion_lag_s=-3.0))
        done = await client.set_policies(ORDERS, Said(segment_bytes_max=9, history_order="alongside"))
        assert [(one.topic, one.outcome) for one in done.topics] == [(str(TOPIC), "changed")]
        found = await client.policies(ORDERS)
        assert found.own == Said(segment_bytes_max=9, history_order="alongside")
        assert (found.enabled, found.selected_by, found.damage) == (True, "", "")
        assert held(found, "segment_bytes_max") == (9, f"topic {TOPIC}")
        assert held(found, "segment_age_max_s") == (40.0, "namespace public/default")
        assert held(found, "deletion_lag_s") == (-1.0, "namespace public/default")
        assert held(found, "read_priority") == ("tiered-storage-first", "broker")
        assert held(found, "outage") == ("source", "settings")
        assert held(found, "method")[1] == "settings"
        assert held(found, "retention") == ("keep", "default")
        await until(lambda: (topic.policy.segment_bytes_max, topic.policy.segment_age_max_s) == (9, 40.0))
        above = await client.policies(NAMESPACE)
        assert above.own == Said(segment_age_max_s=40.0, deletion_lag_s=-1.0)
        assert held(above, "segment_bytes_max") == (7, "broker")
        assert not above.HasField("enabled")


async def test_a_topic_that_nobody_spoke_of_has_what_it_would_inherit() -> None:
    """It is not known to be enabled or disabled."""
    async with served() as (client, _):
        await client.set_policies(BROKER, Said(segment_bytes_max=7))
        found = await client.policies(ORDERS)
        assert (found.HasField("enabled"), held(found, "segment_bytes_max")) == (False, (7, "broker"))


async def test_every_mistake_of_a_policy_is_told_and_nothing_is_stored() -> None:
    """Wrong values and contradictions, with what is inherited as well, each with its name and range."""
    async with served(Surroundings(places=(("b", ""),), has_source=False)) as (client, engine):
        await client.set_policies(BROKER, Said(segment_age_max_s=5.0))
        with pytest.raises(InvalidInput) as caught:
            await client.set_policies(
                NAMESPACE,
                Said(
                    method="ledger-based",
                    segment_bytes_max=-1,
                    segment_age_min_s=6.0,
                    threshold_s=float("nan"),
                    bucket="elsewhere",
                    read_priority="fast",
                ),
            )
        said = caught.value.message.splitlines()
        begins = ["segment_bytes_max", "threshold_s", "read_priority", "segment_age_min_s", "method", "bucket"]
        assert [line.split()[0].rstrip(":") for line in said] == begins
        assert "of the broker" in said[3]
        assert not engine.book.namespaces
        for level in (policy_pb2.PolicyLevel(), policy_pb2.PolicyLevel(broker=False)):
            with pytest.raises(InvalidInput, match="no level"):
                await client.set_policies(level, Said(segment_bytes_max=1))
        for name in ("", "public", "a/b/c", "a/*", "re:a/b", "/b", "a b/c"):
            with pytest.raises(InvalidInput, match="malformed namespace"):
                await client.policies(policy_pb2.PolicyLevel(namespace=name))
        with pytest.raises(InvalidInput, match="says nothing"):
            await client.set_policies(NAMESPACE, Said())


async def test_a_dry_run_reports_and_changes_nothing() -> None:
    """For which topics what would change; at every level, for setting and removing."""
    async with served() as (client, engine):
        await enabled(engine)
        for level in (BROKER, NAMESPACE, ORDERS):
            done = await client.set_policies(level, Said(segment_age_max_s=5.0), dry_run=True)
            [effect] = done.topics
            assert (effect.topic, effect.outcome) == (str(TOPIC), "changed")
            assert list(effect.differences) == ["segment_age_max_s: 1 h -> 5 s"]
            assert (await client.policies(level)).own == Said()
            await client.set_policies(level, Said(segment_age_max_s=5.0))
            gone = await client.remove_policies(level, dry_run=True)
            assert list(gone.topics[0].differences) == ["segment_age_max_s: 5 s -> 1 h"]
            assert (await client.policies(level)).own == Said(segment_age_max_s=5.0)
            await client.remove_policies(level)
            with pytest.raises(NotFound):
                await client.remove_policies(level)


async def test_an_operator_is_told_what_may_surprise() -> None:
    """Without thresholds ledgers go by hand; a method of the broker enables nothing."""
    async with served() as (client, _):
        done = await client.set_policies(BROKER, Said(method="ledger-based"))
        assert [note.split(" ")[0] for note in done.notes] == ["without", "a"]
        done = await client.set_policies(BROKER, Said(method="ledger-based", threshold_bytes=0))
        assert [note.split(" ")[0] for note in done.notes] == ["a"]
        done = await client.set_policies(NAMESPACE, Said(method="streaming"))
        assert not done.notes


async def test_thresholds_are_compared_with_what_pulsar_retains() -> None:
    """Where it is known; where it is not, that is said and the policy is set all the same."""
    asked: list[tuple[str, str]] = []

    async def retained(tenant: str, namespace: str) -> Retained:
        asked.append((tenant, namespace))
        if len(asked) == 1:
            raise Transient("the broker is away")
        return Retained(3600.0, 1_000_000)

    ledgers = Said(method="ledger-based", threshold_s=3600.0)
    async with served(retained=retained) as (client, _):
        done = await client.set_policies(NAMESPACE, ledgers)
        assert "not compared" in done.notes[0]
        assert "away" in done.notes[0]
        with pytest.raises(InvalidInput, match="not less than the 1 h"):
            await client.set_policies(ORDERS, ledgers)
        assert asked == [("public", "default")] * 2
        assert not (await client.set_policies(NAMESPACE, Said(method="streaming"))).notes
        assert len(asked) == 2
        with pytest.raises(InvalidInput, match="segment_age_max_s"):
            await client.set_policies(NAMESPACE, Said(segment_age_max_s=3600.0))
        await client.set_policies(NAMESPACE, Said(method="ledger-based", threshold_s=3599.0, threshold_bytes=999_999))
        with pytest.raises(InvalidInput, match=r"threshold_bytes.*Pulsar retains of a topic"):
            await client.set_policies(NAMESPACE, Said(method="ledger-based", threshold_bytes=1_000_000))
        await client.set_policies(BROKER, ledgers)

    async def nothing(_tenant: str, _namespace: str) -> Retained:
        return Retained(0.0)

    async with served(Surroundings(has_brokers=False), nothing) as (client, _):
        assert not (await client.set_policies(NAMESPACE, Said(segment_age_max_s=9.0))).notes
    async with served(retained=nothing) as (client, _):
        assert "acknowledged" in (await client.set_policies(NAMESPACE, ledgers)).notes[0]
    async with served() as (client, _):
        assert "pulsar.admin_url" in (await client.set_policies(NAMESPACE, ledgers)).notes[0]


async def test_what_cannot_be_read_is_told() -> None:
    """A damaged record of a level or a topic, with what holds meanwhile; saying something again mends it."""
    async with served() as (client, engine):
        await client.set_policies(NAMESPACE, Said(segment_bytes_max=7))
        store = engine.levels.book._store
        path = paths.namespace_policy("public", "default")
        await store.replace(path, b"\xff", (await store.get(path)).version)
        found = await client.policies(NAMESPACE)
        assert found.damage
        assert held(found, "segment_bytes_max") == (7, "namespace public/default")
        await client.set_policies(NAMESPACE, Said(segment_bytes_max=8))
        assert not (await client.policies(NAMESPACE)).damage
        await enabled(engine)
        await store.replace(paths.policy(TOPIC), b"\xff", (await store.get(paths.policy(TOPIC))).version)
        assert (await client.policies(ORDERS)).damage
        await client.set_policies(ORDERS, Said(segment_bytes_max=9))
        assert (await client.policies(ORDERS)).own == Said(segment_bytes_max=9)
