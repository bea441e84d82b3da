"""Commands that need an extra, in an installation without it: one line that says what to install."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.cli.offloadctl.__main__ import COMMANDS
from offloaderd.cli.offloaderd.__main__ import COMMANDS as DAEMON_COMMANDS
from offloaderd.cli.program import extra_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]

HIDING = """
import importlib.abc, json, sys
from importlib import metadata
hidden, commands = json.loads(sys.argv[1]), json.loads(sys.argv[2])
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
found = metadata.version
def version(name):
    if name in hidden:
        raise metadata.PackageNotFoundError(name)
    return found(name)
metadata.version = version
from offloaderd.cli.offloadctl import __main__ as offloadctl
from offloaderd.cli.offloaderd import __main__ as offloaderd
for program, *arguments in commands:
    try:
        (offloaderd if program == "offloaderd" else offloadctl).cli.main(arguments, program)
    except SystemExit as end:
        print("ended", end.code, file=sys.stderr)
"""


def said_without(hidden: list[str], commands: list[list[str]]) -> str:
    """Return what commands say on stderr in a Python without some modules."""
    arguments = (json.dumps(hidden), json.dumps(commands))
    done = subprocess.run([sys.executable, "-c", HIDING, *arguments], capture_output=True, text=True, check=True)
    return done.stderr


def test_commands_without_their_extra_say_what_to_install(tmp_path: Path) -> None:
    """Whichever module is missing first; before anything is asked of a server."""
    config = tmp_path / "offloaderd.toml"
    config.write_text('[objects]\nbucket = "tests"\n')
    of = ["--config", str(config)]
    commands = [
        ["offloaderd", "spark", "export", "orders", str(tmp_path / "archive"), *of],
        ["offloaderd", "spark", "verify", "orders", *of],
        ["offloadctl", "backfill", "run", "orders", *of],
        ["offloadctl", "convert", "run", "orders", "--to", "merged", "--yes", "--spark", *of],
    ]
    said = said_without(["pyspark", "pandas", "pyarrow", "fastavro", "packaging", "pyiceberg"], commands)
    assert said.count("pip install 'offloaderd[spark]'") == len(commands), said
    assert said.count("ended 2") == len(commands), said
    assert "internal error" not in said


def beyond_the_client() -> Iterator[str]:
    """Yield every module of this environment that no package in the client's lock brings."""
    locked = re.findall(r"(?m)^([\w.-]+)==", (ROOT / "requirements" / "client.txt").read_text())
    for module, homes in packages_distributions().items():
        if not {home.lower().replace("_", "-") for home in homes} & {*locked, "offloaderd"}:
            yield module


def test_the_client_has_the_commands_that_talk_to_a_daemon_and_no_others() -> None:
    """With the base requirements alone each command works, or names the extra that its help has in one line."""
    commands = [["offloadctl", name, "--help"] for name in COMMANDS]
    said = said_without(list(beyond_the_client()), commands)
    outcomes = [text.strip() for text in re.split(r"ended ", said)]
    ends = [int(one.partition("\n")[0]) for one in outcomes[1:]]
    texts = [one.partition("\n")[2] for one in ["\n" + outcomes[0], *outcomes[1:-1]]]
    extras = {name: re.search(r" \[(\w+)", text) for name, text in COMMANDS.helps}
    assert len(ends) == len(COMMANDS) == len(texts)
    for name, end, text in zip(COMMANDS, ends, texts, strict=True):
        extra = extras[name]
        assert end == (0 if extra is None else 2), (name, text)
        lines = [f"error: this command needs the extra {extra[1]!r}; "] if extra is not None else []
        assert [line[: len(lines[0])] for line in text.splitlines()] == lines, (name, text)


def test_every_command_of_the_daemon_names_its_extra_without_it() -> None:
    """In one line, whichever library it would load first."""
    said = said_without(list(beyond_the_client()), [["offloaderd", name, "--help"] for name in DAEMON_COMMANDS])
    errors = [line for line in said.splitlines() if not line.startswith("ended ")]
    assert errors
    assert all(line.startswith("error: this command needs the extra 'daemon'; ") for line in errors), said
    assert said.count("ended 2") == len(errors), said


def test_which_extra_brings_a_module() -> None:
    """By this distribution's own metadata; what no extra brings is a mistake of ours."""
    assert {extra_of(one) for one in ("structlog", "re2", "jwt", "grpc_health.v1", "botocore.client")} == {"daemon"}
    assert extra_of("grpc") is None
    assert extra_of("pyspark.sql") == "spark"
    assert extra_of("pyiceberg") == "iceberg"
    assert extra_of("offloaderd.nothing") is None
