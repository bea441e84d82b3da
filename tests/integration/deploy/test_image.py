"""The image without an engine: the steps of the Dockerfile run over its own build context, then its commands are run.

What only an engine does (layers, users, the base image) is not tried here; docs/deploy.md says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloaderd import __version__
from tests.integration.processes import DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.unit.deploy.test_trust import made

if TYPE_CHECKING:
    from tests.servers import S3Server

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTALLED = "/opt/offloaderd"


def stage(name: str) -> list[str]:
    """The instructions of a stage, each in one line."""
    for text in re.split(r"(?m)^FROM ", DOCKERFILE)[1:]:
        head, _, rest = text.partition("\n")
        if head.split()[2] == name:
            joined = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", rest))
            return [line for line in joined.splitlines() if line.strip()]
    raise LookupError(name)


def instruction(name: str) -> list[str]:
    """The command in the list form of an instruction of the image's base stage."""
    (line,) = [line for line in stage("base") if line.startswith(name)]
    command: list[str] = json.loads(line[line.index("[") :])
    return command


def allowed(path: str) -> bool:
    """Whether .dockerignore, which begins by leaving out all, lets a file through."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    kept = [line[1:] for line in lines if line.startswith("!")]
    return any(path == one or path.startswith(f"{one}/") for one in kept) and not fnmatch(path, "*__pycache__*")


def context(to: Path) -> None:
    """Lay out what an engine would be sent: the files that git knows or would take, and .dockerignore lets through."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - whichever git there is
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(allowed, listed.stdout.decode().rstrip("\0").split("\0")):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, to / name)


def python_image(directory: Path) -> Path:
    """Lay out the one program of the base image that steps take from the PATH: this machine may have none."""
    directory.mkdir()
    python = directory / "python"
    base = getattr(sys, "_base_executable", sys.executable)
    python.write_text(f'#!/bin/sh\nexec "{base}" "$@"\n')
    python.chmod(0o755)
    return directory


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image has in /opt/offloaderd: the steps of the stages that build it, run here with pip's cache.

    The compiler is this machine's; without one the compiled loops are missing.
    """
    place = tmp_path_factory.mktemp("image")
    sent, work, installed = place / "context", place / "build", place / "offloaderd"
    context(sent)
    work.mkdir()
    path = f"{python_image(place / 'bin')}:{os.environ['PATH']}"
    # Bytecode is half of the time, and changes nothing.
    environment = {**os.environ, "PATH": path, "PIP_NO_COMPILE": "1"}
    compiled = stage("build-native") if shutil.which("cc") else []
    for line in [*stage("build"), *(line for line in compiled if "apt-get" not in line)]:
        if line.startswith("COPY "):
            *sources, target = line.split()[1:]
            for source in sources:
                _copy(sent / source, work / target, many=target.endswith("/"))
        elif line.startswith("RUN "):
            step = line.removeprefix("RUN ").replace(INSTALLED, str(installed))
            done = subprocess.run(
                ["sh", "-euc", step],  # noqa: S607 - as an engine does
                cwd=work,
                env=environment,
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE_S,
            )
            said = done.stdout.decode(errors="replace")[-2000:]
            if done.returncode and re.search(r"ConnectionError|NewConnectionError|name resolution", said):
                pytest.skip(f"the package registry is out of reach: {said[-300:]}")
            assert done.returncode == 0, f"{step}\n{said}"
    return installed


def _copy(source: Path, target: Path, *, many: bool) -> None:
    assert source.exists(), f"{source.name} is not in the build context: see .dockerignore"
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        to = target / source.name if many else target
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, to)


async def test_the_image_starts_a_daemon_that_is_healthy_and_drains(
    image: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    """Entry point and command serve with the compose file's settings; the health check says alive, and then dead."""
    assert [*instruction("ENTRYPOINT"), *instruction("CMD")] == ["offloaderd", "serve"]
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    settings = str(ROOT / "deploy" / "compose" / "offloaderd.toml")
    (tmp_path / "certificates").mkdir()
    certificates = made(tmp_path / "certificates")
    elsewhere = {
        "OFFLOADERD_CONFIG": settings,
        "OFFLOADERD__TLS__CERT_FILE": str(certificates / "daemon.crt"),
        "OFFLOADERD__TLS__KEY_FILE": str(certificates / "daemon.key"),
        "OFFLOADERD__TLS__CLIENT_CA_FILE": str(certificates / "ca.crt"),
        "OFFLOADERD__GRPC__HOST": "127.0.0.1",
        "OFFLOADERD__HTTP__HOST": "127.0.0.1",
        "PATH": os.environ["PATH"],
        "PYTHONPATH": "",
    }
    daemon = DaemonProcess(site, environment=elsewhere, program=[str(image / "bin" / instruction("ENTRYPOINT")[0])])
    async with daemon:
        await daemon.serving()
        assert await healthy(image, daemon, elsewhere) == 0
        daemon.signal(signal.SIGTERM)
        assert await daemon.ended() == 0
    assert await healthy(image, daemon, elsewhere) == 1


def test_the_image_has_both_commands_and_nothing_to_install_more(image: Path) -> None:
    """Both console scripts run, from the image's own package and not from this tree's; there is no pip."""
    for name in ("offloaderd", "offloadctl"):
        done = subprocess.run([str(image / "bin" / name), "--version"], check=True, capture_output=True, text=True)
        assert __version__ in done.stdout
    (package,) = (image / "lib").glob("python*/site-packages/offloaderd/__init__.py")
    assert package.read_bytes() == (ROOT / "offloaderd" / "__init__.py").read_bytes()
    assert not list((image / "lib").glob("python*/site-packages/*offloaderd*.pth")), "not an editable installation"
    assert not list((image / "lib").glob("python*/site-packages/pip"))


async def healthy(image: Path, daemon: DaemonProcess, environment: dict[str, str]) -> int:
    """Run the health check as the image does, in the container's environment; returns its exit code."""
    name, *words = instruction("HEALTHCHECK")
    process = await asyncio.create_subprocess_exec(
        str(image / "bin" / name),
        *words,
        env={**daemon.site.process_environment(daemon.grpc_port, daemon.http_port), **environment},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(PATIENCE_S):
        return await process.wait()
