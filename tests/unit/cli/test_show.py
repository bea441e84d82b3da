"""Tables by their columns, and fields of values as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pytest

from offloaderd.cli import show
from offloaderd.core.model import Position, TopicName
from offloaderd.protocol.conversion import picked
from offloaderd.protocol.v1 import admin_pb2, common_pb2, history_pb2


@dataclass
class Report:
    """What a job has done."""

    topic: TopicName = field(default_factory=lambda: TopicName.parse("a/b/c"))
    begin: Position | None = None
    payload_bytes: int = 2048
    seconds: float = 1.23456
    ids: tuple[UUID, ...] = (UUID(int=1),)
    reason: str = ""
    done_ms: int = 0
    left: dict[str, int] = field(default_factory=lambda: {"open": 1})


def test_cells_follow_from_names_and_types_of_fields() -> None:
    """Of messages, dataclasses and mappings; what is not set is a dash."""
    one = history_pb2.HistoryRange(begin=common_pb2.Position(ledger_id=3, entry_id=4), entries=12345)
    assert [show.cell(one, name) for name in ("begin", "end", "entries", "payload_bytes")] == [
        "3:4",
        "-",
        "12,345",
        "0 B",
    ]
    assert [show.cell(Report(), name) for name in ("begin", "payload_bytes", "done_ms")] == ["-", "2.0 KiB", "-"]
    found = {"age_s": 90, "ledger_id": 12345, "begin": None}
    assert [show.cell(found, name) for name in found] == ["1 min 30 s", "12345", "-"]


def test_a_row_is_a_line_whatever_is_in_it() -> None:
    """What would move the cursor is shown as an escape; wide letters count as two columns; nothing is cut."""
    rows = [("a\nb\x1b[2J", "x" * 2000), ("表", "y")]
    first, *lines = show.rendered((">NAME", "VALUE"), rows).splitlines()
    assert first == "       NAME  VALUE"
    assert lines == [f"a\\nb\\x1b[2J  {'x' * 2000}", "         表  y"]


def test_an_empty_text_is_a_dash_but_in_the_last_column() -> None:
    """Where blanks at the end of a line would say nothing."""
    table = show.Table[Report](("TOPIC", "topic"), ("WHY", "reason"), (">DONE", lambda _: "yes"), ("NOTE", "reason"))
    assert table.rendered([Report()]).splitlines()[1].split() == ["persistent://a/b/c", "-", "yes"]


def test_fields_of_a_value_are_picked_as_those_of_a_message_are() -> None:
    """In the order that was said, under another name where one is said; positions, names and ids are texts."""
    shown = picked(Report(begin=Position(1, 2)), "topic", "from=begin", "seconds", "ids", "reason", "done_ms", "left")
    assert list(shown) == ["topic", "from", "seconds", "ids", "reason", "done_ms", "left"]
    assert shown == {
        "topic": "persistent://a/b/c", "from": "1:2", "seconds": pytest.approx(1.235, abs=0), "ids": [str(UUID(int=1))],
        "reason": None, "done_ms": None, "left": {"open": 1},
    }  # fmt: skip
    assert picked(Report(), "why=reason", kept=("reason",)) == {"why": ""}
    assert picked(admin_pb2.TopicSummary(ledgers=0), "ledgers", "entries") == {"ledgers": 0, "entries": None}
