"""Markers of this daemon's places at its start: the deployment that works in each."""

from functools import partial

import structlog

from offloaderd.core.errors import CorruptData, OffloaderError
from offloaderd.core.retry import Backoff
from offloaderd.format.head import PlaceMarker
from offloaderd.objects import marker
from offloaderd.segment.context import OffloadContext

log = structlog.get_logger(__name__)


async def mark_places(context: OffloadContext, daemon_id: str) -> None:
    """Put a marker in every place without one, and log the places of other deployments."""
    clock, others = context.upload_context.clock, 0
    for place in context.places if context.deployment_id else ():
        ours = PlaceMarker(
            deployment_id=context.deployment_id, cluster=context.cluster, daemon_id=daemon_id, since_ms=clock.wall_ms()
        )
        backoff = Backoff(clock)
        ask = partial(marker.ensure, context.upload_context.objects.at(place.bucket), place.prefix, ours)
        while True:
            try:
                whose = (await ask()).other_than(context.deployment_id)
            except CorruptData as error:
                whose = str(error)
            except OffloaderError as error:
                log.warning("place.not_marked", place=str(place), error=str(error))
                await backoff.wait(error)
                continue
            break
        if whose:
            others += 1
            log.error("place.foreign", place=str(place), found=whose, hint=marker.HINT)
    context.upload_context.metrics.identity_places_refused.set(others)
