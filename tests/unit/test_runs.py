"""The page of the last runs of long checks."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tools import runs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Notes of the test's own."""
    monkeypatch.setattr(runs, "NOTES", tmp_path / "runs.json")
    monkeypatch.setattr(runs, "commit", lambda: "0123456789ab")
    return tmp_path


def test_a_run_is_noted(capfd: pytest.CaptureFixture[str]) -> None:
    """How it ended, and its last line; a later run replaces it, another check's stays."""
    assert runs.record("soak", ["sh", "-c", "echo first; echo '=== 3 rounds | fine ==='; echo"]) == 0
    assert runs.record("fuzz", ["sh", "-c", "echo found one; exit 3"]) == 3
    assert "first" in capfd.readouterr().out
    known = json.loads(runs.NOTES.read_text())
    assert (known["soak"]["passed"], known["soak"]["last"]) == (True, "3 rounds | fine")
    assert (known["fuzz"]["passed"], known["fuzz"]["commit"]) == (False, "0123456789ab")
    page = runs.runs_page()
    assert "**failed** | found one" in page
    assert "3 rounds \\| fine" in page
    assert "| `make bench` | " in page
    assert runs.record("fuzz", ["true"]) == 0
    assert json.loads(runs.NOTES.read_text())["fuzz"]["passed"]


def test_each_check_is_a_target() -> None:
    """What the page names can be made."""
    targets = set(re.findall(r"^([a-z-]+):.*##", (runs.ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(runs.CHECKS) <= targets


def test_an_unknown_check_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names those that there are."""
    with pytest.raises(SystemExit):
        runs.main(["nothing"])
    assert "soak" in capsys.readouterr().err
