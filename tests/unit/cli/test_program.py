"""Exit codes, errors in one line, where the daemon is looked for, and help."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import grpc
import pytest
from click.testing import CliRunner

from offloaderd.api.settings import GrpcSettings
from offloaderd.cli import contexts, options
from offloaderd.cli.contexts import Context, Contexts
from offloaderd.cli.offloadctl import __main__ as offloadctl
from offloaderd.cli.offloaderd import __main__ as offloaderd
from offloaderd.cli.program import Program, exit_code, outcome_of
from offloaderd.client import TimedOut, Unreachable
from offloaderd.core.errors import (
    CorruptData,
    Denied,
    InvalidConfig,
    InvalidInput,
    NotFound,
    OffloaderError,
    Unauthenticated,
)
from offloaderd.standalone import state
from offloaderd.standalone.state import StandaloneState
from tests.unit.cli.fake_daemon import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.cli.conftest import Ctl
    from tests.unit.cli.fake_daemon import FakeDaemon

CODES = [
    (grpc.StatusCode.NOT_FOUND, 4),
    (grpc.StatusCode.DATA_LOSS, 5),
    (grpc.StatusCode.INVALID_ARGUMENT, 2),
    (grpc.StatusCode.OUT_OF_RANGE, 2),
    (grpc.StatusCode.FAILED_PRECONDITION, 1),
    (grpc.StatusCode.UNAVAILABLE, 1),
    (grpc.StatusCode.INTERNAL, 1),
]


@pytest.mark.parametrize(("status", "code"), CODES)
def test_status_codes_become_exit_codes(ctl: Ctl, fake: FakeDaemon, status: grpc.StatusCode, code: int) -> None:
    """Each kind of error has the documented code, one error line and the daemon's hint."""
    reason = "CORRUPT_DATA" if status is grpc.StatusCode.DATA_LOSS else "REASON"
    fake.failure = Failure(status, "it went wrong", reason, "do this")
    answer = ctl("segments", "orders")
    assert answer.code == code
    assert answer.err == "error: it went wrong\nhint: do this\n"


def test_errors_of_json_are_json(ctl: Ctl, fake: FakeDaemon) -> None:
    """With --json a script reads one line on stderr: of the daemon, of usage, of the connection; stdout is empty."""
    fake.failure = Failure(grpc.StatusCode.NOT_FOUND, "it went\nwrong", "REASON", "do this")
    answer = ctl("segments", "orders", "--json")
    assert (answer.code, answer.out) == (4, "")
    assert json.loads(answer.err) == {"error": "it went\nwrong", "hint": "do this", "exit_code": 4}
    answer = ctl("segments", "a/b", "--json")
    said = json.loads(answer.err)
    assert (answer.code, said["exit_code"], bool(said["hint"])) == (2, 2, True)
    assert json.loads(ctl("status", "--json", "--nothing").err)["error"].startswith("No such option")
    assert json.loads(ctl("status", "--json", at="127.0.0.1:1").err)["exit_code"] == 3
    assert ctl("segments", "orders").err.startswith("error: ")


def test_a_call_that_takes_too_long_gives_code_6(ctl: Ctl, fake: FakeDaemon) -> None:
    """The deadline is that of --timeout, and the hint says how to allow more."""
    fake.failure = Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    answer = ctl("status", "--timeout", "7")
    assert answer.code == 6
    assert "--timeout" in answer.err
    assert fake.deadlines[0] is not None
    assert fake.deadlines[0] < 8


def test_a_daemon_that_is_not_there_gives_code_3(ctl: Ctl) -> None:
    """A refused connection is one line with the address and what to do."""
    answer = ctl("status", at="127.0.0.1:1")
    assert answer.code == 3
    assert answer.err.splitlines()[0] == "error: cannot connect to the daemon at 127.0.0.1:1"
    assert len(answer.err.splitlines()) == 2


def test_a_connection_that_breaks_gives_code_3(ctl: Ctl, fake: FakeDaemon) -> None:
    """UNAVAILABLE that the daemon did not say itself means that it is gone."""
    fake.failure = Failure(grpc.StatusCode.UNAVAILABLE, "socket closed")
    answer = ctl("status")
    assert answer.code == 3
    assert "lost the daemon" in answer.err


@pytest.mark.parametrize("address", ["nonsense", "host:", ":1", "host:99999", "http://host:1", "::1:7650", "host:x"])
def test_a_malformed_address_is_a_usage_error(ctl: Ctl, address: str) -> None:
    """What cannot be an address is refused before any connection."""
    answer = ctl("status", at=address)
    assert answer.code == 2
    assert "not an address" in answer.err


@pytest.mark.parametrize("topic", ["a/b", "non-persistent://a/b/c", "", "a/b/", "p\u00e4th/b/\x01"])
def test_a_malformed_topic_is_a_usage_error(ctl: Ctl, fake: FakeDaemon, topic: str) -> None:
    """The name is shown with what one looks like; the daemon is not asked."""
    answer = ctl("segments", topic)
    assert answer.code == 2
    assert "persistent://TENANT/NAMESPACE/TOPIC" in answer.err
    assert not fake.requests


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OffloaderError("x"), 1),
        (Denied("x"), 7),
        (Unauthenticated("x"), 7),
        (InvalidInput("x"), 2),
        (InvalidConfig("x"), 2),
        (Unreachable("x"), 3),
        (NotFound("x"), 4),
        (CorruptData(key="k", offset=0, expected=1, found=2), 5),
        (TimedOut("x"), 6),
    ],
)
def test_every_error_of_ours_has_its_code(error: OffloaderError, code: int) -> None:
    """The codes that --help promises."""
    assert exit_code(error) == code


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (click.Abort(), 130), (OSError(28, "full", "f"), 1)]
)
def test_foreign_errors_have_codes_as_well(error: BaseException, code: int) -> None:
    """Interrupts and the system's errors never end as a traceback."""
    assert outcome_of(error) == code


def test_errors_are_json_for_one_run_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """What runs later in the same process, without --json, says its errors as text."""
    with pytest.raises(SystemExit):
        offloadctl.cli.main(["no-such-command", "--json"])
    assert capsys.readouterr().err.startswith("{")
    outcome_of(InvalidInput("x"))
    assert capsys.readouterr().err == "error: x\n"


def test_an_unexpected_error_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug says its type and how to learn more; with the variable set it is let through."""
    assert outcome_of(ExceptionGroup("two", [ZeroDivisionError("by zero")])) == 1
    assert capsys.readouterr().err.startswith(
        "error: internal error: ZeroDivisionError: by zero\nhint: OFFLOADERD_DEBUG"
    )
    monkeypatch.setenv("OFFLOADERD_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        outcome_of(ZeroDivisionError())


def test_many_mistakes_keep_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration with several mistakes shows each on its own line."""
    assert outcome_of(InvalidConfig("2 mistakes:\n  one\n\n two", hint="see docs")) == 2
    assert capsys.readouterr().err == "error: 2 mistakes:\n  one\n  two\nhint: see docs\n"


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command of a program."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name)


@pytest.mark.parametrize("program", [offloadctl.cli, offloaderd.cli])
def test_every_command_has_help_with_examples(program: Program) -> None:
    """The help of each command shows how it is used, for real: the examples name the command."""
    for words in commands(program):
        result = CliRunner().invoke(program, [*words, "--help"], prog_name=program.name)
        assert result.exit_code == 0
        assert "Examples:" in result.output, words
        assert re.search(rf"(offloadctl|offloaderd) {' '.join(words)}", result.output), words


def test_every_offloadctl_command_takes_the_shared_options() -> None:
    """Its help names the page that describes them in one line, and describes none."""
    shared = [one for one in offloadctl.cli.params if isinstance(one, options.SharedOption)]
    page = CliRunner().invoke(offloadctl.cli, ["options"], prog_name="offloadctl").output
    assert re.findall(r"(?m)^  (-[-\w]+)", page) == [one.opts[0] for one in shared]
    for words in commands(offloadctl.cli):
        help_text = CliRunner().invoke(offloadctl.cli, [*words, "--help"], prog_name="offloadctl").output
        if words not in {("completion",), ("options",)}:  # which ask no daemon
            assert "form: offloadctl options" in " ".join(help_text.split()), words
        assert not re.search(r"--(standalone|timeout|json|tls-key|context) ", help_text.partition("Options:")[2]), words


def test_a_command_waits_for_no_library_that_only_others_need() -> None:
    """Probes of containers run `health` every few seconds."""
    script = (
        "import sys; from offloaderd.cli.offloaderd.__main__ import cli; cli.commands['health']; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"grpc", "kazoo", "aiobotocore", "pyspark", "pydantic"} & set(done.stdout.split())


def test_commands_are_listed_and_completed_without_being_imported() -> None:
    """Some need libraries that take a second to load."""
    script = (
        "import sys, click; from offloaderd.cli.offloadctl.__main__ import cli;"
        "cli.main(['--help'], standalone_mode=False);"
        "print(*(one.value for one in cli.shell_complete(click.Context(cli), 'd'))); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    *help_text, completed, loaded = done.stdout.splitlines()
    assert "  drill               Try the promises on your stores, with faults. [daemon]" in help_text
    assert completed == "daemons doctor drain drill"
    assert not [name for name in loaded.split() if name.startswith(("offloaderd.drill", "offloaderd.spark"))]


def test_exit_codes_are_documented_alike() -> None:
    """What --help says of the codes is what docs/offloadctl.md says."""
    help_text = CliRunner().invoke(offloadctl.cli, ["--help"]).output
    documented = Path(__file__).parents[3].joinpath("docs", "offloadctl.md").read_text()
    for code, meaning in re.findall(r"^ +(\d+) +(.+)$", help_text.partition("Exit codes:")[2], re.MULTILINE):
        assert f"| {code} | {meaning} |" in documented


def test_the_default_address_is_that_of_the_settings() -> None:
    """The client repeats the daemon's default port; it must not drift."""
    assert f"127.0.0.1:{GrpcSettings().port}" == options.DEFAULT_ADDRESS


def remembered(directory: Path, port: int) -> None:
    """Leave a state file as a standalone does."""
    directory.mkdir(parents=True, exist_ok=True)
    ports = {"grpc": port, "http": 2, "s3": 3}
    state.save(directory, StandaloneState(ports=ports, bucket="b", access_key="a", secret_key="s"))


def run(*words: str) -> tuple[int, str]:
    """Run offloadctl without an address; returns code and stderr."""
    result = CliRunner().invoke(offloadctl.cli, list(words))
    return result.exit_code, result.stderr


def test_the_address_comes_from_flag_directory_or_environment(
    fake: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag wins over the environment, before or after the command; a directory names its daemon."""
    port = int(fake.address.rpartition(":")[2])
    remembered(tmp_path / "d", port)
    assert run("topics", "list", "--standalone", str(tmp_path / "d"))[0] == 0
    assert run("--standalone", str(tmp_path / "d"), "topics", "list")[0] == 0
    monkeypatch.setenv("OFFLOADCTL_STANDALONE", str(tmp_path / "d"))
    assert run("topics", "list")[0] == 0
    assert run("topics", "list", "--address", "127.0.0.1:1")[0] == 3
    assert run("--address", "127.0.0.1:1", "topics", "list")[0] == 3
    monkeypatch.setenv("OFFLOADCTL_ADDRESS", "127.0.0.1:1")
    assert run("topics", "list")[0] == 3
    assert run("topics", "list", "--standalone", str(tmp_path / "d"))[0] == 0
    assert run("topics", "list", "--standalone", "x", "--address", "127.0.0.1:1")[0] == 2


def test_a_standalone_that_has_stopped_is_named(tmp_path: Path) -> None:
    """Whether it was named or would have been the default; an address that was given says nothing of it."""
    here = Path(state.DEFAULT_DIRECTORY)
    remembered(here, 1)
    code, said = run("status")
    assert code == 3
    assert f"the standalone in {here} is stopped" in said
    assert f"offloaderd standalone --data {here}" in said
    assert "stopped" not in run("status", "--address", "127.0.0.1:1")[1]
    remembered(tmp_path / "other", 1)
    assert (
        f"the standalone in {tmp_path / 'other'} is stopped"
        in run("status", "--standalone", str(tmp_path / "other"))[1]
    )


def test_a_directory_without_a_standalone_is_not_found(tmp_path: Path) -> None:
    """The directory is named, with the command that would start one there."""
    code, said = run("status", "--standalone", str(tmp_path))
    assert code == 4
    assert f"no standalone in {tmp_path}" in said


def test_a_damaged_state_file_is_a_configuration_error(tmp_path: Path) -> None:
    """The file is named and what to do; no traceback."""
    for text in ("", "{}", "[1]", '{"version": 2}', '{"version": 1, "ports": 3}'):
        (tmp_path / state.FILE_NAME).write_text(text)
        code, said = run("status", "--standalone", str(tmp_path))
        assert code == 2, text
        assert f"{state.FILE_NAME} is damaged" in said


def test_a_standalone_that_runs_in_the_usual_place_is_found(fake: FakeDaemon) -> None:
    """Without any option the running standalone of this directory is used, and only while it runs."""
    usual = Path(state.DEFAULT_DIRECTORY)
    remembered(usual, int(fake.address.rpartition(":")[2]))
    assert not state.running(usual)
    descriptor = os.open(usual / state.LOCK_NAME, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert run("topics", "list")[0] == 0
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "words",
    [
        ["ledgers", "delete", "orders", "3"],
        ["gc", "--apply"],
        ["identity", "accept", "--place", "--apply"],
        ["rollback", "convert", "orders"],
        ["places", "move", "orders", "--to", "b/p", "--delete-old"],
    ],
)
def test_what_cannot_be_undone_is_confirmed(ctl: Ctl, fake: FakeDaemon, words: list[str]) -> None:
    """Without a terminal to ask at, --yes is needed, and nothing is asked of the daemon; a dry run needs none."""
    answer = ctl(*words)
    assert answer.code == 2
    assert answer.err.endswith("hint: add --yes\n")
    assert not fake.requests
    assert "no terminal" not in ctl(*words, "--yes").err


def test_a_confirmation_that_is_not_given_changes_nothing(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question says what would be done, on stderr; the exit code is that of an interruption."""
    monkeypatch.setattr(options, "is_terminal", lambda: True)
    words = ["gc", "--apply", "--address", fake.address]
    result = CliRunner().invoke(offloadctl.cli, words, input="n\n")
    assert result.exit_code == 130
    assert "This cannot be undone" in result.stderr
    assert not fake.requests


def test_a_standalone_that_runs_elsewhere_is_found(
    fake: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that started last, while it runs; a context in use goes before it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    elsewhere, older = tmp_path / "elsewhere", tmp_path / "older"
    remembered(elsewhere, int(fake.address.rpartition(":")[2]))
    remembered(older, 1)
    state.announce(older)
    state.announce(elsewhere)
    with state.locked(elsewhere):
        assert state.found() is not None
        assert run("topics", "list")[0] == 0
        contexts.save(Contexts("away", {"away": Context(address="127.0.0.1:1")}))
        assert run("topics", "list")[0] == 3
        contexts.save(Contexts())
    assert state.found() is None


def test_a_standalone_runs_where_it_cannot_be_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home directory may be missing or read-only."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    state.announce(tmp_path)
    assert state.found() is None
