"""`offloadctl backfill`: what is looked at before anything is opened, and how answers are shown."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from offloaderd.cli.offloadctl import __main__ as offloadctl
from offloaderd.cli.offloadctl import backfill
from offloaderd.cli.progress import Bars
from offloaderd.core.errors import Transient
from offloaderd.core.model import OffloadMethod, Position, TopicName
from offloaderd.metadata.records.history import HistoryRange
from offloaderd.policy.settings import Prices
from offloaderd.segment.builder import SegmentLayout
from offloaderd.spark.backfill.backfill import Progress, Status
from offloaderd.spark.backfill.plan import BackfillFailed, Origin, TopicPlan
from offloaderd.spark.jobs.driver import Ended

TOPIC = TopicName.parse("public/default/orders")
MIB = 1 << 20
PRICES = Prices(put_1000=1.0, get_1000=0.0, delete_1000=0.0, stored_gib_month=10.0)


def test_all_wrong_options_are_named_at_once() -> None:
    """One error with a line for each; nothing is opened, no Spark is started."""
    given = ["a/b", "--namespace", "public", "--parallel", "0", "--source-rate", "9", "--upload-rate", "x"]
    more = ["--segment-size", "-1", "--spark-conf", "novalue", "--patience", "soon"]
    result = CliRunner().invoke(offloadctl.cli, ["backfill", "run", *given, *more])
    assert result.exit_code == 2
    for said in ("TOPIC", "--namespace", "--parallel 0", "--source-rate 9", "--upload-rate", "--segment-size"):
        assert said in result.stderr, said
    for said in ("novalue", "--patience"):
        assert said in result.stderr, said


@pytest.mark.parametrize("command", ["plan", "run", "status"])
def test_the_topics_have_to_be_given(command: str) -> None:
    """None is not all."""
    result = CliRunner().invoke(offloadctl.cli, ["backfill", command])
    assert result.exit_code == 2
    assert "name a TOPIC, or a --namespace" in result.stderr


def test_settings_that_are_wrong_are_reported_as_by_a_daemon() -> None:
    """All at once, exit code 2."""
    environment = {"OFFLOADERD__METADATA__SERVERS": "", "OFFLOADERD__OFFLOAD__PART_BYTES": "many"}
    result = CliRunner().invoke(offloadctl.cli, ["backfill", "status", "orders"], env=environment)
    assert result.exit_code == 2
    assert "OFFLOADERD__OFFLOAD__PART_BYTES" in result.stderr
    assert "OFFLOADERD__METADATA__SERVERS" in result.stderr


def plan_of(count: int) -> TopicPlan:
    """A plan of so many segments of 100 MiB in entries of 1 KiB."""
    ranges = [
        HistoryRange(begin=Position(n, 0), end=Position(n, 9), entries=102_400, payload_bytes=100 * MIB)
        for n in range(count)
    ]
    return TopicPlan(
        topic=TOPIC,
        ranges=ranges,
        entries=102_400 * count,
        payload_bytes=100 * MIB * count,
        segment_bytes=100 * MIB,
        layout=SegmentLayout(block_bytes=MIB, part_bytes=8 * MIB),
        probes=17 * count,
        boundaries=count - 1,
        seconds=0.5,
        doubtful=1,
        split=False,
        method=OffloadMethod.STREAMING,
        origin=Origin.JOB,
    )


def test_requests_and_costs_follow_from_sizes() -> None:
    """Parts of framed bytes, and what each segment takes beside them."""
    plan = plan_of(10)
    assert plan.object_bytes > plan.payload_bytes + 12 * plan.entries
    assert (plan.puts, plan.gets) == (10 * (13 + 5), 10 * 8)
    once, month = plan.costs(PRICES)
    assert once == pytest.approx(0.18)
    assert month == pytest.approx(10 * plan.object_bytes / 1024**3)


def test_plans_are_shown_with_what_they_took(capsys: pytest.CaptureFixture[str]) -> None:
    """A line a topic; probes, doubts, and why others are not for a job."""
    other = TopicName.parse("public/default/other")
    backfill.show_plans([(TOPIC, plan_of(3)), (other, BackfillFailed("it is not enabled"))], PRICES)
    out, err = capsys.readouterr()
    assert "300.0 MiB" in out
    assert "51 probes for 2 boundaries, in 500 ms" in err
    assert "in doubt: split by entries" in err
    assert "not for a job: it is not enabled" in err
    assert backfill.plan_json(other, Transient("away"), PRICES) == {"topic": str(other), "error": "away"}
    assert json.loads(json.dumps(backfill.plan_json(TOPIC, plan_of(3), PRICES)))["segments"] == 3


def progress(done: int, left: int) -> Progress:
    """A topic of 100 bytes."""
    return Progress(
        topic=TOPIC, entries_left=left, bytes_left=left, bytes_all=100, committed=done, waiting=1, writing=2, ranges=4,
        ranges_done=done, losses=0, retries=0,
    )  # fmt: skip


def test_the_bar_shows_each_commit_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal a line a commit."""
    with Bars() as bars:
        for one in (progress(0, 100), progress(1, 75), progress(1, 75), progress(4, 0)):
            backfill.show_progress(bars, one)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("%")[0].split()[-1] for line in lines] == ["25.0", "100.0"]


def test_how_far_a_topic_is_shows_a_bar_and_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    """While somebody drives it; a topic without history is named."""
    one = Status(
        topic=TOPIC, worker="job", method=OffloadMethod.STREAMING, done=False, entries=100, entries_left=50,
        payload_bytes=100, bytes_left=50, segments=2,
        ranges=4, ranges_done=2, ranges_claimed=1, written=1, driver="me", bytes_per_s=10, seconds_left=5,
    )  # fmt: skip
    backfill.show_status([(TOPIC, one), (TopicName.parse("a/b/c"), None)])
    out, err = capsys.readouterr()
    assert " 50.0 %" in out
    assert "about 5.0 s" in out
    assert "worked on by driver me" in out
    assert "no planned history" in err
    shown = backfill.status_json(TOPIC, one)["history"]
    assert isinstance(shown, dict)
    assert (shown["done_percent"], shown["begun"], shown["driver"]) == (50.0, 1, "me")


def test_what_became_of_topics_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Done with losses, nothing to do, not done."""
    lossy = Progress(
        topic=TOPIC, entries_left=0, bytes_left=0, bytes_all=1, committed=3, waiting=0, writing=0, ranges=3,
        ranges_done=3, losses=2, retries=1,
    )  # fmt: skip
    ended = [
        Ended(topic=TOPIC, progress=lossy),
        Ended(topic=TOPIC, nothing=True),
        Ended(topic=TOPIC, error=BackfillFailed("no")),
    ]
    backfill.show_ended(ended)
    out = capsys.readouterr().out
    assert "3 segments committed; 2 losses recorded" in out
    assert "nothing to do" in out
    assert "not done" in out
    assert [backfill.ended_json(one)["done"] for one in ended] == [True, True, False]
