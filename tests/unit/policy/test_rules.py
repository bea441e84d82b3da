"""What may not be said together, each told with its values; all of it at once."""

from __future__ import annotations

import pytest

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import MirrorRequired, OffloadMethod, TierRetention
from offloaderd.policy.policies import Level, OffloadPolicies, Origin, effective
from offloaderd.policy.rules import ANYWHERE, Surroundings, by_itself, checked, contradictions, sound

HERE = Surroundings(places=(("pulsar", "p/"),))


def wrong(own: OffloadPolicies, *inherited: OffloadPolicies, place: Surroundings = HERE) -> list[str]:
    """Say what is wrong with a topic's policy over those of a namespace and the broker."""
    above = [Level(origin, one, "acme/eu") for origin, one in zip([Origin.NAMESPACE, Origin.BROKER], inherited)]  # noqa: B905
    return contradictions(own, effective([Level(Origin.TOPIC, own, "t"), *above]), place)


def test_a_minimum_age_is_at_most_the_maximum_of_any_level() -> None:
    """Also of another level, which is named; equal ones are fine, and so is what this policy does not touch."""
    [said] = wrong(OffloadPolicies(segment_age_min_s=61.0), OffloadPolicies(segment_age_max_s=60.0))
    assert said.startswith(
        "segment_age_min_s (minOffloadSegmentRolloverTimeMinutes) = 61 s of the topic t is more than "
    )
    assert "= 1 min of the namespace acme/eu" in said
    assert wrong(OffloadPolicies(segment_age_min_s=60.0), OffloadPolicies(segment_age_max_s=60.0)) == []
    crossed = OffloadPolicies(segment_age_min_s=9.0, segment_age_max_s=8.0)
    assert wrong(OffloadPolicies(segment_bytes_max=5), crossed) == []
    assert len(wrong(crossed)) == 1


def test_no_method_has_no_threshold() -> None:
    """`none` with a threshold contradicts itself, also when it is inherited; a threshold that is off does not."""
    [said] = wrong(OffloadPolicies(method=OffloadMethod.NONE, threshold_bytes=0, threshold_s=5.0))
    assert "threshold_bytes" in said
    assert "threshold_s" in said
    assert len(wrong(OffloadPolicies(threshold_bytes=1), OffloadPolicies(method=OffloadMethod.NONE))) == 1
    assert wrong(OffloadPolicies(method=OffloadMethod.NONE, threshold_bytes=-1)) == []


def test_closed_ledgers_need_a_source() -> None:
    """A daemon whose topics are only pushed cannot offload by ledgers."""
    pushed = Surroundings(has_source=False)
    assert "no" in wrong(OffloadPolicies(method=OffloadMethod.LEDGER_BASED), place=pushed)[0]
    assert wrong(OffloadPolicies(method=OffloadMethod.STREAMING), place=pushed) == []
    assert wrong(OffloadPolicies(method=OffloadMethod.LEDGER_BASED)) == []


@pytest.mark.parametrize(("kept_s", "flaws"), [(None, 0), (3599.0, 1), (3600.0, 1), (3601.0, 0), (0.0, 1)])
def test_entries_are_offloaded_before_they_are_deleted(kept_s: float | None, flaws: int) -> None:
    """The time that a method waits is less than what Pulsar retains, where that is known; it is told with both."""
    own = OffloadPolicies(method=OffloadMethod.LEDGER_BASED, threshold_s=3600.0)
    found = wrong(own, place=Surroundings(retention_s=kept_s))
    assert len(found) == flaws
    assert all("1 h is not less than" in one for one in found)
    streaming = OffloadPolicies(segment_age_max_s=3600.0)
    assert len(wrong(streaming, place=Surroundings(retention_s=kept_s))) == flaws
    assert (
        wrong(OffloadPolicies(threshold_s=3600.0), place=Surroundings(retention_s=1.0)) == []
    )  # streaming heeds no threshold
    ledgers = OffloadPolicies(method=OffloadMethod.LEDGER_BASED, segment_age_max_s=3600.0, threshold_s=-1.0)
    assert wrong(ledgers, place=Surroundings(retention_s=1.0)) == []


@pytest.mark.parametrize(("kept", "flaws"), [(None, 0), (999, 1), (1000, 1), (1001, 0)])
def test_what_is_left_in_bookkeeper_is_less_than_what_is_kept_there(kept: int | None, flaws: int) -> None:
    """A size threshold is compared with Pulsar's retention by size; no threshold, or another method, with nothing."""
    own = OffloadPolicies(method=OffloadMethod.LEDGER_BASED, threshold_bytes=1000)
    place = Surroundings(retention_bytes=kept)
    assert len(wrong(own, place=place)) == flaws
    assert wrong(OffloadPolicies(method=OffloadMethod.LEDGER_BASED, threshold_bytes=0), place=place) == []
    assert wrong(OffloadPolicies(threshold_bytes=1000), place=place) == []


def test_limits_belong_to_a_limited_retention() -> None:
    """A limited retention has one, the others have none."""
    assert wrong(OffloadPolicies(retention=TierRetention.LIMITED, retention_age_s=1.0)) == []
    assert len(wrong(OffloadPolicies(retention=TierRetention.LIMITED))) == 1
    assert len(wrong(OffloadPolicies(retention=TierRetention.KEEP, retention_bytes=1))) == 1
    assert len(wrong(OffloadPolicies(retention_age_s=1.0), OffloadPolicies(retention=TierRetention.LIMITED))) == 1


def test_a_policy_names_a_place_that_the_daemon_works_with() -> None:
    """Its own and those of its settings; what goes with a value that is inherited counts, and the setting is named."""
    around = Surroundings(places=(("pulsar", "p/"), ("eu", "topics/")))
    for bucket, prefix in (("pulsar", "p/"), ("eu", "topics/")):
        assert wrong(OffloadPolicies(bucket=bucket, prefix=prefix), place=around) == []
    home = OffloadPolicies(bucket="pulsar", prefix="p/")
    assert wrong(OffloadPolicies(bucket="eu"), OffloadPolicies(prefix="topics/"), place=around) == []
    for own in (
        OffloadPolicies(bucket="other"),
        OffloadPolicies(prefix="other/"),
        OffloadPolicies(bucket="eu", prefix="p/"),
        OffloadPolicies(bucket="eu"),
    ):
        (found,) = wrong(own, home, place=around)
        assert "objects.places" in found
        assert "bucket 'eu', prefix 'topics/'" in found
    assert wrong(OffloadPolicies(bucket="other"), place=ANYWHERE) == []


def test_all_mistakes_are_told_at_once() -> None:
    """Values out of range and contradictions among the sound ones, in one error."""
    own, flaws = sound({"segment_bytes_max": 0, "method": "fast", "segment_age_min_s": 9, "segment_age_max_s": 8.0})
    assert own == OffloadPolicies(segment_age_min_s=9.0, segment_age_max_s=8.0)
    with pytest.raises(InvalidInput) as caught:
        checked(own, flaws, by_itself(own), HERE)
    lines = caught.value.message.splitlines()
    assert len(lines) == 3
    assert "0 is not 1 to 5497558138880 bytes" in lines[0]
    assert "'fast' is not one of streaming, ledger-based, none" in lines[1]
    assert lines[2].startswith("segment_age_min_s")
    checked(OffloadPolicies(), [], by_itself(OffloadPolicies()), HERE)


@pytest.mark.parametrize(
    ("storage_class", "service", "words"),
    [
        ("STANDARD_IA", "aws", ""),
        ("GLACIER_IR", "aws", ""),
        ("", "filesystem", ""),
        ("GLACIER", "aws", "is an archive"),
        ("DEEP_ARCHIVE", "s3", "is an archive"),
        ("HOT", "aws", "it has STANDARD, INTELLIGENT_TIERING"),
        ("HOT", "s3", ""),
        ("STANDARD", "filesystem", "it has no storage classes"),
        ("Archive", "azure", "is an archive"),
        ("Cool", "azure", ""),
        ("STANDARD_IA", "azure", "it has Hot, Cool, Cold"),
        ("NEARLINE", "gcs", "in the bucket's own class"),
        ("GLACIER", "", ""),
    ],
)
def test_a_storage_class_has_to_be_readable_at_once(storage_class: str, service: str, words: str) -> None:
    """Archives are refused, and words that a service with a closed list does not have; an unknown service takes all."""
    found = wrong(OffloadPolicies(storage_class=storage_class), place=Surroundings(services={"": service}))
    assert [words in one for one in found] == [True] * bool(words)


def test_a_tag_has_one_value_and_a_store_that_keeps_it() -> None:
    """A name that is given twice is a mistake, and any tag in a directory."""
    assert "team" in wrong(OffloadPolicies(tags="team=a, team=b"))[0]
    assert wrong(OffloadPolicies(tags="team=a, Team=b"), place=Surroundings(services={"": "aws"})) == []
    for service in ("filesystem", "gcs"):
        assert "no tags" in wrong(OffloadPolicies(tags="team=a"), place=Surroundings(services={"": service}))[0]


def test_a_mirror_that_is_demanded_is_named() -> None:
    """A demand without a mirror is refused, and so is taking the mirror away from one, with what to do."""
    demand = OffloadPolicies(mirror_required=MirrorRequired.YES)
    [said] = wrong(demand)
    assert said.startswith("mirror_required = yes of the topic t needs a mirror, and the default names none")
    assert "Give a mirror (BUCKET/PREFIX)" in said
    assert wrong(demand, OffloadPolicies(mirror="eu/")) == []
    [said] = wrong(OffloadPolicies(mirror=""), demand, OffloadPolicies(mirror="eu/"))
    assert "of the namespace acme/eu needs a mirror, and the topic t names none" in said
    assert wrong(OffloadPolicies(segment_bytes_max=5), demand) == []
    checked(demand, [], by_itself(demand), HERE)  # a level that is not merged yet may get its mirror from above
