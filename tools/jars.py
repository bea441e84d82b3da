"""Lock the jars of the real servers that tests start: tests/jars/KIND-pom.xml to tests/jars/KIND.sha256, by Maven.

Run it after a change of a pom, and look at the difference before committing it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.real.jar_lock import lock_path, maven_project, write_lock  # noqa: E402 - the tree is no installed package

KINDS = ("bookkeeper", "pulsar", "pulsar-4.2.4", "pulsar-5.0.0-M1", "offloader", "iceberg")
GOAL = ("dependency:copy-dependencies", "-DincludeScope=runtime", "-Dmdep.useRepositoryLayout=true")


def main() -> int:
    """Resolve every pom and write its lock."""
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as repository:
            command = ["mvn", "-q", "-B", "-ntp", *maven_project(kind), *GOAL, f"-DoutputDirectory={repository}"]
            subprocess.run(command, check=True)
            write_lock(lock_path(kind), Path(repository))
    return 0


if __name__ == "__main__":
    sys.exit(main())
