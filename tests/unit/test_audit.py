"""The audit of requirements, against a service of OSV's API: flaws fail it, silence is told and is never a yes."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from tools.audit import KNOWN, locked, main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
    """It names package, advisory and what is wrong."""
    with serving({*KNOWN, "beta"}) as url:
        assert main(["--service-url", url, "--requirements", requirements]) == 1
    said = capsys.readouterr()
    assert "beta 2.1: PYSEC-0 it can be had" in said.err
    assert "2 locked packages, 1 known flaws" in said.out


def test_no_flaw_passes_the_audit(requirements: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And says how much was looked up."""
    with serving({*KNOWN}) as url:
        assert main(["--service-url", url, "--requirements", requirements, "--strict"]) == 0
    assert "2 locked packages, 0 known flaws" in capsys.readouterr().out


def test_a_service_that_knows_nothing_has_audited_nothing(
    requirements: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Silence about a flaw that everybody knows is not taken for safety."""
    with serving(set()) as url:
        assert main(["--service-url", url, "--requirements", requirements]) == 0
        assert main(["--service-url", url, "--requirements", requirements, "--strict"]) == 2
    assert capsys.readouterr().err.count("NOT AUDITED") == 2


def test_a_service_out_of_reach_is_told(requirements: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No failure where the network is missing, unless it was asked for."""
    assert main(["--service-url", "http://127.0.0.1:1", "--requirements", requirements]) == 0
    assert main(["--service-url", "http://127.0.0.1:1", "--requirements", requirements, "--strict"]) == 2
    assert "NOT AUDITED" in capsys.readouterr().err
