"""Jars are fetched once, appear whole or not at all, and a download that fails says what to do."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.real import jars
from tests.real.jars import FetchFailed, cache_directory, server_jars

if TYPE_CHECKING:
    from pathlib import Path

CALLS = "calls"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("OFFLOADERD_SERVER_JARS", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pretend_maven(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a Maven of ours before any other; it counts its calls."""
    maven = directory / "bin" / "mvn"
    maven.parent.mkdir(exist_ok=True)
    maven.write_text(f'#!/bin/sh\necho call >> "{directory / CALLS}"\n{script}\n')
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}{os.pathsep}{os.environ['PATH']}")


COPY = 'for word; do case $word in -DoutputDirectory=*) mkdir "${word#*=}"; touch "${word#*=}/a.jar" ;; esac; done'


def test_fetched_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run finds what the first one fetched, and other jars have another folder."""
    pretend_maven(tmp_path, monkeypatch, COPY)
    folder = server_jars("bookkeeper")
    assert server_jars("bookkeeper") == folder
    assert [jar.name for jar in folder.iterdir()] == ["a.jar"]
    assert server_jars("pulsar") != folder
    assert (tmp_path / CALLS).read_text().count("call") == 2
    assert folder.parent == cache


def test_failed_download(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure names the tool, what it said and what to do; nothing stays behind, and the next run tries again."""
    pretend_maven(tmp_path, monkeypatch, f"{COPY}; echo no route; exit 3")
    with pytest.raises(FetchFailed, match=r"Maven .*bookkeeper jars \(exit code 3\).*OFFLOADERD_SERVER_JARS") as caught:
        server_jars("bookkeeper")
    assert "no route" in str(caught.value)
    assert [path.name for path in cache.iterdir()] == ["bookkeeper.lock"]
    pretend_maven(tmp_path, monkeypatch, COPY)
    assert server_jars("bookkeeper").is_dir()


def test_nothing_fetched(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that says yes and brings nothing has failed."""
    pretend_maven(tmp_path, monkeypatch, "exit 0")
    with pytest.raises(FetchFailed, match="no bookkeeper jars"):
        server_jars("bookkeeper")


def test_slow_download(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that does not end is given up."""
    pretend_maven(tmp_path, monkeypatch, "exec sleep 30")
    monkeypatch.setattr(jars, "FETCH_DEADLINE_S", 0.2)
    with pytest.raises(FetchFailed, match="is the network slow"):
        server_jars("bookkeeper")


def test_no_tool(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Maven and without PySpark's Ivy, the message says how to get one."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(FetchFailed, match="make setup"):
        server_jars("bookkeeper")


def test_cache_that_cannot_be(tmp_path: Path, cache: Path) -> None:
    """A cache that cannot be made is said in one line, with the variable to set."""
    cache.write_text("a file")
    with pytest.raises(FetchFailed, match=r"cannot keep the bookkeeper jars in .*OFFLOADERD_SERVER_JARS"):
        server_jars("bookkeeper")


def test_place_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache follows the user's cache directory unless it is named."""
    monkeypatch.delenv("OFFLOADERD_SERVER_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "offloaderd-servers"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "offloaderd-servers"
