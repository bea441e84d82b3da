"""From an address to a connection that may be asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from offloaderd.errors import Transient

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.ledgers.bookkeeper.connection import BookieConnection
    from offloaderd.ledgers.bookkeeper.registration import BookieAddress


async def connect(address: BookieAddress, make: Callable[[], BookieConnection], *, bookie: str) -> BookieConnection:
    """Open a connection that speaks what `make` says. Raises Transient; the time it takes is the caller's to bound."""
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(make, address.host, address.port)
    except OSError as error:
        raise Transient(f"bookie {bookie} cannot be reached at {address}: {error}") from error
    return connection
