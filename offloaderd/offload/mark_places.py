"""At a daemon's start: which deployment works in each of its places."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from offloaderd.errors import CorruptData, OffloaderError
from offloaderd.format.head import PlaceMarker
from offloaderd.objects import marker
from offloaderd.offload.budget import Backoff

if TYPE_CHECKING:
    from offloaderd.offload.workshop import Workshop

log = structlog.get_logger(__name__)


async def mark_places(shop: Workshop, daemon_id: str) -> None:
    """Put a marker in every place that has none, and tell of those that are another deployment's."""
    clock, others = shop.uplink.clock, 0
    for place in shop.places if shop.deployment_id else ():
        ours = PlaceMarker(
            deployment_id=shop.deployment_id, cluster=shop.cluster, daemon_id=daemon_id, since_ms=clock.wall_ms()
        )
        backoff = Backoff(clock)
        ask = partial(marker.ensure, shop.uplink.objects.at(place.bucket), place.prefix, ours)
        while True:
            try:
                whose = (await ask()).other_than(shop.deployment_id)
            except CorruptData as error:
                whose = str(error)
            except OffloaderError as error:
                log.warning("place.not_marked", place=str(place), error=str(error))
                await backoff.wait(error)
                continue
            break
        if whose:
            others += 1
            log.error("place.of_another", place=str(place), found=whose, hint=marker.HINT)
    shop.uplink.metrics.identity_places_refused.set(others)
