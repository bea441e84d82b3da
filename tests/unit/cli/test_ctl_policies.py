"""offloadctl broker, namespaces, topics ...-offload-policies and import-broker-conf: asked, shown, refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloaderd.protocol.v1 import policy_pb2
from tests.unit.cli.fake_daemon import TOPIC

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Ctl
    from tests.unit.cli.fake_daemon import FakeDaemon

Said = policy_pb2.OffloadPolicies
LEVELS = {
    "broker": (["broker"], []),
    "namespace": (["namespaces"], ["acme/eu"]),
    "topic": (["topics"], ["orders"]),
}


@pytest.mark.parametrize("level", LEVELS)
def test_policies_are_set_and_removed_at_every_level(ctl: Ctl, fake: FakeDaemon, level: str) -> None:
    """The request names the level and has what was given and nothing else."""
    group, name = LEVELS[level]
    answer = ctl(*group, "set-offload-policies", *name, "--segment-size", "10M", "--dry-run")
    assert answer.code == 0
    request = fake.requests[-1]
    assert request.level.WhichOneof("level") == level
    assert (request.policies, request.dry_run) == (Said(segment_bytes_max=10 << 20), True)
    assert ctl(*group, "remove-offload-policies", *name).code == 0
    assert fake.requests[-1].level.WhichOneof("level") == level
    assert not fake.requests[-1].dry_run
    assert ctl(*group, "get-offload-policies", *name).code == 0
    assert fake.requests[-1].level.WhichOneof("level") == level


def test_every_value_has_our_spelling_and_pulsars(ctl: Ctl, fake: FakeDaemon) -> None:
    """A bare number is in bytes or seconds in ours, in the unit of its name in Pulsar's; a written unit counts."""
    ours = (
        "--method streaming-based --segment-size 64M --segment-age 2h --segment-age-min 90 --threshold-size -1 "
        "--threshold-age 0 --deletion-lag off --read-priority tiered-first --bucket topics --prefix p/ "
        "--history-order alongside --outage block --retention limited --retain-age 30d --retain-size 1T"
    )
    ctl("namespaces", "set-offload-policies", "acme/eu", *ours.split())
    assert fake.requests[-1].policies == Said(
        method="streaming",
        segment_bytes_max=64 << 20,
        segment_age_max_s=7200.0,
        segment_age_min_s=90.0,
        threshold_bytes=-1,
        threshold_s=0.0,
        deletion_lag_s=-1.0,
        read_priority="tiered-storage-first",
        bucket="topics",
        prefix="p/",
        history_order="alongside",
        outage="block",
        retention="limited",
        retention_age_s=2_592_000.0,
        retention_bytes=1 << 40,
    )
    for pulsars in (
        "--offloadMethod ledger-based --maxSizePerOffloadSegmentMbytes 64 --maxOffloadSegmentRolloverTimeMinutes 3 "
        "--offloadThresholdInBytes 10M --offloadThresholdInSeconds 60 --offloadDeletionLagInMillis 5000 "
        "--offloadedReadPriority bookkeeper-first",
        "--offloadMethod ledger-based --maxSizePerOffloadSegmentMbytes 64 --maxOffloadSegmentRolloverTimeMinutes 180s "
        "-oat 10M -oats 1m -oae 5s -orp bookkeeper-first",
    ):
        ctl("topics", "set-offload-policies", "orders", *pulsars.split())
        assert fake.requests[-1].policies == Said(
            method="ledger-based",
            segment_bytes_max=64 << 20,
            segment_age_max_s=180.0,
            threshold_bytes=10 << 20,
            threshold_s=60.0,
            deletion_lag_s=5.0,
            read_priority="bookkeeper-first",
        )


def test_all_that_is_wrong_with_a_command_line_is_told(ctl: Ctl, fake: FakeDaemon) -> None:
    """Each value with its name, what was written and the range; both spellings of one value; nothing is asked."""
    answer = ctl(
        "broker", "set-offload-policies", "--segment-size", "5X", "--segment-age", "0", "-orp", "fast",
        "--deletion-lag", "5", "-dl", "5",
    )  # fmt: skip
    assert answer.code == 2
    for part in ("'5X'", "'0' is not more than 0", "'fast' is not one of", "--deletion-lag and --offloadDeletionLag"):
        assert part in answer.err
    assert not fake.requests


def test_what_holds_is_shown_with_who_said_it(ctl: Ctl, fake: FakeDaemon) -> None:
    """A line a value, with units; and why the topic is offloaded or not."""
    fake.policies = policy_pb2.GetPoliciesResponse(
        own=Said(segment_bytes_max=5 << 20),
        effective=Said(segment_bytes_max=5 << 20, deletion_lag_s=-1.0, method="streaming", prefix=""),
        origins=[
            policy_pb2.PolicyOrigin(field="method", origin="default"),
            policy_pb2.PolicyOrigin(field="segment_bytes_max", origin="topic", name=TOPIC),
            policy_pb2.PolicyOrigin(field="deletion_lag_s", origin="namespace", name="public/default"),
            policy_pb2.PolicyOrigin(field="prefix", origin="settings"),
        ],
        selected_by="public/default",
        enabled=True,
    )
    answer = ctl("topics", "get-offload-policies", "orders")
    assert [re.split(r"\s{2,}", line) for line in answer.out.splitlines()] == [
        ["POLICY", "VALUE", "ORIGIN"],
        ["method", "streaming", "default"],
        ["segment_bytes_max", "5 MiB", f"topic {TOPIC}"],
        ["deletion_lag_s", "off", "namespace public/default"],
        ["prefix", "-", "settings"],
    ]
    assert "because of public/default" in answer.err
    document = ctl("topics", "get-offload-policies", "orders", "--json").json
    assert document["own"] == {"segment_bytes_max": 5 << 20}
    assert document["effective"]["deletion_lag_s"] == {
        "value": -1.0, "origin": "namespace", "name": "public/default"
    }  # fmt: skip
    assert (document["level"], document["enabled"]) == (TOPIC, True)
    fake.policies.enabled = False
    assert "it is disabled" in ctl("topics", "get-offload-policies", "orders").err
    fake.policies.ClearField("enabled")
    fake.policies.damage = "corrupt"
    err = ctl("topics", "get-offload-policies", "orders").err
    assert "nobody enabled it" in err
    assert "cannot be read: corrupt" in err


def test_a_rehearsal_shows_what_would_change_for_which_topics(ctl: Ctl, fake: FakeDaemon) -> None:
    """A table, a sum, and what may surprise."""
    fake.effects = policy_pb2.ChangePoliciesResponse(
        topics=[
            policy_pb2.PolicyEffect(
                topic="a", outcome="changed", differences=["method: streaming -> none", "x: 1 -> 2"]
            ),
            policy_pb2.PolicyEffect(topic="b", outcome="left-alone", reason="it is compacted"),
        ],
        notes=["mind the gap"],
    )
    answer = ctl("namespaces", "set-offload-policies", "acme/eu", "--method", "none", "--dry-run")
    assert answer.out.splitlines()[1:] == [
        "a      changed     method: streaming -> none, x: 1 -> 2",
        "b      left-alone  it is compacted",
        "would set the offload policies of namespace acme/eu: 1 topic changed, 1 topic left alone",
    ]
    assert "note: mind the gap" in answer.err
    document = ctl("namespaces", "remove-offload-policies", "acme/eu", "--json").json
    assert (document["dry_run"], document["notes"]) == (False, ["mind the gap"])
    assert document["topics"][0]["differences"] == ["method: streaming -> none", "x: 1 -> 2"]
    fake.effects = policy_pb2.ChangePoliciesResponse()
    assert ctl("broker", "remove-offload-policies").out == "removed the offload policies of broker: no topic changed\n"


def test_enabling_takes_the_further_policies(ctl: Ctl, fake: FakeDaemon) -> None:
    """A pattern can say how its topics are offloaded as well."""
    words = (
        "--method ledger-based --threshold-size 10G --threshold-age 2h --deletion-lag never --history-order alongside"
    )
    assert ctl("topics", "enable", "public/default/*", *words.split()).code == 0
    assert fake.requests[-1].policies == Said(
        method="ledger-based",
        threshold_bytes=10 << 30,
        threshold_s=7200.0,
        deletion_lag_s=-1.0,
        history_order="alongside",
    )
    answer = ctl("topics", "enable", "orders", "--threshold-age", "soon")
    assert answer.code == 2
    assert "'soon' is not 0 to" in answer.err


def _conf(text: str) -> str:
    Path("broker.conf").write_text(text, encoding="utf-8")
    return "broker.conf"


CONF = (
    "managedLedgerOffloadDriver=aws-s3\ns3ManagedLedgerOffloadBucket=topics\nmanagedLedgerOffloadMaxThreads=2\n"
    "managedLedgerOffloadThresholdInBytes=0\ns3ManagedLedgerOffloadCredentialSecret=hush\n"
)


def test_a_brokers_configuration_is_rehearsed_by_default(ctl: Ctl, fake: FakeDaemon) -> None:
    """Every key with its use, the policies, a piece of the settings file; no daemon is asked, no secret shown."""
    answer = ctl("import-broker-conf", _conf(CONF))
    assert answer.code == 0
    assert not fake.requests
    assert "hush" not in answer.out + answer.err
    lines = [re.split(r"\s{2,}", line.strip()) for line in answer.out.splitlines()]
    assert ["4", "managedLedgerOffloadThresholdInBytes", "0", "policy threshold_bytes"] in lines
    assert ["3", "managedLedgerOffloadMaxThreads", "2", "- (uploads are bounded by upload.concurrency_max)"] in lines
    assert ["deletion_lag_s", "off"] in lines
    assert ['bucket = "topics"'] in lines
    assert "nothing was changed" in answer.err
    document = ctl("import-broker-conf", "broker.conf", "--json").json
    assert (document["policies"]["threshold_bytes"], document["applied"]) == (0, False)
    assert document["settings"] == {"objects.kind": "s3", "objects.bucket": "topics"}


def test_a_brokers_configuration_is_applied_at_its_level(ctl: Ctl, fake: FakeDaemon) -> None:
    """As policies of the broker; the method may be another one."""
    answer = ctl("import-broker-conf", _conf(CONF), "--apply", "--method", "streaming")
    assert answer.code == 0
    [request] = fake.requests
    assert request.level.broker
    assert request.policies == Said(method="streaming", threshold_bytes=0, deletion_lag_s=-1.0)
    assert "set the offload policies of broker" in answer.out


def test_a_bad_configuration_is_not_applied(ctl: Ctl, fake: FakeDaemon) -> None:
    """All mistakes are told with their lines, with exit code 2."""
    answer = ctl("import-broker-conf", _conf(CONF + "managedLedgerOffloadThresholdInSeconds=1h\nnonsense\n"), "--apply")
    assert answer.code == 2
    assert not fake.requests
    assert "mistake: line 6: managedLedgerOffloadThresholdInSeconds: '1h' is not a whole number" in answer.err
    assert "mistake: line 7, which begins with 'nonsense', is not KEY=VALUE" in answer.err
    assert ctl("import-broker-conf", "missing.conf").code == 2
