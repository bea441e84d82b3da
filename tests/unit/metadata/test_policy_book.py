"""What holds for a topic: which level is narrower than which, and what becomes of records that cannot be read."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import TopicName
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata import paths
from offloaderd.policy.policies import Level, OffloadPolicies, Origin
from offloaderd.policy.records import LevelPolicy, TopicPolicy, decode_level, encode_level, encode_policy
from offloaderd.policy.resolver import PolicyResolver, node_of
from offloaderd.testing.memory.metadata import MemoryMetadata, MemoryTree
from tests.unit.policy.test_effective import POLICIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOPIC = TopicName.parse("acme/eu/orders")
DAEMON = [Level(Origin.SETTINGS, OffloadPolicies(segment_bytes_max=1, segment_age_max_s=1.0, deletion_lag_s=1.0))]


@asynccontextmanager
async def stored(**nodes: OffloadPolicies | bytes) -> AsyncIterator[MemoryMetadata]:
    """A store in which broker, and namespaces written `tenant__namespace`, say something."""
    async with MemoryTree().connect() as store:
        for name, said in nodes.items():
            where = None if name == "broker" else tuple(name.split("__"))
            value = said if isinstance(said, bytes) else encode_level(LevelPolicy(said, 7))
            await store.create(node_of(where), value)  # type: ignore[arg-type]
        yield store


def size(value: int) -> OffloadPolicies:
    """Say one value."""
    return OffloadPolicies(segment_bytes_max=value)


@pytest.mark.parametrize(
    ("selected_by", "origin", "name"),
    [
        ("", Origin.TOPIC, str(TOPIC)),
        ("acme/eu/orders", Origin.TOPIC, str(TOPIC)),
        ("acme/eu/*", Origin.SELECTION, "acme/eu/*"),
        ("acme/*", Origin.NAMESPACE, "acme/eu"),
        ("re:acme/eu/o.*", Origin.NAMESPACE, "acme/eu"),
        ("re:(", Origin.NAMESPACE, "acme/eu"),
    ],
)
async def test_what_is_said_of_a_namespace_stands_between_the_patterns(
    selected_by: str, origin: Origin, name: str
) -> None:
    """Names and the namespace's own pattern are narrower than its policy, tenants and expressions are not."""
    async with stored(broker=size(2), acme__eu=size(3), acme__us=size(4)) as store:
        book = PolicyResolver(store, DAEMON)
        await book.load()
        policy = TopicPolicy(segment_bytes_max=5, segment_age_max_s=5.0, selected_by=selected_by)
        found = book.effective(TOPIC, policy)
        assert found.levels["segment_bytes_max"][::2] == (origin, name)
        assert found.values.segment_bytes_max == (3 if origin is Origin.NAMESPACE else 5)
        assert found.values.segment_age_max_s == 5.0  # which the namespace does not say
        assert found.levels["deletion_lag_s"].origin is Origin.SETTINGS
        assert book.effective(replace(TOPIC, namespace="us"), None).values.segment_bytes_max == 4
        elsewhere = book.effective(replace(TOPIC, namespace="asia"), None)
        assert (elsewhere.values.segment_bytes_max, elsewhere.known) == (2, False)


async def test_a_topic_is_looked_up_with_all_levels() -> None:
    """One that nobody spoke of is told from one without values; `fresh` sees what others wrote meanwhile."""
    async with stored(acme__eu=size(3)) as store:
        book = PolicyResolver(store)
        assert not (found := await book.of(TOPIC)).known
        assert found.values.segment_bytes_max == 3
        await store.create(paths.policy(TOPIC), encode_policy(TopicPolicy(segment_age_max_s=9.0)))
        path = node_of(("acme", "eu"))
        await store.replace(path, encode_level(LevelPolicy(size(8))), (await store.get(path)).version)
        assert (await book.of(TOPIC)).known
        assert (await book.of(TOPIC)).values.segment_bytes_max == 3
        assert (await book.of(TOPIC, fresh=True)).values.segment_bytes_max == 8


async def test_what_cannot_be_read_leaves_what_was_known() -> None:
    """A damaged record is told and changes nothing for who knew the last one; for others it says nothing."""
    async with stored(broker=size(2), acme__eu=OffloadPolicies(), acme__us=b"\xff") as store:
        book = PolicyResolver(store)
        await book.load()
        assert book.unread == {("acme", "us")}
        for path in (node_of(None), node_of(("acme", "eu"))):
            await store.replace(path, b"\xff", (await store.get(path)).version)
        await book.load()
        assert book.damaged == {node_of(None), node_of(("acme", "eu")), node_of(("acme", "us"))}
        assert book.policies_of(None) == size(2)
        assert book.unread == {("acme", "us")}


async def test_a_book_that_says_something_else_is_another_one() -> None:
    """What would be is asked of a copy."""
    async with stored(broker=size(2), acme__eu=size(3)) as store:
        book = PolicyResolver(store)
        await book.load()
        other = book.with_policies(("acme", "eu"), None).with_policies(None, size(9))
        assert other.effective(TOPIC, None).values.segment_bytes_max == 9
        assert other.with_policies(("acme", "eu"), size(1)).effective(TOPIC, None).values.segment_bytes_max == 1
        assert book.effective(TOPIC, None).values.segment_bytes_max == 3


@given(POLICIES)
def test_a_levels_policy_reads_back(policies: OffloadPolicies) -> None:
    """Whatever may be said, with when it was changed."""
    value = LevelPolicy(policies, 1_700_000_000_000)
    assert decode_level(encode_level(value), path="/p") == value


def _record(**values: Any) -> bytes:  # noqa: ANN401 - each value its own type
    """Return a record whose policies hold whatever is asked for."""
    policies = records_pb2.TopicPolicyRecord(**values)
    return records_pb2.LevelPolicyRecord(policies=policies).SerializeToString()


@pytest.mark.parametrize(
    "damaged",
    [
        b"\xff",
        b"",
        _record(method="fast"),
        _record(history_order="last"),
        _record(threshold_bytes=-2),
        _record(threshold_s=-2.0),
        _record(deletion_lag_s=float("nan")),
        _record(segment_age_max_s=-1.0),
    ],
)
def test_a_damaged_levels_policy_is_an_error(damaged: bytes) -> None:
    """Every value is checked when it is read."""
    with pytest.raises(CorruptData):
        decode_level(damaged, path="/p")
