"""Whose settings a command works with, and the file that a standalone leaves for commands that take --config."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from offloaderd.cli.offloadctl.__main__ import cli
from offloaderd.cli.settings import settings_at
from offloaderd.core.errors import InvalidConfig, NotFound
from offloaderd.daemon.settings import Settings, load
from offloaderd.daemon.settings.sections import as_toml
from offloaderd.standalone import state
from offloaderd.standalone.stack import settings_for
from offloaderd.standalone.state import StandaloneState

if TYPE_CHECKING:
    from collections.abc import Iterator

PORTS = {"grpc": 7001, "http": 7002, "s3": 1, "zookeeper": 7004}
CHOSEN = StandaloneState(ports=PORTS, bucket="the-bucket", access_key="AKIA", secret_key="hush")


@pytest.fixture
def standalone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standalone that has been started once, where one is looked for; nothing else says anything."""
    for name in ("OFFLOADERD_CONFIG", "OFFLOADCTL_STANDALONE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    directory = Path(state.DEFAULT_DIRECTORY)
    directory.mkdir(parents=True)
    state.save(directory, CHOSEN)
    return directory


@pytest.fixture
def running(standalone: Path) -> Iterator[Path]:
    """The same, and it runs."""
    with (standalone / state.LOCK_NAME).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield standalone


def test_a_settings_file_that_was_written_reads_as_it_was(tmp_path: Path) -> None:
    """Secrets, lists, texts with quotes, fractions; what is at its default is left out."""
    sections = {
        "objects": {"bucket": "the-bucket", "access_key": "AKIA", "secret_key": 'hu"sh\\', "prefix": "ö/"},
        "offload": {"segment_bytes_max": 2**24, "segment_age_max_s": 0.123456789},
        "access": {"grants": ["admin alice *", "read bob t/n/*"]},
        "tls": {"cert_file": "c.pem", "key_file": "k.pem", "client_ca_file": "ca.pem"},
        "pulsar": {"admin_url": None},
        "http": {"status_page": False},
    }
    settings = Settings.model_validate(sections)
    path = tmp_path / "offloaderd.toml"
    path.write_text(as_toml(settings))
    assert load(path, {}) == settings
    assert "[grpc]" not in path.read_text()


def test_a_standalone_that_is_named_has_its_settings(standalone: Path) -> None:
    """Running or not; and one that is not there is told."""
    settings = settings_at(None, standalone)
    assert settings.objects.endpoint == CHOSEN.s3_endpoint
    assert settings == settings_for(CHOSEN, standalone, None, {})
    with pytest.raises(NotFound, match="no standalone in nowhere"):
        settings_at(None, Path("nowhere"))


def test_the_standalone_that_runs_is_found_where_nothing_is_set(
    running: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file, or a variable, is what somebody meant."""
    assert settings_at(None, None) == settings_at(None, running)
    config = tmp_path / "own.toml"
    config.write_text('[objects]\nbucket = "own"\n')
    assert settings_at(config, None).objects.bucket == "own"
    monkeypatch.setenv("OFFLOADERD__OBJECTS__BUCKET", "other")
    assert settings_at(None, None).objects.bucket == "other"


def test_a_standalone_that_does_not_run_is_not_guessed(standalone: Path) -> None:
    """Whoever says nothing is told what is missing."""
    with pytest.raises(InvalidConfig, match="needs a bucket"):
        settings_at(None, None)


@pytest.mark.parametrize("words", [["--standalone", state.DEFAULT_DIRECTORY], []])
def test_a_drill_knows_the_standalone(running: Path, words: list[str]) -> None:
    """Named, or the one that runs: its bucket is asked, which is not there in this test."""
    shown = CliRunner().invoke(cli, ["drill", *words], prog_name="offloadctl")
    assert "the-bucket at http://127.0.0.1:1" in shown.output
