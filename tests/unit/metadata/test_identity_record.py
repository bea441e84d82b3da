"""The record of a deployment, and that of a topic's refusals."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.errors import CorruptData
from offloaderd.core.model import RefusalKind
from offloaderd.format.pb.storage import identity_pb2
from offloaderd.metadata.records import identity
from offloaderd.metadata.records.identity import Acceptance, Deployment, Refusal, SourceIdentity, TopicIdentityRecord
from tests.unit.metadata.strategies import NAME, TEXT, UINT64

PATH = "/identity"
acceptances = st.builds(Acceptance, kind=NAME, evidence=TEXT, by=TEXT, at_ms=UINT64)
refusals = st.builds(Refusal, kind=NAME, found=TEXT, evidence=TEXT, since_ms=UINT64, epoch=UINT64)
BEHIND = Refusal(kind=RefusalKind.LIST_BEHIND, found="12 is the newest", evidence="newest 12", since_ms=5)


@given(
    st.builds(
        Deployment,
        deployment_id=st.uuids(),
        made_ms=UINT64,
        made_by=TEXT,
        source=st.none() | st.builds(SourceIdentity, kind=NAME, instance_id=TEXT, cluster=TEXT),
        accepted=st.lists(acceptances, max_size=3).map(tuple),
    )
)
def test_a_deployment_reads_back(value: Deployment) -> None:
    """Every field of the deployment's record survives."""
    assert identity.decode_deployment(identity.encode_deployment(value), path=PATH) == value


@given(
    st.builds(
        TopicIdentityRecord,
        refusals=st.lists(refusals, max_size=3).map(tuple),
        accepted=st.lists(acceptances, max_size=3).map(tuple),
    )
)
def test_a_topics_refusals_read_back(value: TopicIdentityRecord) -> None:
    """Every field of a topic's record survives."""
    assert identity.decode(identity.encode(value), path=PATH) == value


def test_what_a_later_release_adds_is_kept() -> None:
    """Fields that this release does not know survive a rewrite of either record."""
    later = b"\xaa\x06\x03new"  # field 101
    topic = identity.encode(TopicIdentityRecord(refusals=(BEHIND,)))
    assert identity.encode(identity.decode(topic + later, path=PATH)).endswith(later)
    made = identity.encode_deployment(Deployment(deployment_id=UUID(int=7), made_ms=1, made_by="one"))
    assert identity.encode_deployment(identity.decode_deployment(made + later, path=PATH)).endswith(later)


def test_what_is_no_record_is_corrupt() -> None:
    """A refusal without a kind, an id that is no uuid: CorruptData, so nobody takes it for 'nothing is refused'."""
    unnamed = identity_pb2.TopicIdentityRecord(refusals=[identity_pb2.RefusalRecord(found="x")])
    with pytest.raises(CorruptData):
        identity.decode(unnamed.SerializeToString(), path=PATH)
    with pytest.raises(CorruptData):
        identity.decode_deployment(b"", path=PATH)


def test_a_refusal_takes_the_place_of_one_of_its_kind_and_keeps_its_time() -> None:
    """What is found anew of a kind is shown, as of when the kind was first found."""
    first = TopicIdentityRecord().refusing(BEHIND)
    again = first.refusing(replace(BEHIND, found="13 is the newest", evidence="newest 13", since_ms=9))
    assert again.refusals == (replace(BEHIND, found="13 is the newest", evidence="newest 13"),)
    assert again.without(RefusalKind.LIST_BEHIND).refusals == ()


def test_an_acceptance_is_about_one_piece_of_evidence() -> None:
    """It lifts the refusal of that evidence, and accepts no other."""
    accepted = (
        TopicIdentityRecord()
        .refusing(BEHIND)
        .accepting(Acceptance(kind=BEHIND.kind, evidence=BEHIND.evidence, by="ann", at_ms=9))
    )
    assert accepted.refusals == ()
    assert accepted.accepts(RefusalKind.LIST_BEHIND, "newest 12")
    assert not accepted.accepts(RefusalKind.LIST_BEHIND, "newest 13")
    assert not accepted.accepts(RefusalKind.LEDGER_SHORTER, "newest 12")
    since = TopicIdentityRecord().refusing(replace(BEHIND, evidence="newest 13"))
    late = since.accepting(Acceptance(kind=BEHIND.kind, evidence=BEHIND.evidence, by="ann", at_ms=9))
    assert late.refusals == since.refusals, "what was found since is deleted by nobody's word"


def test_the_newest_acceptances_are_kept() -> None:
    """What an operator has just accepted is never refused again, however much was accepted before."""
    record = TopicIdentityRecord()
    for number in range(identity.ACCEPTED_MAX + 2):
        record = record.accepting(Acceptance(kind=BEHIND.kind, evidence=f"newest {number}", by="ann", at_ms=number))
    assert len(record.accepted) == identity.ACCEPTED_MAX
    known = [record.accepts(BEHIND.kind, f"newest {number}") for number in range(identity.ACCEPTED_MAX + 2)]
    assert known == [False, False, *[True] * identity.ACCEPTED_MAX]


@pytest.mark.parametrize("kind", RefusalKind)
def test_each_kind_names_a_way_out(kind: RefusalKind) -> None:
    """Each refusal has one hint of its own, and so has one that only a later release knows."""
    assert identity.hint(kind).endswith(identity.hint("of-a-later-release"))
    assert len(identity.hint(kind)) > len(identity.hint("of-a-later-release"))


def test_what_was_accepted_of_several_ledgers_stays_accepted_of_some() -> None:
    """The source deletes one of them, or one is offloaded: the others are no new finding, and any other one is."""
    kind, one, two, three = (
        RefusalKind.LEDGER_REPLACED,
        *(f"ledger {number} was created at 1 ms" for number in (5, 6, 7)),
    )
    accepted = Acceptance(kind=kind, evidence=f"{one}; {two}", by="ann", at_ms=9)
    record = TopicIdentityRecord().accepting(accepted)
    assert all(record.accepts(kind, evidence) for evidence in (one, two, f"{one}; {two}"))
    assert not any(record.accepts(kind, evidence) for evidence in ("", three, f"{one}; {three}", "ledger 5"))
    assert not record.accepts(RefusalKind.LEDGER_SHORTER, one)
