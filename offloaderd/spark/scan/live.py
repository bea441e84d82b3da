"""Reading of live segments, whose entries a daemon has: in its buffer, at the ledger source or in the bucket.

The daemon is asked for positions, so it does not matter where their entries are by then, nor which segments were
committed, merged or deleted since the planning. What it sends is compared with the entries that the planning found.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Self

from offloaderd.core.errors import EntriesMissing, OffloaderError, OutOfRange, Transient
from offloaderd.core.model import EntryBatch, Position, TopicName
from offloaderd.spark.scan.share import Daemon, LiveSegment, Part, parts_of

if TYPE_CHECKING:
    from offloaderd.client import DaemonClient

CONNECT_S = 30.0
"""Longest wait for a connection; one that is refused fails at once."""


class NotGiven(EntriesMissing):
    """The daemon passed over entries that it had at the planning, up to the position `upto`."""

    def __init__(self, first: Position, upto: Position) -> None:
        super().__init__(
            f"the daemon passed over {first}, which could be read at the planning of the query, up to {upto}",
            hint="their ledger was deleted before it was offloaded; the loss is on record once the owner notices it",
        )
        self.upto = upto


class LiveReader:
    """Reads from a daemon, and connects to it when it is needed first. An async context manager of one task."""

    def __init__(self, daemon: Daemon | bytes) -> None:
        """`daemon` may be pickled, as tasks get it."""
        self._daemon = daemon
        self._stack = AsyncExitStack()
        self._client: DaemonClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self._stack.aclose()

    async def client(self) -> DaemonClient:
        """Return the connected client. Raises Unreachable, and as credentials that are not accepted do."""
        if self._client is None:
            from offloaderd.client import DaemonClient  # noqa: PLC0415 - few tasks need it, and it takes long

            daemon = self._daemon
            addresses, trust = pickle.loads(daemon) if isinstance(daemon, bytes) else daemon  # noqa: S301 - the driver's
            client = DaemonClient(*addresses, connect_s=CONNECT_S, trust=trust)
            self._client = await self._stack.enter_async_context(client)
        return self._client

    async def read(
        self, topic: TopicName, segment: LiveSegment, first: Position, last: Position
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield every entry of [first, last], which the segment must hold, once and in order.

        Raises as the daemon does, NotGiven, and OffloaderError for other entries than those that the planning found.
        """
        awaited = deque(parts_of(segment, first, last))
        client = await self.client()
        try:
            async with aclosing(client.read(topic, first=first, last=last)) as answers:
                async for answer in answers:
                    batch = answer.batch
                    _note(awaited, batch, topic)
                    yield batch
        except OutOfRange as error:
            raise Transient(
                f"{topic}: the daemon at {client.address} does not know entries up to {last} yet, or any more: "
                f"{error.message} ({error.hint})",
                hint="another daemon may have had them in its buffer; run the query again, with the owner's address",
            ) from error
        if awaited:
            raise NotGiven(Position(awaited[0].ledger_id, awaited[0].first_entry_id), last)

    async def oldest(self, topic: TopicName) -> Position | None:
        """Return the oldest entry that can be read now, None for none. Raises as the daemon does."""
        found = await (await self.client()).last_positions(topic)
        return Position(found.first.ledger_id, found.first.entry_id) if found.HasField("first") else None


def _note(awaited: deque[Part], batch: EntryBatch, topic: TopicName) -> None:
    """Take a batch's entries from those that are awaited. Raises NotGiven for others behind them, OffloaderError."""
    part = awaited[0] if awaited else None
    first = Position(part.ledger_id, part.first_entry_id) if part is not None else None
    if first is not None and batch.first > first:
        raise NotGiven(first, Position(batch.ledger_id, batch.first_entry_id - 1))
    if part is None or batch.first != first or batch.last_entry_id > part.last_entry_id:
        raise OffloaderError(
            f"{topic}: the daemon sent {batch.first} to {batch.last}, and {part or 'no more'} was to come",
            hint="compare its cluster with that of the query; if it is the same, run the query again",
        )
    if batch.last_entry_id == part.last_entry_id:
        awaited.popleft()
    else:
        awaited[0] = part._replace(first_entry_id=batch.last_entry_id + 1)
