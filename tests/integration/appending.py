"""Entries that go into topics of the daemon's own ledger store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from offloaderd.client import DaemonClient
    from offloaderd.core.model import TopicName


async def append_to(client: DaemonClient, topic: TopicName, payloads: Sequence[bytes], *, at_once: int = 100) -> None:
    """Append entries, so many in a message; the topic need not exist."""

    async def batches() -> AsyncIterator[Sequence[bytes]]:
        for first in range(0, len(payloads), at_once):
            yield payloads[first : first + at_once]

    await client.append(topic, batches(), lambda _: None)
