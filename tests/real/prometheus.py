"""Prometheus and its promtool, out of Debian's package of that name, without root and without installing anything.

The package is fetched by apt-get, which checks its signature, into the cache of the other servers (tests/real/jars.py),
and unpacked there. apt-get gets lists of packages of its own, since the machine's may be missing or old. A machine that
is no Debian, or reaches none of its mirrors, has neither program, unless both are on its PATH: then that is said.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
import subprocess
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import yaml

from offloaderd.core.clock import SystemClock
from offloaderd.standalone.ports import free_ports
from tests.patience import PATIENCE_S
from tests.real.jars import cache_directory
from tests.unit.deploy.expressions import PROMETHEUS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

CLOCK = SystemClock()
_SAID_BYTES = 800


class NotToBeHad(Exception):
    """There is no Prometheus on this machine, and none could be fetched; the message says why."""


class Programs(NamedTuple):
    """Where the two programs are."""

    prometheus: Path
    promtool: Path


def programs() -> Programs:
    """Return the programs of the PATH, else those of the cache, fetched if they are not there. Raises NotToBeHad."""
    server, tool = shutil.which("prometheus"), shutil.which("promtool")
    if server is not None and tool is not None:
        return Programs(Path(server), Path(tool))
    folder = cache_directory() / "prometheus"
    if not folder.is_dir():
        missing = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
        if missing:
            raise NotToBeHad(f"no promtool on the PATH, and no {' and no '.join(missing)} to fetch Debian's with")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "prometheus.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes take turns; the kernel gives back a dead one's
            if not folder.is_dir():
                _fetch(folder)
    return Programs(folder / "prometheus", folder / "promtool")


def _fetch(folder: Path) -> None:
    """Fetch and unpack the package beside the folder, which appears when both programs are there."""
    with tempfile.TemporaryDirectory(prefix=".prometheus-", dir=folder.parent) as name:
        draft = Path(name)
        ours = [
            f"-oDir::State::lists={draft / 'lists'}",
            f"-oDir::Cache={draft / 'cache'}",
            "-oDebug::NoLocking=1",
            "-oAcquire::Languages=none",
            "-oAPT::Sandbox::User=",  # the user of the tests, who alone can write here
        ]
        (draft / "lists" / "partial").mkdir(parents=True)
        (draft / "cache" / "archives" / "partial").mkdir(parents=True)
        _run(["apt-get", "-q", *ours, "update"], draft)
        _run(["apt-get", "-q", *ours, "download", "prometheus"], draft)
        (package,) = draft.glob("prometheus_*.deb")
        _run(["dpkg-deb", "-x", str(package), str(draft / "unpacked")], draft)
        (draft / "unpacked" / "usr" / "bin").rename(folder)


def _run(command: Sequence[str], place: Path) -> None:
    try:
        subprocess.run(
            command,
            check=True,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise NotToBeHad(f"no promtool on the PATH, and `{command[0]}` was not done in {PATIENCE_S:g} s") from error
    except subprocess.CalledProcessError as error:
        said = error.stdout[-_SAID_BYTES:].decode(errors="replace")
        raise NotToBeHad(f"no promtool on the PATH, and Debian's could not be fetched: {said}") from error


@asynccontextmanager
async def serving(programs: Programs, target: str, directory: Path, *, pace_s: int = 1) -> AsyncIterator[str]:
    """Prometheus as deploy/ configures it, at a quicker pace and at one daemon; yields its URL."""
    configuration = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": f"{pace_s}s", "evaluation_interval": f"{pace_s}s"}
    configuration["rule_files"] = [str(PROMETHEUS / name) for name in configuration["rule_files"]]
    configuration["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    (directory / "prometheus.json").write_text(json.dumps(configuration))  # JSON is YAML
    (port,) = free_ports(1, CLOCK)
    with (directory / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            programs.prometheus,
            f"--config.file={directory / 'prometheus.json'}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--enable-feature=exemplar-storage",
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    except AssertionError as error:
        error.add_note((directory / "prometheus.log").read_text()[-2000:])
        raise
    finally:
        process.terminate()
        await process.wait()


async def answer(session: aiohttp.ClientSession, path: str) -> Any:  # noqa: ANN401 - the calls differ
    """What Prometheus answers, which must be a success. Raises ClientConnectionError while it starts."""
    async with session.get(path) as response:
        body = await response.json()
        if response.status == 503:
            raise aiohttp.ClientConnectionError("it is starting")
        assert body["status"] == "success", f"{path}: {body}"
        return body["data"]
