"""Stores, budgets and settings that all topics of a daemon share."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from offloaderd.core.errors import Transient
from offloaderd.core.model import DRIVER, Position, TopicName
from offloaderd.format.chunks import CHUNK_BYTES
from offloaderd.format.v1 import LedgerLayout
from offloaderd.format.v2 import SegmentLayout
from offloaderd.ledgers.known_source import KnownSource
from offloaderd.ledgers.port import BrokerOffloads, LedgerSource
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.metadata.records.copy import SeenRemovals
from offloaderd.objects import keys
from offloaderd.objects.keys import ObjectKind, SegmentKeys
from offloaderd.objects.places import Place, Places
from offloaderd.objects.stored_as import StoredAs, filled_tags
from offloaderd.segment.builder import LedgerCut, WholeLedgers
from offloaderd.segment.prefix_totals import Pasts
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.upload import UploadContext


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadContext:
    """Stores, budgets and settings.

    `ledgers` is for whole ledgers, None without a ledger source; `cut` for rewriting as whole ledgers without one.
    `offloads` lists what brokers have offloaded, None without brokers. Manifests have a checksum for each
    `chunk_bytes`.
    """

    metadata: MetadataStore
    source: LedgerSource | None
    known_source: KnownSource | None = None
    upload_context: UploadContext
    layout: SegmentLayout
    cluster: str
    places: Places
    ledgers: WholeLedgers | None = None
    history_bytes_max: int = 4 << 30
    """Largest history that a daemon offloads itself, in payload bytes."""
    offloads: BrokerOffloads | None = None
    pasts: Pasts = field(default_factory=Pasts)
    removals: SeenRemovals = field(default_factory=SeenRemovals)
    cut: LedgerCut | None = None
    chunk_bytes: int = CHUNK_BYTES
    reader_grace_s: float = 0.0
    """How long the objects of a replaced segment stay, for readers that were sent to them."""
    deployment_id: str = ""
    """Id of the deployment in labels and heads; empty while there is none."""
    shared: set[str] = field(default_factory=set)
    """Buckets with a place that the marker of another deployment is in."""

    def labels(self, where: SegmentKeys, topic: TopicName) -> Callable[[ObjectKind], dict[str, str]]:
        """Return the function that makes the user metadata of each of a segment's objects."""
        return partial(
            keys.labels,
            where,
            cluster=self.cluster,
            managed_ledger=topic.managed_ledger,
            deployment_id=self.deployment_id,
        )

    def place_for(self, policy: RollPolicy, topic: TopicName) -> Place:
        """Return the place of a topic's next segment. Raises Transient if its policy names none of this daemon."""
        place = self.places.home if policy.place is None else self._place(policy.place, "offloaded")
        return self.stored(place, policy, topic)

    def copied_to(self, wanted: tuple[str, str], policy: RollPolicy, topic: TopicName) -> Place:
        """Return the place of a copy, which is the topic's mirror or its own. Raises Transient as `place_for`.

        The mirror has its own class; the tags are those of the policy in both, if they are of one service.
        """
        place = self.stored(self._place(wanted, "copied there"), policy, topic)
        if wanted != policy.mirror:
            return place
        return replace(place, stored_as=replace(place.stored_as, storage_class=place.storage_class))

    def _place(self, named: tuple[str, str], what: str) -> Place:
        """Return the place that a policy names. Raises Transient if it is none of this daemon's."""
        place = self.places.find(*named)
        if place is None:
            bucket, prefix = named
            raise Transient(
                f"the policy says bucket {bucket!r}, prefix {prefix!r}, which is no place of this daemon's",
                hint="name it in objects.places or objects.services, or have the policy name another; until then "
                f"nothing is {what}",
            )
        return place

    def stored(self, place: Place, policy: RollPolicy | None, topic: TopicName) -> Place:
        """Return a place with class and tags of a topic's new segments there.

        They are those of its policy where it stores in the same service, else those of the settings.
        """
        said = self.places.find(*policy.place) if policy is not None and policy.place is not None else self.places.home
        storage_class, tags = place.storage_class, place.tags
        if policy is not None and said is not None and said.service == place.service:
            storage_class = storage_class if policy.storage_class is None else policy.storage_class
            tags = tags if policy.tags is None else policy.tags
        names = {"tenant": topic.tenant, "namespace": topic.namespace, "cluster": self.cluster}
        return replace(place, stored_as=StoredAs(storage_class, filled_tags(tags, **names)))

    def attempt(
        self,
        begin: Position,
        layout: SegmentLayout | LedgerLayout,
        place: Place,
        *,
        epoch: int,
        failures: tuple[int, str] = (0, ""),
    ) -> Attempt:
        """Return a new attempt, not recorded; `failures`: how often the one before failed, and why."""
        tries, last_error = failures
        return Attempt(
            segment_id=self.upload_context.clock.uuid(),
            begin=begin,
            assigned_ms=self.upload_context.clock.wall_ms(),
            epoch=epoch,
            status=AttemptStatus.ASSIGNED,
            driver=DRIVER,
            driver_properties=place.driver,
            storage_class=place.stored_as.storage_class,
            tags=place.stored_as.tags,
            tries=tries,
            last_error=last_error,
            layout=layout,
        )
