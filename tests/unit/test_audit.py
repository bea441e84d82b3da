"""The audit of requirements, against a service of OSV's API: flaws fail it, silence is told and is never a yes."""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from tools.audit import KNOWN, NOT_AUDITED, ROOT, locked, main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REAL_TIME = "HTTP, and ages of advisories"

PINS = "alpha==1.0 \\\n    --hash=sha256:00\nbeta==2.1 \\\n    --hash=sha256:00\n"


@contextmanager
def serving(flawed: set[str]) -> Iterator[str]:
    """Serve advisories: one of each package that is named."""

    class Advisories(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Answer a batch of queries."""
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["queries"]
            found = [{"vulns": [ADVISORY]} if one["package"]["name"] in flawed else {} for one in asked]
            self.answer({"results": found})

        def do_GET(self) -> None:
            """Answer with the advisory."""
            self.answer({**ADVISORY, "summary": "it can be had", "affected": []})

        def answer(self, document: object) -> None:
            """Send a document."""
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Be silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Advisories) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


ADVISORY = {"id": "PYSEC-0", "modified": "2026-01-01T00:00:00Z"}


@pytest.fixture
def requirements(tmp_path: Path) -> str:
    """A directory with a lock."""
    (tmp_path / "dev.txt").write_text(PINS)
    assert locked(tmp_path) == {"alpha": "1.0", "beta": "2.1"}
    return str(tmp_path)


def test_a_flaw_fails_the_audit(requirements: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It names package, advisory and what is wrong; lenient or not."""
    with serving({*KNOWN, "beta"}) as url:
        assert main(["--service-url", url, "--requirements", requirements]) == 1
        assert main(["--service-url", url, "--requirements", requirements, "--lenient"]) == 1
    said = capsys.readouterr().err
    assert "beta 2.1: PYSEC-0 it can be had" in said
    assert said.splitlines()[-1] == "audited: 2 locked packages, 1 known flaws"


def test_no_flaw_passes_the_audit(requirements: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says how much was looked up, also to the file."""
    outcome = tmp_path / "outcome"
    with serving({*KNOWN}) as url:
        assert main(["--service-url", url, "--requirements", requirements, "--outcome", str(outcome)]) == 0
    line = "audited: 2 locked packages, 0 known flaws\n"
    assert (capsys.readouterr().err, outcome.read_text()) == (line, line)


@pytest.mark.parametrize("reached", [True, False])
def test_what_was_not_audited_is_never_told_as_audited(
    requirements: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], reached: bool
) -> None:
    """Out of reach, or ignorant of a flaw that everybody knows: an exit code of its own, and the last line says so."""
    outcome = tmp_path / "outcome"
    outcome.write_text("audited: 2 locked packages, 0 known flaws\n")
    with serving(set()) as url:
        words = ["--service-url", url if reached else "http://127.0.0.1:1", "--requirements", requirements]
        assert main(words) == NOT_AUDITED == 3
        assert main([*words, "--lenient", "--outcome", str(outcome)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].startswith(
        "NOT AUDITED: 2 locked packages were compared with no list of known flaws"
    )
    assert "audited:" not in said.err
    assert outcome.read_text() == f"{said.err.splitlines()[-1]}\n"


def test_ci_ends_with_the_outcome_of_the_audit() -> None:
    """What the gate lets pass is the last thing that CI says."""
    gate = re.findall(r"tools\.audit --lenient --outcome \$\(VENV\)/(\S+)", (ROOT / "Makefile").read_text())
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == f"cat .venv/{gate[0]}"


def advisory(name: str, modified: str, **affected: object) -> str:
    """One record of a database."""
    entry = {"package": {"ecosystem": "PyPI", "name": name}, **affected}
    return json.dumps({"id": f"PYSEC-{name}", "modified": modified, "summary": "it can be had", "affected": [entry]})


def database(place: Path, *records: str) -> str:
    """A database that knows what everybody knows, and these."""
    place.mkdir()
    known = advisory("Jinja2", "2020-01-01T00:00:00Z", versions=["2.4.1"])
    for number, text in enumerate([known, *records]):
        (place / f"{number}.json").write_text(text)
    return str(place)


def events(*pairs: tuple[str, str]) -> list[dict[str, object]]:
    """A range of versions."""
    return [{"type": "ECOSYSTEM", "events": [{kind: version} for kind, version in pairs]}]


def today() -> str:
    """A record of now."""
    return datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC).isoformat()


def test_a_database_of_advisories_is_compared_without_a_network(
    requirements: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the versions that a record lists, or its ranges; what is fixed, foreign or withdrawn is no flaw."""
    fresh, given = today(), ["--requirements", requirements, "--database"]
    sound = [
        advisory("alpha", fresh, ranges=events(("introduced", "0"), ("fixed", "1.0"))),
        advisory("beta", fresh, ranges=events(("introduced", "2.2"))),
        advisory("beta", fresh, ranges=events(("introduced", "0"), ("last_affected", "2.0"))),
        advisory("gamma", fresh, versions=["1.0"]),
        advisory("beta", fresh, versions=["2.1"]).replace('"id"', '"withdrawn": "2026-01-01", "id"'),
    ]
    assert main([*given, database(tmp_path / "sound", *sound)]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "audited: 2 locked packages, 0 known flaws"
    for number, found in enumerate(
        (
            advisory("Beta", fresh, versions=["2.1"]),
            advisory("alpha", fresh, ranges=events(("introduced", "0.9"), ("fixed", "1.0.1"))),
            advisory("beta", fresh, ranges=events(("fixed", "2.0"), ("introduced", "0"), ("introduced", "2.1"))),
        )
    ):
        assert main([*given, database(tmp_path / str(number), *sound, found)]) == 1, found
    assert "PYSEC-beta it can be had" in capsys.readouterr().err


def test_an_old_or_missing_database_has_audited_nothing(
    requirements: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its newest record counts; and one that does not know what everybody knows is none."""
    given = ["--requirements", requirements, "--database"]
    old = database(tmp_path / "old", advisory("alpha", "2026-01-01T00:00:00Z", versions=["0.1"]))
    assert main([*given, old]) == NOT_AUDITED
    assert "14 is the most" in capsys.readouterr().err
    assert main([*given, old, "--days", "100000"]) == 0
    assert main([*given, str(tmp_path / "none")]) == NOT_AUDITED
    (tmp_path / "empty").mkdir()
    assert main([*given, str(tmp_path / "empty")]) == NOT_AUDITED
    (tmp_path / "empty" / "one.json").write_text(advisory("alpha", today(), versions=["0.1"]))
    assert main([*given, str(tmp_path / "empty")]) == NOT_AUDITED
    assert capsys.readouterr().err.splitlines()[-1].startswith("NOT AUDITED: 2 locked packages")
