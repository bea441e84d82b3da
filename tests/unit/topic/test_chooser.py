"""What an owner does next, and whose segment frees memory: by a look at the topic alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from offloaderd.core.aio import Signal
from offloaderd.core.model import START, LedgerInfo, OffloadMethod, Position
from offloaderd.ledgers.chain import LedgerChain
from offloaderd.segment.roll import Requested, RollPolicy, TopicView
from offloaderd.topic.chooser import (
    CHECK_S,
    Abandon,
    Adopt,
    Begin,
    Choice,
    Leave,
    NoteEnd,
    Requests,
    Resume,
    Wait,
    choose,
    frees_on_seal,
)
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

STREAMING = RollPolicy(segment_bytes_max=1000, segment_age_max_s=60)
WHOLE = replace(STREAMING, method=OffloadMethod.LEDGER_BASED, threshold_bytes=0)
NONE = replace(STREAMING, method=OffloadMethod.NONE)
INFO = LedgerInfo(ledger_id=1, closed=True, entries=10, size_bytes=1)
CHAIN = LedgerChain(START, end=None)
CHAIN.update([INFO])
FIRST = Position(1, 0)
IDLE = TopicView(Requested(), policy=STREAMING, chain=CHAIN)
READY = IDLE._replace(first=FIRST)


def left(*, begin: Position = FIRST, end: Position | None = None, parts: int = 0, whole: bool = False) -> Any:  # noqa: ANN401
    """What an earlier owner left; stands for an Attempt."""
    return SimpleNamespace(
        segment_id=UUID(int=1), begin=begin, end=end, parts=(1,) * parts, whole=whole, ledger_id=None
    )


BEGUN, STORED, ALL_STORED, SEALED = left(), left(parts=1), left(parts=1, whole=True), left(end=Position(1, 5))


@pytest.mark.parametrize(
    ("view", "choice"),
    [
        (IDLE, Wait()),
        (IDLE._replace(adoptable=[1]), Wait(CHECK_S)),
        (READY, Begin(FIRST, OffloadMethod.STREAMING)),
        (READY._replace(may_stop=True), Leave()),
        (READY._replace(policy=NONE), Wait(CHECK_S)),
        (READY._replace(history_waits=True), Wait(CHECK_S)),
        (READY._replace(adoptable=[1]), Wait(CHECK_S)),
        (READY._replace(adoptable=[1], to_adopt=INFO), Adopt(INFO)),
        (READY._replace(adoptable=[1], to_adopt=INFO, policy=NONE), Wait(CHECK_S)),
        (READY._replace(policy=WHOLE, whole_ledgers=True), Begin(FIRST, OffloadMethod.LEDGER_BASED)),
        (READY._replace(policy=WHOLE), Begin(FIRST, OffloadMethod.STREAMING)),
        (READY._replace(policy=replace(WHOLE, threshold_bytes=5), whole_ledgers=True), Wait(CHECK_S)),
        (IDLE._replace(end_is_unrecorded=True), NoteEnd()),
        (READY._replace(end_is_unrecorded=True), Begin(FIRST, OffloadMethod.STREAMING)),
        (READY._replace(attempt=BEGUN, policy=NONE), Resume(BEGUN)),
        (IDLE._replace(attempt=BEGUN, may_stop=True), Leave()),
        (IDLE._replace(attempt=STORED, may_stop=True), Resume(STORED)),
        (IDLE._replace(attempt=STORED, rereadable=False), Wait(CHECK_S)),
        (IDLE._replace(attempt=ALL_STORED, rereadable=False), Resume(ALL_STORED)),
        (IDLE._replace(attempt=BEGUN, first=Position(2, 0)), Abandon(BEGUN)),
        (IDLE._replace(attempt=BEGUN, left_is_lost=True), Abandon(BEGUN)),
        (IDLE._replace(attempt=BEGUN), Wait(CHECK_S)),
        (IDLE._replace(attempt=SEALED), Wait(CHECK_S, starving=True)),
        (READY._replace(attempt=BEGUN, adoptable=[1], to_adopt=INFO), Resume(BEGUN)),
    ],
)
def test_an_owner_does_one_thing_at_a_time(view: TopicView, choice: Choice) -> None:
    """What was left comes first, then what brokers have offloaded, then the next entry."""
    assert choose(view) == choice


@pytest.mark.parametrize(
    ("end", "built", "held", "policy", "helps"),
    [
        (None, 5, 5, STREAMING, True),
        (Position(1, 20), 5, 5, STREAMING, False),
        (Position(1, 4), 5, 5, STREAMING, True),
        (None, None, 5, STREAMING, True),
        (None, None, 0, STREAMING, False),
        (None, None, 5, NONE, False),
        (None, None, 5, WHOLE, False),
    ],
    ids=["open", "ends later", "being stored", "begins now", "unreachable", "not now", "a whole ledger"],
)
def test_pressing_helps_where_a_segment_can_end(
    end: Position | None, built: int | None, held: int, policy: RollPolicy, helps: bool
) -> None:
    """Or has ended, or is about to begin; what holds memory otherwise is passed over."""
    cursor = Position(1, 4) if built else Position(1, -1)
    view = IDLE._replace(
        policy=policy,
        whole_ledgers=True,
        cursor=cursor,
        first=Position(1, cursor.entry_id + 1) if held else None,
        attempt=left(end=end) if built else None,
    )
    progress: Any = SimpleNamespace(entries=built) if built else None
    assert frees_on_seal(view, progress) is helps


def test_of_two_requests_the_one_that_goes_further_stands() -> None:
    """Whichever came first; a commit before its entry leaves it open, one of its entry ends it."""
    requests = Requests(Signal(), STREAMING)
    for target in (Position(1, 5), Position(1, 3)):
        requests.seal_to(target)
        assert requests.now().seal_to == Position(1, 5)
    requests.committed(Position(1, 4))
    assert requests.now().seal_to == Position(1, 5)
    requests.committed(Position(1, 5))
    assert requests.now().seal_to is None


@pytest.mark.parametrize(
    "ask",
    [
        lambda requests: requests.follow(WHOLE),
        lambda requests: requests.stop(),
        lambda requests: requests.seal_to(FIRST),
        lambda requests: requests.free_memory(),
    ],
    ids=["another policy", "stop", "seal", "memory"],
)
async def test_a_request_wakes_the_topic(ask: Callable[[Requests], None]) -> None:
    """What waits for the age of its segment would do nothing about it before."""
    changed = Signal()
    woken = changed.wait()
    ask(Requests(changed, STREAMING))
    async with asyncio.timeout(PATIENCE_S):
        await woken
