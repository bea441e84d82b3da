"""offloadctl topics, status and segments: what is asked, what is shown, what the JSON looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.protocol.v1 import admin_pb2, read_pb2
from tests.unit.cli.fake_daemon import OPEN_ID, SEGMENT_ID, TOPIC, at

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Ctl
    from tests.unit.cli.fake_daemon import FakeDaemon


def test_topics_list_shows_a_table(ctl: Ctl, fake: FakeDaemon) -> None:
    """Every topic is a line with its counts in thousands."""
    fake.topics = [
        admin_pb2.TopicSummary(topic=TOPIC, enabled=True, owner="d-1", ledgers=2, entries=336_776, selected_by="a/*"),
        admin_pb2.TopicSummary(topic="persistent://public/default/idle", ledgers=0, entries=0),
        admin_pb2.TopicSummary(topic="persistent://public/default/many", enabled=True, partitioned=True),
    ]
    answer = ctl("topics", "list", "public")
    assert answer.code == 0
    header, first, second, third = answer.out.splitlines()
    assert header.split() == ["TOPIC", "OFFLOADED", "SELECTED", "BY", "OWNER", "LEDGERS", "ENTRIES"]
    assert first.split() == [TOPIC, "yes", "a/*", "d-1", "2", "336,776"]
    assert second.split() == ["persistent://public/default/idle", "no", "-", "-", "0", "0"]
    assert third.split() == ["persistent://public/default/many", "partitions", "-", "-", "-", "-"]
    assert fake.requests[0].prefix == "public"


def test_topics_list_as_json(ctl: Ctl, fake: FakeDaemon) -> None:
    """The document has one object a topic and one a selection; what does not exist, or was not counted, is null."""
    fake.topics = [admin_pb2.TopicSummary(topic=TOPIC, enabled=True, ledgers=2, placement="waits for d-2 to take it")]
    fake.selections = [admin_pb2.Selection(pattern="public/*", topics=1, created_ms=9, segment_age_max_s=0.5)]
    topic = {"topic": TOPIC, "enabled": True, "owner": None, "ledgers": 2, "entries": None}
    selection = {"pattern": "public/*", "topics": 1, "created_ms": 9, "segment_age_max_s": 0.5, "damage": None}
    inherited = {"segment_bytes_max": None, "segment_age_min_s": None, "read_priority": None, "outage": None}
    retained: dict[str, object] = {"retention": None, "retention_age_s": None, "retention_bytes": None, "policies": {}}
    assert ctl("topics", "list", "--json").json == {
        "topics": [
            {
                **topic,
                "selected_by": None,
                "partitioned": False,
                "placement": "waits for d-2 to take it",
                "paused_ms": None,
            }
        ],
        "selections": [{**selection, **inherited, **retained}],
    }


def test_a_daemon_that_only_reads_does_not_know_what_is_offloaded(ctl: Ctl, fake: FakeDaemon) -> None:
    """Its topics are those of the bucket: no policy is known, which is not `no`."""
    fake.topics = [admin_pb2.TopicSummary(topic=TOPIC, policy_unknown=True, ledgers=2, entries=7)]
    assert ctl("topics", "list").out.splitlines()[1].split() == [TOPIC, "-", "-", "-", "2", "7"]
    (topic,) = ctl("topics", "list", "--json").json["topics"]
    assert (topic["enabled"], topic["entries"]) == (None, 7)
    assert "policy_unknown" not in topic


def test_topics_list_shows_the_selections_of_what_was_asked(ctl: Ctl, fake: FakeDaemon) -> None:
    """Below the topics stand the patterns that can have to do with them, a damaged one always and with its reason."""
    fake.topics = [admin_pb2.TopicSummary(topic=TOPIC)]
    fake.selections = [
        admin_pb2.Selection(pattern="acme/*", created_ms=1_700_000_000_000),
        admin_pb2.Selection(pattern="public/*", topics=1_200, created_ms=1_700_000_000_000, segment_bytes_max=1024),
        admin_pb2.Selection(pattern="re:(", damage="corrupt data in re:("),
        admin_pb2.Selection(pattern="re:.*x", created_ms=1_700_000_000_000, segment_age_max_s=60),
    ]

    def patterns(*words: str) -> list[str]:
        lines = ctl("topics", "list", *words).out.splitlines()
        return [line.split()[0] for line in lines[lines.index("") + 2 :]]

    assert patterns("public/default") == ["public/*", "re:(", "re:.*x"]
    assert patterns("acme") == ["acme/*", "re:(", "re:.*x"]
    assert patterns() == ["acme/*", "public/*", "re:(", "re:.*x"]
    answer = ctl("topics", "list", "public")
    row = next(line for line in answer.out.splitlines() if line.startswith("public/*"))
    assert row.split() == ["public/*", "1,200", "1.0", "KiB", "-", "2023-11-14", "22:13:20"]
    assert "re:(: corrupt data in re:(" in answer.err


def test_no_topics_is_said_on_stderr(ctl: Ctl) -> None:
    """An empty list leaves stdout empty for a script and tells a person."""
    answer = ctl("topics", "list")
    assert (answer.code, answer.out) == (0, "")
    assert "no topics" in answer.err


def test_enable_sends_only_what_was_given(ctl: Ctl, fake: FakeDaemon) -> None:
    """A policy option that is left out stays unset in the request."""
    answer = ctl("topics", "enable", "orders", "--segment-size", "256M", "--read-priority", "tiered-first")
    assert answer.code == 0
    assert answer.out == f"enabled {TOPIC}\n"
    request = fake.requests[0]
    assert request.topic == TOPIC
    assert request.segment_bytes_max == 256 * 1024 * 1024
    assert request.read_priority == "tiered-storage-first"
    assert not request.HasField("segment_age_max_s")
    assert not request.HasField("outage")
    assert ctl("topics", "enable", "orders", "--outage", "block").code == 0
    assert fake.requests[1].outage == "block"
    assert ctl("topics", "enable", "orders", "--outage", "panic").code == 2


def change(topic: str, outcome: str, reason: str = "") -> admin_pb2.TopicChange:
    """What becomes of a topic."""
    return admin_pb2.TopicChange(topic=topic, outcome=outcome, reason=reason)


def test_enable_and_disable_as_json(ctl: Ctl, fake: FakeDaemon) -> None:
    """Both confirm with the same shape: what was named, what it is now, and what became of each topic."""
    fake.changes = [change(TOPIC, "enabled"), change("b", "left-alone", "compacted")]
    rows = [
        {"topic": TOPIC, "outcome": "enabled", "reason": None},
        {"topic": "b", "outcome": "left-alone", "reason": "compacted"},
    ]
    said = {"topic": TOPIC, "dry_run": False, "changes": rows}
    assert ctl("topics", "enable", "orders", "--json").json == {**said, "enabled": True}
    assert ctl("topics", "disable", "orders", "--json").json == {**said, "enabled": False}
    rehearsed = ctl("topics", "disable", "public/*", "--dry-run", "--json").json
    assert rehearsed == {"topic": "public/*", "dry_run": True, "changes": rows, "enabled": None}
    names = [type(request).__name__ for request in fake.requests]
    assert names == ["EnableTopicRequest", "DisableTopicRequest", "DisableTopicRequest"]
    assert (fake.requests[2].topic, fake.requests[2].dry_run) == ("public/*", True)


def test_a_pattern_says_how_many_topics_fared_how(ctl: Ctl, fake: FakeDaemon) -> None:
    """The result is one line; what was left alone is told apart from it, with the reason."""
    fake.changes = [change("a", "enabled"), change("b", "left-alone", "compacted"), change("c", "enabled")]
    answer = ctl("topics", "enable", "public/default/*", "--segment-size", "1M")
    assert answer.out == "enabled public/default/*: 2 enabled, 1 left alone\n"
    assert answer.err == "left alone: b: compacted\n"
    assert (fake.requests[0].topic, fake.requests[0].segment_bytes_max) == ("public/default/*", 1 << 20)
    fake.changes = []
    assert ctl("topics", "enable", "re:.*").out == "enabled re:.*: no topics so far\n"
    assert ctl("topics", "disable", "re:.*").out == "disabled re:.*: no topics so far\n"


def test_a_dry_run_shows_every_topic(ctl: Ctl, fake: FakeDaemon) -> None:
    """What would happen is a table, and nothing claims that it has happened."""
    fake.changes = [change("a", "enabled"), change("b", "left-alone", "compacted")]
    answer = ctl("topics", "enable", "public/default/*", "--dry-run")
    assert [line.split() for line in answer.out.splitlines()] == [
        ["TOPIC", "OUTCOME", "REASON"],
        ["a", "enabled"],
        ["b", "left-alone", "compacted"],
        ["would", "enable", "public/default/*:", "1", "enabled,", "1", "left", "alone"],
    ]
    assert fake.requests[0].dry_run
    assert ctl("topics", "disable", "orders", "--dry-run").out.endswith(
        f"would disable {TOPIC}: 1 enabled, 1 left alone\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a/b/file-1", "a/b/file-2"], "quote a pattern"),
        (["public/default/eu-*"], "re:TENANT/NAMESPACE/eu-.*"),
        (["a/b"], "malformed topic name"),
        ([], "Missing argument"),
    ],
)
def test_what_is_no_pattern_is_a_usage_error(ctl: Ctl, fake: FakeDaemon, words: list[str], said: str) -> None:
    """Nothing reaches the daemon, and the message says what to write; many words look like an expanded pattern."""
    answer = ctl("topics", "enable", *words)
    assert answer.code == 2
    assert said in answer.err
    assert not fake.requests


@pytest.mark.parametrize("size", ["0", "-1", "1.23456789k", "many", "1X", ""])
def test_a_wrong_size_is_a_usage_error(ctl: Ctl, fake: FakeDaemon, size: str) -> None:
    """What is no size never reaches the daemon."""
    answer = ctl("topics", "enable", "orders", "--segment-size", size)
    assert answer.code == 2
    assert "not a size" in answer.err or "not a whole number" in answer.err
    assert not fake.requests


@pytest.mark.parametrize("words", [["topics", "enable"], ["topics", "set-offload-policies"]])
def test_segments_of_hardly_anything_are_warned_of(ctl: Ctl, fake: FakeDaemon, words: list[str]) -> None:
    """A unit that was left out makes a segment for each entry; it is done all the same."""
    small = ctl(*words, "orders", "--segment-size", "1")
    assert small.code == 0
    assert "warning: segments of 1 B: each is three objects and a transaction in ZooKeeper" in small.err
    assert "hint: `offloadctl plan-cost` compares sizes" in small.err
    assert "warning" not in ctl(*words, "orders", "--segment-size", "64M").err
    assert "warning" not in ctl(*words, "orders", "--segment-age", "60").err
    assert len(fake.requests) == 3


def committed() -> admin_pb2.Segment:
    """A committed segment."""
    return admin_pb2.Segment(
        segment_id=SEGMENT_ID,
        status="Offloaded",
        begin=at(1, 0),
        end=at(2, 9),
        entries=1_234,
        payload_bytes=16 * 1024 * 1024,
        object_bytes=16 * 1024 * 1024 + 512,
        assigned_ms=1_000,
        offloaded_ms=1_700_000_000_000,
        data_key=SEGMENT_ID,
        bucket="b",
        method="ledger-based",
        writer="aws-s3",
        state="committed",
    )


def test_segments_table_ends_with_the_open_one(ctl: Ctl, fake: FakeDaemon) -> None:
    """Range, sizes, time and object of each segment; an open one says so."""
    opened = admin_pb2.Segment(segment_id=OPEN_ID, status="Assigned", begin=at(2, 10), bucket="b", data_key=OPEN_ID)
    fake.segments = [committed(), opened]
    lines = ctl("segments", "orders").out.splitlines()
    assert lines[1].split() == [
        "Offloaded", "ledger-based", "aws-s3", "1:0", "2:9", "1,234", "16.0", "MiB", "16.0", "MiB",
        "2023-11-14", "22:13:20", f"b/{SEGMENT_ID}",
    ]  # fmt: skip
    assert lines[2].split()[:5] == ["Assigned", "-", "-", "2:10", "open"]
    opened.state = "sealed"
    assert ctl("segments", "orders").out.splitlines()[2].split()[:3] == ["Assigned,", "sealed", "-"]


def test_segments_as_json(ctl: Ctl, fake: FakeDaemon) -> None:
    """Positions are text, what is not known yet is null, numbers are numbers."""
    fake.segments = [committed(), admin_pb2.Segment(segment_id=OPEN_ID, status="Assigned", begin=at(2, 10))]
    found = ctl("segments", "orders", "--json").json
    assert found["topic"] == TOPIC
    assert found["segments"][0] == {
        "segment_id": SEGMENT_ID,
        "status": "Offloaded",
        "begin": "1:0",
        "end": "2:9",
        "entries": 1_234,
        "payload_bytes": 16_777_216,
        "object_bytes": 16_777_728,
        "assigned_ms": 1_000,
        "offloaded_ms": 1_700_000_000_000,
        "bucket": "b",
        "data_key": SEGMENT_ID,
        "method": "ledger-based",
        "writer": "aws-s3",
        "state": "committed",
    }
    assert found["segments"][1]["writer"] is None
    assert found["segments"][1]["end"] is None
    assert found["segments"][1]["offloaded_ms"] is None


def full_status() -> admin_pb2.StatusResponse:
    """A daemon with one busy topic and a bucket that is down."""
    return admin_pb2.StatusResponse(
        daemon_id="d-1",
        version="0.1.0",
        state="serving",
        started_ms=1_700_000_000_000,
        dependencies=[
            admin_pb2.StatusResponse.Dependency(name="metadata", up=True),
            admin_pb2.StatusResponse.Dependency(name="objects", message="refused"),
        ],
        memory_used_bytes=1024,
        memory_budget_bytes=1024 * 1024,
        topics=[
            admin_pb2.TopicStatus(
                topic=TOPIC,
                state="stalled",
                stalled_reason="Denied: no",
                stalled_class="denied",
                stalled_since_ms=1_700_000_000_000,
                outage="spill",
                unprotected_entries=11,
                unprotected_bytes=2048,
                unprotected_since_ms=1_700_000_000_000,
                spilled_entries=5,
                spilled_bytes=1024,
                owner="d-1",
                epoch=4,
                confirmed=at(3, 20),
                offloaded=at(3, 9),
                lag_entries=11,
                lag_bytes=2048,
                lag_seconds=3.21,
                open_segment_id=OPEN_ID,
                open_segment_entries=11,
                open_segment_bytes=2048,
                open_segment_age_s=65,
                open_segment_continued=True,
                segments_committed=2,
                edge="next write",
                hidden_entries=2,
                looked_age_s=0.4,
                losses=[
                    admin_pb2.LostRange(after=at(1, 4), before=at(2, 0), entries=7, noticed_ms=1_700_000_000_000),
                    admin_pb2.LostRange(before=at(1, 0)),
                ],
            )
        ],
    )


def test_status_shows_daemon_dependencies_and_topics(ctl: Ctl, fake: FakeDaemon) -> None:
    """One look says what is down, what lags and why."""
    fake.status = full_status()
    out = ctl("status").out
    assert "d-1 0.1.0, serving since 2023-11-14 22:13:20 UTC" in out
    assert "1.0 KiB of 1.0 MiB" in out
    assert "DOWN: refused" in out
    row = next(line for line in out.splitlines() if line.startswith(TOPIC))
    assert row.split() == [TOPIC, "stalled", "3:20", "3:9", "11", "2.0", "KiB", "3.2", "s", "2.0", "KiB", "2"]
    assert f"{TOPIC}: Denied: no" in out
    fake.status.topics[0].paused_ms, fake.status.topics[0].paused_by = 1_700_000_000_000, "the quota stored_bytes = 5"
    assert f"{TOPIC}: paused since 2023-11-14 22:13:20 UTC by the quota stored_bytes = 5" in ctl("status").out


def test_status_names_the_first_topics_that_are_held_up(ctl: Ctl, fake: FakeDaemon) -> None:
    """Of each kind, and how many more there are: a tenant of ten thousand paused topics hides no stalled one."""
    fake.status = full_status()
    [stalled] = fake.status.topics
    for number in range(2000):
        paused = fake.status.topics.add(topic=f"persistent://t/n/{number:04}", paused_ms=1, paused_by="the quota")
        paused.history.live_waits = number < 11
    lines = ctl("status").out.splitlines()
    told = lines[next(at for at, line in enumerate(lines) if line.startswith(f"{stalled.topic}: ")) :]
    assert [line.startswith("persistent://t/n/") for line in told[1:11]] == [True] * 10
    assert told[11] == "and 1,990 more paused: see -o json"
    assert told[-1] == "and 1 more waiting for history: see -o json"
    assert len(told) == 1 + 2 * 11


def test_status_names_declared_tables(ctl: Ctl, fake: FakeDaemon) -> None:
    """A row a declaration, and what is unknown; from a daemon that does not say there is neither a row nor `none`."""
    fake.status = full_status()
    assert "TABLES" not in ctl("status").out
    assert ctl("status", "-o", "json").json["tables"] is None
    row = {"name": "sales", "topics": "a/b/*", "tables": 3, "failing": 1, "lag_seconds": 65, "lag_entries": 1200}
    fake.status.tables.declarations.add(**row, said_ms=1_700_000_000_000)
    fake.status.tables.declarations.add(name="odd", failure="tables/odd: no JSON")
    fake.status.tables.not_shown = 5
    lines = ctl("status").out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("TABLES"))
    assert lines[at + 1].split() == ["sales", "a/b/*", "3", "1", "1", "min", "05", "s", "1,200", *NOBODY]
    assert lines[at + 2].split() == ["odd", "-", "0", "0", "-", "0"]
    assert lines[at + 3 :] == ["tables odd: tables/odd: no JSON", "and 5 more: offloadctl tables list"]
    found = ctl("status", "--json").json["tables"]
    assert (found["failure"], found["not_shown"]) == (None, 5)
    assert found["declarations"][0] == {**row, "writer": None, "said_ms": 1_700_000_000_000, "failure": None}
    fake.status.tables.Clear()
    fake.status.tables.failure = "no answer"
    assert ctl("status").out.splitlines()[-1] == "tables UNKNOWN: no answer"
    assert "UNKNOWN" not in ctl("status", "orders").out
    assert [one.tables for one in fake.requests if isinstance(one, admin_pb2.StatusRequest)][-2:] == [True, False]


NOBODY = ["nobody,", "states", "of", "2023-11-14", "22:13:20"]


def test_status_of_a_topic_has_its_positions(ctl: Ctl, fake: FakeDaemon) -> None:
    """A single topic is shown in full, with what LastPositions says."""
    fake.status = full_status()
    fake.positions = read_pb2.LastPositionsResponse(first=at(1, 0), confirmed=at(3, 20))
    out = ctl("status", "orders").out
    assert "stalled: Denied: no" in out
    assert "2023-11-14 22:13:20 UTC (denied); outage policy: spill" in out
    assert "11 entries, 2.0 KiB, 1.0 KiB of it on this daemon's disk, since 2023-11-14 22:13:20 UTC" in out
    assert "11 entries, 2.0 KiB, oldest 3.2 s ago" in out
    assert f"{OPEN_ID} (11 entries, 2.0 KiB, 1 min 05 s old, continued)" in out
    assert "2 entries not known to be confirmed; read 400 ms ago" in out
    assert "7 entries after 1:4 and before 2:0, noticed 2023-11-14 22:13:20 UTC" in out
    assert "it is unknown whether any before 1:0" in out
    assert [line.split()[-1] for line in out.splitlines() if line.startswith(("oldest", "buffered to"))] == ["1:0", "-"]


def test_status_as_json(ctl: Ctl, fake: FakeDaemon) -> None:
    """The shape that scripts rely on: daemon, topics, and positions for one topic."""
    fake.status = full_status()
    fake.positions = read_pb2.LastPositionsResponse(first=at(1, 0), confirmed=at(3, 20), offloaded=at(3, 9))
    found = ctl("status", "orders", "--json").json
    assert found["daemon"]["id"] == "d-1"
    assert found["daemon"]["dependencies"][1] == {
        "name": "objects",
        "up": False,
        "message": "refused",
        "since_ms": None,
    }
    topic = found["topics"][0]
    assert (topic["confirmed"], topic["offloaded"], topic["lag_entries"]) == ("3:20", "3:9", 11)
    opened = {"segment_id": OPEN_ID, "entries": 11, "bytes": 2048, "age_s": 65.0, "continued": True}
    assert topic["open_segment"] == opened
    assert (topic["edge"], topic["hidden_entries"], topic["looked_age_s"]) == ("next write", 2, 0.4)
    assert (topic["stalled_class"], topic["stalled_since_ms"]) == ("denied", 1_700_000_000_000)
    assert topic["outage"] == "spill"
    assert topic["unprotected"] == {
        "entries": 11,
        "bytes": 2048,
        "since_ms": 1_700_000_000_000,
        "spilled_entries": 5,
        "spilled_bytes": 1024,
    }
    assert topic["losses"] == [
        {"after": "1:4", "before": "2:0", "entries": 7, "noticed_ms": 1_700_000_000_000},
        {"after": None, "before": "1:0", "entries": None, "noticed_ms": 0},
    ]
    assert found["positions"] == {
        "first": "1:0",
        "confirmed": "3:20",
        "offloaded": "3:9",
        "buffered_first": None,
        "buffered_last": None,
    }
    assert "positions" not in ctl("status", "--json").json
