"""A standalone cluster of Spark's own master and worker, from the PySpark wheel, as child processes on loopback.

The worker starts each executor as a process of its own in a folder below `work`. It knows nothing of the environment
that tests run in: what an executor's Python imports comes with the application, or not at all.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.spark.java import java_home
from offloaderd.standalone.ports import free_ports, http_get
from offloaderd.standalone.process import ChildProcess, Command
from tests.patience import PATIENCE_S
from tests.real.jvm import pyspark_jars

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.core.clock import Clock


CORES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCluster:
    """Where the master is, and the folder of the worker: a folder for each application, in it one for each executor."""

    master: str
    work: Path

    def interpreters(self) -> list[Path]:
        """Return the packed Pythons of executors, of all applications that have run."""
        return sorted(self.work.glob("app-*/*/environment/bin/python"))


@asynccontextmanager
async def spark_cluster(directory: Path, clock: Clock) -> AsyncIterator[SparkCluster]:
    """Run a master and one worker of two cores until the context ends."""
    home, work = pyspark_jars().parent, directory / "work"
    directory.mkdir(parents=True)
    port, master_ui, worker_ui = free_ports(3, clock)
    with java_home() as java:
        environment = {
            "JAVA_HOME": str(java),
            "PATH": "/usr/bin:/bin",
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
            "PYTHONPATH": "",
            "PYSPARK_PYTHON": "none-was-named",
        }
        url = f"spark://127.0.0.1:{port}"
        master = ("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(master_ui))
        sized = ("--cores", str(CORES), "--memory", "2g", "--work-dir", str(work))
        worker = ("worker.Worker", "--host", "127.0.0.1", *sized, "--webui-port", str(worker_ui), url)

        async def workers() -> int:
            status, body = await http_get(master_ui, "/json/")
            if status != 200:
                return -1
            found = json.loads(body)
            return int(found["aliveworkers"]) if found["status"] == "ALIVE" else -1

        async def alive() -> bool:
            return await workers() >= 0

        async def joined() -> bool:
            return await workers() > 0

        async with AsyncExitStack() as stack:
            for (what, *arguments), ready in ((master, alive), (worker, joined)):
                command = Command(
                    name=what.rpartition(".")[2],
                    program=home / "bin" / "spark-class",
                    arguments=(f"org.apache.spark.deploy.{what}", *arguments),
                    directory=directory,
                    environment=environment,
                )
                child = await stack.enter_async_context(ChildProcess(command, clock))
                await child.ready(ready, PATIENCE_S)
            yield SparkCluster(master=url, work=work)
