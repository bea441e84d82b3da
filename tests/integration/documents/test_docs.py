"""The commands and programs of README.md and docs/, run as they stand there against one real standalone.

Each page runs in a directory of its own, its blocks in order; the standalone lives in `data/standalone` of all of them,
as it does for whoever follows a page. `offloaderd.toml` says where its servers are, `orders` is a topic with a thousand
entries, and the address 127.0.0.1:7650 stands for its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from offloaderd.standalone import state
from tests.integration.commands.test_standalone import environment, lines_until, started
from tests.pages import NOT_RUN, ROOT, blocks, pages
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offloaderd.standalone.state import StandaloneState
    from tests.pages import Block

SETUP = """
seq 1000 | offloadctl produce orders
offloadctl topics enable orders --segment-age 5
offloadctl offload orders --wait
"""


class Home(NamedTuple):
    """Where the standalone keeps its data, and its ports."""

    directory: Path
    chosen: StandaloneState


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A standalone for all pages, with a topic."""
    directory = tmp_path_factory.mktemp("docs") / "standalone"
    with started(directory) as process:
        lines_until(process, lambda line: "offloadctl" in line)
        here = Home(directory, state.load(directory))
        run("sh", SETUP, furnished(tmp_path_factory.mktemp("setup"), here), here)
        yield here
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def furnished(place: Path, home: Home) -> Path:
    """Put into a directory what a reader of the pages has before them."""
    chosen = home.chosen
    (place / "data").mkdir()
    (place / "data/standalone").symlink_to(home.directory)
    (place / ".venv").symlink_to(sys.prefix)
    (place / "offloaderd.toml").write_text(
        f"""
[daemon]
id = "second"
cluster = "standalone"
[grpc]
port = 0
[http]
port = 0
[metadata]
servers = "127.0.0.1:{chosen.ports["zookeeper"]}"
[objects]
bucket = "{chosen.bucket}"
endpoint = "{chosen.s3_endpoint}"
access_key = "{chosen.access_key}"
secret_key = "{chosen.secret_key}"
path_style = true
[ledgers]
kind = "embedded"
directory = "{place}/ledgers"
"""
    )
    return place


def run(kind: str, text: str, place: Path, home: Home) -> subprocess.CompletedProcess[str]:
    """Run a block in a directory as its reader would; a shell stops at the first command that fails."""
    text = text.replace("127.0.0.1:7650", home.chosen.address)
    program = ["bash", "-euo", "pipefail", "-c", text] if kind != "python" else [sys.executable, "-c", text]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        program,
        cwd=place,
        env={**environment(), "PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def runnable() -> list[Path]:
    """Return the pages that have anything to run."""
    return [page for page in pages() if any(block.runs for block in blocks(page))]


@pytest.mark.witness("documents")
@pytest.mark.parametrize("page", runnable(), ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_says_works(page: Path, home: Home, tmp_path: Path) -> None:
    """Every block ends well and without a traceback."""
    place = furnished(tmp_path, home)
    for block in blocks(page):
        if block.runs:
            done = run(block.info[0], block.program, place, home)
            said = f"{block.page}:{block.line} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
            assert done.returncode == 0, said
            assert "Traceback" not in done.stderr, said


@pytest.mark.witness("documents")
def test_a_block_that_fails_is_noticed(home: Home, tmp_path: Path) -> None:
    """A command in the middle of a block, and of a pipe."""
    place = furnished(tmp_path, home)
    assert run("sh", "false\ntrue", place, home).returncode
    assert run("sh", "offloadctl read nowhere | cat", place, home).returncode
    assert run("python", "raise SystemExit(3)", place, home).returncode == 3


def left_out() -> list[Block]:
    """Return the blocks that are not run."""
    found = [block for page in pages() for block in blocks(page)]
    return [block for block in found if block.info[:1] in {("sh",), ("python",)} and not block.runs]


def test_more_is_run_than_left_out() -> None:
    """What a test could run is not waved through."""
    ran = sum(block.runs for page in pages() for block in blocks(page))
    assert ran > 10
    assert all(word in NOT_RUN for block in left_out() for word in block.info[1:])
