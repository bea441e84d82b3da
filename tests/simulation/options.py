"""What one run's daemons and users are set to, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offloaderd.core.model import HistoryOrder, OffloadMethod, TierRetention
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.segment.builder import SegmentLayout
from offloaderd.segment.roll import RollPolicy
from offloaderd.upkeep.retention import Limits
from tests.simulation.bucket import places

if TYPE_CHECKING:
    from tests.simulation.chance import Rng

TIERS = (
    Limits(),
    Limits(),
    Limits(TierRetention.FOLLOW),
    Limits(TierRetention.LIMITED, age_s=5.0),
    Limits(TierRetention.LIMITED, size_bytes=4000),
)

METHODS = (None, OffloadMethod.STREAMING, OffloadMethod.LEDGER_BASED, OffloadMethod.LEDGER_BASED, OffloadMethod.NONE)
"""What users change a topic's method to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one run's daemons are set to; drawn from the seed."""

    daemons: int
    topics: int
    readback: bool
    layout: SegmentLayout
    policy: RollPolicy
    buffer_bytes: int
    upload_bytes: int
    parts_in_flight_max: int
    push: str
    retention: str
    tier: Limits
    grants: bool
    scrub: bool
    busy_s: float
    collect_s: float
    grace_s: float
    order: HistoryOrder
    methods: tuple[OffloadMethod | None, ...]
    late_s: float
    sleep_s: float
    again_s: float
    """How often a sleeping topic is looked at whatever happens: soon, or not in the time of a run, as in production."""

    mirror: bool = False
    """Whether each segment is to have a second copy in the last place."""
    apart: str = ""
    """What the last place has for itself: a bucket, or a service that daemons know as another one."""

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Bucket and prefix of each place, the daemons' own first."""
        return places(apart=bool(self.apart))

    @property
    def policies(self) -> OffloadPolicies:
        """What the daemons' settings say of topics."""
        return OffloadPolicies(
            segment_bytes_max=self.policy.segment_bytes_max,
            segment_age_max_s=self.policy.segment_age_max_s,
            segment_age_min_s=self.policy.segment_age_min_s,
            threshold_bytes=0,
            deletion_lag_s=2.0,
            bucket=self.places[0][0],
            prefix=self.places[0][1],
            history_order=self.order,
            retention=self.tier.kind,
            retention_age_s=self.tier.age_s,
            retention_bytes=self.tier.size_bytes,
            mirror="/".join(self.places[-1]) if self.mirror else "",
        )

    @classmethod
    def draw(cls, rng: Rng, *, readback: bool, pushes: bool = True) -> Options:
        """Draw the settings of a run. `pushes` allows brokers that push."""
        block = rng.choice([200, 400, 1000])
        retention = rng.choice(["keep", "keep", "offloaded", "blind", "granted", "granted"])
        push = rng.choice(["no", "no", "no", "beside", "only"])
        push = push if pushes else "no"
        topics, part = rng.choice([1, 1, 2]), block * rng.choice([1, 2, 3])
        if push == "only":
            retention = "keep"
        return cls(
            daemons=rng.choice([1, 2, 2, 2, 3]),
            topics=topics,
            readback=readback or rng.random() < 0.2,
            layout=SegmentLayout(block_bytes=block, part_bytes=part),
            policy=RollPolicy(
                segment_bytes_max=rng.choice([1500, 3000, 6000]),
                segment_age_max_s=rng.choice([2.0, 4.0, 8.0]),
                segment_age_min_s=rng.choice([0.0, 0.0, 0.5]),
            ),
            buffer_bytes=rng.choice([3000, 10_000, 100_000]),
            upload_bytes=rng.choice([1500, 5000]),
            parts_in_flight_max=rng.choice([1, 2, 3]),
            push=push,
            retention=retention,
            tier=rng.choice(TIERS),
            grants=retention == "granted" or rng.random() < 0.3,
            scrub=rng.random() < 0.3,
            busy_s=rng.choice([10.0, 15.0, 25.0]),
            collect_s=rng.choice([2.0, 5.0, 1000.0]),
            grace_s=rng.choice([0.0, 0.5, 3.0]),
            order=rng.choice([HistoryOrder.HISTORY_FIRST, HistoryOrder.ALONGSIDE]),
            methods=(None,) if push == "only" else rng.choice([(None,), METHODS]),
            late_s=rng.choice([0.0, 0.0, 3.0, 8.0]),
            sleep_s=rng.choice([0.0, 0.1, 0.3, 1.0]),
            again_s=rng.choice([5.0, 3600.0]),
            mirror=rng.random() < 0.25,
            apart=rng.choice(["", "", "", "bucket", "service"]),
        )
