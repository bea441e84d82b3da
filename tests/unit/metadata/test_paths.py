"""Names of the nodes."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import TopicName
from offloaderd.metadata import paths
from offloaderd.metadata.port import checked_path
from tests.unit.metadata.strategies import topic_names

ORDERS = TopicName("acme", "shop", "orders/2024 ü")


def test_every_node_is_where_the_architecture_has_it() -> None:
    """The tree of architecture section 7, with the local name percent-encoded."""
    folder = "/topics/acme/shop/persistent/orders%2F2024%20%C3%BC"
    assert paths.topic(ORDERS) == folder
    assert paths.policy(ORDERS) == f"{folder}/policy"
    assert paths.owner(ORDERS) == f"{folder}/owner"
    assert paths.epoch(ORDERS) == f"{folder}/epoch"
    assert paths.attempt(ORDERS) == f"{folder}/attempt"
    assert paths.ledger(ORDERS, 17) == f"{folder}/ledgers/17"
    segment_id = UUID("11223344-5566-7788-99aa-bbccddeeff00")
    assert paths.identity(ORDERS) == f"{folder}/identity"
    assert paths.trash_record(ORDERS, segment_id) == f"{folder}/trash/11223344-5566-7788-99aa-bbccddeeff00"
    assert paths.daemon("host/1") == "/daemons/host%2F1"
    assert paths.selection("acme/*") == "/selections/acme%2F*"
    assert paths.namespace(ORDERS) == "/topics/acme/shop/persistent"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=20))
def test_every_pattern_has_a_node_and_is_read_from_its_name(pattern: str) -> None:
    """Whatever an expression is made of, a store takes the node and its name gives the pattern back."""
    path = paths.selection(pattern)
    assert checked_path(path) == path
    assert paths.selected_pattern(path.rpartition("/")[2]) == pattern


def test_folders_are_the_parents_of_what_transactions_create() -> None:
    """Once the folders exist, a transaction may create any of the topic's nodes."""
    folders = paths.folders(ORDERS)
    nodes = [paths.policy(ORDERS), paths.ledger(ORDERS, 1), paths.trash_record(ORDERS, UUID(int=1))]
    assert {node.rpartition("/")[0] for node in nodes} <= set(folders)


@given(topic_names)
def test_every_topic_is_found_again_from_its_path(topic: TopicName) -> None:
    """Any topic a broker can have gives a path that a store accepts and that leads back to it."""
    assert checked_path(paths.topic(topic)) == paths.topic(topic)
    assert paths.parse_topic(paths.topic(topic)) == topic
    assert paths.parse_topic(paths.ledger(topic, 5)) == topic


@pytest.mark.parametrize("local", [".", "..", "%2E"])
def test_names_that_no_store_takes_are_encoded(local: str) -> None:
    """A topic may be called `.` or `..`; a node may not."""
    topic = TopicName("public", "default", local)
    assert not paths.topic(topic).endswith(("/.", "/.."))
    assert paths.parse_topic(paths.topic(topic)) == topic


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/topics/a/b/persistent",
        "/other/a/b/persistent/c",
        "topics/a/b/persistent/c",
        "/topics/a/b/non-persistent/c",
        "/topics/a/b/persistent/c d",
        "/topics/a b/b/persistent/c",
        "/topics//b/persistent/c",
        "/topics/a/b/persistent/%63",
    ],
)
def test_other_paths_are_no_topics(path: str) -> None:
    """What is not exactly a topic's path is refused, other spellings of one included."""
    with pytest.raises(InvalidInput):
        paths.parse_topic(path)
