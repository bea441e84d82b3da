"""What the jobs of a topic have recorded before its first byte, and neither committed nor given up."""

from collections.abc import AsyncIterator

from offloaderd.core.retry import until_answered
from offloaderd.metadata import paths
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.claim.fence import Claim
from offloaderd.segment.claim.head import HeadKeeper
from offloaderd.segment.context import OffloadContext


async def attempts_of(
    context: OffloadContext, claim: Claim, head: HeadKeeper | None = None
) -> AsyncIterator[tuple[AttemptLog, Attempt]]:
    """Yield what jobs have recorded of a topic and not committed. Raises CorruptData.

    `head` keeps the topic's head in the bucket if they are to be committed.
    """
    folder, clock, metrics = (
        paths.history_attempts(claim.topic),
        context.upload_context.clock,
        context.upload_context.metrics,
    )
    for name in await until_answered(clock, lambda: context.metadata.children(folder)):
        attempts = AttemptLog(context.metadata, claim, clock=clock, metrics=metrics, path=f"{folder}/{name}", head=head)
        found = await until_answered(clock, attempts.load)
        if found is not None:
            yield attempts, found
