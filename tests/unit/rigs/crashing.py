"""Owners that die after any number of calls to their stores."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from offloaderd.testing.faults import FaultyMetadata, FaultyStore
from tests.unit.rigs.rig import turn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.unit.rigs.rig import Rig


async def crash(rig: Rig, calls: int, live: Callable[[FaultyMetadata], Coroutine[None, None, None]]) -> None:
    """Have somebody live until that many calls were made to bucket and metadata, and its session end then."""
    real, left = rig.store, calls

    def plan(operation: str, key: str, when: str) -> Exception | None:
        nonlocal left
        left -= 1
        return asyncio.CancelledError() if left < 0 else None  # type: ignore[return-value]

    rig.objects = FaultyStore(real, plan)
    session = rig.tree.connect()
    died = asyncio.ensure_future(live(FaultyMetadata(session, plan)))  # noqa: TID251
    while not died.done() and left >= 0:
        await turn()
    died.cancel()
    await asyncio.wait([died])
    session.expire()
    rig.objects = real
