"""What the package imports is what it declares: at its base, or in the extra that brings the part that needs it."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from pydantic import SecretStr

from offloaderd.core.errors import InvalidConfig
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.metadata.zookeeper import client as zookeeper_client
from tests.test_tidy import imported, sources

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
COMES_WITH = {"botocore": "aiobotocore", "py4j": "pyspark"}
"""Parts of another one's interface, which requires exactly the version that fits it."""
OURS = {"offloaderd", "offloaderd_native"}
"""The second is a package of its own, which nothing needs (`native/`)."""
NAMESPACES = {"google"}
"""Shared by several distributions, of which each is declared by its own name."""


def normal(name: str) -> str:
    """One spelling of a distribution's name."""
    return name.lower().replace("_", "-")


def names(requirements: list[str]) -> set[str]:
    """The distributions that are asked for, without extras and versions."""
    return {normal(re.split(r"[\[<>=]", one)[0]) for one in requirements}


def packages_of(name: str) -> set[str]:
    """What a distribution lets a program import; nothing for one that is not installed here."""
    try:
        files = distribution(name).files or ()
    except PackageNotFoundError:
        return set()
    return {file.parts[0].partition(".")[0] for file in files if file.suffix in {".py", ".so"}}


def test_every_import_is_declared() -> None:
    """What only comes along with something else may stay away with its next version."""
    base = names(PROJECT["dependencies"])
    declared = base.union(*(names(extra) for name, extra in PROJECT["optional-dependencies"].items() if name != "dev"))
    brought = {package for name in declared - {"offloaderd"} for package in packages_of(name)}
    brought |= {package for package, home in COMES_WITH.items() if home in declared}
    missing = {}
    for source in sources():
        if not source.startswith("offloaderd/"):
            continue
        for package in imported(source) - set(sys.stdlib_module_names) - OURS - NAMESPACES - brought:
            missing[package] = source
    assert not missing


def test_sasl_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before kazoo tries, and with the digest scheme it is not asked for."""
    found = find_spec("puresasl")
    assert found is not None
    wanted = MetadataSettings(username="me", password=SecretStr("secret"), auth="sasl")
    assert "sasl_options" in zookeeper_client.kazoo_options(wanted)
    monkeypatch.setattr(zookeeper_client, "find_spec", lambda _name: None)
    with pytest.raises(InvalidConfig, match="needs pure-sasl") as caught:
        zookeeper_client.kazoo_options(wanted)
    assert "offloaderd[sasl]" in caught.value.hint
    assert "auth_data" in zookeeper_client.kazoo_options(wanted.model_copy(update={"auth": "digest"}))
