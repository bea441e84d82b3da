"""Fetches locked jars without Maven: by the Ivy among PySpark's jars, which any Java runs.

Ivy asks for one thing at a time, and resolving a dependency takes it five requests: minutes for Pulsar's three hundred
modules. The lock says already what there is to know, so nothing is resolved, no pom is read, and several Ivies fetch a
share each. What one has fetched stays in its cache until everything is there, for its next try and the next test run.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from offloaderd.spark.java import find_java
from tests.real.jar_lock import FetchFailed
from tests.real.trust_store import trusted_by_python, write_trust_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.real.jar_lock import Jar

REPOSITORY = "OFFLOADERD_MAVEN_REPOSITORY"
"""Environment variable: URL of a repository of Maven's layout to use in place of Ivy's default, Maven Central."""
SHARES = 4
TRIES = 3
DEADLINE_S = 600.0
_SAID_BYTES = 1500
_STALLED_MS = "30000"
_MAVEN = "http://ant.apache.org/ivy/maven"
_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m")


def fetch_by_ivy(kind: str, jars: Sequence[Jar], work: Path, to: Path) -> None:
    """Fetch jars into the folder `to`; `work` keeps what has arrived from one call to the next. Raises FetchFailed."""
    work.mkdir(parents=True, exist_ok=True)
    modules = [list(group) for _, group in groupby(sorted(jars, key=lambda jar: jar.path), key=lambda jar: jar.module)]
    settings = work / "settings.xml"
    settings.write_bytes(ET.tostring(_settings()))
    base = [str(find_java()), *_FLAGS, *_trust(work), "-jar", str(_ivy_jar(kind)), "-settings", str(settings)]
    commands = []
    for number in range(SHARES):
        share = work / f"share{number}.xml"
        share.write_bytes(ET.tostring(_module(f"{kind}{number}", modules[number::SHARES])))
        cache = ["-cache", str(work / f"cache{number}"), "-ivy", str(share), "-confs", "default"]
        commands.append([*base, *cache, "-retrieve", f"{to}/[artifact]-[revision](-[classifier]).[ext]"])
    with ThreadPoolExecutor(SHARES) as pool:
        problems = list(filter(None, pool.map(_run, commands)))
    if problems:
        raise FetchFailed(
            f"Ivy could not fetch the {kind} jars: does this machine reach Maven Central, or the repository that "
            f"{REPOSITORY} names?\n{problems[0]}"
        )


def _run(command: list[str]) -> str:
    """Run one Ivy, again when it fails; returns what is wrong after that, empty if all went well."""
    said = b""
    for _ in range(TRIES):
        try:
            subprocess.run(
                command,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=DEADLINE_S,
            )
        except subprocess.TimeoutExpired:
            return f"not done after {DEADLINE_S:g} s; what has arrived is kept: run the tests again"
        except subprocess.CalledProcessError as error:
            said = error.stdout
        else:
            return ""
    return said[-_SAID_BYTES:].decode(errors="replace")


def _settings() -> ET.Element:
    """Describe the repository: exact versions, no poms, no listings; the lock's digests are checked afterwards."""
    root = ET.Element("ivysettings")
    ET.SubElement(root, "settings", defaultResolver="central")
    patience = {"name": "patience", "connectionTimeout": _STALLED_MS, "readTimeout": _STALLED_MS}
    ET.SubElement(ET.SubElement(root, "timeout-constraints"), "timeout-constraint", patience)
    how = {"name": "central", "m2compatible": "true", "usepoms": "false", "useMavenMetadata": "false", "checksums": ""}
    if os.environ.get(REPOSITORY):
        how["root"] = os.environ[REPOSITORY]
    resolvers = ET.SubElement(root, "resolvers")
    ET.SubElement(resolvers, "ibiblio", {**how, "timeoutConstraint": "patience"})
    return root


def _module(name: str, modules: Sequence[Sequence[Jar]]) -> ET.Element:
    """Describe one share: its modules with their jars, and nothing that they in turn would need."""
    ET.register_namespace("m", _MAVEN)
    root = ET.Element("ivy-module", version="2.0")
    ET.SubElement(root, "info", organisation="offloaderd.tests", module=name)
    ET.SubElement(ET.SubElement(root, "configurations"), "conf", name="default")
    dependencies = ET.SubElement(root, "dependencies")
    for jars in modules:
        group, artifact, version = jars[0].module
        which = {"org": group, "name": artifact, "rev": version, "transitive": "false", "conf": "default->default"}
        module = ET.SubElement(dependencies, "dependency", which)
        for jar in jars:
            extra = {f"{{{_MAVEN}}}classifier": jar.classifier} if jar.classifier else {}
            ET.SubElement(module, "artifact", {"name": artifact, "type": "jar", "ext": "jar", **extra})
    return root


def _ivy_jar(kind: str) -> Path:
    spec = importlib.util.find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-2*.jar")) if spec is not None and spec.origin else []
    if not found:
        raise FetchFailed(f"there is no Ivy to fetch the {kind} jars, which comes with PySpark; run `make setup`")
    return found[-1]


def _trust(work: Path) -> list[str]:
    """Let Java trust whom Python trusts: a Java from a wheel knows nothing of this machine's own authorities."""
    authorities = trusted_by_python()
    if not authorities:
        return []
    store = work / "trusted.jks"
    write_trust_store(store, authorities)
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=JKS"]
