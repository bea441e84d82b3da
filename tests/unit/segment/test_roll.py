"""When a segment is sealed."""

from __future__ import annotations

import pytest

from offloaderd.core.model import RollReason
from offloaderd.segment.roll import RollPolicy

POLICY = RollPolicy(segment_bytes_max=1000, segment_age_max_s=60, segment_age_min_s=5)


def decide(
    *,
    payload_bytes: int = 1,
    age_s: float = 1.0,
    full: bool = False,
    manual: bool = False,
    switch: bool = False,
    memory: bool = False,
    stopping: bool = False,
) -> RollReason | None:
    """Decide with everything calm but what is given."""
    return POLICY.decide(
        payload_bytes=payload_bytes,
        age_s=age_s,
        full=full,
        manual=manual,
        switch=switch,
        memory=memory,
        stopping=stopping,
    )


@pytest.mark.parametrize(
    ("reason", "inputs"),
    [
        (None, {}),
        (None, {"payload_bytes": 999, "age_s": 59.9}),
        (None, {"payload_bytes": 10_000, "age_s": 4.9}),
        (RollReason.SIZE, {"payload_bytes": 1000, "age_s": 5}),
        (RollReason.SIZE, {"full": True}),
        (RollReason.AGE, {"age_s": 60}),
        (RollReason.MANUAL, {"manual": True}),
        (RollReason.MEMORY, {"memory": True}),
        (RollReason.SHUTDOWN, {"stopping": True}),
        (RollReason.SHUTDOWN, {"stopping": True, "manual": True, "payload_bytes": 1000}),
        (RollReason.MANUAL, {"manual": True, "age_s": 60}),
        (RollReason.SIZE, {"payload_bytes": 1000, "age_s": 60, "memory": True}),
    ],
)
def test_each_reason_has_its_conditions(reason: RollReason | None, inputs: dict[str, object]) -> None:
    """Limits are reached exactly at their value, the minimum age holds back size alone, and order is fixed."""
    assert decide(**inputs) is reason  # type: ignore[arg-type]
