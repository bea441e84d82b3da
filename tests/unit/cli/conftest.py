"""What the tests of the commands share: a fake daemon, and offloadctl in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from offloaderd.cli.offloadctl.__main__ import cli
from tests.unit.cli.fake_daemon import FakeDaemon, running_fake

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str
    raw: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 - whatever the document is
        """The one document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The documents on stdout, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Ctl:
    """Runs offloadctl against an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(self, *words: str, at: str | None = None) -> Answer:
        """Run a command; a traceback or an exception that gets out fails the test."""
        with capture_logs():  # of a daemon that runs in this process: it has a stderr of its own
            result = CliRunner().invoke(cli, [*words, "--address", at or self.address], prog_name="offloadctl")
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        assert "Traceback" not in result.output
        return Answer(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty directory, without variables that would name a daemon."""
    for name in ("OFFLOADCTL_ADDRESS", "OFFLOADCTL_STANDALONE", "OFFLOADERD_CONFIG", "OFFLOADERD_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fake() -> Iterator[FakeDaemon]:
    """A daemon of canned answers."""
    with running_fake() as daemon:
        yield daemon


@pytest.fixture
def ctl(fake: FakeDaemon) -> Ctl:
    """Offloadctl, talking to the fake daemon."""
    return Ctl(fake.address)
