"""A child process that appends for as long as it lives and says what was acknowledged; killed by a test."""

from __future__ import annotations

import asyncio
import sys

from offloaderd.core.clock import SystemClock
from offloaderd.core.model import TopicName
from offloaderd.ledgers.book import RollLimits
from offloaderd.ledgers.embedded.store import EmbeddedLedgers
from offloaderd.testing import payloads

REAL_TIME = "threads"

TOPICS = [TopicName.parse("a"), TopicName.parse("b")]
APPEND = 7


async def appending(store: EmbeddedLedgers, topic: TopicName) -> None:
    """Append entries that depend on their number, and write a line once an append was acknowledged."""
    number = 0
    while True:
        position = await store.append(topic, payloads(APPEND, 900, first_entry_id=number))
        number += APPEND
        sys.stdout.write(f"{topic.local} {number} {position}\n")
        sys.stdout.flush()


async def main(directory: str) -> None:
    """Append to two topics side by side, so that commits are shared."""
    async with (
        EmbeddedLedgers(directory, clock=SystemClock(), limits=RollLimits(entries_max=500)) as store,
        asyncio.TaskGroup() as group,
    ):
        for topic in TOPICS:
            group.create_task(appending(store, topic))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
