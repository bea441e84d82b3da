"""Relaying of a connection's bytes to a server, with a turn for each piece: lines that are narrow or long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from offloaderd.drill.tcp_proxy import copy

Turn = Callable[[int], Awaitable[None]]


async def relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, turn: Turn | None = None
) -> None:
    """Connect to `target` (host:port, or an http URL) and relay bytes both ways, until either side ends.

    `turn` is called with the number of bytes before any are relayed to the target.
    """
    host, _, port = target.removeprefix("http://").rpartition(":")
    there, back = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(copy(reader, back) if turn is None else _in_turn(reader, back, turn))
            group.create_task(copy(there, writer))
    except asyncio.CancelledError:
        back.transport.abort()
        raise


async def _in_turn(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, turn: Turn) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            await turn(len(data))
            writer.write(data)
            await writer.drain()
    writer.close()
