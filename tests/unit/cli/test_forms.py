"""The forms of an answer: JSON, YAML, names, and a table of all fields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import grpc
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.cli import forms
from offloaderd.protocol.v1 import admin_pb2
from tests.unit.cli.fake_daemon import Failure, at

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Ctl
    from tests.unit.cli.fake_daemon import FakeDaemon

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


@given(st.dictionaries(st.text(), VALUES))
def test_yaml_has_the_values_of_json(document: dict[str, object]) -> None:
    """Whatever texts look like: numbers, words of YAML, control characters, several lines."""
    assert yaml.safe_load(forms.written(document, "yaml")) == document
    assert json.loads(forms.written(document, "json")) == document


@pytest.mark.parametrize("text", ["no", "1e3", "1:30", "~", "- a", "a: b", "a #b", " a", "", "null", "\x85\ufeff"])
def test_a_text_that_yaml_would_read_as_something_else_is_quoted(text: str) -> None:
    """So that it stays a text."""
    assert yaml.safe_load(forms.written({"a": [text]}, "yaml")) == {"a": [text]}


def test_yaml_is_in_blocks() -> None:
    """As people write it; empty lists and objects in one line."""
    document = {"topic": "a/b", "at": "1:2", "rows": [{"count": 1, "more": []}, {"count": 2.5, "more": {"x": None}}]}
    assert forms.written(document, "yaml").splitlines() == [
        "topic: a/b", 'at: "1:2"', "rows:", "- count: 1", "  more: []", "- count: 2.5", "  more:", "    x: null",
    ]  # fmt: skip


def test_names_are_the_first_values_of_the_rows_or_of_the_document() -> None:
    """One a line, as scripts read them; a row without one gives none."""
    rows = {"when": 1, "topics": [{"topic": "a", "n": 1}, {"topic": "b\n", "n": 2}, {"summary": {"n": 3}}]}
    assert forms.written(rows, "name") == "a\nb\\n\n"
    assert forms.written({"topic": "a", "enabled": True, "flaws": []}, "name") == ""
    assert forms.written({"topic": "a", "enabled": True}, "name") == "a\n"


def test_a_wide_table_has_all_fields_of_all_rows() -> None:
    """In their order, with the units of people, numbers to the right; objects and lists are left to JSON."""
    rows = [
        {"topic": "a", "payload_bytes": 2048, "enabled": True, "inner": {"x": 1}},
        {"topic": "bb", "payload_bytes": 0, "enabled": None, "seconds": 1.5},
    ]
    assert forms.written({"topics": rows}, "wide").splitlines() == [
        "TOPIC  PAYLOAD BYTES  ENABLED  SECONDS",
        "a            2.0 KiB  yes            -",
        "bb               0 B  -            1.5",
    ]
    assert forms.written({"daemon_id": "one", "used_bytes": 1024}, "wide") == "daemon_id   one\nused_bytes  1.0 KiB\n"
    assert forms.written({"topics": []}, "wide") == ""


def test_every_form_is_chosen_by_one_option(ctl: Ctl, fake: FakeDaemon) -> None:
    """Before or after the command; --json is the short form of one of them."""
    fake.topics = [admin_pb2.TopicSummary(topic="persistent://public/default/orders", enabled=True, ledgers=3)]
    found = ctl("topics", "list", "-o", "json").json
    assert ctl("topics", "list", "--json").json == ctl("-o", "json", "topics", "list").json == found
    assert yaml.safe_load(ctl("topics", "list", "-o", "yaml").out) == found
    assert ctl("topics", "list", "-o", "name").out == "persistent://public/default/orders\n"
    assert ctl("topics", "list", "-o", "wide").out.split()[:3] == ["TOPIC", "ENABLED", "OWNER"]
    assert ctl("topics", "list", "-o", "table").out == ctl("topics", "list").out != ""
    assert ctl("topics", "list", "--json", "-o", "yaml").code == 2
    assert ctl("topics", "list", "-o", "xml").code == 2


def test_documents_of_a_stream_are_separate_in_every_form(ctl: Ctl, fake: FakeDaemon) -> None:
    """A line of JSON, a document of YAML, a name for each."""
    assert forms.item({"a": 1}, "json") + forms.item({"a": 2}, "json") == '{"a":1}\n{"a":2}\n'
    assert list(yaml.safe_load_all(forms.item({"a": 1}, "yaml") + forms.item({"a": 2}, "yaml"))) == [{"a": 1}, {"a": 2}]
    assert forms.item({"a": 1, "b": 2}, "name") == "1\n"
    said = ctl("read", "orders", "-o", "yaml")
    assert (said.code, fake.requests) == (2, [])
    assert "--format" in json.loads(said.err)["hint"]


def test_errors_are_json_where_the_answer_is_json_or_yaml(ctl: Ctl, fake: FakeDaemon) -> None:
    """Those of usage too; for names they are lines, as for people."""
    fake.failure = Failure(grpc.StatusCode.NOT_FOUND, "it went wrong", "REASON", "do this")
    for words in (["-o", "json"], ["-ojson"], ["-o", "yaml"], ["--json"]):
        answer = ctl("segments", "orders", *words)
        assert json.loads(answer.err) == {"error": "it went wrong", "hint": "do this", "exit_code": 4}, words
        assert json.loads(ctl("segments", *words).err)["exit_code"] == 2
    assert ctl("segments", "orders", "-o", "name").err == "error: it went wrong\nhint: do this\n"


def test_names_of_segments_are_their_ids(ctl: Ctl, fake: FakeDaemon) -> None:
    """What other commands take."""
    fake.segments = [admin_pb2.Segment(segment_id="x", begin=at(1, 0)), admin_pb2.Segment(segment_id="y")]
    assert ctl("segments", "orders", "-o", "name").out == "x\ny\n"
