"""What may be wrong with stored segments: one flaw is one thing, where it is, and what to do about it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from offloaderd.core.errors import BucketMissing, CorruptData, NotFound, OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.objects.keys import SegmentKeys


class Level(StrEnum):
    """How closely one looks; each level includes those before it."""

    METADATA = "metadata"
    """Index and manifest are read whole; the data object is asked for its size."""
    HEADERS = "headers"
    """Every block's header is read, and the head of its first entry."""
    FULL = "full"
    """Every byte is read: each block's checksum, each entry's framing."""


class Kind(StrEnum):
    """Kinds of flaws. Those in NOTES are said and are no flaw; UNREACHABLE says that nobody could look."""

    MISSING = "missing"
    """An object of a segment is not there."""
    SIZE = "size"
    """The data object has another length than the manifest says."""
    LABELS = "labels"
    """An object lacks the user metadata without which Pulsar's readers refuse it."""
    MANIFEST = "manifest"
    """The manifest cannot be read."""
    INDEX = "index"
    """The index is not the one that belongs to the manifest."""
    HEADER = "header"
    """A block begins with something else than its header."""
    BLOCK = "block"
    """A block's bytes are not those that were written."""
    TIMES = "times"
    """The manifest says other times or message indexes than the block's entries have."""
    CHUNKS = "chunks"
    """The manifest says other chunks of a block than its bytes have."""
    IDENTITY = "identity"
    """An object holds another segment than its key says."""
    MAP = "map"
    """The manifest says something else than was committed."""
    LOSSES = "losses"
    """The map has a loss before or within the segment, and the manifest has not."""
    OVERLAP = "overlap"
    """Two segments hold the same entries."""
    GAP = "gap"
    """Entries between two segments are in neither."""
    CONTRADICTION = "contradiction"
    """Manifests say different things of one ledger."""
    DOUBT = "doubt"
    """Nobody can tell whether there was anything between two segments."""
    FRONT = "front"
    """What lay before the first segment is not in the bucket."""
    ORPHAN = "orphan"
    """Objects of a segment that was never finished."""
    UNREFERENCED = "unreferenced"
    """A whole segment that is not in the map."""
    SUPERSEDED = "superseded"
    """A streaming segment holds entries of ledgers that lie in objects of their own as well."""
    FOREIGN = "foreign"
    """A segment of another cluster."""
    ELSEWHERE = "elsewhere"
    """A committed segment that lies in another bucket or under another prefix."""
    UNREACHABLE = "unreachable"
    """The store did not answer, or did not allow it."""


NOTES = frozenset(
    {Kind.DOUBT, Kind.FRONT, Kind.ORPHAN, Kind.UNREFERENCED, Kind.SUPERSEDED, Kind.FOREIGN, Kind.ELSEWHERE}
)

RESTORE = (
    "restore the object from a copy or an older version of it; while the ledger source has the entries, they are "
    "read from there: offloadctl grants revoke keeps it from deleting them"
)
WHAT_TO_DO = {
    Kind.MISSING: RESTORE,
    Kind.SIZE: RESTORE,
    Kind.MANIFEST: RESTORE,
    Kind.INDEX: RESTORE,
    Kind.HEADER: RESTORE,
    Kind.BLOCK: RESTORE,
    Kind.TIMES: "the entries are sound, only seeks may miss some of them; restore the manifest, or read by positions",
    Kind.CHUNKS: "the entries are sound when blocks are read whole, reads of single entries fail; restore the manifest",
    Kind.IDENTITY: "somebody copied objects to other keys: restore the right one",
    Kind.LABELS: "copy the object onto itself with its user metadata, so that Pulsar's own readers take it",
    Kind.MAP: "compare the map with the manifest; restore whichever was changed by hand",
    Kind.LOSSES: "the entries are sound; a rebuild from the bucket does not know of the loss: restore the manifest, "
    "or have the segments merged (offloadctl convert), which writes it anew",
    Kind.ORPHAN: "nothing: offloadctl gc deletes it once it is old enough",
    Kind.UNREFERENCED: "offloadctl gc says whether it is to be kept",
    Kind.SUPERSEDED: "nothing: they were rewritten for a stock broker; what nobody refers to, offloadctl gc deletes",
    Kind.FOREIGN: "nothing: two clusters share the prefix; objects.prefix can keep them apart",
    Kind.ELSEWHERE: "look there with settings that name that bucket and prefix",
    Kind.UNREACHABLE: "bring the store back, or give the rights, and look again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """One thing that is wrong. `offset` is a byte of the object `key`, None when it is about the whole.

    `entries` says which entries are concerned, as far as it is known.
    """

    kind: Kind
    key: str
    offset: int | None = None
    expected: str = ""
    found: str = ""
    entries: str = ""
    topic: TopicName | None = None
    segment_id: UUID | None = None
    advice: str = ""

    @property
    def what_to_do(self) -> str:
        """What an operator can do."""
        return self.advice or WHAT_TO_DO.get(self.kind, "")

    @property
    def is_problem(self) -> bool:
        """Whether something is wrong; else it is a note, or could not be looked at."""
        return self.kind not in NOTES and self.kind is not Kind.UNREACHABLE

    def __str__(self) -> str:
        """Key, byte, what was expected and what was found, in one line."""
        where = f"{self.key} at byte {self.offset}" if self.offset is not None else self.key
        said = f"expected {self.expected}, found {self.found}" if self.expected else self.found
        return f"{where}: {said}" + (f" (entries {self.entries})" if self.entries else "")


NO_DAMAGE = NOTES | {
    Kind.UNREACHABLE,
    Kind.LABELS,
    Kind.LOSSES,
    Kind.OVERLAP,
    Kind.GAP,
    Kind.CONTRADICTION,
}
"""Readers get what a segment holds all the same; the last three lie between segments."""


def first_damage(flaws: Iterable[Flaw]) -> Flaw | None:
    """Return the first flaw for which a ledger is better kept at its source: one of what readers get."""
    return next((one for one in flaws if one.kind not in NO_DAMAGE), None)


def damage_by_segment(flaws: Iterable[Flaw]) -> dict[UUID, str]:
    """Return what is damaged of each segment of which `first_damage` has something."""
    found: dict[UUID, str] = {}
    for one in flaws:
        if one.segment_id is not None and one.kind not in NO_DAMAGE:
            found.setdefault(one.segment_id, str(one))
    return found


def corrupt(kind: Kind, error: CorruptData, *, entries: str = "") -> Flaw:
    """Return the flaw that an error of the formats tells of."""
    expected, found = str(error.expected), str(error.found)
    return Flaw(kind=kind, key=error.key, offset=error.offset, expected=expected, found=found, entries=entries)


@contextmanager
def noted(flaws: list[Flaw], key: str, kind: Kind, *, entries: str = "") -> Iterator[None]:
    """Add to `flaws` that the object is missing, or that what is in it is corrupt, which is one of `kind`."""
    try:
        yield
    except BucketMissing:
        raise
    except NotFound:
        flaws.append(Flaw(kind=Kind.MISSING, key=key, found="no such object", entries=entries))
    except CorruptData as error:
        flaws.append(corrupt(kind, error, entries=entries))


def unreachable(
    error: OffloaderError, keys: SegmentKeys, *, topic: TopicName | None, committed: CommittedSegment | None = None
) -> Flaw:
    """Return the flaw that a segment could not be looked at."""
    return Flaw(
        kind=Kind.UNREACHABLE,
        key=keys.data,
        found=error.message,
        entries=str(committed.range) if committed is not None else "",
        topic=topic,
        segment_id=keys.segment_id,
        advice=error.hint,
    )
