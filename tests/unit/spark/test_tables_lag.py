"""How far a table is behind what is offloaded, whatever holds it back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offloaderd.core.model import Position
from offloaderd.spark.scan.query import EntryQuery
from offloaderd.spark.stream import furthest
from offloaderd.spark.tables.writer import Lag, lag_of
from tests.unit.metadata.segments import made
from tests.unit.read.build import TOPIC
from tests.unit.spark.lake import snapshot
from tests.unit.spark.test_source_offsets import HISTORY

FOUND = snapshot([made(1, (1, 0, 9)), made(2, (1, 10, 19), (3, 0, 4)), made(3, (3, 5, 8))])


def at(text: str = "") -> dict[str, str]:
    """Return the positions of a table that reaches one; none yet without one."""
    return {str(TOPIC): text} if text else {}


@pytest.mark.parametrize(
    ("text", "lag"),
    [("", Lag(29, 2)), ("1:9", Lag(19, 3)), ("1:12", Lag(16, 3)), ("3:4", Lag(4, 4)), ("3:8", Lag())],
)
def test_entries_behind_a_table(text: str, lag: Lag) -> None:
    """They are counted from its position; their age is that of the oldest segment with one of them."""
    assert lag_of([FOUND], at(text)) == lag


def test_unfinished_history_is_lag() -> None:
    """Live segments behind it are in the bucket, and not in the table, which cannot have them yet."""
    found = replace(FOUND, map=replace(FOUND.map, segments=(made(1, (1, 0, 9)), made(3, (3, 5, 8))), history=HISTORY))
    waits = f"{TOPIC}: nothing behind 1:9 until history before 3:0 is offloaded"
    assert lag_of([found], at("1:9")) == Lag(4, 4, waits)
    assert lag_of([found], at("1:9"), furthest([found], EntryQuery())) == Lag(), "another step would have none of it"
    none = replace(found, map=replace(found.map, segments=(made(3, (3, 5, 8)),)))
    assert lag_of([none], at()) == Lag(4, 4, f"{TOPIC}: nothing until history before 3:0 is offloaded")
    assert lag_of([none], at(), furthest([none], EntryQuery())) == Lag()


def test_an_open_transaction_is_lag() -> None:
    """So is what was offloaded behind it."""
    found = replace(FOUND, held=Position(3, 0))
    waits = f"{TOPIC}: nothing behind 1:19 until the transaction that began at 3:0 ends"
    assert lag_of([found], at("1:19")) == Lag(9, 3, waits)
    assert lag_of([found], at("1:19"), furthest([found], EntryQuery())) == Lag()
    first = replace(FOUND, held=Position(1, 0))
    assert lag_of([first], at()).waits == f"{TOPIC}: nothing until the transaction that began at 1:0 ends"
