"""What all topics of a daemon work with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from offloaderd.core.errors import Transient
from offloaderd.core.model import DRIVER, Position, TopicName
from offloaderd.format.chunks import CHUNK_BYTES
from offloaderd.format.layout import LedgerLayout, SegmentLayout
from offloaderd.ledgers.known_source import KnownSource
from offloaderd.ledgers.port import BrokerOffloads, LedgerSource
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus
from offloaderd.objects import keys
from offloaderd.objects.keys import ObjectKind, SegmentKeys
from offloaderd.objects.places import Place, Places
from offloaderd.segment.builders.ledger_builder import LedgerCut, WholeLedgers
from offloaderd.segment.prefix_totals import Pasts
from offloaderd.segment.roll import RollPolicy
from offloaderd.segment.upload import UploadContext


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadContext:
    """Stores, budgets and settings. `ledgers` is what writes whole ledgers, None where there is no ledger source.

    `cut` says how streaming segments are rewritten as whole ledgers where there is none.

    `offloads` says what brokers have offloaded by themselves, None where there are no brokers. `chunk_bytes` is the
    length of the chunks that manifests have checksums of.
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
    """How much of what was there before a topic was enabled a daemon offloads by itself, in bytes of payload."""
    offloads: BrokerOffloads | None = None
    pasts: Pasts = field(default_factory=Pasts)
    cut: LedgerCut | None = None
    chunk_bytes: int = CHUNK_BYTES
    reader_grace_s: float = 0.0
    """How long the objects of a segment stay that has left the map, for those who were sent to it before."""
    deployment_id: str = ""
    """Of which deployment what is written says that it is; empty: none was made yet."""

    def labels(self, where: SegmentKeys, topic: TopicName) -> Callable[[ObjectKind], dict[str, str]]:
        """Return what gives each of a segment's objects its user metadata."""
        return partial(
            keys.labels,
            where,
            cluster=self.cluster,
            managed_ledger=topic.managed_ledger,
            deployment_id=self.deployment_id,
        )

    def place_for(self, policy: RollPolicy) -> Place:
        """Return where a topic's next segment goes. Raises Transient when its policy names no place of this daemon."""
        if policy.place is None:
            return self.places.home
        place = self.places.find(*policy.place)
        if place is None:
            bucket, prefix = policy.place
            raise Transient(
                f"the policy says bucket {bucket!r}, prefix {prefix!r}, which is no place of this daemon's",
                hint="name it in objects.places, or have the policy name another; until then nothing is offloaded",
            )
        return place

    def attempt(
        self,
        begin: Position,
        layout: SegmentLayout | LedgerLayout,
        place: Place,
        *,
        epoch: int,
        failures: tuple[int, str] = (0, ""),
    ) -> Attempt:
        """Return a new attempt, not recorded yet; `failures` says how often the one before failed, and why."""
        tries, last_error = failures
        return Attempt(
            segment_id=self.upload_context.clock.uuid(),
            begin=begin,
            assigned_ms=self.upload_context.clock.wall_ms(),
            epoch=epoch,
            status=AttemptStatus.ASSIGNED,
            driver=DRIVER,
            driver_properties=place.driver,
            tries=tries,
            last_error=last_error,
            layout=layout,
        )
