"""What a random run stands on: draws from a seed, a tally of what happened, a fresh site for each round."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.standalone.ports import free_ports
from offloaderd.standalone.seaweed import PORT_COUNT, SeaweedOptions, seaweed
from offloaderd.standalone.zookeeper import ZooKeeperOptions, zookeeper
from tests.integration.processes import CLOCK, Site
from tests.servers import S3Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from offloaderd.drill.s3_proxy import S3Proxy

T = TypeVar("T")


class Chance:
    """Draws that depend on a seed alone."""

    def __init__(self, seed: object) -> None:
        self._seed = seed
        self._drawn = 0

    def share(self) -> float:
        """Return a number from 0 to 1."""
        self._drawn += 1
        digest = hashlib.blake2b(f"{self._seed}/{self._drawn}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64

    def between(self, least: float, most: float) -> float:
        """Return a number of a range."""
        return least + (most - least) * self.share()

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of several."""
        return choices[int(self.share() * len(choices))]


@dataclass(slots=True)
class Tally:
    """What happened, in one round or in all."""

    rounds: int = 0
    entries: int = 0
    segments: int = 0
    reads: int = 0
    collected: int = 0
    events: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Take another one in."""
        self.rounds += other.rounds
        self.entries += other.entries
        self.segments += other.segments
        self.reads += other.reads
        self.collected += other.collected
        self.events += other.events
        self.faults += other.faults

    def spoilt(self, proxy: S3Proxy) -> None:
        """Take in the faults that a proxy did."""
        for (_, fault), count in proxy.counts.faults.items():
            self.faults[fault.value] += count

    @property
    def deaths(self) -> int:
        """How often a daemon was killed."""
        return sum(count for event, count in self.events.items() if event.startswith("kill"))

    def __str__(self) -> str:
        """In two lines."""
        events = ", ".join(f"{count} {event}" for event, count in sorted(self.events.items()))
        faults = ", ".join(f"{count} {fault}" for fault, count in sorted(self.faults.items()))
        return (
            f"{self.entries} entries in {self.segments} segments, {self.reads} reads, {self.collected} collected; "
            f"{events or 'no events'}\n  S3: {self.faults.total()} faults ({faults})"
        )


class Ground:
    """The servers of a run, and a new site on them for each round."""

    def __init__(self, directory: Path, zookeeper_address: str, s3: S3Server) -> None:
        self.s3 = s3
        self.zookeeper = zookeeper_address
        self._directory = directory
        self._rounds = 0

    async def site(self) -> Site:
        """Make a bucket and a directory of its own."""
        self._rounds += 1
        directory = self._directory / f"round-{self._rounds}"
        directory.mkdir(parents=True)
        bucket = f"soak-{CLOCK.uuid().hex[:16]}"
        options = ObjectsSettings(
            endpoint=self.s3.endpoint, bucket=bucket, access_key=self.s3.access_key, secret_key=self.s3.secret_key
        )
        async with S3Store(options) as store:
            await store.create_bucket()
        return Site.at(directory, self.zookeeper, self.s3, bucket)


@asynccontextmanager
async def ground(directory: Path) -> AsyncIterator[Ground]:
    """Run a ZooKeeper and an S3 server of its own, and yield the ground on them."""
    ports = free_ports(PORT_COUNT, CLOCK, grpc=True)
    options = SeaweedOptions(
        directory=directory / "s3",
        ports=(ports[0], ports[1], ports[2], ports[3]),
        access_key=CLOCK.uuid().hex,
        secret_key=CLOCK.uuid().hex,
    )
    keeper = ZooKeeperOptions(directory=directory / "zookeeper", port=free_ports(1, CLOCK)[0])
    async with seaweed(options, CLOCK) as s3, zookeeper(keeper, CLOCK) as coordination:
        server = S3Server(s3.endpoint, options.access_key, options.secret_key)
        yield Ground(directory / "rounds", coordination.address, server)
