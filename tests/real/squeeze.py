"""A daemon whose store takes a tenth of what is written, under a memory limit: `python -m tests.real.squeeze`.

One process is fed at a steady rate, by appends to its own ledgers (everything waits in the source) or by pushes to a
topic without a source (everything waits in memory and spills to disk). Its line to a real S3 server carries a tenth of
that for as long as asked, and then all. Whoever uses more resident memory than its budgets and its idle size, plus
15 %, is killed as a container's limit would: then the run has failed. In the end nothing lags, and all entries are
read back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from grpc import aio

from offloaderd.core.model import OutagePolicy, TopicName
from offloaderd.drill.tcp_proxy import Listener
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.protocol.v1 import common_pb2, offload_pb2, offload_pb2_grpc
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.real.ground import ground
from tests.real.relay import relay

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from offloaderd.client import DaemonClient
    from offloaderd.protocol.v1 import admin_pb2, ledgers_pb2

MIB = 1 << 20
TOPIC = TopicName.parse("public/default/squeezed")
BUDGETS = {"buffer_bytes": 24 * MIB, "upload_bytes": 24 * MIB, "cache_bytes": 8 * MIB}
OVER = 1.15
ENTRY_BYTES = 4096
BATCH_ENTRIES = 64
SLICE_S = 0.02
Request = offload_pb2.StreamingOffloadRequest


class NarrowLine(Listener):
    """A TCP proxy on loopback that carries so many bytes a second to the server, until it is widened."""

    def __init__(self, target: str, bytes_per_s: float) -> None:
        super().__init__(self._carry)
        self._target = target
        self._bytes_per_s: float | None = bytes_per_s
        self._free_s = CLOCK.monotonic()
        self.carried_bytes = 0

    @property
    def narrow(self) -> bool:
        """Whether there is a limit."""
        return self._bytes_per_s is not None

    def widen(self) -> None:
        """Carry whatever comes from now on."""
        self._bytes_per_s = None

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await relay(reader, writer, self._target, self._turn)

    async def _turn(self, size: int) -> None:
        """Wait until the line is free for so many bytes, each connection in its turn."""
        self.carried_bytes += size
        if self._bytes_per_s is None:
            return
        now = CLOCK.monotonic()
        self._free_s = max(self._free_s, now) + size / self._bytes_per_s
        while self.narrow and (left := self._free_s - CLOCK.monotonic()) > 0:
            await CLOCK.sleep(min(left, 0.25))


@dataclass(slots=True)
class Squeezed:
    """What a run saw."""

    kind: str
    base_bytes: int = 0
    peak_bytes: int = 0
    limit_bytes: int = 0
    written_bytes: int = 0
    carried_bytes: int = 0
    lag_bytes: int = 0
    spilled_bytes: int = 0
    squeezed_s: float = 0.0
    recovered_s: float = 0.0

    def __str__(self) -> str:
        """One line of figures."""
        return (
            f"{self.kind}: peak {self.peak_bytes / MIB:.0f} of {self.limit_bytes / MIB:.0f} MiB (idle "
            f"{self.base_bytes / MIB:.0f}), written {self.written_bytes / MIB:.0f} MiB in {self.squeezed_s:.0f} s, "
            f"carried {self.carried_bytes / MIB:.0f}, lag {self.lag_bytes / MIB:.0f} MiB, of it spilled "
            f"{self.spilled_bytes / MIB:.0f}, recovered in {self.recovered_s:.1f} s"
        )


def payload(number: int) -> bytes:
    """Return the entry of a number: no two are alike, and none compresses."""
    return hashlib.shake_128(number.to_bytes(8)).digest(ENTRY_BYTES)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split(maxsplit=1)[0]) * 1024


async def squeeze(site: Site, kind: str, *, seconds: float, bytes_per_s: float) -> Squeezed:
    """Run one daemon; `kind` is source or spill. Raises AssertionError when it broke its limit or lost an entry."""
    seen = Squeezed(kind)
    async with NarrowLine(site.endpoint, bytes_per_s / 10) as line:
        site.endpoint = line.endpoint
        site.settings = settings(site, kind)
        async with DaemonProcess(site) as daemon, daemon.client() as client, asyncio.TaskGroup() as group:
            await CLOCK.sleep(2.0)
            seen.base_bytes = resident_bytes(daemon.process.pid)
            seen.limit_bytes = round(OVER * (seen.base_bytes + sum(BUDGETS.values())))
            await client.enable(TOPIC, outage=OutagePolicy.SPILL if kind == "spill" else None)
            while (await topic_status(client)).state != "offloading":
                await CLOCK.sleep(0.05)
            watching = group.create_task(watch(daemon, seen), name="memory limit")
            started = CLOCK.monotonic()
            feed = Feed(bytes_per_s, until_s=started + seconds)
            feeding = group.create_task(feed.push(daemon.address) if kind == "spill" else feed.append(client))
            while not feed.written_all.is_set():
                status = await topic_status(client)
                seen.lag_bytes = max(seen.lag_bytes, status.lag_bytes)
                seen.spilled_bytes = max(seen.spilled_bytes, status.spilled_bytes)
                await CLOCK.sleep(0.5)
            seen.squeezed_s = CLOCK.monotonic() - started
            seen.written_bytes, seen.carried_bytes = feed.count * ENTRY_BYTES, line.carried_bytes
            line.widen()
            await recovered(client, seconds)
            seen.recovered_s = CLOCK.monotonic() - started - seen.squeezed_s
            await feeding
            await check(client, feed.count)
            watching.cancel()
            daemon.signal(signal.SIGTERM)
            assert await daemon.ended(60) == 0, daemon.said()[-2000:]
    return seen


def settings(site: Site, kind: str) -> dict[str, dict[str, object]]:
    """Return small budgets, and where to spill."""
    return {
        "memory": dict(BUDGETS),
        "objects": {"read_timeout_s": 60},
        "metadata": {"session_timeout_s": 30},
        "offload": {"segment_bytes_max": 64 * MIB, "part_bytes": 5 * MIB, "segment_age_max_s": 10},
        "ledgers": {"kind": "embedded" if kind == "source" else "none", "ledger_entries_max": 20_000},
        "spill": {"directory": str(site.directory / "spill")},
        "read": {"read_ahead_bytes": 2 * MIB},
    }


async def topic_status(client: DaemonClient) -> admin_pb2.TopicStatus:
    """Return the topic's status; the store's state is no reason for it to be late."""
    return (await client.status(TOPIC)).topics[0]


async def watch(daemon: DaemonProcess, seen: Squeezed) -> None:
    """Kill the daemon when it uses more than its limit."""
    while daemon.process.returncode is None:
        with contextlib.suppress(OSError, IndexError):
            seen.peak_bytes = max(seen.peak_bytes, resident_bytes(daemon.process.pid))
        if seen.peak_bytes > seen.limit_bytes:
            daemon.signal(signal.SIGKILL)
            raise AssertionError(f"killed for its memory: {seen}")
        await CLOCK.sleep(SLICE_S)


async def recovered(client: DaemonClient, seconds: float) -> None:
    """Wait until nothing lags: the line is as wide as ever, so it may take no longer than the squeeze did."""
    async with asyncio.timeout(60 + seconds):
        while True:
            status = await topic_status(client)
            if status.segments_committed and not status.lag_entries:
                assert status.state == "offloading", status
                assert not status.spilled_bytes
                return
            async for _ in client.offload(TOPIC, wait=False):
                pass
            await CLOCK.sleep(0.25)


async def check(client: DaemonClient, entries: int) -> None:
    """Read the topic from the tier: every entry once, in order, with the bytes that were written."""
    number = 0
    async for response in client.read(TOPIC):
        for found in response.batch.payloads:
            assert found == payload(number), f"entry {number} differs"
            number += 1
    assert number == entries


class Feed:
    """Writes at a steady rate until a time; what the daemon holds back is not written faster later."""

    def __init__(self, bytes_per_s: float, *, until_s: float) -> None:
        self.count = 0
        self.written_all = asyncio.Event()
        self._pause_s = ENTRY_BYTES * BATCH_ENTRIES / bytes_per_s
        self._until_s = until_s

    async def batches(self) -> AsyncGenerator[list[bytes], None]:
        """Yield batches at their times."""
        at = CLOCK.monotonic()
        while CLOCK.monotonic() < self._until_s:
            made = [payload(number) for number in range(self.count, self.count + BATCH_ENTRIES)]
            self.count += BATCH_ENTRIES
            yield made
            at = max(at + self._pause_s, CLOCK.monotonic() - 1)
            await CLOCK.sleep(at - CLOCK.monotonic())
        self.written_all.set()

    async def append(self, client: DaemonClient) -> None:
        """Append to the daemon's own ledgers."""
        await client.append(TOPIC, self.batches(), ignore)

    async def push(self, address: str) -> None:
        """Push as a broker does, over one stream, until all is durable."""
        async with aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            call = cast("Any", offload_pb2_grpc.OffloadServiceStub(channel)).StreamingOffload()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hear(call), name="answers")
                await call.write(Request(open=Request.Open(topic=str(TOPIC))))
                async for made in self.batches():
                    first = self.count - len(made)
                    batch = common_pb2.EntryBatch(ledger_id=0, first_entry_id=first, payloads=made)
                    await call.write(Request(batch=batch))
                await call.done_writing()

    async def _hear(self, call: Any) -> None:  # noqa: ANN401 - the stubs know only iterators
        async for answer in call:
            if answer.WhichOneof("response") == "offered":
                assert answer.offered.result == offload_pb2.OFFER_RESULT_ACCEPTED, answer


def ignore(_: ledgers_pb2.AppendResponse) -> None:
    """An append was answered."""


@contextlib.asynccontextmanager
async def servers() -> AsyncIterator[Callable[[str], Site]]:
    """Start a ZooKeeper and an S3 server; gives what makes the site of a run."""
    with tempfile.TemporaryDirectory(prefix="offloaderd-squeeze-") as name:
        directory = Path(name)
        async with ground(directory) as place:

            def site(kind: str) -> Site:
                (directory / kind).mkdir()
                return Site.at(directory / kind, place.zookeeper, place.s3, f"squeeze-{kind}")

            for kind in KINDS:
                reached = ObjectsSettings(
                    bucket=f"squeeze-{kind}",
                    endpoint=place.s3.endpoint,
                    access_key=place.s3.access_key,
                    secret_key=place.s3.secret_key,
                )
                async with S3Store(reached) as store:
                    await store.create_bucket()
            yield site


KINDS = ("source", "spill")


async def run(minutes: float, mib_per_s: float) -> None:
    """Squeeze one daemon after the other."""
    async with servers() as site:
        for kind in KINDS:
            seen = await squeeze(site(kind), kind, seconds=60 * minutes, bytes_per_s=mib_per_s * MIB)
            sys.stdout.write(f"{seen}\n")
            sys.stdout.flush()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long each kind is squeezed (default 10)")
    parser.add_argument("--rate", type=float, default=8.0, help="MiB a second that are written (default 8)")
    given = parser.parse_args()
    asyncio.run(run(given.minutes, given.rate))


if __name__ == "__main__":
    main()
