"""Return codes: every one has its error and its reaction, in both protocols alike."""

from __future__ import annotations

import pytest

from offloaderd.bookkeeper.wire.entry import BadEntry
from offloaderd.bookkeeper.wire.protocol import (
    V2_CODES,
    V3_CODES,
    BadAnswer,
    NotHere,
    Reaction,
    Status,
    Unsupported,
    failure,
    reaction_to,
)
from offloaderd.core.errors import Closed, CorruptData, Denied, Fenced, NotFound, OffloaderError, Throttled, Transient

TABLE = [
    (1, 402, NotHere, Reaction.NEXT_REPLICA),
    (2, 403, NotHere, Reaction.NEXT_REPLICA),
    (100, 404, Unsupported, Reaction.FALL_BACK),
    (101, 501, Transient, Reaction.NEXT_REPLICA),
    (102, 502, Denied, Reaction.STOP),
    (103, 503, Unsupported, Reaction.FALL_BACK),
    (104, 504, BadAnswer, Reaction.RECONNECT),
    (105, 505, BadAnswer, Reaction.RECONNECT),
    (106, 506, Throttled, Reaction.SLOW_DOWN),
    (107, 507, Transient, Reaction.NEXT_REPLICA),
]


@pytest.mark.parametrize(("v2", "v3", "kind", "reaction"), TABLE)
def test_codes_have_errors_and_reactions(v2: int, v3: int, kind: type[OffloaderError], reaction: Reaction) -> None:
    """Both protocols' numbers of one status give one error of the exact type, which names everything."""
    assert V2_CODES[v2] is V3_CODES[v3]
    error = failure(V3_CODES[v3], v3, bookie="bk:1", what="ledger 5, entry 9")
    assert type(error) is kind
    assert not isinstance(error, Fenced)
    assert reaction_to(error) is reaction
    assert all(word in error.message for word in ("bk:1", "ledger 5, entry 9", str(v3)))


def test_the_table_is_whole() -> None:
    """No code of either protocol is left out."""
    assert V2_CODES.keys() == {0, *(row[0] for row in TABLE)}
    assert V3_CODES.keys() == {0, *(row[1] for row in TABLE)}


def test_a_new_code_is_tried_elsewhere() -> None:
    """What a newer bookie answers is no reason to stop."""
    error = failure(Status.UNKNOWN, 999, bookie="bk:1", what="ledger 5")
    assert type(error) is Transient
    assert reaction_to(error) is Reaction.NEXT_REPLICA


def test_a_good_answer_is_no_failure() -> None:
    """Whoever asks for the error of OK has no entry either: the answer contradicts itself."""
    assert isinstance(failure(Status.OK, 0, bookie="bk:1", what="ledger 5"), BadAnswer)


def test_local_finds_have_reactions() -> None:
    """A bad digest or a lost connection leads to the next replica; what is not about replicas stops."""
    assert reaction_to(BadEntry(1, 2, offset=0, expected=1, found=2)) is Reaction.NEXT_REPLICA
    assert reaction_to(CorruptData(key="k", offset=0, expected=1, found=2)) is Reaction.NEXT_REPLICA
    assert reaction_to(BadAnswer("x")) is Reaction.RECONNECT
    assert reaction_to(Transient("refused")) is Reaction.NEXT_REPLICA
    assert reaction_to(Closed("draining")) is Reaction.STOP
    assert reaction_to(NotFound("the ledger")) is Reaction.STOP


def test_only_rights_need_the_operator() -> None:
    """A denied answer says what to do."""
    assert "auth plugin" in failure(Status.UNAUTHORISED, 102, bookie="b", what="x").hint
    assert not failure(Status.NO_ENTRY, 2, bookie="b", what="x").hint
