"""Policies as messages, both ways. No I/O, and no judgement: what is wrong with a value is said by `policy.rules`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.policy.policies import NAMES
from offloaderd.rpc.v1 import policy_pb2

if TYPE_CHECKING:
    from offloaderd.policy.effective import Effective
    from offloaderd.policy.policies import OffloadPolicies


def given_policies(message: policy_pb2.OffloadPolicies) -> dict[str, object]:
    """Return the values that are set, by name, as they were given."""
    return {field.name: value for field, value in message.ListFields()}


def policies_message(policies: OffloadPolicies) -> policy_pb2.OffloadPolicies:
    """Return what a policy says as a message."""
    return policy_pb2.OffloadPolicies(**policies.said())


def origins(effective: Effective) -> list[policy_pb2.PolicyOrigin]:
    """Return who said each value that there is."""
    said = effective.values.said()
    levels = {name: effective.said_at(name) for name in NAMES if name in said}
    return [policy_pb2.PolicyOrigin(field=name, origin=level.origin, name=level.name) for name, level in levels.items()]
