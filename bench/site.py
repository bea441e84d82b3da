"""Where a benchmark runs: a real ZooKeeper and S3 server as children, buckets on them, and daemons as processes.

Everything listens on loopback and ends with the context that started it; data lies in a temporary directory.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from offloaderd.client import DaemonClient
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Transient
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.standalone.ports import free_ports, http_get
from offloaderd.standalone.process import ChildProcess, Command
from offloaderd.standalone.zookeeper import ZooKeeperOptions, zookeeper
from tests.real import stores
from tests.servers import S3Server, bucket_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.core.model import TopicName

CLOCK = SystemClock()
ROOT = Path(__file__).parents[1]
"""The tree, from which this module was loaded."""
START_S = 30.0
CALL_S = 120.0
"""No call takes this long, on a machine however busy."""
Sections = Mapping[str, Mapping[str, object]]
"""Settings of a daemon, by section and name."""


@dataclass(slots=True)
class Daemon:
    """A running `offloaderd serve`, and a client of it."""

    pids: Mapping[str, int]
    """Process ids: of the "daemon", of the servers that it uses, and of this process, its "client"."""
    client: DaemonClient
    http_port: int

    @property
    def pid(self) -> int:
        """Process id of the daemon itself."""
        return self.pids["daemon"]

    async def claimed(self, topic: TopicName) -> None:
        """Return once the daemon offloads the topic."""
        until = CLOCK.monotonic() + START_S
        while (await self.client.status(topic)).topics[0].state != "offloading":
            if CLOCK.monotonic() > until:
                raise Transient(f"{topic} was not claimed within {START_S:g} s")
            await CLOCK.sleep(0.02)


@dataclass(slots=True)
class Site:
    """The servers, and what a daemon on them is configured with."""

    directory: Path
    zookeeper: str
    s3: ObjectsSettings
    """The service and its bucket: of S3, or of another kind (bench/clouds.py)."""
    pids: Mapping[str, int] = field(default_factory=dict)

    def beside(self, pids: Mapping[str, int]) -> Site:
        """Give the same site with more servers whose processes are measured."""
        return replace(self, pids={**self.pids, **pids})

    @asynccontextmanager
    async def bucket(self) -> AsyncIterator[Site]:
        """Give the same site with a new bucket, which is deleted with all that is in it: a run writes many GiB."""
        server = S3Server(self.s3.endpoint or "", self.s3.access_key or "", secret_of(self.s3))
        with bucket_at(server) as name:
            options = self.s3.model_copy(update={"bucket": name})
            async with S3Store(options) as store:
                # The first byte in a bucket makes the server allocate a volume: nobody's measurement should pay for it.
                await store.put("warm", bytes(1024))
            yield replace(self, s3=options)

    def on_disk(self, name: str) -> Site:
        """Give the same site with a new directory as the store of objects: no server has a part in what it costs."""
        directory = self.directory / name
        directory.mkdir()
        return replace(self, s3=ObjectsSettings(kind="filesystem", directory=str(directory)))

    @asynccontextmanager
    async def daemon(self, sections: Sections, *, name: str, sampled: Path | None = None) -> AsyncIterator[Daemon]:
        """Run a daemon until the context ends. A second one of the same name continues with its ledgers.

        With `sampled` it can split its CPU by parts, and writes them to that file (`bench.sampled`).
        """
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        grpc_port, http_port = free_ports(2, CLOCK)
        command = Command(
            name="offloaderd",
            program=Path(sys.executable) if sampled else Path(sys.executable).with_name("offloaderd"),
            arguments=("-m", "bench.sampled", str(sampled), "serve") if sampled else ("serve",),
            directory=directory,
            environment={
                **self.environment(name, grpc_port, http_port, sections),
                **({"PYTHONPATH": str(ROOT)} if sampled else {}),
            },
        )
        async with ChildProcess(command, CLOCK) as child:

            async def serves() -> bool:
                return (await http_get(http_port, "/readyz"))[0] == 200

            await child.ready(serves, START_S)
            async with DaemonClient(f"127.0.0.1:{grpc_port}", timeout_s=CALL_S) as client:
                yield Daemon({"daemon": child.pid or 0, **self.pids}, client, http_port)

    def metadata_root(self, name: str) -> str:
        """Return the node of ZooKeeper below which a daemon of that name keeps what it knows."""
        return f"{MetadataSettings().root}/bench-{name}"

    def environment(self, name: str, grpc_port: int, http_port: int, sections: Sections) -> Mapping[str, str]:
        """Return the settings of a daemon of that name, as an environment."""
        given: dict[str, dict[str, object]] = {
            "daemon": {"id": name, "cluster": f"bench-{name}"},
            "grpc": {"port": grpc_port},
            "http": {"port": http_port},
            "metadata": {"servers": self.zookeeper},
            "objects": said(self.s3),
            "ledgers": {"directory": str(self.directory / name / "ledgers")},
            "log": {"format": "json"},
        }
        for section, values in sections.items():
            given.setdefault(section, {}).update(values)
        return {
            f"OFFLOADERD__{section}__{key}".upper(): str(value)
            for section, values in given.items()
            for key, value in values.items()
        }


def said(objects: ObjectsSettings) -> dict[str, object]:
    """Return the settings that were given, secrets in plain."""
    given = ((name, getattr(objects, name)) for name in sorted(objects.model_fields_set))
    return {name: one.get_secret_value() if isinstance(one, SecretStr) else one for name, one in given}


def secret_of(s3: ObjectsSettings) -> str:
    """Return the secret that goes with the access key, or with the account."""
    secret = s3.secret_key or s3.azure_key
    return secret.get_secret_value() if secret else ""


@asynccontextmanager
async def site(s3: str = "") -> AsyncIterator[Site]:
    """Start the servers, with SeaweedFS or another S3 server by its name; delete everything in the end."""
    directory = Path(tempfile.mkdtemp(prefix="offloaderd-bench-"))
    keeper = ZooKeeperOptions(directory=directory / "zookeeper", port=free_ports(1, CLOCK)[0])
    try:
        async with zookeeper(keeper, CLOCK) as metadata, stores.store(s3, directory / "objects", CLOCK) as objects:
            reached = ObjectsSettings(
                bucket="",
                endpoint=objects.endpoint,
                access_key=objects.access_key,
                secret_key=objects.secret_key,
            )
            pids = {"client": os.getpid(), "S3 server": objects.child.pid or 0, "ZooKeeper": metadata.child.pid or 0}
            yield Site(directory, metadata.address, reached, pids)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
