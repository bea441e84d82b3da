"""`offloaderd check-config --connect`: whether what the settings name can be reached now."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offloaderd.clock import SystemClock
from offloaderd.doctor.machine import listen
from offloaderd.errors import OffloaderError
from offloaderd.metadata.zookeeper import ZooKeeperStore
from offloaderd.stores import bucket_store, check_places
from offloaderd.wiring import zookeeper_security

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from offloaderd.config import Settings

DEADLINE_S = 15.0


@dataclass(frozen=True, slots=True)
class Connection:
    """One thing that was tried; `message` says what is wrong with it."""

    name: str
    up: bool
    message: str = ""


async def try_all(settings: Settings) -> list[Connection]:
    """Try everything once, one after the other; nothing is changed anywhere."""
    tries: tuple[tuple[str, Callable[[Settings], Awaitable[None]]], ...] = (
        (f"metadata {settings.metadata.servers}", try_metadata),
        (f"objects {settings.objects.bucket or settings.objects.directory}", try_objects),
        (f"grpc {settings.grpc.host}:{settings.grpc.port}", try_grpc),
        (f"http {settings.http.host}:{settings.http.port}", try_http),
    )
    found = []
    for name, attempt in tries:
        try:
            async with asyncio.timeout(DEADLINE_S):
                await attempt(settings)
        except TimeoutError:
            found.append(Connection(name, up=False, message=f"no answer within {DEADLINE_S:g} s"))
        except OffloaderError as error:
            found.append(Connection(name, up=False, message=str(error)))
        except OSError as error:
            found.append(Connection(name, up=False, message=error.strerror or str(error)))
        else:
            found.append(Connection(name, up=True))
    return found


async def try_metadata(settings: Settings) -> None:
    """Open a ZooKeeper session and look for the root node."""
    options = settings.metadata
    async with ZooKeeperStore(
        options.servers,
        "/",  # and not the daemon's own root, which would be made
        session_timeout_s=options.session_timeout_s,
        connect_timeout_s=options.connect_timeout_s,
        security=zookeeper_security(settings),
    ) as store:
        await store.children(options.root)


async def try_objects(settings: Settings) -> None:
    """See whether the buckets or the directory are there and ours to use."""
    async with bucket_store(settings, SystemClock()) as store:
        await check_places(settings, store)


async def try_grpc(settings: Settings) -> None:
    """See whether the port can be listened on."""
    listen(settings.grpc.host, settings.grpc.port)


async def try_http(settings: Settings) -> None:
    """See whether the port can be listened on."""
    listen(settings.http.host, settings.http.port)
