"""What a new owner does with what it finds.

An attempt that is still recorded was not committed, for the commit ends it in the same transaction. It is gone on with
if everything that decides its bytes is known and where its objects lie is where this daemon works. Else it is given
up: its objects go to the trash list (see `upkeep/deletion.py`), and its entries begin the next attempt.
"""

from dataclasses import dataclass

import structlog

from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import Position
from offloaderd.core.retry import until_answered
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.segment.claim.attempt_log import AttemptLog
from offloaderd.segment.context import OffloadContext
from offloaderd.segment.states import state_of

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What earlier owners left: where their unfinished segment began, the attempt if it can be gone on with.

    `failures` is how often the segment that begins there has failed, and why the last time.
    """

    begin: Position | None = None
    attempt: Attempt | None = None
    failures: tuple[int, str] = (0, "")


async def take_over(attempts: AttemptLog, standing: Position | None, context: OffloadContext) -> LeftBehind:
    """Return the attempt of an earlier owner, given up if it cannot be gone on with. Raises Fenced, CorruptData.

    `standing` is up to where all is offloaded.
    """
    found = await until_answered(context.upload_context.clock, attempts.load)
    if found is None:
        return LeftBehind()
    reason = reason_to_give_up(found, standing, context)
    if not reason:
        return LeftBehind(found.begin, found, (found.tries, found.last_error))
    await abandon(attempts, found, reason, context.upload_context.metrics)
    return LeftBehind(found.begin, None, (found.tries + 1, reason))


async def abandon(attempts: AttemptLog, found: Attempt, reason: str, metrics: Metrics) -> None:
    """Give up an attempt of an earlier owner. Raises Fenced."""
    topic, epoch = str(attempts.fence.claim.topic), found.epoch
    log.warning(
        "attempt.abandoned",
        topic=topic,
        segment_id=str(found.segment_id),
        state=state_of(found),
        epoch=epoch,
        reason=reason,
    )
    metrics.uploads_aborted.labels(reason="takeover").inc()
    await attempts.give_up(found, reason)


def reason_to_give_up(found: Attempt, end: Position | None, context: OffloadContext) -> str:
    """Say why an attempt cannot be gone on with; empty: it can, as far as its record tells."""
    if found.layout is None:
        return "an earlier version began it, and did not record how it is cut"
    if obstacle := context.places.obstacle(found.driver_properties):
        return obstacle
    if end is None:
        return ""
    if found.begin not in {(end.ledger_id, end.entry_id + 1), (max(found.begin.ledger_id, end.ledger_id + 1), 0)}:
        return f"it begins at {found.begin}, and the topic is offloaded up to {end}"
    return ""
