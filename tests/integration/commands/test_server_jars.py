"""Jars are fetched once, appear whole and checked or not at all, and a download that fails says what to do."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest

from offloaderd.spark.java import find_java
from tests.real import ivy, jar_lock, jars
from tests.real.ivy import REPOSITORY
from tests.real.jar_lock import FetchFailed, Jar, lock_path, read_lock, write_lock
from tests.real.jars import broker_jars, cache_directory, server_jars
from tests.real.trust_store import PASSWORD, trusted_by_python, write_trust_store

if TYPE_CHECKING:
    from pathlib import Path

CALLS = "calls"
PATHS = ("org/a/one/1.0/one-1.0.jar", "org/a/one/1.0/one-1.0-linux.jar", "b/two/2-jre/two-2-jre.jar")
NAMES = {"one-1.0.jar", "one-1.0-linux.jar", "two-2-jre.jar"}
COPY = (
    'for word; do case $word in -DoutputDirectory=*) mkdir "${word#*=}"; '
    'find "$REPOSITORY" -name "*.jar" -exec cp {} "${word#*=}" ";" ;; esac; done'
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("OFFLOADERD_SERVER_JARS", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of three small jars, which are all that BookKeeper and Pulsar need; no Maven is there."""
    root = tmp_path / "repository"
    for path in PATHS:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(root / path, "w") as jar:
            jar.writestr("who", path)
    monkeypatch.setattr(jar_lock, "DESCRIPTIONS", tmp_path)
    for kind in ("bookkeeper", "pulsar"):
        write_lock(lock_path(kind), root)
    monkeypatch.setenv(REPOSITORY, root.as_uri())
    monkeypatch.setenv("REPOSITORY", str(root))
    monkeypatch.setattr(ivy, "TRIES", 1)
    found_maven(None, monkeypatch)
    return root


def found_maven(path: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this Maven be found and no other, whatever the machine has."""
    which = shutil.which
    ours = None if path is None else str(path)
    monkeypatch.setattr(shutil, "which", lambda name: ours if name == "mvn" else which(name))


def pretend_maven(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a Maven be found that runs this script; it counts its calls."""
    maven = directory / "mvn"
    maven.write_text(f'#!/bin/sh\necho call >> "{directory / CALLS}"\n{script}\n')
    maven.chmod(0o755)
    found_maven(maven, monkeypatch)


def names(folder: Path) -> set[str]:
    """Return what is in a folder."""
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["bookkeeper", "pulsar", "pulsar-4.2.4", "pulsar-5.0.0-M1", "offloader"])
def test_lock_and_pom(kind: str) -> None:
    """The lock holds what the pom asks for, and every jar of it has a name and a module of its own."""
    locked = read_lock(lock_path(kind))
    base, _, said = kind.partition("-")
    pom = (jar_lock.DESCRIPTIONS / f"{base}-pom.xml").read_text()
    servers = {"bookkeeper": "bookkeeper-server", "pulsar": "pulsar-broker", "offloader": "tiered-storage-jcloud"}
    server = servers[base]
    (version,) = [jar.module[2] for jar in locked if jar.module[1] == server]
    assert version == said if said else f"version>{version}<" in pom
    assert len({jar.name for jar in locked}) == len(locked) > 20
    assert len({(*jar.module, jar.classifier) for jar in locked}) == len(locked)
    assert all(len(jar.sha256) == 64 for jar in locked)


def test_coordinates() -> None:
    """A jar's place says its group, artifact, version and classifier, dashes and all."""
    jar = Jar("io/netty/netty-x/4.1.0.Final/netty-x-4.1.0.Final-linux-x86_64.jar", "")
    assert (jar.module, jar.classifier) == (("io.netty", "netty-x", "4.1.0.Final"), "linux-x86_64")
    assert (Jar(PATHS[2], "").module, Jar(PATHS[2], "").classifier) == (("b", "two", "2-jre"), "")


def test_by_maven(tmp_path: Path, repository: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run finds what the first one fetched, and other jars have another folder."""
    pretend_maven(tmp_path, monkeypatch, COPY)
    folder = server_jars("bookkeeper")
    assert server_jars("bookkeeper") == folder
    assert names(folder) == NAMES
    assert server_jars("pulsar") != folder
    assert (tmp_path / CALLS).read_text().count("call") == 2
    assert names(cache) == {folder.name, server_jars("pulsar").name, "bookkeeper.lock", "pulsar.lock"}
    lock_path("bookkeeper").write_text(lock_path("bookkeeper").read_text()[:-1])
    assert server_jars("bookkeeper") != folder, "another lock is other jars"


def test_by_ivy(repository: Path, cache: Path) -> None:
    """Without Maven the same jars come by Ivy, classifiers and all, and nothing else stays in the cache."""
    folder = server_jars("pulsar")
    assert names(folder) == NAMES
    assert (folder / "one-1.0-linux.jar").read_bytes() == (repository / PATHS[1]).read_bytes()
    assert names(cache) == {folder.name, "pulsar.lock"}


def test_by_ivy_when_maven_fails(
    tmp_path: Path, repository: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Maven that cannot fetch, or fetches something else, is no reason to give up."""
    pretend_maven(tmp_path, monkeypatch, "echo no route; exit 3")
    assert names(server_jars("bookkeeper")) == NAMES
    pretend_maven(tmp_path, monkeypatch, f"{COPY}; for word; do touch ${{word#*=}}/new.jar 2>/dev/null; done; true")
    assert names(server_jars("pulsar")) == NAMES


def test_failed_download(tmp_path: Path, repository: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure names the tools, what they said and what to do; what Ivy has fetched is kept for the next run."""
    pretend_maven(tmp_path, monkeypatch, f"{COPY}; echo no route; exit 3")
    hidden = (repository / PATHS[2]).rename(tmp_path / "hidden")
    with pytest.raises(FetchFailed, match=r"Maven .*bookkeeper jars \(exit code 3\)") as caught:
        server_jars("bookkeeper")
    told = str(caught.value)
    for word in ("no route", "Ivy could not", "b#two;2-jre", REPOSITORY, "OFFLOADERD_SERVER_JARS"):
        assert word in told
    assert names(cache) == {"bookkeeper.lock", ".bookkeeper-ivy"}
    hidden.rename(repository / PATHS[2])
    for path in PATHS[:2]:
        (repository / path).unlink()
    found_maven(None, monkeypatch)
    assert names(server_jars("bookkeeper")) == NAMES


def test_wrong_content(repository: Path, cache: Path) -> None:
    """A jar that is not the locked one is refused and fetched anew the next time."""
    right = (repository / PATHS[0]).read_bytes()
    (repository / PATHS[0]).write_bytes(right + b"more")
    with pytest.raises(FetchFailed, match=r"of another content: one-1\.0\.jar;"):
        server_jars("bookkeeper")
    (repository / PATHS[0]).write_bytes(right)
    assert names(server_jars("bookkeeper")) == NAMES


def test_slow_download(tmp_path: Path, repository: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that does not end is given up, by either tool."""
    pretend_maven(tmp_path, monkeypatch, "exec sleep 30")
    monkeypatch.setattr(jars, "BUILD_S", 0.2)
    monkeypatch.setattr(ivy, "DEADLINE_S", 0.01)
    with pytest.raises(FetchFailed, match=r"(?s)Maven did not fetch .*not done after 0\.01 s.*run the tests again"):
        server_jars("bookkeeper")


def test_no_tool(repository: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Maven and without PySpark's Ivy, the message says how to get one."""
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


def test_trust_store(tmp_path: Path) -> None:
    """Java reads the trust store that we write, seal and all, with every authority that Python trusts."""
    certificates = trusted_by_python()
    if not certificates:
        pytest.skip("this machine keeps its authorities where we do not look")
    store = tmp_path / "store.jks"
    write_trust_store(store, certificates)
    keytool = str(find_java().resolve().with_name("keytool"))
    command = [keytool, "-list", "-keystore", str(store), "-storepass", PASSWORD]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"contains {len(certificates)} entries" in listed
    assert listed.count("trustedCertEntry") == len(certificates)


def test_a_brokers_version_is_the_usual_one_or_one_that_is_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test-brokers` names every version, that of all other tests as well."""
    for version, kind in (("", "pulsar"), ("4.0.7", "pulsar"), ("4.2.4", "pulsar-4.2.4")):
        monkeypatch.setenv("PULSAR_VERSION", version)
        assert broker_jars() == kind
    monkeypatch.setenv("PULSAR_VERSION", "4.2.0")
    with pytest.raises(FetchFailed, match=r"PULSAR_VERSION may be 4\.0\.7, 4\.2\.4, "):
        broker_jars()
