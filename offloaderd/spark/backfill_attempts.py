"""What the jobs of a topic have recorded before its first byte, and neither committed nor given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.metadata import paths
from offloaderd.offload.budget import until_answered
from offloaderd.offload.commit import AttemptLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.offload.fence import Claim
    from offloaderd.offload.head import HeadKeeper
    from offloaderd.offload.workshop import Workshop


async def attempts_of(
    shop: Workshop, claim: Claim, head: HeadKeeper | None = None
) -> AsyncIterator[tuple[AttemptLog, Attempt]]:
    """Yield what jobs have recorded of a topic and not committed. Raises CorruptData.

    `head` keeps the topic's head in the bucket if they are to be committed.
    """
    folder, clock, metrics = paths.history_attempts(claim.topic), shop.uplink.clock, shop.uplink.metrics
    for name in await until_answered(clock, lambda: shop.metadata.children(folder)):
        attempts = AttemptLog(shop.metadata, claim, clock=clock, metrics=metrics, path=f"{folder}/{name}", head=head)
        found = await until_answered(clock, attempts.load)
        if found is not None:
            yield attempts, found
