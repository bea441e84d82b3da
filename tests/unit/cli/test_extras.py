"""Commands that need an extra, in an installation without it: one line that says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from offloaderd.cli.program import extra_of

if TYPE_CHECKING:
    from pathlib import Path

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


def test_which_extra_brings_a_module() -> None:
    """By this distribution's own metadata; what no extra brings is a mistake of ours."""
    assert extra_of("pyspark.sql") == "spark"
    assert extra_of("pyiceberg") == "iceberg"
    assert extra_of("offloaderd.nothing") is None
