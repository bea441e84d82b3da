"""Grants: what is written, what each one allows, and what it must never stretch to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.access.roles import BARE, Grant, Identity, Kind, Rights, Role, covers
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import TopicPattern, of_topic


def where(text: str) -> TopicPattern | None:
    """What a call names."""
    return None if text == "*" else TopicPattern.parse(text)


@pytest.mark.parametrize(
    ("grant", "asked", "allowed"),
    [
        ("*", "*", True),
        ("*", "re:.*", True),
        ("public/*", "*", False),
        ("public/*", "re:.*", False),
        ("public/*", "public/default/*", True),
        ("public/*", "re:public/default/eu-.*", True),
        ("public/*", "re:public/default/x|other/ns/.*", False),
        ("public/*", "publics/default/a", False),
        ("public/default/*", "public/*", False),
        ("public/default/*", "public/default/*", True),
        ("public/default/*", "public/default/a/b", True),
        ("public/default/*", "public/defaults/a", False),
        ("public/default/*", "re:public/default/.*", True),
        ("public/default/*", "re:public/default", False),
        ("public/default/*", "re:public/default?/a", False),
        ("public/default/*", "re:(?i)public/default/.*", False),
        ("public/default/orders", "public/default/orders", True),
        ("public/default/orders", "public/default/orders-partition-3", True),
        ("public/default/orders", "public/default/orders-eu", False),
        ("public/default/orders", "re:public/default/orders", False),
        ("public/default/orders-partition-1", "public/default/orders", False),
        ("re:public/default/eu-.*", "public/default/eu-1", True),
        ("re:public/default/eu-.*", "public/default/us-1", False),
        ("re:public/default/eu-.*", "re:public/default/eu-.*", True),
        ("re:public/default/eu-.*", "re:public/default/eu-1.*", False),
        ("re:public/default/eu-.*", "public/default/*", False),
    ],
)
def test_a_grant_covers_what_is_wholly_within_it(grant: str, asked: str, allowed: bool) -> None:
    """Part of it is not enough, and of two expressions nobody can say, so only the same one counts."""
    assert covers(where(grant), where(asked)) is allowed


@pytest.mark.parametrize("held", list(Role))
@pytest.mark.parametrize("asked", list(Role))
def test_admin_includes_the_others_and_they_do_not_include_each_other(held: Role, asked: Role) -> None:
    """A broker that pushes cannot read, and who reads cannot push."""
    rights = Rights([Grant.parse(f"{held} alice public/*")])
    topic = of_topic(TopicName.parse("public/default/a"))
    for kind in BARE:
        assert rights.allow([Identity(kind, "alice")], asked, topic) is (held in {asked, Role.ADMIN})
        assert not rights.allow([Identity(kind, "bob")], asked, topic)
        assert not rights.allow([Identity(kind, "")], asked, topic)
    assert not rights.allow([], asked, topic)


@pytest.mark.parametrize("granted", [*Kind, ""])
def test_a_name_of_one_kind_is_not_that_of_another(granted: str) -> None:
    """A token's subject is no certificate's name, whatever it is called; the bare name is either of these two."""
    rights = Rights([Grant.parse(f"admin {granted}:alice *" if granted else "admin alice *")])
    for kind in Kind:
        expected = kind == granted if granted else kind in {Kind.CERTIFICATE, Kind.TOKEN}
        assert rights.allow([Identity(kind, "alice")], Role.READ, None) is expected
        for dressed in (f"{other}:alice" for other in Kind):
            assert not rights.allow([Identity(kind, dressed)], Role.READ, None)


def test_a_spiffe_id_is_a_name() -> None:
    """It has colons and slashes of its own."""
    rights = Rights([Grant.parse("read uri:spiffe://prod.example/ns/data/sa/spark public/*")])
    where = TopicPattern.parse("public/default/*")
    assert rights.allow([Identity(Kind.URI, "spiffe://prod.example/ns/data/sa/spark")], Role.READ, where)
    assert not rights.allow([Identity(Kind.URI, "spiffe://evil.example/ns/data/sa/spark")], Role.READ, where)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("read alice", "2 words instead of 3"),
        ("read alice public/* too", "4 words instead of 3"),
        ("write alice *", "no such role 'write'"),
        ("read 'alice *", "No closing quotation"),
        ("read '' *", "not a name of somebody"),
        ("read alice public", "malformed"),
        ("read alice re:(", "malformed expression"),
    ],
)
def test_a_malformed_grant_is_refused_with_an_example(text: str, message: str) -> None:
    """None is ever guessed at."""
    if text == "read alice public":
        assert Grant.parse(text).where == where("public/default/public")
        return
    with pytest.raises(InvalidInput, match=message):
        Grant.parse(text)


@pytest.mark.parametrize("name", ["Cert:alice", "TOKEN:alice", "CERT:a:b", "spiffe://prod/alice", "user:alice", ":a"])
def test_a_kind_that_there_is_not_is_no_part_of_a_name(name: str) -> None:
    """Else it would be a name of either kind that nobody has, or that somebody gets himself."""
    with pytest.raises(InvalidInput, match="no such kind of identity") as caught:
        Grant.parse(f"admin '{name}' *")
    assert caught.value.hint is not None
    assert f"token:{name}" in caught.value.hint
    assert Grant.parse(f"admin token:{name} *").identity == name


NAMES = st.text("ab-.", min_size=1, max_size=3)


@given(NAMES, NAMES, NAMES, st.sampled_from(["{0}/*", "{0}/{1}/*", "{0}/{1}/{2}", "re:{0}/{1}/.*", "re:{0}/.*"]))
def test_covering_never_lets_a_topic_through_that_the_grant_does_not_match(
    tenant: str, namespace: str, local: str, form: str
) -> None:
    """Whatever a covered pattern matches, the grant matches too."""
    names = [*{tenant, "a"} - {".", ".."}], [*{namespace, "b"} - {".", ".."}], [*{local, "ab"} - {".", ".."}]
    if not all(names) or {tenant, namespace, local} & {".", ".."}:
        return
    asked = TopicPattern.parse(form.format(tenant, namespace, local))
    topics = [TopicName(one, two, three) for one in names[0] for two in names[1] for three in names[2]]
    for text in ("a/*", "a/b/*", "a/b/ab", "re:a/b/.*"):
        grant = TopicPattern.parse(text)
        if covers(grant, asked):
            assert all(grant.matches(topic) for topic in topics if asked.matches(topic))
