"""offloadctl plan-cost: rates that are measured or given, prices from the settings, what is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.policy.prices import SOURCES, TABLE
from offloaderd.protocol.v1 import admin_pb2, policy_pb2
from tests.unit.cli.fake_daemon import TOPIC

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.conftest import Ctl
    from tests.unit.cli.fake_daemon import FakeDaemon

GIB = 1024**3


def segment(assigned_s: int, offloaded_s: int, *, payload_bytes: int = GIB, writer: str = "") -> admin_pb2.Segment:
    """Return a segment of a million entries, committed unless `offloaded_s` is 0."""
    return admin_pb2.Segment(
        entries=1 << 20,
        payload_bytes=payload_bytes,
        assigned_ms=1000 * assigned_s,
        offloaded_ms=1000 * offloaded_s,
        writer=writer,
    )


def test_rates_are_measured_from_what_was_committed(fake: FakeDaemon, ctl: Ctl) -> None:
    """From the first segment's begin to the last one's commit; the open one and a broker's own do not count."""
    fake.segments = [
        segment(0, 10, writer="aws-s3"),
        segment(100, 612),
        segment(612, 1124, writer="offloaderd"),
        segment(1124, 0),
    ]
    answer = ctl("plan-cost", "orders", "--json")
    assert answer.code == 0
    assert answer.json["load"] == {"topics": 1.0, "bytes_per_s": pytest.approx(2 * GIB / 1024)}
    assert [plan["age_s"] for plan in answer.json["plans"]] == [60, 600, 3600]
    assert [plan["present"] for plan in answer.json["plans"]] == [False, True, False]


def test_what_holds_for_the_topics_named_is_marked(fake: FakeDaemon, ctl: Ctl) -> None:
    """Their own policy, not what the settings at hand say; and what money is meant."""
    fake.segments = [segment(0, 1024)]
    held = policy_pb2.OffloadPolicies(segment_bytes_max=64 << 20, segment_age_max_s=5.0)
    fake.policies = policy_pb2.GetPoliciesResponse(effective=held)
    plans = ctl("plan-cost", "orders", "--json").json["plans"]
    assert [(one["size_bytes"], one["age_s"]) for one in plans if one["present"]] == [(64 << 20, 5)]
    said = ctl("plan-cost", "orders").out
    assert "REQUEST COST/MONTH" in said
    assert "US dollars" in said


def test_all_topics_are_asked_when_none_is_named(fake: FakeDaemon, ctl: Ctl) -> None:
    """Each counts with its own rate."""
    fake.topics = [admin_pb2.TopicSummary(topic=f"{TOPIC}-{number}") for number in range(3)]
    fake.segments = [segment(0, 1024)]
    answer = ctl("plan-cost", "--json")
    assert answer.json["load"] == {"topics": 3.0, "bytes_per_s": pytest.approx(3 * GIB / 1024)}


def test_many_topics_are_sampled_and_stand_for_all(fake: FakeDaemon, ctl: Ctl) -> None:
    """At most two hundred are asked; the total is that of all."""
    fake.topics = [admin_pb2.TopicSummary(topic=f"{TOPIC}-{number}") for number in range(250)]
    fake.segments = [segment(0, 1024)]
    answer = ctl("plan-cost", "--json")
    assert answer.json["load"] == {"topics": 250.0, "bytes_per_s": pytest.approx(250 * GIB / 1024)}
    assert sum(isinstance(request, admin_pb2.ListSegmentsRequest) for request in fake.requests) == 125


def test_nothing_to_measure_says_what_to_do(ctl: Ctl) -> None:
    """A daemon that has committed nothing cannot tell a rate."""
    answer = ctl("plan-cost", "orders")
    assert answer.code != 0
    assert "no segments to measure a rate from" in answer.err
    assert "--rate" in answer.err


def test_a_given_rate_calls_no_daemon(fake: FakeDaemon, ctl: Ctl) -> None:
    """It works without one, and shows a line for each size and age, with the settings' own marked."""
    words = ("plan-cost", "--rate", "1KiB", "--topics", "1000", "--size", "64MiB", "--age", "1min")
    answer = ctl(*words, at="127.0.0.1:1")
    assert answer.code == 0
    assert fake.requests == []
    lines = answer.out.splitlines()
    assert lines[0] == "1,000 topics, 1000.0 KiB/s of payload"
    assert [line.split()[:2] for line in lines[3:5]] == [["64.0", "MiB"], ["1.0", "GiB"]]
    assert "60,000.0" in lines[3]
    assert [" * " in line for line in lines[3:5]] == [False, True]


def test_prices_and_sizes_are_those_of_the_settings(ctl: Ctl, tmp_path: Path) -> None:
    """Requests at ten times the price cost ten times as much, and the marked line is the file's."""
    file = tmp_path / "offloaderd.toml"
    file.write_text('[objects]\nbucket = "bucket"\n[offload]\nsegment_age_max_s = 120\n[scrub]\nenabled = false\n')
    cheap = ctl("plan-cost", "--rate", "1MiB", "--config", str(file), "--age", "2min", "--json").json["plans"]
    file.write_text(file.read_text() + "[prices]\nput_1000 = 0.05\nget_1000 = 0.004\n")
    dear = ctl("plan-cost", "--rate", "1MiB", "--config", str(file), "--age", "2min", "--json").json["plans"]
    assert [(plan["age_s"], plan["present"]) for plan in cheap] == [(120, True)]
    assert cheap[0]["scrub_requests"] == {"puts": 0, "gets": 0, "deletes": 0}
    assert dear[0]["requests_month"] == pytest.approx(10 * cheap[0]["requests_month"])
    assert dear[0]["stored_month"] == cheap[0]["stored_month"]


def test_classes_are_compared_by_list_prices(ctl: Ctl) -> None:
    """Each with the date and source of its prices; what the scrub reads is charged where reads are."""
    words = ("plan-cost", "--rate", "1MiB", "--topics", "10", "--compare")
    found = {one["name"]: one for one in ctl(*words, "--json").json["classes"]}
    assert found.keys() == TABLE.keys()
    assert all(one["source"].startswith("https://") and one["date"] for one in found.values())
    assert found["aws/STANDARD"]["scrub_reads_month"] == 0
    assert found["aws/GLACIER_IR"]["scrub_reads_month"] > found["aws/GLACIER_IR"]["stored_month"]
    assert found["aws/STANDARD_IA"]["stored_month"] < found["aws/STANDARD"]["stored_month"]
    assert found["aws/STANDARD_IA"]["requests_month"] > found["aws/STANDARD"]["requests_month"]
    said = ctl(*words).out
    assert "SCRUB READS" in said
    assert all(one.url in said for one in SOURCES.values())


def test_a_plan_takes_the_list_prices_of_a_class(ctl: Ctl) -> None:
    """Instead of those of the settings; the default ones are those of S3's own class."""
    words = ("plan-cost", "--rate", "1MiB", "--age", "10min", "--json")
    (plain,) = ctl(*words).json["plans"]
    assert ctl(*words, "--prices", "aws/STANDARD").json["plans"] == [plain]
    (rare,) = ctl(*words, "--prices", "aws/STANDARD_IA").json["plans"]
    assert rare["stored_month"] == pytest.approx(plain["stored_month"] * 0.0125 / 0.023)


def test_a_mirror_is_counted_if_it_is_named_and_said_not_to_be_else(ctl: Ctl) -> None:
    """By the prices of its class, in a column of its own; traffic only at a price."""
    words = ("plan-cost", "--rate", "1MiB", "--age", "10min")
    plain = ctl(*words)
    assert "a mirror is not counted: --mirror SERVICE/CLASS" in plain.out
    (alone,) = ctl(*words, "--json").json["plans"]
    assert "mirror_month" not in alone
    (same,) = ctl(*words, "--mirror", "aws/STANDARD", "--json").json["plans"]
    copies = same.pop("mirror_month")
    assert same == alone
    assert (copies["requests"], copies["stored"]) == pytest.approx((alone["requests_month"], alone["stored_month"]))
    assert (copies["traffic"], copies["reads"]) == (0, 0)
    assert 0 < copies["first_reads"] < copies["requests"]
    told = ctl(*words, "--mirror", "gcs/NEARLINE", "--traffic", "0.09", "--compare", "--json").json
    (away,) = told["plans"]
    assert away["mirror_month"]["traffic"] > away["mirror_month"]["reads"] > 0
    (there,) = (one for one in told["classes"] if one["name"] == "gcs/NEARLINE")
    assert away["mirror_month"]["requests"] == there["requests_month"]
    said = ctl(*words, "--mirror", "gcs/NEARLINE", "--traffic", "0.09").out
    assert f"{sum(away['mirror_month'].values()):,.2f}" in said
    assert "list prices of gcs/NEARLINE" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "much"), "not a size"),
        (("--rate", "0"), "at least 1 byte"),
        (("--rate", "1MiB", "--age", "soon"), "not a duration"),
        (("orders", "--rate", "1MiB"), "not both"),
        (("--rate", "1MiB", "--traffic", "1"), "--mirror"),
    ],
)
def test_mistakes_are_told(ctl: Ctl, words: tuple[str, ...], said: str) -> None:
    """With what was wrong, and exit code 2."""
    answer = ctl("plan-cost", *words)
    assert answer.code == 2
    assert said in answer.err
