"""A drill's places, its report, and what becomes of an exercise that fails; the rest needs real servers."""

from __future__ import annotations

import ssl
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509

from offloaderd.access.roles import Grant, Identity, Kind, Rights, Role
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Conflict, InvalidConfig, InvalidInput, Transient
from offloaderd.daemon.settings import Settings, check
from offloaderd.daemon.settings.sections import MemorySettings
from offloaderd.drill import drill
from offloaderd.drill.drill import PROMISES, Finding, Outcome, Report
from offloaderd.drill.exercises import EXERCISES, Broken, Exercise
from offloaderd.drill.scratch import TOPIC, MiB, Pair, Scratch
from tests.authority import Authority

if TYPE_CHECKING:
    from pathlib import Path

REAL_TIME = "processes"

WORD = "0123456789ab"
CLOCK = SystemClock()


def settings(**values: object) -> Settings:
    """Read settings of a bucket and these, as `section__field`."""
    options = {"objects.bucket": "offload", **{key.replace("__", "."): str(value) for key, value in values.items()}}
    report = check(None, {}, options)
    assert report.settings is not None, report.mistakes
    return report.settings


def of_daemon(given: Settings, directory: Path, pair: Pair | None = None) -> Settings:
    """Return the settings of a drill's daemon."""
    return Scratch.named(given, WORD).of_daemon(
        directory,
        zookeeper="127.0.0.1:1",
        s3="http://127.0.0.1:2",
        ports=(3, 4),
        pair=pair or Pair(directory / "line.crt", directory / "line.key"),
    )


def test_a_drill_has_places_of_its_own(tmp_path: Path) -> None:
    """Cluster, prefix and directory are its own; the bucket, keys and the service's name are the operator's."""
    given = settings(
        objects__prefix="topics/",
        objects__places="other",
        objects__access_key="key",
        objects__secret_key="canary",
        objects__region="eu-west-1",
        metadata__root="/tiered",
        metadata__username="me",
        metadata__password="canary",
        metadata__acl="creator",
    )
    found = of_daemon(given, tmp_path)
    assert found.objects.prefix == "topics/offloaderd-drill-0123456789ab/"
    assert found.daemon.cluster == "pulsar-offloaderd-drill-0123456789ab"
    assert (found.objects.bucket, found.objects.places, found.objects.access_key) == ("offload", "", "key")
    assert found.objects.secret_key is not None
    assert found.objects.secret_key.get_secret_value() == "canary"
    assert found.objects.signed_host == "s3.eu-west-1.amazonaws.com"
    assert (found.metadata.root, found.metadata.acl, found.metadata.servers) == ("/tiered", "creator", "127.0.0.1:1")
    assert found.ledgers.directory.startswith(str(tmp_path))
    assert (found.grpc.host, found.http.host, found.gc.mode) == ("127.0.0.1", "127.0.0.1", "off")
    assert str(TOPIC).startswith("persistent://public/default/")


def test_every_pool_of_a_drill_is_smaller_than_a_daemons(tmp_path: Path) -> None:
    """A drill writes some 31 MB, and more than its pools hold: no budget may be left as large as it is by default."""
    usual, found = settings().memory, of_daemon(settings(), tmp_path).memory
    left = [name for name in MemorySettings.model_fields if getattr(found, name) >= getattr(usual, name)]
    assert left == []
    assert found.budget_bytes <= 26 * MiB


def test_nobody_else_calls_the_drills_daemon(tmp_path: Path) -> None:
    """It has the operator's rights to the bucket, and its port is everybody's on the machine, or in the pod."""
    own = Pair.made(tmp_path, CLOCK)
    found = of_daemon(settings(), tmp_path, own)
    assert found.is_authenticated
    assert (found.tls.cert_file, found.tls.key_file, found.tls.client_ca_file) == (
        str(own.cert),
        str(own.key),
        str(own.cert),
    )
    rights = Rights(map(Grant.parse, found.access.grants))
    assert rights.allow([Identity(Kind.CERTIFICATE, own.NAME)], Role.ADMIN, None)
    subject = x509.load_pem_x509_certificate(own.cert.read_bytes()).subject
    assert subject.rfc4514_string() == f"CN={own.NAME}"


def test_tls_ends_at_the_proxy_which_checks_the_servers(tmp_path: Path) -> None:
    """The drill's daemon shows its proxy what was made for it; the proxy shows the operator's, and compares names."""
    ca = Authority(tmp_path)
    pair = ca.issue("daemon")
    given = settings(
        metadata__tls="true",
        metadata__tls_ca_file=ca.file,
        metadata__tls_cert_file=pair.cert,
        metadata__tls_key_file=pair.key,
        metadata__acl="creator",
    )
    own = Pair.made(tmp_path, CLOCK)
    found = of_daemon(given, tmp_path, own).metadata
    assert found.tls
    assert {found.tls_ca_file, found.tls_cert_file} == {str(own.cert)}
    assert found.tls_key_file == str(own.key)
    assert own.key.stat().st_mode & 0o077 == 0
    assert not of_daemon(settings(), tmp_path).metadata.tls
    context = Scratch.named(given, WORD).zookeeper_tls()
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert Scratch.named(settings(), WORD).zookeeper_tls() is None
    broken = settings(metadata__tls="true", metadata__tls_ca_file=tmp_path / "none.pem")
    with pytest.raises(InvalidConfig, match=r"metadata\.tls cannot be used"):
        Scratch.named(broken, WORD).zookeeper_tls()


@pytest.mark.parametrize("word", ["", "..", "topics", "0123456789AB", "0123456789ab/"])
def test_a_drill_is_named_by_its_digits_alone(word: str) -> None:
    """Nothing else can be cleaned by that name."""
    with pytest.raises(InvalidInput, match="is no drill"):
        Scratch.named(settings(), word)


async def test_what_is_no_drills_is_never_cleaned() -> None:
    """Not even when a program makes a mistake with the name."""
    with pytest.raises(Conflict, match="are no drill's"):
        await Scratch(settings(), "topics").clean(CLOCK)


def test_a_drill_needs_a_store_with_faults() -> None:
    """A directory has none."""
    with pytest.raises(InvalidConfig, match="a drill needs S3"):
        Scratch.named(settings(objects__kind="filesystem"), WORD)


def ground() -> Any:  # noqa: ANN401 - as much of a Ground as is needed
    """What is healed after each exercise."""
    calls: list[str] = []
    return SimpleNamespace(
        s3=SimpleNamespace(heal=lambda: calls.append("heal")),
        zookeeper=SimpleNamespace(mend=lambda: calls.append("mend")),
        calls=calls,
    )


@pytest.mark.parametrize(
    ("error", "found"),
    [(Broken("an entry is gone"), "an entry is gone"), (Transient("no answer", hint="wait"), "Transient: no answer")],
)
async def test_an_exercise_that_fails_is_a_promise_broken(error: Exception, found: str) -> None:
    """By its own word, or by an error that should not have lasted; the stores are sound again before the next one."""

    async def run(_: object) -> str:
        raise error

    place = ground()
    finding = await drill._tried(Exercise("P1", "something", run), place, CLOCK)
    assert (finding.outcome, finding.promise) == (Outcome.BROKEN, "P1")
    assert finding.found.startswith(found)
    assert place.calls == ["heal", "mend"]


def test_each_promise_has_one_exercise() -> None:
    """None is forgotten, and what cannot be tried says so."""
    assert sorted(one.promise for one in EXERCISES) == sorted(PROMISES)


def test_the_report_says_it_to_people_and_machines() -> None:
    """One line a promise, what was broken first of all; what was left behind makes it unsound."""
    kept = Finding(promise="P2", done="a | b", outcome=Outcome.KEPT, found="fine\nso far", seconds=1.25)
    report = Report(
        drill="offloaderd-drill-x",
        started_ms=1,
        version="0",
        where={"bucket": "b"},
        findings=[kept],
        faults={"put index: error": 2},
    )
    assert report.sound
    text = report.markdown("now")
    assert "| **P2** Committed ranges are contiguous and disjoint. | a \\| b | kept | fine so far | 1.2 |" in text
    assert "- 2 x put index: error" in text
    assert report.document()["findings"] == [
        {
            "promise": "P2",
            "text": PROMISES["P2"],
            "done": "a | b",
            "outcome": "kept",
            "found": "fine\nso far",
            "seconds": 1.25,
        }
    ]
    for worse in (replace(report, left="some keys"), replace(report, findings=[replace(kept, outcome=Outcome.BROKEN)])):
        assert not worse.sound
        assert "SOMETHING IS WRONG" in worse.markdown("now")
        assert worse.document()["sound"] is False
