"""What a bucket's rules do to segments, and the answers of S3 that say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Denied, InvalidInput
from offloaderd.daemon.doctor.bucket import life_cycle, versions
from offloaderd.daemon.doctor.finding import Case, Finding, Verdict
from offloaderd.daemon.settings import Settings
from offloaderd.objects.life_cycle import Harm, LifeCycleRule, Versioning, covers, harms, keeps_versions, may_end
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.testing.clock import FakeClock
from tests.unit.objects.faulty import Connection, FaultyServer, error_body, store_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from offloaderd.objects.life_cycle import LifeCycle

REAL_TIME = "HTTP"
DAY_S = 86_400.0
RULES = b"""<LifecycleConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
<Rule><ID>old</ID><Status>Enabled</Status><Filter><Prefix>team-a/</Prefix></Filter><Expiration><Days>30</Days></Expiration></Rule>
<Rule><ID>off</ID><Status>Disabled</Status><Filter/><Expiration><Days>1</Days></Expiration></Rule>
<Rule><Status>Enabled</Status><Prefix>logs/</Prefix><Expiration><Date>2027-01-01T00:00:00.000Z</Date></Expiration></Rule>
<Rule><ID>cold</ID><Status>Enabled</Status><Filter><And><Prefix>team-</Prefix><Tag><Key>team</Key><Value>a</Value></Tag></And></Filter>
<Transition><Days>10</Days><StorageClass>GLACIER</StorageClass></Transition>
<Transition><Days>0</Days><StorageClass>STANDARD_IA</StorageClass></Transition>
<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule>
<Rule><ID>markers</ID><Status>Enabled</Status><Filter><Tag><Key>k</Key><Value>v</Value></Tag></Filter>
<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>
<NoncurrentVersionExpiration><NoncurrentDays>7</NoncurrentDays></NoncurrentVersionExpiration></Rule>
</LifecycleConfiguration>"""


def server_of(rules: bytes, versioning: bytes, status: str = "200 OK") -> FaultyServer:
    """Return a server that answers the two questions."""

    async def answer(connection: Connection) -> None:
        body = rules if b"?lifecycle" in connection.head else versioning
        connection.answer(status, body, Connection="close")

    return FaultyServer(answer)


async def test_rules_and_versions_are_read_from_the_answers_of_s3() -> None:
    """Enabled rules alone, with old and new filters, dates and days; a rule without an id is named by its place."""
    server = server_of(RULES, b"<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>")
    async with store_at(server) as store:
        assert await store.life_cycle_rules() == [
            LifeCycleRule(name="old", prefix="team-a/", expires="after 30 days"),
            LifeCycleRule(name="number 3", prefix="logs/", expires="on 2027-01-01"),
            LifeCycleRule(
                name="cold",
                prefix="team-",
                tags={"team": "a"},
                moves={"GLACIER": "after 10 days", "STANDARD_IA": "after 0 days"},
                ends_uploads_days=1,
            ),
            LifeCycleRule(name="markers", tags={"k": "v"}, ends_versions=True),
        ]
        assert await store.versioning() == Versioning(enabled=False, suspended=True)


async def test_a_bucket_without_rules_has_none() -> None:
    """S3 says so by an error; without the right it is Denied, with the right's name."""
    async with store_at(server_of(error_body("NoSuchLifecycleConfiguration"), b"", "404 Not Found")) as store:
        assert await store.life_cycle_rules() == []
    denied = error_body("AccessDenied")
    async with store_at(server_of(denied, denied, "403 Forbidden")) as store:
        with pytest.raises(Denied, match="s3:GetLifecycleConfiguration"):
            await store.life_cycle_rules()
        with pytest.raises(Denied, match="s3:GetBucketVersioning"):
            await store.versioning()


@pytest.mark.parametrize(
    ("rule", "prefix", "covered"),
    [
        ("", "", True),
        ("", "team-a/", True),
        ("team", "team-a/", True),
        ("team-b/", "team-a/", False),
        ("logs/", "", False),
        ("ab12", "", True),
        ("team-a/0c1f4bd1-6e4f-4a0e-8c7d-2f8f2a1b3c4d", "team-a/", True),
        ("team-a/0c1f4bd1-6e4f-4a0e-8c7d-2f8f2a1b3c4d-index", "team-a/", True),
        ("team-a/0c1f4bd16", "team-a/", False),
        ("offloaderd-heads/", "", True),
        ("off", "", True),
        ("offloaderd-heads/pulsar/acme", "", True),
        ("offloaderd-doctor/", "", False),
    ],
)
def test_a_rule_concerns_the_keys_that_begin_with_its_prefix(rule: str, prefix: str, covered: bool) -> None:
    """Objects of a place have uuids behind its prefix, or are in folders for heads and markers."""
    assert covers(rule, prefix) is covered


def found(rule: LifeCycleRule, service: str = "aws", **tags: str) -> list[Harm]:
    """What one rule does to segments that are open for two days at most."""
    return list(harms([rule], prefix="p/", service=service, tags=tags, open_s_max=2 * DAY_S))


def test_each_harm_has_the_name_of_its_rule() -> None:
    """Deleting, archiving, ending uploads too early; not moving to what can be read at once, and not old versions."""
    rule = LifeCycleRule(
        name="r",
        expires="after 3 days",
        moves={"GLACIER": "on 2027-01-01", "GLACIER_IR": "at once"},
        ends_uploads_days=2,
        ends_versions=True,
    )
    assert found(rule) == [
        Harm("r", "deletes objects after 3 days", True),
        Harm("r", "archives objects as GLACIER on 2027-01-01", True),
        Harm("r", "ends uploads after 2 days, and a segment may be open for 2", True),
    ]
    assert found(LifeCycleRule(name="r", ends_uploads_days=3)) == []
    assert found(LifeCycleRule(name="r", prefix="q/", expires="after 3 days")) == []
    assert found(LifeCycleRule(name="r", moves={"ARCHIVE": "after 1 days"}), "gcs") == []
    assert [one.certain for one in found(LifeCycleRule(name="r", moves={"Archive": "after 1 days"}), "azure")] == [True]


@pytest.mark.parametrize(
    ("tags", "certain"),
    [({}, False), ({"team": "b"}, False), ({"team": "a"}, True), ({"team": "{tenant}"}, True), ({"Team": "a"}, False)],
)
def test_a_rule_for_tags_harms_for_certain_what_has_them(tags: dict[str, str], certain: bool) -> None:
    """Tags of the settings, whose value may be any tenant's; a policy may set others."""
    rule = LifeCycleRule(name="r", tags={"team": "a"}, expires="after 3 days")
    assert [one.certain for one in found(rule, **tags)] == [certain]


def test_old_versions_end_by_a_rule_for_all_segments() -> None:
    """A rule for tags, or for a part of the keys, leaves some."""
    assert keeps_versions([], "p/")
    assert keeps_versions([LifeCycleRule(name="r", prefix="p/0", ends_versions=True)], "p/")
    assert keeps_versions([LifeCycleRule(name="r", tags={"a": "b"}, ends_versions=True)], "p/")
    assert not keeps_versions([LifeCycleRule(name="r", prefix="p", ends_versions=True)], "p/")


class Ruled:
    """A bucket with rules and versions, or one that does not tell them."""

    def __init__(self, *rules: LifeCycleRule, versioning: Versioning | None = None) -> None:
        self._rules = list(rules)
        self._versioning = versioning or Versioning(enabled=False)
        self.error: Exception | None = None

    async def life_cycle_rules(self) -> list[LifeCycleRule]:
        """Return them."""
        if self.error is not None:
            raise self.error
        return self._rules

    async def versioning(self) -> Versioning:
        """Return it."""
        if self.error is not None:
            raise self.error
        return self._versioning


def examination(open_s_max: float = 0.0, **objects: str) -> Case:
    """An examination of a bucket on S3 itself."""
    settings = Settings(objects=ObjectsSettings(bucket="bucket", prefix="p/", **objects))
    return Case(settings, FakeClock(), open_s_max=open_s_max)


EXPIRES = LifeCycleRule(name="tidy up", expires="after 30 days")
TAGGED = LifeCycleRule(name="tidy up", tags={"tenant": "acme"}, expires="after 30 days")
ENDS = LifeCycleRule(name="tidy up", ends_uploads_days=1)


@pytest.mark.parametrize(
    ("rule", "case", "verdict"),
    [
        (EXPIRES, examination(), Verdict.FAIL),
        (TAGGED, examination(), Verdict.WARN),
        (TAGGED, examination(tags="tenant={tenant}"), Verdict.FAIL),
        (ENDS, examination(), Verdict.OK),
        (ENDS, examination(open_s_max=2 * DAY_S), Verdict.FAIL),
    ],
)
async def test_the_doctor_names_a_rule_that_harms_segments(rule: LifeCycleRule, case: Case, verdict: Verdict) -> None:
    """An error has the rule's name and what to do; how long a segment is open is what settings and policies allow."""
    told = await life_cycle(case, Ruled(rule))
    assert told.verdict is verdict
    assert (verdict is Verdict.OK) is ("'tidy up'" not in told.found)
    assert (verdict is Verdict.OK) is not bool(told.what_to_do)


async def test_the_doctor_names_classes_that_rules_move_segments_to() -> None:
    """They cost other prices, and are no error."""
    told = await life_cycle(examination(), Ruled(LifeCycleRule(name="r", moves={"STANDARD_IA": "after 30 days"})))
    assert (told.verdict, "STANDARD_IA" in told.found) == (Verdict.OK, True)


@pytest.mark.parametrize("look", [life_cycle, versions])
@pytest.mark.parametrize("error", [Denied("AccessDenied", hint="allow s3:Get"), InvalidInput("MethodNotAllowed")])
async def test_what_the_doctor_may_not_look_at_is_neither_sound_nor_an_error(
    look: Callable[[Case, LifeCycle], Awaitable[Finding]], error: Exception
) -> None:
    """The daemon works without the right, and nobody knows the rules: the finding says so."""
    bucket = Ruled()
    bucket.error = error
    told = await look(examination(), bucket)
    assert told.verdict is Verdict.SKIPPED
    assert "not known" in told.found
    assert told.what_to_do


@pytest.mark.parametrize(
    ("suffix", "ours"),
    [
        ("-index", True),
        ("x", True),
        ("4f-manifest", True),
        (".head", True),
        ("7e", True),
        ("-0123456789ab", True),
        ("-ledger-17", True),
        ("r-17", True),
        ("00001", True),
        (".mp4", False),
        (".parquet", False),
        ("log", False),
    ],
)
def test_only_some_endings_are_those_of_our_keys(suffix: str, *, ours: bool) -> None:
    """Data by a uuid or a ledger, the others by their kind."""
    assert may_end(suffix) is ours


@pytest.mark.parametrize(
    ("versioning", "rules", "verdict"),
    [
        (Versioning(enabled=False), [], Verdict.OK),
        (Versioning(enabled=True), [], Verdict.WARN),
        (Versioning(enabled=False, suspended=True), [], Verdict.WARN),
        (Versioning(enabled=False, locked="a hold"), [], Verdict.FAIL),
        (Versioning(enabled=True), [LifeCycleRule(name="r", suffixes=("-index",), ends_versions=True)], Verdict.WARN),
        (Versioning(enabled=True), [LifeCycleRule(name="r", ends_versions=True)], Verdict.OK),
    ],
)
async def test_the_doctor_says_whether_deleted_segments_stay(
    versioning: Versioning, rules: list[LifeCycleRule], verdict: Verdict
) -> None:
    """Old versions are paid for until a rule ends them."""
    told = await versions(examination(), Ruled(*rules, versioning=versioning))
    assert told.verdict is verdict
