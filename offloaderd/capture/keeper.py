"""Taking captures: once, and at an interval while this daemon leads the job."""

from collections.abc import Callable
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from offloaderd.capture import own, storage
from offloaderd.capture.cluster import PulsarMetadata, Taken
from offloaderd.capture.records import Capture
from offloaderd.capture.settings import CaptureSettings
from offloaderd.capture.storage import StoredCapture
from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError
from offloaderd.core.metrics.captures import CaptureMetrics
from offloaderd.metadata.identity import deployment
from offloaderd.metadata.port import MetadataStore
from offloaderd.objects.port import ObjectStore
from offloaderd.policy.store import topics_with_nodes
from offloaderd.upkeep.stored import Site

log = structlog.get_logger(__name__)

LOOK_S = 600.0
"""Longest pause between two looks whether a capture is due."""


async def take(metadata: MetadataStore, pulsar: PulsarMetadata | None, *, cluster: str, clock: Clock) -> Capture:
    """Read all that a capture has. Raises Conflict as `PulsarMetadata.take`, Transient and Denied as the stores do."""
    taken_ms = clock.wall_ms()
    deployment_id = await _deployment_id(metadata)
    topics = await topics_with_nodes(metadata)
    taken = await pulsar.take(topics) if pulsar is not None else Taken()
    await own.take(metadata, topics, taken)
    return Capture(
        cluster=cluster,
        deployment_id=deployment_id,
        taken_ms=taken_ms,
        records=taken.records,
        problems=taken.told(),
    )


async def _deployment_id(metadata: MetadataStore) -> str:
    """Return the id of the deployment; empty before a daemon has made one."""
    found = await deployment(metadata)
    return str(found.deployment_id) if found is not None else ""


class Keeper:
    """Keeps captures in the first place of the daemon. `pulsar` is None without a cluster."""

    def __init__(
        self,
        objects: ObjectStore,
        metadata: MetadataStore,
        pulsar: PulsarMetadata | None,
        site: Site,
        *,
        clock: Clock,
        registry: CollectorRegistry,
    ) -> None:
        self._objects = objects
        self._metadata = metadata
        self._site = site
        self._clock = clock
        self._metrics = CaptureMetrics(registry)
        self._take = partial(take, metadata, pulsar, cluster=site.cluster, clock=clock)

    async def keep(self, current: Callable[[], CaptureSettings], leads: Callable[[], bool]) -> None:
        """Take a capture whenever one is due while this daemon leads the job, until cancelled.

        Two daemons that both think that they lead take two. A failed one is tried again after a pause.
        """
        while True:
            await self._clock.sleep(self._clock.jitter(min(LOOK_S, current().interval_s)))
            settings = current()
            if not (settings.enabled and leads()):
                continue
            try:
                deployment_id = await _deployment_id(self._metadata)
                found = await storage.stored_captures(self._objects, self._site, deployment_id)
                newest_ms = found[0].taken_ms if found else 0
                self._metrics.capture_newest_timestamp_seconds.set(newest_ms / 1000)
                if self._clock.wall_ms() - newest_ms >= settings.interval_s * 1000:
                    await self.capture(settings.keep)
            except OffloaderError as error:
                self._metrics.captures.labels(outcome="failed").inc()
                log.warning("capture.failed", error=str(error), error_class=type(error).__name__)

    async def capture(self, keep: int) -> StoredCapture:
        """Take a capture, store it, and delete all but the newest `keep`.

        Raises Conflict, Transient, Denied, NoSpace.
        """
        capture = await self._take()
        stored = await storage.write(self._objects, self._site, capture)
        for problem in capture.problems:
            log.warning("capture.incomplete", capture=stored.name, problem=problem)
        self._metrics.captures.labels(outcome="stored" if stored.complete else "incomplete").inc()
        self._metrics.capture_newest_timestamp_seconds.set(stored.taken_ms / 1000)
        self._metrics.capture_problems.set(len(capture.problems))
        log.info("capture.stored", capture=stored.name, records=len(capture.records), size_bytes=stored.size_bytes)
        await storage.prune(self._objects, self._site, keep, capture.deployment_id)
        return stored
