"""The only place that makes or reads object keys, and the user metadata that goes with the objects.

Segments (PIP-76, V2) and ledgers (PIP-17, V1) are stored under the names that Pulsar gives them, behind an optional
prefix that is put in front as it is; the manifest is ours.

| object        | key                                  |
|---------------|--------------------------------------|
| V2 data       | `<prefix><uuid>`                     |
| V2 index      | `<prefix><uuid>-index`               |
| manifest      | `<prefix><uuid>-manifest`            |
| V1 data       | `<prefix><uuid>-ledger-<id>`         |
| V1 index      | `<prefix><uuid>-ledger-<id>-index`   |

The uuid is written in lower case with dashes; the ledger id in decimal without leading zeros.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from offloaderd import __version__
from offloaderd.model import LEDGER_ID_MAX

FORMAT_VERSION_KEY = "s3managedledgeroffloaderformatversion"
SOFTWARE_VERSION_KEY = "s3managedledgeroffloadersoftwareversion"
SOFTWARE_REVISION_KEY = "s3managedledgeroffloadersoftwaregitsha"
CLUSTER_KEY = "pulsarclustername"
ROLE_KEY = "role"
MANAGED_LEDGER_KEY = "managedledgername"
FORMAT_VERSION = "1"
"""Pulsar's readers refuse any other value, for V2 as well."""

GC_CLOCK = "offloaderd-gc/clock"
RETENTION_CLOCK = "offloaderd-retention/clock"
"""Written below the prefix to learn the store's time, and deleted at once; no segment's key looks like them.

What a crash leaves of them the collector of garbage deletes.
"""

_NAME = re.compile(
    r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"(?:(-index)|(-manifest)|-ledger-(0|[1-9][0-9]{0,18})(-index)?)?"
)


class ObjectKind(StrEnum):
    """What an object of ours is."""

    DATA = "data"
    INDEX = "index"
    MANIFEST = "manifest"
    V1_DATA = "v1-data"
    V1_INDEX = "v1-index"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectName:
    """A key taken apart. `ledger_id` is None except for the two kinds of V1."""

    kind: ObjectKind
    object_id: UUID
    ledger_id: int | None = None


def data_key(prefix: str, segment_id: UUID) -> str:
    """Key of a segment's data object."""
    return f"{prefix}{segment_id}"


def index_key(prefix: str, segment_id: UUID) -> str:
    """Key of a segment's index."""
    return f"{prefix}{segment_id}-index"


def manifest_key(prefix: str, segment_id: UUID) -> str:
    """Key of a segment's manifest."""
    return f"{prefix}{segment_id}-manifest"


def v1_data_key(prefix: str, object_id: UUID, ledger_id: int) -> str:
    """Key of the data object of one offloaded ledger."""
    return f"{prefix}{object_id}-ledger-{ledger_id}"


def v1_index_key(prefix: str, object_id: UUID, ledger_id: int) -> str:
    """Key of the index of one offloaded ledger."""
    return f"{prefix}{object_id}-ledger-{ledger_id}-index"


def parse(prefix: str, key: str) -> ObjectName | None:
    """Take a key apart; None for one that none of the functions above would make with this prefix."""
    if not key.startswith(prefix):
        return None
    found = _NAME.fullmatch(key, len(prefix))
    if found is None:
        return None
    uuid, index, manifest, ledger, v1_index = found.groups()
    object_id = UUID(uuid)
    if ledger is not None:
        if int(ledger) > LEDGER_ID_MAX:
            return None
        kind = ObjectKind.V1_INDEX if v1_index else ObjectKind.V1_DATA
        return ObjectName(kind=kind, object_id=object_id, ledger_id=int(ledger))
    kind = ObjectKind.INDEX if index else ObjectKind.MANIFEST if manifest else ObjectKind.DATA
    return ObjectName(kind=kind, object_id=object_id)


def segment_metadata(cluster: str) -> dict[str, str]:
    """User metadata of a segment's objects, as Pulsar's readers expect it (keys in lower case)."""
    return {
        FORMAT_VERSION_KEY: FORMAT_VERSION,
        SOFTWARE_VERSION_KEY: f"offloaderd-{__version__}",
        SOFTWARE_REVISION_KEY: "unknown",
        CLUSTER_KEY: cluster,
    }


def ledger_metadata(cluster: str, managed_ledger: str, *, index: bool) -> dict[str, str]:
    """User metadata of a V1 object: a segment's, with its role and the managed ledger's name."""
    return {
        **segment_metadata(cluster),
        ROLE_KEY: "index" if index else "data",
        MANAGED_LEDGER_KEY: managed_ledger,
    }
