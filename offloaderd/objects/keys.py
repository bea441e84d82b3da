"""Object keys, which no other module builds or parses, and the user metadata of objects.

Segments (PIP-76, V2) and ledgers (PIP-17, V1) have Pulsar's names behind an optional prefix, which is prepended
unchanged; the manifests are ours.

| object        | key                                  |
|---------------|--------------------------------------|
| V2 data       | `<prefix><uuid>`                     |
| V2 index      | `<prefix><uuid>-index`               |
| manifest      | `<prefix><uuid>-manifest`            |
| draft         | `<prefix><uuid>-draft`               |
| V1 data       | `<prefix><uuid>-ledger-<id>`         |
| V1 index      | `<prefix><uuid>-ledger-<id>-index`   |
| V1 manifest   | `<prefix><uuid>-ledger-<id>-manifest`|
| V1 draft      | `<prefix><uuid>-ledger-<id>-draft`   |
| head          | `<prefix>offloaderd-heads/<cluster>/<tenant>/<namespace>/persistent/<local>.head` |
| marker        | `<prefix>offloaderd-identity/<cluster>.marker` |
| provisional marker | `<prefix>offloaderd-identity/<cluster>/<deployment>.marker` |
| capture | `<prefix>offloaderd-captures/<cluster>/<time>-<begin of the deployment>.jsonl.gz` |

A draft is the manifest from a job's executor, without the totals of the entries before the segment. The commit writes
the manifest and deletes the draft; readers ignore drafts.

The uuid is in lower case with dashes; the ledger id in decimal without leading zeros.
"""

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote
from uuid import UUID

from offloaderd import __version__
from offloaderd.core.model import LEDGER_ID_MAX

FORMAT_VERSION_KEY = "s3managedledgeroffloaderformatversion"
SOFTWARE_VERSION_KEY = "s3managedledgeroffloadersoftwareversion"
SOFTWARE_REVISION_KEY = "s3managedledgeroffloadersoftwaregitsha"
CLUSTER_KEY = "pulsarclustername"
DEPLOYMENT_KEY = "offloaderddeployment"
"""Ours: the deployment that wrote the object; Pulsar's readers ignore unknown keys."""
ROLE_KEY = "role"
MANAGED_LEDGER_KEY = "managedledgername"
FORMAT_VERSION = "1"
"""Pulsar's readers refuse any other value, for V2 as well."""

GC_CLOCK = "offloaderd-gc/clock"
RETENTION_CLOCK = "offloaderd-retention/clock"
"""Keys for reading the store's time, unlike any segment's: deleted at once, or as garbage after a crash."""

HEADS = "offloaderd-heads/"
MARKERS = "offloaderd-identity/"
CAPTURES = "offloaderd-captures/"
"""Folders below the prefix, by the cluster's name: progress of each topic, the deployment that uses the place, and what
topics need besides their entries."""
CAPTURE_END = ".jsonl.gz"
"""End of the key of a capture."""
NAME_CHARS_MAX = 200
"""A longer local name is replaced by its digest: file systems allow names of 255 bytes."""

_NAME = re.compile(
    r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"(?:-ledger-(0|[1-9][0-9]{0,18}))?(?:-(index|manifest|draft))?"
)


class ObjectKind(StrEnum):
    """Kind of a segment's object."""

    DATA = "data"
    INDEX = "index"
    MANIFEST = "manifest"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectName:
    """A parsed key. `ledger_id` is that of a whole ledger's objects (V1), None for V2."""

    kind: ObjectKind
    object_id: UUID
    ledger_id: int | None = None


@dataclass(frozen=True, slots=True)
class SegmentKeys:
    """The keys of one segment's objects; with a `ledger_id` those of a whole ledger (V1)."""

    prefix: str
    segment_id: UUID
    ledger_id: int | None = None

    @property
    def data(self) -> str:
        """Key of the data object."""
        ledger = "" if self.ledger_id is None else f"-ledger-{self.ledger_id}"
        return f"{self.prefix}{self.segment_id}{ledger}"

    @property
    def index(self) -> str:
        """Key of the index."""
        return f"{self.data}-index"

    @property
    def manifest(self) -> str:
        """Key of the manifest."""
        return f"{self.data}-manifest"

    @property
    def draft(self) -> str:
        """Key of the draft, a job's manifest."""
        return f"{self.data}-draft"

    @property
    def all(self) -> tuple[str, str, str]:
        """Return the three keys of a committed segment, in the order of their writing."""
        return self.data, self.index, self.manifest

    @property
    def every(self) -> tuple[str, ...]:
        """Return all keys that a committed or abandoned segment may have objects under."""
        return *self.all, self.draft

    def of(self, kind: ObjectKind) -> str:
        """Return the key of one object."""
        return self.data if kind is ObjectKind.DATA else f"{self.data}-{kind}"


def parse(prefix: str, key: str) -> ObjectName | None:
    """Parse a key; None for one that SegmentKeys would not build with this prefix."""
    if not key.startswith(prefix):
        return None
    found = _NAME.fullmatch(key, len(prefix))
    if found is None:
        return None
    uuid, ledger, kind = found.groups()
    if ledger is not None and int(ledger) > LEDGER_ID_MAX:
        return None
    return ObjectName(
        kind=ObjectKind(kind) if kind else ObjectKind.DATA,
        object_id=UUID(uuid),
        ledger_id=int(ledger) if ledger is not None else None,
    )


def head(prefix: str, cluster: str, managed_ledger: str) -> str:
    """Key of a topic's head; no segment's key begins like it."""
    folder, _, local = managed_ledger.rpartition("/")
    if len(local) > NAME_CHARS_MAX:
        local = hashlib.sha256(local.encode()).hexdigest()
    return f"{prefix}{HEADS}{quote(cluster, safe='')}/{folder}/{local}.head"


def marker(prefix: str, cluster: str) -> str:
    """Key of the marker for the deployment of a cluster that uses a prefix."""
    return f"{prefix}{MARKERS}{quote(cluster, safe='')}.marker"


def provisional_markers(prefix: str, cluster: str) -> str:
    """Return the common begin of the keys of all provisional markers."""
    return f"{prefix}{MARKERS}{quote(cluster, safe='')}/"


def provisional_marker(prefix: str, cluster: str, deployment_id: str) -> str:
    """Key of the marker of a further deployment, which uses a prefix that is marked as another's."""
    return f"{provisional_markers(prefix, cluster)}{deployment_id}.marker"


def captures(prefix: str, cluster: str) -> str:
    """Return the common begin of the keys of all captures; a name and `CAPTURE_END` follow."""
    return f"{prefix}{CAPTURES}{quote(cluster, safe='')}/"


def is_beside(prefix: str, key: str) -> bool:
    """Whether an object is a head, a marker or a capture: it belongs to no segment and is never garbage."""
    return key.startswith((f"{prefix}{HEADS}", f"{prefix}{MARKERS}", f"{prefix}{CAPTURES}"))


def labels(
    where: SegmentKeys, kind: ObjectKind, *, cluster: str, managed_ledger: str, deployment_id: str = ""
) -> dict[str, str]:
    """Return the user metadata of one of a segment's objects."""
    if where.ledger_id is None:
        return segment_metadata(cluster, deployment_id)
    return ledger_metadata(cluster, managed_ledger, index=kind is not ObjectKind.DATA, deployment_id=deployment_id)


def segment_metadata(cluster: str, deployment_id: str = "") -> dict[str, str]:
    """User metadata of a segment's objects as Pulsar's readers expect it (keys in lower case), and the deployment."""
    return {
        FORMAT_VERSION_KEY: FORMAT_VERSION,
        SOFTWARE_VERSION_KEY: f"offloaderd-{__version__}",
        SOFTWARE_REVISION_KEY: "unknown",
        CLUSTER_KEY: cluster,
        **({DEPLOYMENT_KEY: deployment_id} if deployment_id else {}),
    }


def ledger_metadata(cluster: str, managed_ledger: str, *, index: bool, deployment_id: str = "") -> dict[str, str]:
    """User metadata of a V1 object: a segment's, and its role and managed ledger's name."""
    return {
        **segment_metadata(cluster, deployment_id),
        ROLE_KEY: "index" if index else "data",
        MANAGED_LEDGER_KEY: managed_ledger,
    }
