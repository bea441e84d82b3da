"""`offloaderd standalone` as a user runs it: a real process with real servers below it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloaderd.standalone import state
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def environment() -> dict[str, str]:
    """Return an environment without anything that would steer a daemon, as CI has it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OFFLOADERD", "OFFLOADCTL"))}
    return {**kept, "CI": "true"}


def command(program: str, *words: str) -> list[str]:
    """Return the command line of one of the two programs."""
    return [sys.executable, "-m", f"offloaderd.cli.{program}", *words]


def run(program: str, *words: str, given: bytes | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; a traceback fails the test whatever else happened."""
    result = subprocess.run(
        command(program, *words), input=given, capture_output=True, env=environment(), timeout=PATIENCE_S, check=False
    )
    done = subprocess.CompletedProcess(result.args, result.returncode, result.stdout.decode(), result.stderr.decode())
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def children(directory: Path) -> list[str]:
    """Return the command lines of all processes that work in the data directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(directory) in line:
            found.append(line)
    return found


@contextmanager
def started(directory: Path, *words: str, given: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a standalone in the background, `given` as its standard input; whatever happens, it is gone afterwards."""
    with (directory.parent / "stderr").open("w") as errors:
        process = subprocess.Popen(
            command("offloaderd", "standalone", "--data", str(directory), *words),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(),
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def lines_until(process: subprocess.Popen[str], wanted: Callable[[str], bool]) -> list[str]:
    """Read the output up to the line that is wanted; fails when it never comes."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if wanted(line):
            return seen
    pytest.fail(f"the output ended without the line: {seen}")


def stopped(process: subprocess.Popen[str], number: signal.Signals) -> int:
    """Send a signal and return the exit code."""
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    return process.returncode


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory that does not exist yet; at the end no process works in it."""
    directory = tmp_path / "data"
    yield directory
    assert children(directory) == []


def walked_again(data: Path, given: bytes) -> subprocess.CompletedProcess[str]:
    """Run the walkthrough over existing data; with new ports if another test has taken one meanwhile."""
    words = ("offloaderd", "standalone", "--data", str(data), "--walkthrough", "--input", "-")
    again = run(*words, given=given)
    return again if "is in use by another program" not in again.stderr else run(*words, "--new-ports", given=given)


@pytest.mark.witness("commands")
def test_walkthrough_restart_and_going_on(data: Path, tmp_path: Path) -> None:
    """The main job on a small file; again over the same data; then left running, with offloadctl against it."""
    source = tmp_path / "orders.ndjson"
    source.write_bytes(b"".join(b'{"order":%d}\n' % number for number in range(5_000)))

    first = run("offloaderd", "standalone", "--data", str(data), "--walkthrough", "--input", str(source))
    assert (first.returncode, first.stderr) == (0, "")
    assert "to persistent://public/default/orders, over gRPC" in first.stdout
    assert "served by: S3 5,000;" in first.stdout
    assert "identical, bit for bit" in first.stdout
    assert "\x1b" not in first.stdout
    assert children(data) == []

    again = walked_again(data, b"a\n\nb\nc")
    assert (again.returncode, again.stderr) == (0, "")
    assert "again, over existing data" in again.stdout
    assert "to persistent://public/default/lines, over gRPC" in again.stdout
    assert "1 empty line skipped" in again.stdout
    assert "served by: S3 3;" in again.stdout

    # Its metadata is lost, and nothing of it runs: the servers are started for the command alone.
    verified = run("offloaderd", "verify", "--standalone", str(data))
    assert (verified.returncode, verified.stderr) == (0, ""), verified.stdout
    shutil.rmtree(data / "zookeeper")
    rebuilt = run("offloaderd", "rebuild", "--standalone", str(data), "--apply", "--enable", "--json")
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert len(json.loads(rebuilt.stdout)["topics"]) == 2
    assert children(data) == []

    with started(data, "--new-ports") as process:
        lines_until(process, lambda line: "Ctrl-C" in line)
        at = ("--standalone", str(data))
        status = json.loads(run("offloadctl", "status", "--json", *at).stdout)
        assert status["daemon"]["state"] == "serving"
        assert all(one["up"] for one in status["daemon"]["dependencies"])
        config = ("--config", str(data / "offloaderd.toml"))
        assert run("offloaderd", "verify", *config, "--level", "metadata").returncode == 0
        read = run("offloadctl", "read", "orders", *at)
        assert (read.returncode, read.stdout.encode()) == (0, source.read_bytes())

        produced = run("offloadctl", "produce", "numbers", "-", "--json", *at, given=b"1\n2\n3\n")
        assert json.loads(produced.stdout)["entries"] == 3
        assert run("offloadctl", "topics", "enable", "numbers", *at).returncode == 0
        offloaded = json.loads(run("offloadctl", "offload", "numbers", "--wait", "--json", *at).stdout)
        assert offloaded["done"]
        assert offloaded["offloaded"] == json.loads(produced.stdout)["last"]
        entries = run("offloadctl", "read", "numbers", "--json", *at).stdout.splitlines()
        assert [(json.loads(line)["payload"], json.loads(line)["tier"]) for line in entries] == [
            ("1", "objects"), ("2", "objects"), ("3", "objects"),
        ]  # fmt: skip
        assert run("offloadctl", "read", "nowhere", *at).returncode == 4
        assert run("offloadctl", "read", "numbers", "--from", "99999:0", *at).returncode == 2

        second = run("offloaderd", "standalone", "--data", str(data))
        assert second.returncode == 1
        assert "another standalone (process" in second.stderr

        assert stopped(process, signal.SIGINT) == 0
    assert run("offloadctl", "status", "--standalone", str(data)).returncode == 3


def test_interrupting_the_walkthrough_drains_and_leaves_nothing(data: Path) -> None:
    """Ctrl-C in the middle: exit code 130, no process left, and what was appended is offloaded once it runs again."""
    reading, writing = os.pipe()
    try:
        with started(data, "--walkthrough", "--input", "-", given=reading) as process:
            os.write(writing, b"".join(b"%d\n" % number for number in range(1_000)))
            lines_until(process, lambda line: "appended 1,000" in line)
            assert stopped(process, signal.SIGINT) == 130
    finally:
        os.close(reading)
        os.close(writing)
    assert children(data) == []
    with started(data, "--new-ports") as process:
        lines_until(process, lambda line: "Ctrl-C" in line)
        at = ("--standalone", str(data))
        assert run("offloadctl", "offload", "lines", "--wait", *at).returncode == 0
        found = [json.loads(line) for line in run("offloadctl", "read", "lines", "--json", *at).stdout.splitlines()]
        assert [one["payload"] for one in found] == [str(number) for number in range(1_000)]
        assert {one["tier"] for one in found} == {"objects"}
        assert stopped(process, signal.SIGTERM) == 0


def test_a_signal_during_the_start_stops_what_was_started(data: Path) -> None:
    """SIGTERM before anything serves: no server is left."""
    with started(data) as process:
        lines_until(process, lambda line: line.startswith("starting"))
        while not (data / "zookeeper" / "zookeeper.log").exists() and process.poll() is None:
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        assert stopped(process, signal.SIGTERM) == 130


def test_a_port_that_is_taken_is_named_and_can_be_changed(data: Path) -> None:
    """A remembered port in use gives one clear line and code 2; --new-ports goes on with the same data."""
    with started(data) as process:
        lines_until(process, lambda line: "Ctrl-C" in line)
        assert run("offloadctl", "produce", "kept", "-", "--standalone", str(data), given=b"x\n").returncode == 0
        assert stopped(process, signal.SIGTERM) == 0
    port = state.load(data).ports["s3"]
    with socket.create_server(("127.0.0.1", port)):
        refused = run("offloaderd", "standalone", "--data", str(data))
        assert refused.returncode == 2
        assert f"error: port {port} (s3)" in refused.stderr
        assert "--new-ports" in refused.stderr
        with started(data, "--new-ports") as process:
            lines_until(process, lambda line: "Ctrl-C" in line)
            assert run("offloadctl", "read", "kept", "--standalone", str(data)).stdout == "x\n"
            assert stopped(process, signal.SIGTERM) == 0


@pytest.mark.parametrize("words", [("--keep",), ("--input", "x"), ("--walkthrough", "--input", "/no/such/file")])
def test_wrong_usage_starts_nothing(data: Path, words: tuple[str, ...]) -> None:
    """What cannot be is said before a directory is made."""
    result = run("offloaderd", "standalone", "--data", str(data), *words)
    assert result.returncode == 2
    assert not data.exists()


def test_an_empty_input_fails_and_says_so(data: Path) -> None:
    """There is nothing to compare: a failure, not a success over nothing."""
    result = run("offloaderd", "standalone", "--data", str(data), "--walkthrough", "--input", "-", given=b"\n\n")
    assert result.returncode == 1
    assert "error: standard input holds no entries" in result.stderr
