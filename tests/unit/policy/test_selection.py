"""What follows for a topic from everything that was said: rules, outcomes, and what is never done."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import OffloadMethod, TopicName
from offloaderd.core.names.patterns import Scope, TopicPattern
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.records import Selection, TopicPolicy, disabled
from offloaderd.policy.resolver import PolicyResolver, node_of
from offloaderd.policy.selection import Change, Outcome, Rules
from offloaderd.policy.updates import partitioned_among
from offloaderd.testing.memory.metadata import MemoryTree

if TYPE_CHECKING:
    from collections.abc import Collection

    from offloaderd.policy.selection import Policies

ORDERS = TopicName.parse("orders")
FIRST, SECOND = (TopicName.parse(f"orders-partition-{number}") for number in (0, 1))
DAMAGED = CorruptData(key="k", offset=0, expected="a policy", found="nothing")
PATTERNS = ["public/default/*", "public/*", "re:.*", "re:public/default/orders.*", "acme/*"]


def select(*patterns: str) -> dict[str, Selection | CorruptData]:
    """Make selections; their policies tell them apart by the size, 1 for the first."""
    return {
        text: Selection(pattern=TopicPattern.parse(text), policy=TopicPolicy(segment_bytes_max=size), created_ms=size)
        for size, text in enumerate(patterns, 1)
    }


def wanted(rules: Rules, topic: TopicName, current: TopicPolicy | None = None) -> tuple[int | None, str] | None:
    """Return size and pattern of the policy that a topic gets."""
    policy = rules.wanted(topic, current)
    return (policy.segment_bytes_max, policy.selected_by) if policy is not None else None


@pytest.mark.parametrize("count", range(1, 5))
def test_the_narrowest_selection_counts(count: int) -> None:
    """Namespace before tenant before expression; of expressions the older one."""
    patterns = ["re:.*", "re:public/.*", "public/*", "public/default/*"][:count]
    rules = Rules(select(*patterns), {})
    expected = {1: (1, "re:.*"), 2: (1, "re:.*"), 3: (3, "public/*"), 4: (4, "public/default/*")}[count]
    assert wanted(rules, ORDERS) == expected


def test_what_is_said_by_name_counts_before_all_selections() -> None:
    """A topic that somebody enabled or disabled stays as it was said."""
    for said in (TopicPolicy(segment_bytes_max=9), TopicPolicy(enabled=False)):
        rules = Rules(select("public/default/*"), {ORDERS: said})
        assert rules.wanted(ORDERS, said) is None
        assert rules.change(ORDERS, said).outcome is Outcome.LEFT_ALONE


def test_partitions_follow_their_topic() -> None:
    """What is said of a partitioned topic holds for its partitions, before any selection."""
    rules = Rules(select("public/default/*"), {ORDERS: TopicPolicy(segment_bytes_max=9, partitioned=True)})
    policy = rules.wanted(FIRST, None)
    assert policy == TopicPolicy(segment_bytes_max=9, selected_by="public/default/orders")
    assert rules.by_name(FIRST)
    own = TopicPolicy(segment_bytes_max=3)
    assert rules.wanted(SECOND, own) is None


def test_partitions_of_a_disabled_topic_are_left_alone_or_disabled() -> None:
    """A new one gets nothing, one that a selection had enabled is switched off and follows its topic."""
    rules = Rules(select("public/default/*"), {ORDERS: TopicPolicy(enabled=False, partitioned=True)})
    assert rules.wanted(FIRST, None) is None
    assert rules.change(FIRST, None).reason == "public/default/orders is disabled"
    before = TopicPolicy(selected_by="public/default/*")
    assert rules.wanted(FIRST, before) == TopicPolicy(enabled=False, selected_by="public/default/orders")


def test_a_topic_whose_selection_is_gone_moves_to_the_next_or_ends() -> None:
    """Removing a narrow selection leaves what a broader one matches, and disables the rest."""
    before = TopicPolicy(selected_by="public/default/*", segment_bytes_max=5)
    moved = Rules(select("public/*"), {}).change(ORDERS, before, "public/default/*")
    assert (moved.outcome, moved.reason) == (Outcome.CHANGED, "selected by public/*")
    ended = Rules({}, {}).change(ORDERS, before, "public/default/*")
    assert ended == Change(ORDERS, Outcome.DISABLED, "", replace(before, enabled=False))
    assert Rules({}, {}).wanted(ORDERS, replace(before, enabled=False)) is None


def test_a_selection_that_comes_back_takes_its_topics_up() -> None:
    """A topic that ended with its selection is not one that somebody disabled."""
    ended = TopicPolicy(enabled=False, selected_by="public/default/*")
    change = Rules(select("public/default/*"), {}).change(ORDERS, ended, "public/default/*")
    assert change.outcome is Outcome.ENABLED
    by_name = disabled(TopicPolicy(selected_by="public/default/*"))
    assert Rules(select("public/default/*"), {}).wanted(ORDERS, by_name) is None


def test_damaged_records_end_nothing() -> None:
    """What follows from a record that cannot be read stays as it is until somebody repairs it."""
    selected = TopicPolicy(selected_by="public/default/*")
    assert Rules({"public/default/*": DAMAGED}, {}).wanted(ORDERS, selected) is None
    following = TopicPolicy(selected_by="public/default/orders")
    assert Rules({}, {ORDERS: DAMAGED}).wanted(FIRST, following) is None
    assert Rules({}, {}).wanted(FIRST, following) is not None
    rules = Rules(select("public/default/*"), {ORDERS: DAMAGED})
    assert rules.wanted(ORDERS, DAMAGED) is None
    assert "damaged" in rules.change(ORDERS, DAMAGED).reason


@pytest.mark.parametrize(
    ("current", "outcome", "reason"),
    [
        (None, Outcome.ENABLED, ""),
        (TopicPolicy(selected_by="public/*", segment_bytes_max=1), Outcome.UNCHANGED, ""),
        (TopicPolicy(selected_by="public/*", segment_bytes_max=7), Outcome.CHANGED, ""),
        (TopicPolicy(selected_by="gone/*", enabled=False), Outcome.ENABLED, ""),
        (TopicPolicy(segment_bytes_max=1), Outcome.LEFT_ALONE, "enabled by name"),
        (TopicPolicy(enabled=False), Outcome.LEFT_ALONE, "disabled by name"),
    ],
)
def test_the_outcome_says_what_happens(current: TopicPolicy | None, outcome: Outcome, reason: str) -> None:
    """Each topic that a pattern matches is told of, with why nothing happens where nothing does."""
    change = Rules(select("public/*"), {}).change(ORDERS, current, "public/*")
    assert (change.outcome, change.reason) == (outcome, reason)
    assert (change.policy is None) == (outcome in {Outcome.UNCHANGED, Outcome.LEFT_ALONE})


def test_a_topic_of_a_narrower_selection_says_whose_it_is() -> None:
    """Enabling a tenant does not take the topics of a namespace that was selected for itself."""
    rules = Rules(select("public/*", "public/default/*"), {})
    current = TopicPolicy(selected_by="public/default/*", segment_bytes_max=2)
    assert rules.change(ORDERS, current, "public/*").reason == "selected by public/default/*"
    assert rules.change(ORDERS, None, "public/*").reason == "selected by public/default/*"


def test_where_to_look() -> None:
    """Scopes of the selections, and of topics enabled by name, which may turn out to be partitioned."""
    named: Policies = {
        TopicName.parse("acme/web/clicks"): TopicPolicy(),
        TopicName.parse("acme/log/x-partition-0"): TopicPolicy(),
        TopicName.parse("acme/off/x"): TopicPolicy(enabled=False),
        TopicName.parse("acme/sel/x"): TopicPolicy(selected_by="acme/sel/*"),
        TopicName.parse("public/default/a"): TopicPolicy(),
    }
    assert Rules(select("public/*"), named).scopes == (Scope("public"), Scope("acme", "web"))
    assert Rules(select("public/*", "re:a.*"), named).scopes == (Scope(),)
    assert Rules({}, {}).scopes == ()


def test_partitioned_topics_are_known_by_their_partitions() -> None:
    """A topic that exists itself is not partitioned, whatever others are called."""
    assert partitioned_among([FIRST, SECOND]) == {ORDERS}
    assert partitioned_among([FIRST, ORDERS]) == set()


policies = st.builds(
    TopicPolicy,
    enabled=st.booleans(),
    segment_bytes_max=st.sampled_from([1, 2, 3]),
    selected_by=st.sampled_from(["", *PATTERNS, "public/default/orders"]),
)
topics = st.sampled_from([ORDERS, FIRST, SECOND, TopicName.parse("acme/web/x"), TopicName.parse("public/a/b")])
worlds = st.dictionaries(topics, policies, max_size=5)
NAMESPACES = [("public", "default"), ("acme", "web"), ("public", "a")]
levels = st.dictionaries(st.sampled_from(NAMESPACES), st.sampled_from([None, *OffloadMethod]))


def book(
    said: dict[tuple[str, str], OffloadMethod | None], damaged: Collection[tuple[str, str]] = ()
) -> PolicyResolver:
    """Return a book in which namespaces say a method, and others cannot be read."""
    found = PolicyResolver(MemoryTree().connect())
    found.namespaces = {name: OffloadPolicies(method=method, segment_bytes_max=9) for name, method in said.items()}
    found.named, found.damaged = (*said, *damaged), {node_of(name) for name in damaged}
    return found


@given(st.lists(st.sampled_from(PATTERNS), unique=True), worlds, levels)
def test_what_is_wanted_is_wanted_once(
    patterns: list[str],
    world: dict[TopicName, TopicPolicy],
    said: dict[tuple[str, str], OffloadMethod | None],
) -> None:
    """Carrying out the rules comes to rest at once, and touches nothing that was said by name."""
    rules = Rules(select(*patterns), world, book(said))
    for topic in [ORDERS, FIRST, SECOND, *world]:
        before = world.get(topic)
        after = rules.wanted(topic, before)
        if after is None:
            continue
        assert before is None or before.selected_by
        assert after != before
        assert after.selected_by
        assert rules.wanted(topic, after) is None
        if after.enabled and after.selected_by == f"{topic.tenant}/{topic.namespace}":
            assert said[topic.tenant, topic.namespace] not in {None, OffloadMethod.NONE}
            assert not after.set_values()
            assert f"{after.selected_by}/*" not in patterns
        else:
            assert not after.enabled or TopicPattern.parse(after.selected_by).matches(topic)


@given(st.lists(st.sampled_from(PATTERNS), unique=True), worlds, levels, topics)
def test_everything_that_is_governed_is_listed(
    patterns: list[str],
    world: dict[TopicName, TopicPolicy],
    said: dict[tuple[str, str], OffloadMethod | None],
    topic: TopicName,
) -> None:
    """A topic that would be enabled lies in a scope that is looked at."""
    rules = Rules(select(*patterns), world, book(said))
    rule = rules.rule(topic)
    if topic not in world and rule is not None and rule.policy.enabled:
        assert any(scope.covers(Scope(topic.tenant, topic.namespace)) for scope in rules.scopes)


@pytest.mark.parametrize("enabled", [True, False])
def test_topics_of_a_namespace_whose_policy_cannot_be_read_stay_as_they_are(enabled: bool) -> None:
    """Those that follow from it, whatever they are; others are judged as ever."""
    following = TopicPolicy(enabled=enabled, selected_by="public/default")
    assert Rules({}, {}, book({}, [("public", "default")])).wanted(ORDERS, following) is None
    ended = Rules({}, {}, book({}, [("acme", "web")])).wanted(ORDERS, following)
    assert (ended is not None and not ended.enabled) is enabled
