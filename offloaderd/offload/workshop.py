"""What all topics of a daemon work with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offloaderd.offload.outage import OutageRules
from offloaderd.offload.past import Pasts

if TYPE_CHECKING:
    from offloaderd.format.layout import SegmentLayout
    from offloaderd.ledgers.port import BrokerOffloads, LedgerSource
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.offload.next_segment import LedgerCut, WholeLedgers
    from offloaderd.offload.pool import BufferPool
    from offloaderd.offload.uploader import Uplink


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRules:
    """How much of what was there before a topic was enabled a daemon offloads by itself, in bytes of payload."""

    daemon_bytes_max: int = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Stores, budgets and settings. `ledgers` is what writes whole ledgers, None where there is no ledger source.

    `cut` says how streaming segments are rewritten as whole ledgers where there is none.

    `offloads` says what brokers have offloaded by themselves, None where there are no brokers.
    """

    metadata: MetadataStore
    source: LedgerSource | None
    uplink: Uplink
    pool: BufferPool
    layout: SegmentLayout
    cluster: str
    driver: dict[str, str]
    outage: OutageRules = field(default_factory=OutageRules)
    ledgers: WholeLedgers | None = None
    history: HistoryRules = field(default_factory=HistoryRules)
    offloads: BrokerOffloads | None = None
    pasts: Pasts = field(default_factory=Pasts)
    cut: LedgerCut | None = None
