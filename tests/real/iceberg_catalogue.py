"""A REST catalogue of Apache Iceberg, as a child process: the project's own reference server, over a file of SQLite.

It listens on all addresses, as its program knows no other way, and asks for no credentials. Tables lie in a folder
beside that file; Hadoop's file system, by which it writes their metadata, is the one that comes with PySpark.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import pytest
from pyiceberg.utils.config import Config

from offloaderd.standalone.ports import LOOPBACK, free_ports, http_get
from offloaderd.standalone.process import ChildProcess
from tests.patience import PATIENCE_S
from tests.real.jars import server_jars
from tests.real.jvm import java_command, pyspark_jars

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from offloaderd.core.clock import Clock


@asynccontextmanager
async def iceberg_catalogue(directory: Path, clock: Clock) -> AsyncIterator[str]:
    """Run it, and return its URL. Raises FetchFailed, ServerDied when it does not come up."""
    port = free_ports(1, clock)[0]
    hadoop = sorted(pyspark_jars().glob("hadoop-client-*.jar"))
    command = java_command(
        "catalogue",
        directory,
        [server_jars("iceberg") / "*", *hadoop],
        ["org.apache.iceberg.rest.RESTCatalogServer"],
        environment={
            "CATALOG_REST_PORT": str(port),
            "CATALOG_URI": f"jdbc:sqlite:{directory / 'catalog.db'}",
            "CATALOG_WAREHOUSE": (directory / "warehouse").as_uri(),
        },
    )
    async with ChildProcess(command, clock) as child:

        async def answers() -> bool:
            return (await http_get(port, "/v1/config"))[0] == 200

        await child.ready(answers, PATIENCE_S)
        yield f"http://{LOOPBACK}:{port}"


@contextmanager
def in_settings(name: str, url: str) -> Iterator[None]:
    """Have the settings of pyiceberg, which it reads once, name a REST catalogue."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__URI", url)
        patch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        yield
