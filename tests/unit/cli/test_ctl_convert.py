"""`offloadctl convert`: what it takes, refuses, and says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

from click.testing import CliRunner

from offloaderd.cli.offloadctl import __main__ as offloadctl
from offloaderd.cli.offloadctl import convert
from offloaderd.cli.progress import Bars
from offloaderd.core.errors import Transient
from offloaderd.core.model import TopicName
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.topic_map.merging import goal_of
from offloaderd.spark.convert import ConversionFailed, ObjectPlan, Plan, Progress, Status, Target
from offloaderd.spark.jobs.driver import Ended

if TYPE_CHECKING:
    import pytest

TOPIC = TopicName.parse("public/default/orders")


def test_all_that_is_wrong_is_named_at_once() -> None:
    """Sizes, numbers, topics; nothing is opened."""
    said = ["convert", "run", "a/b", "--to", "merged", "--small", "x", "--parallel", "0", "--upload-rate", "1", "--yes"]
    result = CliRunner().invoke(offloadctl.cli, said)
    assert result.exit_code == 2
    for flag in ("TOPIC 'a/b'", "--small 'x'", "--parallel 0", "--upload-rate 1"):
        assert flag in result.stderr


def test_a_run_wants_a_confirmation() -> None:
    """Where nobody can answer it says what to add."""
    result = CliRunner().invoke(offloadctl.cli, ["convert", "run", "orders", "--to", "streaming"], env=ENVIRONMENT)
    assert result.exit_code == 2
    assert "add --yes" in result.stderr


ENVIRONMENT = {"OFFLOADERD__METADATA__SERVERS": "127.0.0.1:1", "OFFLOADERD__OBJECTS__BUCKET": "bucket"}


def segment(number: int) -> CommittedSegment:
    """One of ten entries."""
    return CommittedSegment(
        segment_id=UUID(int=number),
        slices=(LedgerSlice(number, 0, 9, 1000),),
        object_bytes=1200,
        assigned_ms=1,
        offloaded_ms=2,
        bucket="b",
        prefix="",
    )


def test_a_plan_shows_what_becomes_of_what_and_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """A line a topic, a reason for each that stays, and why a topic is not for it."""
    goal = goal_of([segment(1), segment(2)])
    plan = Plan(
        target=Target.MERGED,
        objects=ObjectPlan(goals=(goal,), left={"a broker wrote it": 3}),
        segment_bytes=4096,
        sources=2,
        entries=20,
        payload_bytes=2000,
        puts=5,
        gets=13,
    )
    convert.show_plans([(TOPIC, plan), (TopicName.parse("a/b/c"), ConversionFailed("nothing is offloaded"))])
    out, err = capsys.readouterr()
    assert "merged" in out
    assert "3 stay as they are: a broker wrote it" in err
    assert "nothing is offloaded" in err
    shown = json.loads(json.dumps(convert.plan_json(TOPIC, plan)))
    assert shown["objects"][0]["of"] == [str(UUID(int=1)), str(UUID(int=2))]
    assert convert.plan_json(TOPIC, Transient("away"))["error"] == "away"


def test_how_it_ended_is_told_with_what_was_left(capsys: pytest.CaptureFixture[str]) -> None:
    """Failures by range; a topic that was not done at all."""
    done = Progress(
        topic=TOPIC, done=1, goals=2, bytes_done=10, bytes_all=20, writing=0, failures=("1:0..1:9: unreadable",)
    )
    convert.show_ended([Ended(topic=TOPIC, progress=done), Ended(topic=TOPIC, error=Transient("away"))])
    out, err = capsys.readouterr()
    assert "1 object in place of the old ones" in out
    assert "not done" in out
    assert "left as it was: 1:0..1:9: unreadable" in err
    assert convert.ended_json(Ended(topic=TOPIC, progress=done))["failures"] == ["1:0..1:9: unreadable"]
    with Bars() as bars:
        convert.show_progress(bars, done)
        convert.show_progress(bars, done)
    assert capsys.readouterr().err.count("50.0 %") == 1


def test_status_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Of both kinds, and who works on it."""
    one = Status(topic=TOPIC, driver="", ledgers=1, segments=2, payload_bytes=3000, begun=1, trash=4)
    convert.show_status([one])
    out = capsys.readouterr().out
    assert "1 whole ledger, 2 segments" in out
    assert "1 begun and not exchanged, 4 on the trash list; worked on by nobody" in out
    assert convert.status_json(one)["driver"] is None
