"""`pip install offloaderd` in a new environment: the client, the commands that talk to a daemon, and nothing more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloaderd import __version__
from tests.integration.processes import DaemonProcess, Site

if TYPE_CHECKING:
    from tests.servers import S3Server

ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "requirements" / "client.txt"


def done(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in an environment that has no settings of this one, and not its packages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OFFLOAD", "PYTHON"))}
    return subprocess.run(
        list(map(str, command)),
        env={**kept, **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment: the wheel of this tree, with the client's locked requirements alone."""
    place = tmp_path_factory.mktemp("client")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = place.glob("*.whl")
    programs = place / "environment" / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python")  # as the image is made: it has none of its own
    for step in (
        (sys.executable, "-m", "venv", "--without-pip", programs.parent),
        (*pip, "install", "--quiet", "--require-hashes", "-r", LOCK),
        (*pip, "install", "--quiet", "--no-deps", wheel),
    ):
        end = done(*step)
        if end.returncode and re.search(r"ConnectionError|NewConnectionError|name resolution", end.stderr):
            pytest.skip(f"the package registry is out of reach: {end.stderr[-300:]}")
        assert end.returncode == 0, end.stderr
    return programs


def test_the_locked_requirements_of_the_client_are_all_that_the_wheel_needs(client: Path) -> None:
    """Nothing is missing, and nothing is there that the lock does not have."""
    pip = (sys.executable, "-m", "pip", "--python", client / "python")
    checked = done(*pip, "check")
    assert checked.returncode == 0, checked.stdout
    listed = done(*pip, "list", "--format", "freeze").stdout
    names = {line.partition("==")[0].lower().replace("_", "-") for line in listed.split()}
    assert names == {"offloaderd", *re.findall(r"(?m)^([\w.-]+)==", LOCK.read_text())}
    assert names >= {"click", "grpcio", "protobuf", "rich"}


async def test_an_installed_client_works_with_a_daemon(
    client: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    """Its commands are listed, work against a real daemon, and read what was appended."""
    assert "Show the daemon and its topics" in done(client / "offloadctl", "--help").stdout
    assert __version__ in done(client / "offloadctl", "--version").stdout
    daemon = DaemonProcess(Site.at(tmp_path, zookeeper, s3_server, s3_bucket))
    async with daemon:
        await daemon.serving()
        address = {"OFFLOADCTL_ADDRESS": f"127.0.0.1:{daemon.grpc_port}"}
        entries = tmp_path / "entries"
        entries.write_text("one\ntwo\n")
        for words in (("topics", "enable", "orders"), ("produce", "orders", entries), ("offload", "orders", "--wait")):
            end = done(client / "offloadctl", *words, **address)
            assert end.returncode == 0, end.stderr
        assert done(client / "offloadctl", "read", "orders", **address).stdout == "one\ntwo\n"
        status = done(client / "offloadctl", "status", **address)
        assert (status.returncode, status.stderr) == (0, "")
        assert "persistent://public/default/orders" in status.stdout
    assert done(client / "offloadctl", "status", **address).returncode == 3


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("offloaderd", "serve"), "daemon"),
        (("offloaderd", "standalone"), "daemon"),
        (("offloadctl", "drill"), "daemon"),
        (("offloadctl", "backfill", "plan", "orders"), "daemon"),
    ],
)
def test_an_installed_client_names_the_extra_of_a_command_in_one_line(
    client: Path, words: tuple[str, ...], extra: str
) -> None:
    """Whatever module is missing first: no traceback, the code of a mistake in the configuration."""
    end = done(client / words[0], *words[1:])
    assert end.returncode == 2, end.stderr
    (line,) = end.stderr.splitlines()
    assert line.startswith(f"error: this command needs the extra {extra!r}; ")
    assert f"pip install 'offloaderd[{extra}]'" in line


def test_the_python_client_is_all_there(client: Path) -> None:
    """Programs import it without an extra."""
    end = done(client / "python", "-c", "import offloaderd.client as c; print([getattr(c, n) for n in c.__all__])")
    assert end.returncode == 0, end.stderr
