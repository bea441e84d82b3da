"""Patterns: how they are read, what they match, and where one has to look to see all of it."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import Breadth, Scope, TopicPattern, fewest, of_topic, partitioned_topic

WORDS = st.sampled_from(["a", "b", "ab", "re:a", "public"])
LOCALS = st.sampled_from(
    ["a", "b", "ab", "a/b", "über", "ÜB", "a٣", "a-partition-0", "a-partition-11", "b-partition-x", "*", "re:a"]
)
TOPICS = st.builds(TopicName, WORDS, WORDS, LOCALS)
PIECES = st.sampled_from(
    [
        *"ab/.+?*|()^-[]ü",
        ".*",
        "[ab]",
        "[\\w-]",
        "[^\\d]",
        "{0}",
        "{1,2}",
        "{,2}",
        "\\w",
        "\\W",
        "\\d",
        "public",
        "(?i)",
    ]
)
EXPRESSIONS = st.lists(PIECES, min_size=1, max_size=8).map("".join)
SCOPES = st.builds(Scope, st.none() | st.sampled_from("ab"), st.none()) | st.builds(
    Scope, st.sampled_from("ab"), st.sampled_from("xy")
)


def topic(text: str) -> TopicName:
    """Read a topic's name."""
    return TopicName.parse(text)


@pytest.mark.parametrize(
    ("text", "spelled", "breadth"),
    [
        ("orders", "public/default/orders", Breadth.TOPIC),
        ("acme/web/clicks", "acme/web/clicks", Breadth.TOPIC),
        ("persistent://acme/web/a/b", "acme/web/a/b", Breadth.TOPIC),
        ("persistent://public/default/re:x", "public/default/re:x", Breadth.TOPIC),
        ("public/default/*", "public/default/*", Breadth.NAMESPACE),
        ("persistent://public/default/*", "public/default/*", Breadth.NAMESPACE),
        ("public/*", "public/*", Breadth.TENANT),
        ("persistent://re:a/*", "persistent://re:a/*", Breadth.TENANT),
        ("re:.*", "re:.*", Breadth.EXPRESSION),
    ],
)
def test_a_pattern_is_read_into_its_one_spelling(text: str, spelled: str, breadth: Breadth) -> None:
    """The spelling is what is stored and shown, and reads back as the same pattern."""
    pattern = TopicPattern.parse(text)
    assert (str(pattern), pattern.breadth) == (spelled, breadth)
    assert TopicPattern.parse(spelled) == pattern


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("*", "malformed pattern"),
        ("*/*", "malformed pattern"),
        ("*/*/*", "malformed pattern"),
        ("public/*/*", "malformed pattern"),
        ("public/default/eu-*", "malformed pattern"),
        ("public/default/a/*", "malformed pattern"),
        ("public/de*/orders", "malformed pattern"),
        ("a b/*", "malformed tenant"),
        ("a/b c/*", "malformed namespace"),
        ("/*", "malformed"),
        ("non-persistent://public/default/*", "malformed pattern"),
        ("", "malformed topic name"),
        ("re:", "empty expression"),
        ("re:(", "malformed expression"),
        ("re:[[a]]", "malformed expression"),
        ("re:a\\1(b)", "malformed expression.*escape"),
        ("re:(?=a).*", "malformed expression.*look-around"),
        ("re:a{,3}", "write a repetition"),
        ("re:[\\W]", "malformed expression"),
        ("re:" + "(a{30}" * 20 + "){30}" * 20, "malformed expression"),
        ("re:a{99999999999999999999}", "malformed expression"),
        ("re:a\nb", "control character"),
        ("a\ud800", "control character"),
        ("x" * 1001, "too long"),
    ],
)
def test_a_malformed_pattern_is_refused(text: str, match: str) -> None:
    """What cannot be meant is refused with what to write, before anything is stored."""
    with pytest.raises(InvalidInput, match=match):
        TopicPattern.parse(text)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders", "orders-partition-0", "orders-partition-12"], ["orders-partition-x", "a/b/orders"]),
        ("orders-partition-1", ["orders-partition-1"], ["orders", "orders-partition-0"]),
        ("public/default/*", ["orders", "public/default/a/b"], ["public/default2/orders", "acme/default/orders"]),
        ("public/*", ["orders", "public/x/y"], ["acme/x/y", "public2/x/y"]),
        ("re:public/default/eu-.*", ["eu-", "eu-orders"], ["neu-orders", "acme/default/eu-orders"]),
        ("re:public/default/eu", ["eu", "eu-partition-3"], ["eux", "eu-partition-x"]),
        ("re:.*/(eu|us)", ["a/b/eu", "us"], ["a/b/eu2", "asia"]),
        ("re:(?i)PUBLIC/default/ORDERS", ["orders"], ["orders2"]),
    ],
)  # fmt: skip
def test_what_a_pattern_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    """Names match whole; partitions match with their topic, by name as by expression."""
    parsed = TopicPattern.parse(pattern)
    assert [one for one in matching if not parsed.matches(topic(one))] == []
    assert [one for one in others if parsed.matches(topic(one))] == []


@pytest.mark.parametrize(
    ("pattern", "scope"),
    [
        ("orders", Scope("public", "default")),
        ("acme/web/*", Scope("acme", "web")),
        ("acme/*", Scope("acme")),
        ("re:acme/web/a.*", Scope("acme", "web")),
        ("re:acme/web/", Scope("acme", "web")),
        ("re:acme/we.*", Scope("acme")),
        ("re:acme/+web/a", Scope("acme")),
        ("re:acme/?web/a", Scope()),
        ("re:acme/web/*", Scope("acme")),
        ("re:acme/web/|x", Scope()),
        ("re:.*", Scope()),
        ("re:acme//x", Scope()),
        ("re:/web/x", Scope()),
    ],
)
def test_only_what_a_pattern_spells_out_is_listed(pattern: str, scope: Scope) -> None:
    """An expression's fixed beginning bounds where its topics can be; in doubt everything is listed."""
    assert TopicPattern.parse(pattern).scope == scope


@pytest.mark.parametrize("expression", ["(a+)+b", "(a|a?)+b", "(.*a){20}b", "((a?){30}){30}b", "(.*a.{12}){4}b"])
def test_no_expression_holds_up_a_daemon(expression: str) -> None:
    """An engine that searches by trial needs years for these; the names are as long as names may be."""
    pattern = TopicPattern.parse(f"re:acme/x/{expression}")
    assert not pattern.matches(topic("acme/x/" + "a" * 4000))
    assert pattern.matches(topic("acme/x/" + "a" * 900 + "b"))


def test_an_expression_is_held_against_topics_of_its_place_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may store expressions of one namespace takes no time for the topics of another."""
    pattern = TopicPattern.parse("re:acme/x/.*")
    held: list[str] = []

    class Costly:
        def fullmatch(self, text: str) -> object:
            held.append(text)
            return True

    monkeypatch.setattr(pattern.expression, "_engine", Costly())
    assert not any(pattern.matches(topic(name)) for name in ("acme/y/a", "other/x/a", "acme/xx/a"))
    assert held == []
    assert pattern.matches(topic("acme/x/a"))


@given(EXPRESSIONS, TOPICS)
def test_an_expression_matches_nothing_outside_its_scope(expression: str, name: TopicName) -> None:
    """Whatever the expression, listing its scope shows every topic that it matches; a match is a full match."""
    try:
        pattern = TopicPattern.parse(f"re:{expression}")
    except InvalidInput:
        return
    names = [f"{one.tenant}/{one.namespace}/{one.local}" for one in (name, partitioned_topic(name)) if one]
    with suppress(re.error):  # this engine takes what that one does not, and the other way round
        assert pattern.matches(name) == any(re.fullmatch(expression, text) for text in names)
    assert not pattern.matches(name) or pattern.scope.covers(Scope(name.tenant, name.namespace))


@given(st.text(max_size=30) | EXPRESSIONS.map("re:{}".format) | st.sampled_from(["a/*", "a/b/*", "a/b/c", "re:a/*"]))
def test_parsing_gives_a_pattern_or_a_reason(text: str) -> None:
    """No text makes anything but InvalidInput, and what is read is read back."""
    try:
        pattern = TopicPattern.parse(text)
    except InvalidInput:
        return
    assert TopicPattern.parse(pattern.text) == pattern
    assert TopicPattern.parse(pattern.text).scope == pattern.scope


@given(TOPICS)
def test_a_topic_is_matched_by_its_own_pattern(name: TopicName) -> None:
    """So are its partitions, and nothing else of the kind."""
    pattern = of_topic(name)
    assert pattern.matches(name)
    for number in (0, 7):
        partition = TopicName(name.tenant, name.namespace, f"{name.local}-partition-{number}")
        assert pattern.matches(partition)
        assert partitioned_topic(partition) == name


@given(st.lists(SCOPES, max_size=8))
def test_the_fewest_scopes_show_what_all_show(scopes: list[Scope]) -> None:
    """Nothing is left out and nothing is listed twice."""
    kept = fewest(scopes)
    assert all(any(one.covers(scope) for one in kept) for scope in scopes)
    assert not any(one is not other and one.covers(other) for one in kept for other in kept)
    assert set(kept) <= set(scopes)
