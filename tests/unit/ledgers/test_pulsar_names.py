"""Paths of topics in Pulsar's tree, and Pulsar's own topics told from those of users."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import TopicName, decode_local, encode_local
from offloaderd.core.names.managed_ledgers import (
    Partition,
    compacted_of,
    is_compacted,
    misplaced_ledger,
    parse_topic_path,
    partition_of,
    system_reason,
    topic_path,
)


def topic(text: str) -> TopicName:
    """Read a topic."""
    return TopicName.parse(text)


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("plain-name_1.x", "plain-name_1.x"),
        ("a b", "a+b"),
        ("a+b", "a%2Bb"),
        ("a/b", "a%2Fb"),
        ("a*~b", "a*%7Eb"),
        ("ü%", "%C3%BC%25"),
    ],
)
def test_encoding(name: str, encoded: str) -> None:
    """Names are spelled as Java's URLEncoder spells them."""
    assert encode_local(name) == encoded
    assert decode_local(encoded) == name


def test_encoded_noise() -> None:
    """What is no UTF-8 is refused and not repaired: another topic might have the repaired name."""
    with pytest.raises(InvalidInput, match="not UTF-8"):
        decode_local("a%ffb")


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1))
def test_paths_round_trip(local: str) -> None:
    """Whatever its name, a topic's path leads back to it."""
    name = TopicName("tenant", "space", local)
    assert parse_topic_path(topic_path(name)) == name
    assert topic_path(name).startswith("/managed-ledgers/tenant/space/persistent/")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/managed-ledgers",
        "/managed-ledgers/a/b/persistent",
        "/managed-ledgers/a/b/persistent/",
        "/managed-ledgers/a/b/persistent/c/cursor",
        "/managed-ledgers/a/b/non-persistent/c",
        "/managed-ledgers/a/cluster/b/persistent/c",
        "/other/managed-ledgers/a/b/persistent/c",
        "/managed-ledgers/a/b/persistent/%ff",
        "/managed-ledgers/a/b/persistent/a%2fb",
        "/managed-ledgers/a/b/persistent/a%0Ab",
    ],
)
def test_other_paths(path: str) -> None:
    """A path that Pulsar would not write is refused."""
    with pytest.raises(InvalidInput):
        parse_topic_path(path)


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("t-partition-0", Partition("t", 0)),
        ("t-partition-1-partition-12", Partition("t-partition-1", 12)),
        ("t", None),
        ("-partition-1", None),
        ("t-partition-", None),
        ("t-partition-01", None),
        ("t-partition--1", None),
    ],
)
def test_partitions(name: str, partition: Partition | None) -> None:
    """The last number of a name makes a partition of it."""
    assert partition_of(TopicName("a", "b", name)) == partition


@pytest.mark.parametrize(
    "name",
    [
        "pulsar/127.0.0.1:8080/healthcheck",
        "pulsar/system/transaction_coordinator_assign-partition-3",
        "sla-monitor/cluster/broker",
        "a/b/__change_events",
        "a/b/__change_events-partition-0",
        "a/b/__transaction_buffer_snapshot",
        "a/b/__transaction_log_7",
        "a/b/t-sub__transaction_pending_ack",
        "a/b/t-sub__transaction_pending_ack-partition-2",
        "a/b/t-partition-2/__compaction",
    ],
)
def test_system_topics(name: str) -> None:
    """Pulsar's own topics are known, by tenant and by name, partitions too."""
    assert system_reason(topic(name))


@pytest.mark.parametrize("name", ["a/b/c", "pulsars/b/c", "a/pulsar/c", "a/b/change_events", "a/b/x__change_events"])
def test_topics_of_users(name: str) -> None:
    """A name that only looks alike is a user's."""
    assert system_reason(topic(name)) is None


def test_compaction() -> None:
    """The cursor of compaction gives a compacted topic away."""
    assert is_compacted(["sub", "__compaction"])
    assert not is_compacted(["sub", "a%2Fb"])


def test_a_compacted_ledger_is_of_a_topic_of_its_own() -> None:
    """Its name has a slash, as no local name of Pulsar's has; topics that only look alike are users'."""
    assert compacted_of(topic("a/b/c d/__compaction")) == topic("a/b/c d")
    assert compacted_of(topic("a/b/t-partition-3/__compaction")) == topic("a/b/t-partition-3")
    for name in ("a/b/c", "a/b/__compaction", "a/b/c__compaction", "a/b/c/x__compaction"):
        assert compacted_of(topic(name)) is None


def test_compacted_ledgers_of_others() -> None:
    """Such a topic has compacted ledgers alone, made of that topic."""
    name = topic("a/b/c/__compaction")
    ours = {"component": b"compacted-ledger", "pulsar/compactedTopic": b"persistent://a/b/c"}
    assert misplaced_ledger({}, name) is None
    assert misplaced_ledger(ours, name) is None
    assert "persistent://a/b/c" in (misplaced_ledger(ours, topic("a/b/d/__compaction")) or "")
    assert "managed-ledger" in (misplaced_ledger({"component": b"managed-ledger"}, name) or "")


def test_ledgers_of_others() -> None:
    """A ledger that names another owner or purpose is refused, one that says nothing is not."""
    name = topic("a/b/c d")
    ours = {"component": b"managed-ledger", "pulsar/managed-ledger": b"a/b/persistent/c+d"}
    assert misplaced_ledger({}, name) is None
    assert misplaced_ledger(ours, name) is None
    assert "a/b/persistent/c+d" in (misplaced_ledger(ours, topic("a/b/c")) or "")
    assert "compacted-ledger" in (misplaced_ledger({**ours, "component": b"compacted-ledger"}, name) or "")
    assert "'s'" in (misplaced_ledger({**ours, "pulsar/cursor": b"s"}, name) or "")
