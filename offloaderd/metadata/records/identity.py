"""`identity`: the id of this deployment and its ledger source; for a topic, refusals and acceptances.

Ledger ids are valid only within one history. If the metadata, the bucket or the source seem to belong to another one,
the topic's record has a refusal: nothing of the topic is deleted and no deletion is granted until the cause is gone, or
an operator has accepted the evidence. An acceptance covers one piece of evidence; any other is refused again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from uuid import UUID

from offloaderd.core.model import RefusalKind
from offloaderd.format.parsing import filled
from offloaderd.format.pb.storage import identity_pb2
from offloaderd.metadata.records import codec

ACCEPTED_MAX = 50
"""Number of acceptances that are kept, the newest; the audit log has all."""
TEXT_CHARS_MAX = 2000
SEPARATOR = "; "
"""Stands between the pieces of evidence on several ledgers."""


OF_SOURCE = frozenset(
    {
        RefusalKind.OTHER_SOURCE,
        RefusalKind.UNKNOWN_SOURCE,
        RefusalKind.LIST_BEHIND,
        RefusalKind.LEDGER_REPLACED,
        RefusalKind.LEDGER_SHORTER,
    }
)
"""Refusals after which the source's entries may be another topic's; no reader gets them."""
_HINTS = {
    RefusalKind.METADATA_WENT_BACK: "restore newer metadata, or disable the topic, delete its node in "
    "the metadata store, and run `offloaderd rebuild --topic`",
    RefusalKind.OTHER_DEPLOYMENT: "give each deployment a bucket, prefix or daemon.cluster of its own",
    RefusalKind.HEAD_UNREADABLE: "compare bucket and metadata (`offloaderd verify --against-map`); if the metadata are "
    "the newest, and no other deployment writes there, accept it: the next commit puts the head anew",
    RefusalKind.OTHER_SOURCE: "point the daemon to the source that the topic was offloaded from",
    RefusalKind.UNKNOWN_SOURCE: "point the daemon to the source that the topic was offloaded from; if this is it, and "
    "its retention has deleted all that was offloaded, accept it",
    RefusalKind.LIST_BEHIND: "restore the source's metadata; if the source began anew, use another topic name",
    RefusalKind.LEDGER_REPLACED: "restore the source's metadata; if the source began anew, use another topic name",
    RefusalKind.LEDGER_SHORTER: "compare the ledger with the tier: `offloadctl ledgers list`",
    RefusalKind.UNKNOWN_PLACE: "correct account or endpoint in objects, objects.places or objects.services, and "
    "restart; if this is the place that the brokers wrote to, accept it: what is not there is lost",
}
_ACCEPT = "`offloadctl identity show` has the details, `offloadctl identity accept` accepts what was found"


def hint(kind: str) -> str:
    """Return the remedy for a refusal; for a kind of a later release, the command that describes it."""
    known = _HINTS.get(RefusalKind(kind)) if kind in set(RefusalKind) else None
    return f"{known}; {_ACCEPT}" if known else _ACCEPT


def head_evidence(segment_id: UUID) -> str:
    """Return the evidence that a topic's head names a segment of which the metadata know nothing."""
    return f"head at segment {segment_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceIdentity:
    """The source of ledger ids. `kind` is bookkeeper, embedded or none; an empty `instance_id` is unknown."""

    kind: str
    instance_id: str = ""
    cluster: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """An operator's acceptance of a kind of refusal, for one piece of evidence."""

    kind: str
    evidence: str
    by: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A standing refusal. `found` describes the finding; an acceptance has to name `evidence`.

    `kind` is a RefusalKind, or a kind of a later release.
    """

    kind: str
    found: str
    evidence: str
    since_ms: int
    epoch: int = 0

    @property
    def hint(self) -> str:
        """The remedy."""
        return hint(self.kind)

    def __str__(self) -> str:
        return f"{self.kind}: {self.found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One deployment: all daemons with one metadata root. `source` is None until a daemon has recorded it."""

    deployment_id: UUID
    made_ms: int
    made_by: str
    source: SourceIdentity | None = None
    accepted: tuple[Acceptance, ...] = ()
    unknown: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdentityRecord:
    """A topic's refusals, and the acceptances for it."""

    refusals: tuple[Refusal, ...] = ()
    accepted: tuple[Acceptance, ...] = ()
    unknown: bytes = field(default=b"", repr=False, compare=False)

    def accepts(self, kind: str, evidence: str) -> bool:
        """Whether an operator has accepted this piece of evidence; of one on several ledgers, that on each."""
        accepted = {piece for one in self.accepted if one.kind == kind for piece in one.evidence.split(SEPARATOR)}
        return accepted.issuperset(evidence.split(SEPARATOR))

    def refusing(self, refusal: Refusal) -> "TopicIdentityRecord":
        """Return the record with this refusal; it replaces an earlier one of its kind and keeps that one's time."""
        since_ms = next((one.since_ms for one in self.refusals if one.kind == refusal.kind), refusal.since_ms)
        return replace(self, refusals=(*self.without(refusal.kind).refusals, replace(refusal, since_ms=since_ms)))

    def without(self, kind: str) -> "TopicIdentityRecord":
        """Return the record without the refusal of this kind."""
        return replace(self, refusals=tuple(one for one in self.refusals if one.kind != kind))

    def accepting(self, acceptance: Acceptance) -> "TopicIdentityRecord":
        """Return the record with an acceptance, and without the refusal that it lifts."""
        kept = tuple(one for one in self.refusals if (one.kind, one.evidence) != (acceptance.kind, acceptance.evidence))
        return replace(self, refusals=kept, accepted=(*self.accepted, acceptance)[-ACCEPTED_MAX:])


def encode(value: TopicIdentityRecord) -> bytes:
    """Return the content of a topic's node."""
    refusals = [filled(identity_pb2.RefusalRecord, one, found=one.found[:TEXT_CHARS_MAX]) for one in value.refusals]
    return codec.content(identity_pb2.TopicIdentityRecord, value, refusals=refusals)


def decode(data: bytes, *, path: str) -> TopicIdentityRecord:
    """Read a topic's node; raises CorruptData."""
    record = codec.parse(identity_pb2.TopicIdentityRecord, data, path)
    refusals = tuple(
        codec.read(Refusal, one, kind=codec.present(path, "a refusal's kind", one.kind)) for one in record.refusals
    )
    return codec.read(TopicIdentityRecord, record, refusals=refusals, accepted=_accepted(path, record.accepted))


def encode_deployment(value: Deployment) -> bytes:
    """Return the content of the deployment's node."""
    return codec.content(identity_pb2.DeploymentRecord, value)


def decode_deployment(data: bytes, *, path: str) -> Deployment:
    """Read the deployment's node; raises CorruptData."""
    record = codec.parse(identity_pb2.DeploymentRecord, data, path)
    source = None
    if record.HasField("source"):
        kind = codec.present(path, "a source's kind", record.source.kind)
        source = codec.read(SourceIdentity, record.source, kind=kind)
    deployment_id = codec.segment_id(path, record.deployment_id)
    accepted = _accepted(path, record.accepted)
    return codec.read(Deployment, record, deployment_id=deployment_id, source=source, accepted=accepted)


def _accepted(path: str, records: Iterable[identity_pb2.AcceptanceRecord]) -> tuple[Acceptance, ...]:
    return tuple(
        codec.read(Acceptance, one, kind=codec.present(path, "an acceptance's kind", one.kind)) for one in records
    )
