"""Fetches the jars of the real servers once, into a cache that outlives the test run.

The cache is `OFFLOADERD_SERVER_JARS`, else `offloaderd-servers` in the user's cache directory. A folder in it is named
after the lock that it was fetched by, so it is fetched again exactly when that changes, and appears whole and checked
or not at all: what is half fetched has another name. Two test processes take turns.

Maven fetches where it is installed, for it knows this machine's mirrors and proxies; without it, or when it fails, Ivy.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.real.ivy import fetch_by_ivy
from tests.real.jar_lock import FetchFailed, check, lock_path, maven_project, read_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.jar_lock import Jar

BUILD_S = 1800.0
"""How long tests wait for what fetches or builds, once: on a busy machine Maven takes many minutes."""
_SAID_BYTES = 1500


def cache_directory() -> Path:
    """Return where the jars are kept between test runs."""
    named = os.environ.get("OFFLOADERD_SERVER_JARS")
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else (Path(home) if home else Path.home() / ".cache") / "offloaderd-servers"


def bookie_jars(broker: str) -> str:
    """Return the kind of the jars of bookies that come with a broker of this kind."""
    return "bookkeeper" if broker == "pulsar" else broker


def broker_jars(version: str | None = None) -> str:
    """Return the kind of a stock broker's jars: of a version, else of the environment's PULSAR_VERSION, else the usual.

    Raises FetchFailed for a version that is not locked.
    """
    version = os.environ.get("PULSAR_VERSION", "") if version is None else version
    if not version:
        return "pulsar"
    (usual,) = (jar.module[2] for jar in read_lock(lock_path("pulsar")) if jar.module[1] == "pulsar-broker")
    if version == usual:
        return "pulsar"
    kind = f"pulsar-{version}"
    if not lock_path(kind).exists():
        others = lock_path(kind).parent.glob("pulsar-*.sha256")
        found = sorted([usual, *(path.stem.partition("-")[2] for path in others)])
        raise FetchFailed(
            f"no jars of Pulsar {version} are locked in tests/jars: PULSAR_VERSION may be {', '.join(found)}"
        )
    return kind


def server_jars(kind: str) -> Path:
    """Return the folder with the jars of a kind (see `lock_path`), fetched now if they are not there.

    Raises FetchFailed.
    """
    cache = cache_directory()
    folder = cache / f"{kind}-{hashlib.sha256(lock_path(kind).read_bytes()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _turn(cache / f"{kind}.lock"):
            if not folder.is_dir():
                _fetch(kind, folder)
    except OSError as error:
        raise FetchFailed(
            f"cannot keep the {kind} jars in {cache}: {error.strerror or error}; "
            f"set OFFLOADERD_SERVER_JARS to a directory that can be written and has 800 MB to spare"
        ) from error
    return folder


def _fetch(kind: str, folder: Path) -> None:
    """Fetch by the first tool that can, into a folder of another name; rename it when all of it is there and right."""
    jars = read_lock(lock_path(kind))
    problems = []
    for fetch in (_by_maven, _by_ivy) if shutil.which("mvn") else (_by_ivy,):
        with tempfile.TemporaryDirectory(prefix=f".{kind}-", dir=folder.parent) as draft:
            try:
                fetch(kind, jars, Path(draft, "jars"), folder.parent)
                check(kind, jars, Path(draft, "jars"))
            except FetchFailed as error:
                problems.append(str(error))
            else:
                Path(draft, "jars").rename(folder)
                return
    advice = "a cache that was filled elsewhere, named by OFFLOADERD_SERVER_JARS, does as well"
    raise FetchFailed("\n".join([*problems, advice]))


def _by_ivy(kind: str, jars: list[Jar], to: Path, cache: Path) -> None:
    """Let Ivy fetch what is locked; what it keeps for its next try goes once all has arrived, right or wrong."""
    work = cache / f".{kind}-ivy"
    fetch_by_ivy(kind, jars, work, to)
    shutil.rmtree(work, ignore_errors=True)


def _by_maven(kind: str, _jars: list[Jar], to: Path, _cache: Path) -> None:
    """Let Maven resolve and copy them, by the registry that this machine's Maven is set up for. Raises FetchFailed."""
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={to}"]
    try:
        subprocess.run(
            [shutil.which("mvn") or "mvn", "-q", "-B", "-ntp", *maven_project(kind), *goal],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_S,
            cwd=to.parent,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchFailed(f"Maven did not fetch the {kind} jars in {BUILD_S:g} s") from error
    except subprocess.CalledProcessError as error:
        said = error.stdout[-_SAID_BYTES:].decode(errors="replace")
        raise FetchFailed(f"Maven could not fetch the {kind} jars (exit code {error.returncode}): {said}") from error


@contextmanager
def _turn(lock: Path) -> Iterator[None]:
    """Wait until no other test process fetches; the kernel gives the turn back when a process dies."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
