"""Which jars a real server consists of, to the byte: `tests/jars/KIND.sha256`, which `tools/jars.py` writes.

A line is a digest and the jar's place in a repository of Maven's layout, from which its coordinates follow; the file is
what `sha256sum` writes and checks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

DESCRIPTIONS = Path(__file__).parent.parent / "jars"


class FetchFailed(Exception):
    """The jars could not be had; the message is what to tell whoever runs the tests."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar. `path` is `GROUP/AS/FOLDERS/ARTIFACT/VERSION/ARTIFACT-VERSION[-CLASSIFIER].jar`."""

    path: str
    sha256: str

    @property
    def name(self) -> str:
        """Name of its file, unique within a lock."""
        return self.path.rpartition("/")[2]

    @property
    def module(self) -> tuple[str, str, str]:
        """Group, artifact and version."""
        *group, artifact, version, _ = self.path.split("/")
        return ".".join(group), artifact, version

    @property
    def classifier(self) -> str:
        """What tells it from other jars of its module; empty for the one without."""
        _, artifact, version = self.module
        return self.name.removeprefix(f"{artifact}-{version}").removesuffix(".jar").removeprefix("-")


def lock_path(kind: str) -> Path:
    """Return where the lock of "bookkeeper", "pulsar", "pulsar-VERSION", "offloader" or "iceberg" is."""
    return DESCRIPTIONS / f"{kind}.sha256"


def maven_project(kind: str) -> list[str]:
    """Return what tells Maven which jars are meant: the description of a kind, and its version unless that has it."""
    base, _, version = kind.partition("-")
    project = ["-f", str(DESCRIPTIONS / f"{base}-pom.xml")]
    return [*project, f"-D{base}.version={version}"] if version else project


def read_lock(path: Path) -> list[Jar]:
    """Return the jars of a lock."""
    lines = path.read_text().splitlines()
    return [Jar(place, digest) for digest, _, place in (line.partition("  ") for line in lines)]


def write_lock(path: Path, repository: Path) -> None:
    """Lock every jar below a folder of Maven's layout."""
    jars = sorted((jar.relative_to(repository).as_posix(), _sha256(jar)) for jar in repository.rglob("*.jar"))
    path.write_text("".join(f"{digest}  {place}\n" for place, digest in jars))


def check(kind: str, jars: list[Jar], folder: Path) -> None:
    """Raise FetchFailed unless a folder holds exactly the locked jars."""
    found = {path.name: _sha256(path) for path in folder.glob("*.jar")}
    wanted = {jar.name: jar.sha256 for jar in jars}
    wrong = {
        "missing": sorted(wanted.keys() - found.keys()),
        "not in the lock": sorted(found.keys() - wanted.keys()),
        "of another content": sorted(name for name in wanted.keys() & found.keys() if wanted[name] != found[name]),
    }
    told = "; ".join(f"{what}: {_some(names)}" for what, names in wrong.items() if names)
    if told:
        raise FetchFailed(
            f"the {kind} jars that were fetched are not those of {lock_path(kind).name}: {told}; after a change of the "
            f"pom run `python tools/jars.py`, else look at the repository that they came from"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
