"""Fetches the jars of the real servers once, into a cache that outlives the test run.

The cache is `OFFLOADERD_SERVER_JARS`, else `offloaderd-servers` in the user's cache directory. A folder in it is named
after the text of the files that it was fetched by, so it is fetched again exactly when they change, and appears whole
or not at all: what is half fetched has another name. Two test processes take turns.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.standalone.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DESCRIPTIONS = Path(__file__).parent.parent / "jars"
FETCH_DEADLINE_S = 900
# A Java from a wheel knows only the authorities that it came with; Debian keeps those that the system trusts here.
_TRUST_STORE = Path("/etc/ssl/certs/java/cacerts")
_SAID_BYTES = 1500


class FetchFailed(Exception):
    """The jars could not be had; the message is what to tell whoever runs the tests."""


def cache_directory() -> Path:
    """Return where the jars are kept between test runs."""
    named = os.environ.get("OFFLOADERD_SERVER_JARS")
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else (Path(home) if home else Path.home() / ".cache") / "offloaderd-servers"


def server_jars(kind: str) -> Path:
    """Return the folder with the jars of "bookkeeper" or "pulsar", fetched now if they are not there.

    Raises FetchFailed.
    """
    texts = [(DESCRIPTIONS / f"{kind}-{tool}.xml").read_bytes() for tool in ("pom", "ivy")]
    cache = cache_directory()
    folder = cache / f"{kind}-{hashlib.sha256(b''.join(texts)).hexdigest()[:12]}"
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
            f"set OFFLOADERD_SERVER_JARS to a directory that can be written and has 400 MB to spare"
        ) from error
    return folder


def _fetch(kind: str, folder: Path) -> None:
    """Fetch into a folder of another name, and rename it when all of it is there."""
    fetcher: Callable[[str, Path], None] = _by_maven if shutil.which("mvn") else _by_ivy
    with tempfile.TemporaryDirectory(prefix=f".{kind}-", dir=folder.parent) as draft:
        jars = Path(draft, "jars")
        fetcher(kind, jars)
        if not any(jars.glob("*.jar")):
            raise FetchFailed(f"no {kind} jars were fetched, and no reason was given; try again, or see {DESCRIPTIONS}")
        jars.rename(folder)


def _by_maven(kind: str, to: Path) -> None:
    """Let Maven resolve and copy them, by the registry that this machine's Maven is set up for."""
    pom = DESCRIPTIONS / f"{kind}-pom.xml"
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={to}"]
    _run("Maven", kind, [shutil.which("mvn") or "mvn", "-q", "-B", "-ntp", "-f", str(pom), *goal], to.parent)


def _by_ivy(kind: str, to: Path) -> None:
    """Do the same without Maven: PySpark's jars hold Ivy, and any Java runs it."""
    spec = importlib.util.find_spec("pyspark")
    ivies = sorted(Path(spec.origin).parent.glob("jars/ivy-2*.jar")) if spec is not None and spec.origin else []
    if not ivies:
        raise FetchFailed(f"neither Maven nor PySpark's Ivy is there to fetch the {kind} jars; run `make setup`")
    trust = [f"-Djavax.net.ssl.trustStore={_TRUST_STORE}"] if _TRUST_STORE.exists() else []
    command = [
        *(str(find_java()), *trust, "-jar", str(ivies[-1])),
        *("-cache", str(to.parent / "ivy"), "-ivy", str(DESCRIPTIONS / f"{kind}-ivy.xml"), "-confs", "default"),
        *("-retrieve", f"{to}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    _run("Ivy", kind, command, to.parent)
    for archive in to.glob("*.nar"):  # a jar by another name, which a class path with a star overlooks
        archive.rename(archive.with_suffix(".jar"))


def _run(tool: str, kind: str, command: list[str], directory: Path) -> None:
    """Run a fetching tool. Raises FetchFailed with the end of what it said and what to do."""
    try:
        subprocess.run(
            command,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=FETCH_DEADLINE_S,
            cwd=directory,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchFailed(
            f"{tool} did not fetch the {kind} jars in {FETCH_DEADLINE_S} s; is the network slow? run the tests again"
        ) from error
    except subprocess.CalledProcessError as error:
        said = error.stdout[-_SAID_BYTES:].decode(errors="replace")
        raise FetchFailed(
            f"{tool} could not fetch the {kind} jars (exit code {error.returncode}): does `{tool.lower()}` reach a "
            f"repository from here? set OFFLOADERD_SERVER_JARS to a cache filled elsewhere if not\n{said}"
        ) from error


@contextmanager
def _turn(lock: Path) -> Iterator[None]:
    """Wait until no other test process fetches; the kernel gives the turn back when a process dies."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
