"""Settings under their names of the release before: read, with a warning wherever the settings are judged."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest
import structlog
from click.testing import CliRunner

from offloaderd.cli.offloaderd.__main__ import cli
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.renamed import SETTINGS
from offloaderd.daemon.reload import Reloader, followed
from offloaderd.daemon.settings import check, load
from offloaderd.daemon.settings.rules import RENAMED, doubtful
from offloaderd.daemon.settings.sections import environment_name
from offloaderd.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BUCKET = {"objects.bucket": "offload"}
OLD, NEW = "offload.sleep_after_s", "offload.suspend_after_s"


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    """Write a settings file below the one that says where the bucket is."""

    def write(text: str) -> Path:
        path = tmp_path / "o.toml"
        path.write_text(f'[objects]\nbucket = "offload"\n{text}')
        return path

    return write


@pytest.mark.parametrize("old", SETTINGS)
def test_an_old_name_sets_what_the_new_one_does(old: str, file: Callable[[str], Path]) -> None:
    """From the file, the environment and the options of a job; the setting is shown by its new name."""
    new, value = SETTINGS[old], "true" if old == "grpc.insecure_elsewhere" else "77"
    section, _, name = old.partition(".")
    variable = environment_name(old)
    path = file(f"[{section}]\n{name} = {value}\n")
    for source, environ, options, warning in (
        (path, {}, {}, f"{path}: {old} is called {new} now"),
        (None, {variable: value}, BUCKET, f"environment {variable} is called {environment_name(new)} now"),
        (None, {}, {old: value, **BUCKET}, f"option {old} is called {new} now"),
    ):
        report = check(source, environ, options)
        assert report.settings is not None
        assert [row.value for row in report.rows if row.key == new] == [value]
        assert (warning, RENAMED) in doubtful(report.settings)


def test_both_names_in_one_place_are_a_mistake(file: Callable[[str], Path]) -> None:
    """In either order, and with the same value too: the line that stays must be the right one."""
    for lines in ("sleep_after_s = 1\nsuspend_after_s = 1\n", "suspend_after_s = 1\nsleep_after_s = 2\n"):
        path = file(f"[offload]\n{lines}")
        (mistake,) = check(path, {}).mistakes
        assert mistake.endswith(f" are one setting: give {NEW} alone")
        assert f"{path}: {OLD}" in mistake
        assert f"{path}: {NEW}" in mistake
    both = {environment_name(OLD): "1", environment_name(NEW): "1"}
    (mistake,) = check(file(""), both).mistakes
    assert mistake.endswith(f"are one setting: give {environment_name(NEW)} alone")


def test_the_environment_goes_over_the_file_whichever_name_each_has(file: Callable[[str], Path]) -> None:
    """As with one name: a file for daemons of both releases may be corrected by a variable of one."""
    assert load(file("[offload]\nsleep_after_s = 1\n"), {environment_name(NEW): "2"}).offload.suspend_after_s == 2
    assert load(file("[offload]\nsuspend_after_s = 1\n"), {environment_name(OLD): "2"}).offload.suspend_after_s == 2


def test_a_mistake_in_a_value_is_named_where_it_stands(file: Callable[[str], Path]) -> None:
    """By the old name, which is the one in the file."""
    path = file("[offload]\nsleep_after_s = -1\n")
    (mistake,) = check(path, {}).mistakes
    assert mistake == f"{path}: {OLD} = -1: out of range; allowed: 0 to 86_400"


def test_an_old_name_with_a_typing_error_leads_to_the_new_one(file: Callable[[str], Path]) -> None:
    """Also where the two are spelt quite differently."""
    (mistake,) = check(file("[grpc]\ninsecure_elswhere = true\n"), {}).mistakes
    assert mistake.endswith("no such setting; did you mean grpc.allow_unauthenticated?")


def test_the_commands_warn(file: Callable[[str], Path]) -> None:
    """check-config does so on stderr and in its JSON, and takes the settings."""
    path = file("[offload]\nsleep_after_s = 1\n")
    told = CliRunner().invoke(cli, ["check-config", "--config", str(path)])
    assert told.exit_code == 0
    assert f"warning: {path}: {OLD} is called {NEW} now\nhint: {RENAMED}\n" in told.stderr
    document = json.loads(CliRunner().invoke(cli, ["check-config", "--config", str(path), "--json"]).stdout)
    assert f"{path}: {OLD} is called {NEW} now: {RENAMED}" in document["warnings"]


def test_a_daemon_warns_at_its_start_and_at_each_reload(file: Callable[[str], Path]) -> None:
    """The log has the place and the new name; a reload that follows the settings remembers which are old."""
    path = file("[offload]\nsleep_after_s = 1\n")
    settings = load(path, {})
    with structlog.testing.capture_logs() as lines:
        reloader = Reloader(settings, partial(load, path, {}), FakeClock(), Metrics())
        reloader.connect(lambda _: lambda: None)
        assert reloader.reload(by="test").changes == ()
    warned = [line for line in lines if line["event"] == "settings.renamed"]
    assert [line["setting"] for line in warned] == [f"{path}: {OLD} is called {NEW} now"] * 2
    assert reloader.settings.renamed == settings.renamed
    assert followed(settings, load(file(""), {})).renamed == ()
