"""offloaderd check-config and the screen of a standalone."""

from __future__ import annotations

import gc
import json
import socket
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from offloaderd.cli import show
from offloaderd.cli.offloaderd import standalone
from offloaderd.cli.offloaderd.__main__ import cli
from offloaderd.cli.offloaderd.standalone import TerminalScreen, flow_line
from offloaderd.cli.program import Program
from offloaderd.core.model import TopicName
from offloaderd.daemon import daemon
from offloaderd.daemon.doctor.examination import listen
from offloaderd.standalone.walkthrough import Comparison, Digest, Progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result


def invoke(*words: str) -> Result:
    """Run offloaderd in this process."""
    result = CliRunner().invoke(cli, list(words), prog_name="offloaderd")
    assert isinstance(cli, Program)
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A settings file that works, with a secret."""
    path = tmp_path / "offloaderd.toml"
    path.write_text(
        '[objects]\nbucket = "the-bucket"\naccess_key = "AKIA"\nsecret_key = "hush-hush"\n'
        '[offload]\nsegment_bytes_max = "64MiB"\n'
    )
    return path


def test_check_config_shows_every_setting_and_its_source(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, environment and default are told apart; the secret is masked."""
    monkeypatch.setenv("OFFLOADERD__GRPC__PORT", "7001")
    result = invoke("check-config", "--config", str(config))
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()[1:]}
    assert rows["offload.segment_bytes_max"] == ['"64MiB"', "file"]
    assert rows["grpc.port"] == ["7001", "environment"]
    assert rows["http.port"] == ["7651", "default"]
    assert rows["objects.secret_key"] == ["********", "file"]
    assert "hush" not in result.output
    given = sum(row[-1] in {"file", "environment"} for row in rows.values())
    last = f"the settings are valid: {given} given, {len(rows) - 1 - given} by default"
    assert result.stdout.splitlines()[-1] == last


def test_check_config_as_json(config: Path) -> None:
    """The same as one document."""
    found = json.loads(invoke("check-config", "--config", str(config), "--json").stdout)
    assert (found["valid"], found["mistakes"]) == (True, [])
    assert {"key": "objects.bucket", "value": '"the-bucket"', "source": "file"} in found["settings"]
    assert "connections" not in found


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """Five mistakes, five lines, exit code 2, in both forms."""
    path = tmp_path / "bad.toml"
    path.write_text(
        '[grpc]\nport = 70000\n[objects]\nkind = "s4"\nbuckett = "x"\n'
        '[offload]\nblock_bytes = "many"\n[nothing]\nx = 1\n'
    )
    people = invoke("check-config", "--config", str(path))
    assert people.exit_code == 2
    assert people.stdout == ""
    assert "error: 5 mistakes in the settings" in people.stderr
    for word in ("grpc.port", "objects.kind", "did you mean objects.bucket", "offload.block_bytes", "nothing"):
        assert word in people.stderr
    programs = invoke("check-config", "--config", str(path), "--json")
    found = json.loads(programs.stdout)
    assert (programs.exit_code, found["valid"], len(found["mistakes"]), found["settings"]) == (2, False, 5, [])


@pytest.mark.parametrize("command", ["check-config", "serve"])
def test_a_settings_file_that_cannot_be_read(command: str, tmp_path: Path) -> None:
    """Missing, or no TOML: one error line, code 2."""
    broken = tmp_path / "broken.toml"
    broken.write_text("= 1")
    for path in (tmp_path / "missing.toml", broken):
        result = invoke(command, "--config", str(path))
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert path.name in result.stderr


def test_serve_reports_mistakes_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that cannot work never opens a port."""
    monkeypatch.setenv("OFFLOADERD__GRPC__PORT", "none")
    result = invoke("serve")
    assert result.exit_code == 2
    assert "OFFLOADERD__GRPC__PORT" in result.stderr


def test_what_is_there_when_the_daemon_serves_is_spared_by_the_collector(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: what is loaded until then stays as well."""
    frozen = []

    async def run(_: object, *, on_ready: Callable[[object], None], **_more: object) -> int:
        frozen.append(gc.get_freeze_count())
        on_ready(None)
        frozen.append(gc.get_freeze_count())
        return 0

    monkeypatch.setattr(daemon, "run", run)
    gc.unfreeze()
    try:
        assert invoke("serve", "--config", str(config)).exit_code == 0
    finally:
        gc.freeze()  # as for all tests
    assert frozen[0] == 0
    assert frozen[1] > 10_000


def test_check_config_connect_says_what_is_not_there(tmp_path: Path) -> None:
    """A directory works, ZooKeeper and a further service do not, a port is taken: each has its line, exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = tmp_path / "offloaderd.toml"
        path.write_text(
            f'[objects]\nkind = "filesystem"\ndirectory = "{tmp_path}"\n[http]\nport = {port}\n[grpc]\nport = 0\n'
            '[metadata]\nservers = "127.0.0.1:1"\nconnect_timeout_s = 0.3\n'
            f'[objects.services.nas]\nkind = "filesystem"\nbucket = "nas"\ndirectory = "{tmp_path}-nas"\n'
        )
        result = invoke("check-config", "--config", str(path), "--connect", "--json")
    assert result.exit_code == 1
    found = {one["name"].split()[0]: one for one in json.loads(result.stdout)["connections"]}
    assert {name: one["up"] for name, one in found.items()} == {
        "metadata": False,
        "objects": True,
        "objects.services.nas": False,
        "grpc": True,
        "http": False,
    }
    assert "objects.services.nas.directory" in found["objects.services.nas"]["message"]
    assert found["metadata"]["message"]
    assert "in use" in found["http"]["message"]


def test_a_free_port_is_let_go_again() -> None:
    """Trying a port does not keep it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            listen("127.0.0.1", port)
    listen("127.0.0.1", port)
    listen("127.0.0.1", port)


def test_standalone_refuses_options_that_belong_together() -> None:
    """--input without --walkthrough is a mistake, not a silent nothing."""
    result = invoke("standalone", "--input", "x")
    assert result.exit_code == 2
    assert "--walkthrough" in result.stderr


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1024**2 - 1, "1.0 MiB"), (16 * 1024**2, "16.0 MiB"),
     (5 * 1024**4, "5.0 TiB"), (2 * 1024**5, "2.0 PiB")],
)  # fmt: skip
def test_sizes_for_people(count: int, text: str) -> None:
    """Units change where the number would have four digits."""
    assert show.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.34, "340 ms"), (3.21, "3.2 s"), (59.96, "1 min 00 s"), (125, "2 min 05 s"), (3599.7, "1 h 00 min"),
     (7_380, "2 h 03 min"), (90_000, "1 d 01 h")],
)  # fmt: skip
def test_ages_for_people(seconds: float, text: str) -> None:
    """Two units at most, and none that overflows."""
    assert show.age(seconds) == text


def test_small_words_for_people() -> None:
    """Counts, times and rates."""
    assert (show.plural(1, "entry", "entries"), show.plural(2_000, "entry", "entries")) == ("1 entry", "2,000 entries")
    assert (show.moment(0), show.moment(1_700_000_000_000)) == ("-", "2023-11-14 22:13:20")
    assert (show.rate(1024, 2), show.rate(5, 0)) == ("512 B/s", "-")


def test_tables_are_never_folded() -> None:
    """A key of any length stays on its line."""
    key = "k" * 300
    text = show.rendered(("A", ">B"), [(key, "1"), ("x", "22")])
    assert [line.split() for line in text.splitlines()] == [["A", "B"], [key, "1"], ["x", "22"]]
    assert text.splitlines()[2].endswith("22")


def test_without_a_terminal_progress_is_a_line_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In CI nothing is drawn over: one line, then silence until it is time again."""
    screen = TerminalScreen(tmp_path)
    screen.appending("a file", TopicName.parse("t"))
    now = Progress(seconds=3, total_entries=10, appended_entries=5, appended_bytes=2048, failure="S3 is away")
    screen.progress(now)
    screen.progress(now)
    assert capsys.readouterr().out.count("appended 5 of 10 (2.0 KiB)") == 1
    monkeypatch.setattr(standalone, "LINE_EVERY_S", 0.0)
    screen.progress(now)
    out = capsys.readouterr().out
    assert out == flow_line(now) + "\n"
    assert "failing: S3 is away" in out
    assert "\x1b" not in out


def test_a_difference_is_shown_in_capitals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody overlooks it."""
    sent, received = Digest(), Digest()
    sent.add([b"a", b"b"])
    received.add([b"a"])
    TerminalScreen(tmp_path).compared(Comparison(sent=sent, received=received, tiers={"source": 1}, seconds=1))
    out = capsys.readouterr().out
    assert "DIFFERENT: 2 entries went in, 1 came back" in out
    assert "served by: the ledger store 1" in out
    assert "identical" not in out
