"""Before Spark is started: Java, and the versions of what it needs."""

from __future__ import annotations

import subprocess
from importlib import metadata
from typing import TYPE_CHECKING

import pyspark
import pytest
from pyspark.sql import SparkSession

from offloaderd.core.errors import InvalidConfig
from offloaderd.spark import java as javas
from offloaderd.spark import session
from offloaderd.spark.session import check_libraries, spark_session

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_installed_goes_together() -> None:
    """The locked versions are those that the extra asks for."""
    check_libraries()


def test_all_that_is_missing_or_of_a_wrong_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One error for pandas, Arrow and PySpark, with what is needed and how to get it."""
    there = {"pandas": "3.0.1", "pyarrow": "1.0"}

    def version(name: str) -> str:
        if name == "pyspark":
            raise metadata.PackageNotFoundError(name)
        return there.get(name, "26.3")

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(InvalidConfig) as error:
        check_libraries()
    for said in ("pandas is 3.0.1", "pyarrow is 1.0", "pyspark is missing"):
        assert said in error.value.message
    assert "offloaderd[spark]" in (error.value.hint or "")


def test_what_tables_need_is_asked_for_by_its_own_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who exports no tables needs no pyiceberg; who does is told what to install."""
    check_libraries("iceberg")
    found = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.1" if name == "pyiceberg" else found(name))
    check_libraries()
    with pytest.raises(InvalidConfig, match=r"pyiceberg is 0.1, pyiceberg>=") as error:
        check_libraries("iceberg")
    assert "offloaderd[iceberg]" in (error.value.hint or "")


def test_a_missing_java_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of Spark is started then."""

    def nowhere() -> None:
        raise InvalidConfig("no Java 17 or newer: none found")

    monkeypatch.setattr(javas, "find_java", nowhere)
    with pytest.raises(InvalidConfig, match="no Java"), spark_session("test"):
        pytest.fail("there is a session")


def test_what_is_started_is_told_before_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark, where it runs, and the Java: whoever waits half a minute knows for what."""

    class Builder:
        """A builder of sessions that gets no further."""

        def appName(self, name: str) -> Builder:  # noqa: N802 - Spark's name
            """Go on."""
            return self

        master = config = lambda self, *_: self

        def getOrCreate(self) -> None:  # noqa: N802 - Spark's name
            """Fail."""
            told.append("started")
            raise OSError("no room")

    told: list[str] = []
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")  # set by a start, and taken back by this test
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    for module in (javas, session):
        monkeypatch.setattr(module, "find_java", lambda: tmp_path / "java")
    monkeypatch.setattr(SparkSession, "builder", Builder())
    with pytest.raises(InvalidConfig, match="no room"), spark_session("test", starting=told.append):
        pytest.fail("there is a session")
    begins = f"starting Spark {pyspark.__version__} on local[*], with {tmp_path / 'java'}"
    assert [line.partition(";")[0] for line in told] == [begins, "started"]


def test_a_java_without_a_module_that_spark_opens_is_called_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All other arguments go through as they are, in order."""
    java = tmp_path / "a java"
    java.write_text(f'#!/bin/sh\nfor one; do [ "$one" = {javas.VECTOR_MODULE} ] && exit 1; printf "%s|" "$one"; done\n')
    java.chmod(0o700)
    monkeypatch.setattr(javas, "find_java", lambda: java)
    with javas.java_home() as home:
        command = [str(home / "bin" / "java"), "-cp", "a b", javas.VECTOR_MODULE, "$Main", ""]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "-cp|a b|$Main||"
    assert not home.exists()
