"""The S3 server of the tests, and others beside it, on loopback: what holds with one of them may be its own habit.

SeaweedFS, from its wheel, serves unless another is asked for. versitygw puts objects into files (and is the quickest
of the three), MinIO has its own store, rights and keys. Both are built from the Go module proxy by `make stores`, so a
machine without Go can do without them.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.core.errors import InvalidConfig
from offloaderd.standalone.ports import LOOPBACK, free_ports, http_get
from offloaderd.standalone.process import ChildProcess, Command
from offloaderd.standalone.seaweed import PORT_COUNT, SeaweedOptions, seaweed
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from offloaderd.core.clock import Clock
    from offloaderd.standalone.seaweed import SeaweedUser

FOLDER = Path(__file__).parents[2] / "build" / "stores"
WANTED = "S3_SERVER"
"""Variable with the name of the server that the tests run on; SeaweedFS if it is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A running server: where it is, who owns it, and its process."""

    endpoint: str
    access_key: str
    secret_key: str
    child: ChildProcess


def wanted() -> str:
    """Return the name of the server that was asked for, "" for SeaweedFS. Raises InvalidConfig for an unknown one."""
    name = os.environ.get(WANTED, "")
    if name not in ("", *COMMANDS):
        raise InvalidConfig(f"{WANTED}={name}: no such server", hint=f"one of {', '.join(COMMANDS)}, or none")
    return name


@asynccontextmanager
async def store(
    name: str, directory: Path, clock: Clock, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Store]:
    """Run one of the servers over a directory, SeaweedFS for no name, others with more settings of their own if given.

    Raises InvalidConfig when it was not built, ServerDied when it does not come up.
    """
    if not name:
        async with seaweedfs(directory, clock) as ours:
            yield ours
        return
    program = FOLDER / name
    if not program.exists():
        raise InvalidConfig(f"no {name} in {FOLDER}", hint="make stores")
    (directory / "data").mkdir(parents=True)
    port = free_ports(1, clock)[0]
    access_key, secret_key = clock.uuid().hex, clock.uuid().hex
    arguments, keys = COMMANDS[name]
    command = Command(
        name=name,
        program=program,
        arguments=tuple(one.format(address=f"{LOOPBACK}:{port}", data=directory / "data") for one in arguments),
        directory=directory,
        environment={**dict(zip(keys, (access_key, secret_key), strict=True)), **(environment or {})},
    )
    async with ChildProcess(command, clock) as child:

        async def answers() -> bool:
            status, _ = await http_get(port, "/")
            return status in (200, 403)

        await child.ready(answers, PATIENCE_S)
        yield Store(endpoint=f"http://{LOOPBACK}:{port}", access_key=access_key, secret_key=secret_key, child=child)


@asynccontextmanager
async def seaweedfs(directory: Path, clock: Clock, users: tuple[SeaweedUser, ...] = ()) -> AsyncIterator[Store]:
    """Run SeaweedFS, for others than its owner as well. Raises as `seaweed` does."""
    master, volume, filer, s3 = free_ports(PORT_COUNT, clock, grpc=True)
    options = SeaweedOptions(
        directory=directory,
        ports=(master, volume, filer, s3),
        access_key=clock.uuid().hex,
        secret_key=clock.uuid().hex,
        users=users,
    )
    async with seaweed(options, clock) as server:
        yield Store(
            endpoint=server.endpoint, access_key=options.access_key, secret_key=options.secret_key, child=server.child
        )


COMMANDS: Mapping[str, tuple[tuple[str, ...], tuple[str, str]]] = {
    "versitygw": (("--port", "{address}", "--quiet", "posix", "{data}"), ("ROOT_ACCESS_KEY", "ROOT_SECRET_KEY")),
    "minio": (("server", "--address", "{address}", "{data}"), ("MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD")),
}
"""Arguments of each server, and the names of the variables with its owner's keys."""
