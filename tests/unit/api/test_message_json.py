"""Messages as JSON: each field under its own name, and null for what is not there."""

from __future__ import annotations

import pytest

from offloaderd.protocol.conversion import as_json
from offloaderd.protocol.v1 import admin_pb2, common_pb2, history_pb2, read_pb2, retention_pb2, upkeep_pb2


def test_what_is_not_there_is_null() -> None:
    """A field that was not set, an empty text and a time of 0; a number and a flag are what they are."""
    shown = as_json(admin_pb2.TopicSummary(topic="a/b/c"))
    assert list(shown) == list(admin_pb2.TopicSummary.DESCRIPTOR.fields_by_name)
    assert (shown["topic"], shown["owner"], shown["ledgers"], shown["paused_ms"]) == ("a/b/c", None, None, None)
    assert shown["enabled"] is False


def test_a_field_that_was_set_to_0_is_0() -> None:
    """Unlike one that was not set."""
    assert as_json(admin_pb2.TopicSummary(entries=0))["entries"] == 0


def test_positions_are_texts_in_messages_within_messages_as_well() -> None:
    """As the command line takes them."""
    at = common_pb2.Position(ledger_id=7, entry_id=3)
    shown = as_json(history_pb2.PlanHistoryResponse(boundary=at, ranges=[history_pb2.HistoryRange(begin=at)]))
    assert shown["boundary"] == "7:3"
    assert isinstance(shown["ranges"], list)
    assert (shown["ranges"][0]["begin"], shown["ranges"][0]["end"]) == ("7:3", None)


def test_maps_are_sorted_and_fractions_have_three_digits() -> None:
    """So that two runs can be compared."""
    shown = as_json(upkeep_pb2.GcSummary(finds={"z": 1, "a": 2}, seconds=1.23456))
    assert list(shown["finds"]) == ["a", "z"]  # type: ignore[call-overload]
    assert shown["seconds"] == pytest.approx(1.235, abs=0)


def test_an_enumeration_is_its_name() -> None:
    """In lower case."""
    assert as_json(read_pb2.SeekResponse(answer=read_pb2.SEEK_ANSWER_SCAN))["answer"] == "seek_answer_scan"


def test_a_caller_decides_about_zeros_and_empty_texts() -> None:
    """Of the messages within it as well."""
    ledger = retention_pb2.Ledger(grant=retention_pb2.Grant(daemon_id=""))
    grant = as_json(ledger, nullable=("epoch",), kept=("daemon_id",))["grant"]
    assert isinstance(grant, dict)
    assert (grant["epoch"], grant["daemon_id"], grant["revoked_reason"]) == (None, "", None)
    assert "grant" not in as_json(ledger, leave_out=("grant",))
