"""Completion in the shell: the scripts, topics by the daemon, contexts by their file."""

from __future__ import annotations

import subprocess
from functools import partial
from typing import TYPE_CHECKING

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from offloaderd.cli import contexts
from offloaderd.cli.contexts import Context, Contexts
from offloaderd.cli.offloadctl.__main__ import cli
from offloaderd.protocol.v1 import admin_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.fake_daemon import FakeDaemon

NAMES = ("public/default/orders", "public/default/offers", "acme/web/clicks", "acme/web/orders")


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))


def completed(*words: str, incomplete: str) -> list[str]:
    """Return the words that the shell would offer."""
    found = ShellComplete(cli, {}, "offloadctl", "_OFFLOADCTL_COMPLETE").get_completions(list(words), incomplete)
    return [one.value for one in found]


def test_topics_are_completed_by_the_daemon_that_the_line_names(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an option before or after the command, the environment or a context; in the spelling that was begun."""
    fake.topics = [admin_pb2.TopicSummary(topic=f"persistent://{name}") for name in NAMES]
    at = ("--address", fake.address)
    assert completed("segments", *at, incomplete="o") == ["orders", "offers"]
    assert completed(*at, "topics", "disable", incomplete="acme/web/c") == ["acme/web/clicks"]
    assert completed(*at, "status", incomplete="persistent://acme/web/o") == ["persistent://acme/web/orders"]
    assert completed(*at, "ledgers", "list", incomplete="x") == []
    assert fake.requests[1].prefix == "acme/web"
    monkeypatch.setenv("OFFLOADCTL_ADDRESS", fake.address)
    assert completed("read", incomplete="orders") == ["orders"]
    monkeypatch.delenv("OFFLOADCTL_ADDRESS")
    contexts.save(Contexts("here", {"here": Context(address=fake.address)}))
    assert completed("read", incomplete="orders") == ["orders"]


def test_a_daemon_that_does_not_answer_completes_nothing() -> None:
    """No error in the middle of a line that is being typed."""
    assert completed("segments", "--address", "127.0.0.1:1", incomplete="o") == []
    assert completed("segments", "--address", "nonsense", incomplete="o") == []


def test_names_of_contexts_are_completed() -> None:
    """Where a command takes one, and after --context."""
    contexts.save(Contexts(None, {name: Context(address="a:1") for name in ("prod", "pre", "test")}))
    assert completed("context", "use", incomplete="pr") == ["prod", "pre"]
    assert completed("status", "--context", incomplete="t") == ["test"]


def test_the_form_is_completed() -> None:
    """As are all options with a few words."""
    assert completed("status", "-o", incomplete="") == ["table", "wide", "json", "yaml", "name"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_completes_both_programs(shell: str) -> None:
    """It asks the program that the variable in it is for."""
    done = CliRunner().invoke(cli, ["completion", shell], prog_name="offloadctl")
    assert done.exit_code == 0
    for name in ("OFFLOADCTL", "OFFLOADERD"):
        assert f"_{name}_COMPLETE={shell}_complete" in done.stdout.replace("env ", "")


def test_the_script_of_bash_is_one_that_bash_takes() -> None:
    """It defines a completion for each program."""
    script = CliRunner().invoke(cli, ["completion", "bash"], prog_name="offloadctl").stdout
    run = partial(subprocess.run, capture_output=True, text=True, check=True)
    done = run(["bash", "-c", f"{script}\ncomplete -p"])
    assert {line.split()[-1] for line in done.stdout.splitlines()} >= {"offloadctl", "offloaderd"}
