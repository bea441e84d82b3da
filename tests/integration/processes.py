"""A daemon as a process of its own, and a TCP proxy in front of a server that a test can cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from offloaderd.client import DaemonClient, Unreachable
from offloaderd.core.clock import SystemClock
from offloaderd.drill.tcp_proxy import Link as Proxy
from offloaderd.standalone.ports import free_ports
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    import signal
    import ssl
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType

    from offloaderd.client import Trust
    from tests.servers import S3Server

CLOCK = SystemClock()


@dataclass
class Site:
    """What a daemon is configured with: the servers, and one section of settings after the other."""

    directory: Path
    zookeeper: str
    endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    cluster: str = field(default_factory=lambda: f"c{CLOCK.uuid().hex[:12]}")
    daemon_id: str = "one"
    settings: dict[str, dict[str, object]] = field(default_factory=dict)

    @classmethod
    def at(cls, directory: Path, zookeeper: str, s3: S3Server, bucket: str) -> Self:
        """Describe a site on the test's servers."""
        return cls(directory, zookeeper, s3.endpoint, s3.access_key, s3.secret_key, bucket)

    def environment(self, grpc_port: int, http_port: int) -> dict[str, str]:
        """Return every setting as an environment variable."""
        sections: dict[str, dict[str, object]] = {
            "daemon": {"id": self.daemon_id, "cluster": self.cluster},
            "grpc": {"port": grpc_port},
            "http": {"port": http_port},
            "metadata": {"servers": self.zookeeper, "session_timeout_s": 4, "connect_timeout_s": 3},
            "objects": {
                "endpoint": self.endpoint,
                "access_key": self.access_key,
                "secret_key": self.secret_key,
                "bucket": self.bucket,
                "connect_timeout_s": 2,
                "read_timeout_s": 5,
            },
            "ledgers": {"kind": "embedded", "directory": str(self.directory / "ledgers"), "ledger_entries_max": 700},
            "offload": {"segment_age_max_s": 3600},
            "retention": {"reader_grace_s": 0},
            "shutdown": {"drain_s": 10},
            "log": {"format": "json"},
        }
        for name, values in self.settings.items():
            sections.setdefault(name, {}).update(values)
        return {
            f"OFFLOADERD__{section}__{name}".upper(): str(value)
            for section, values in sections.items()
            for name, value in values.items()
        }

    def process_environment(self, grpc_port: int, http_port: int) -> dict[str, str]:
        """Return the environment of a child process: ours, with no settings but the site's."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("OFFLOADERD__")}
        return {**ours, **self.environment(grpc_port, http_port)}


class DaemonProcess:
    """`offloaderd serve` as a child process; its log goes to a file of the site."""

    def __init__(
        self, site: Site, *, environment: Mapping[str, str] | None = None, program: Sequence[str] | None = None
    ) -> None:
        """Describe the process; `program` is another command that runs the daemon, for tests that change it."""
        self.site = site
        self.grpc_port, self.http_port = free_ports(2, CLOCK)
        # A port may be free again, and what an earlier process said of it must not be taken for this one's word.
        self.log = site.directory / f"{site.daemon_id}-{CLOCK.uuid()}.log"
        self._environment = environment or {}
        self._program = program or [str(Path(sys.executable).with_name("offloaderd"))]

    @property
    def address(self) -> str:
        """Where its gRPC server listens."""
        return f"127.0.0.1:{self.grpc_port}"

    async def __aenter__(self) -> Self:
        """Start it, without waiting for it to serve."""
        environment = {**self.site.process_environment(self.grpc_port, self.http_port), **self._environment}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._program, "serve", env=environment, stderr=log, stdout=log
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what still runs; show the log of a failed test."""
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        if error is not None and isinstance(error, Exception):
            error.add_note(self.said()[-4000:])

    def said(self) -> str:
        """Return its whole log."""
        return self.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def ended(self, within_s: float = PATIENCE_S) -> int:
        """Wait for its end; returns the exit code."""
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    async def logged(self, text: str, within_s: float = PATIENCE_S) -> None:
        """Wait until its log holds a text."""
        async with asyncio.timeout(within_s):
            while text not in self.said():
                await CLOCK.sleep(0.05)

    async def serves(self) -> bool:
        """Wait until it serves, or has ended before it did."""
        async with asyncio.timeout(PATIENCE_S):
            while '"daemon.serving"' not in self.said():
                if self.process.returncode is not None:
                    return False
                await CLOCK.sleep(0.05)
        return True

    async def serving(self) -> None:
        """Wait until it serves."""
        assert await self.serves(), f"it ended with code {self.process.returncode}"

    @contextlib.asynccontextmanager
    async def client(self, trust: Trust | None = None) -> AsyncIterator[DaemonClient]:
        """Connect, waiting until it serves."""
        await self.serving()
        async with DaemonClient(self.address, trust=trust) as client:
            yield client

    async def http(self, path: str, tls: ssl.SSLContext | None = None, *headers: str) -> tuple[int, str]:
        """GET a page of its HTTP server; returns status and body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http_port, ssl=tls)
        try:
            writer.write("\r\n".join([f"GET {path} HTTP/1.0", *headers, "", ""]).encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            return int(head.split()[1]), body.decode()
        finally:
            writer.close()
            await writer.wait_closed()

    async def metric(self, name: str, label: str = "") -> float:
        """Return the sum of the series of a metric, of those with this label if one is given; 0 without any."""
        _, page = await self.http("/metrics")
        return sum(map(float, re.findall(rf"^{name}(?:{{.*{label}.*}})? (\S+)$", page, re.MULTILINE)))


__all__ = ["CLOCK", "DaemonProcess", "Proxy", "Site", "Unreachable"]
