"""What a new owner does with what it finds.

An attempt that is still recorded was not committed, for the commit ends it in the same transaction. Its objects go to
the trash list; see `deletion.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from offloaderd.metrics import Metrics
    from offloaderd.model import Position, TopicName
    from offloaderd.offload.commit import AttemptLog

log = structlog.get_logger(__name__)


async def take_over(attempts: AttemptLog, topic: TopicName, metrics: Metrics) -> Position | None:
    """End the attempt of an earlier owner, if there is one; its objects go to the trash. Raises Fenced.

    Returns where it began, which is the first entry that has to be offloaded again.
    """
    found = await attempts.load()
    if found is None:
        return None
    log.info("attempt.abandoned", topic=str(topic), segment_id=str(found.segment_id), epoch=found.epoch)
    metrics.uploads_aborted.labels(reason="takeover").inc()
    await attempts.give_up(found, f"its owner (epoch {found.epoch}) went away before the segment was committed")
    return found.begin
