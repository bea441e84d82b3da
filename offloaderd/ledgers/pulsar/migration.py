"""The flag by which a Pulsar cluster moves its metadata to another store (PIP-454). Pure.

The coordinator writes the node `/pulsar/migration-coordinator/migration` under the metadata store's root, as JSON with
a phase (`MigrationPhase`) and the URL of the store to which all is copied. From PREPARATION on brokers write no
metadata here, and from COMPLETED on none ever again: lists of ledgers stand still. After FAILED it is as before.
"""

from __future__ import annotations

import json
from typing import Final

from offloaderd.core.names.managed_ledgers import ROOT

FLAG: Final = "/pulsar/migration-coordinator/migration"
_HERE: Final = {"NOT_STARTED", "FAILED"}
"""Phases in which the cluster's metadata is where it was."""


def flag_path(managed_ledgers_root: str) -> str:
    """Return where the flag is, beside the topics: a cluster may live below a path of its own."""
    return managed_ledgers_root.rstrip("/").removesuffix(ROOT) + FLAG


def moved_reason(flag: bytes, *, path: str) -> str | None:
    """Say why lists of ledgers under the flag are not to be believed; None where they are.

    A flag that cannot be read counts: somebody has begun something that this release does not know.
    """
    try:
        found = json.loads(flag)
        phase, target = str(found["phase"]), str(found.get("targetUrl") or "another store")
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"the node {path} says that the cluster moves its metadata, in a way that this release cannot read"
    if phase in _HERE:
        return None
    if phase == "COMPLETED":
        return f"the cluster has moved its metadata to {target}: its lists of ledgers here are out of date ({path})"
    return f"the cluster is moving its metadata to {target} and writes none meanwhile ({path}: {phase})"
