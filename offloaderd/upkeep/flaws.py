"""Flaws of stored segments: kind, place and what an operator can do; a rebuild has its problems by the same kinds."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from offloaderd.core.errors import BucketMissing, CorruptData, NotFound, OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map import unnamed
from offloaderd.objects.keys import SegmentKeys


class Level(StrEnum):
    """Levels of verification; each includes those before it."""

    METADATA = "metadata"
    """Index and manifest are read completely; of the data object only the size."""
    HEADERS = "headers"
    """Every block's header is read, and the head of its first entry."""
    FULL = "full"
    """Every byte is read: each block's checksum, each entry's framing."""


class Kind(StrEnum):
    """Kinds of flaws. Those in NOTES are no problem; UNREACHABLE: the object could not be read."""

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
    """The manifest has other times or message indexes than the block's entries."""
    CHUNKS = "chunks"
    """The manifest has other chunks of a block than its bytes."""
    IDENTITY = "identity"
    """An object has another segment than its key names."""
    MAP = "map"
    """The manifest differs from what was committed."""
    LOSSES = "losses"
    """The manifest lacks a loss that the map has before or within the segment."""
    UNREADABLE = "unreadable"
    """A rebuild cannot read the manifest, so the entries of its segment are unknown."""
    INCOMPLETE = "incomplete"
    """A rebuild finds data or index missing, or not as long as the manifest says."""
    OVERLAP = "overlap"
    """Two segments hold the same entries."""
    GAP = "gap"
    """Entries that existed between two segments are in neither."""
    CONTRADICTION = "contradiction"
    """Manifests disagree about one ledger."""
    DOUBT = "doubt"
    """Entries may have existed between two segments; no manifest shows it."""
    FRONT = "front"
    """Entries before the first segment are not in the bucket: deleted by retention, or lost."""
    ORPHAN = "orphan"
    """Objects of a segment that was never finished, or whose manifest is lost."""
    UNREFERENCED = "unreferenced"
    """A whole segment that is not in the map."""
    SUPERSEDED = "superseded"
    """A streaming segment holds entries of ledgers that are in objects of their own as well."""
    DAMAGED_COPY = "damaged_copy"
    """A segment is incomplete or unreadable in one place, and sound in another."""
    FOREIGN = "foreign"
    """A segment of another cluster."""
    ELSEWHERE = "elsewhere"
    """A committed segment in another bucket or under another prefix."""
    UNREACHABLE = "unreachable"
    """The store did not answer, or did not allow it."""


NOTES = frozenset(
    {
        Kind.DOUBT,
        Kind.FRONT,
        Kind.ORPHAN,
        Kind.UNREFERENCED,
        Kind.SUPERSEDED,
        Kind.DAMAGED_COPY,
        Kind.FOREIGN,
        Kind.ELSEWHERE,
    }
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
    Kind.ELSEWHERE: unnamed.WHAT_TO_DO,
    Kind.UNREACHABLE: "bring the store back, or give the rights, and look again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """One flaw. `offset` is a byte of the object `key`, None for the whole object; `entries` are concerned if known."""

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
        """Advice for an operator."""
        return self.advice or WHAT_TO_DO.get(self.kind, "")

    @property
    def is_problem(self) -> bool:
        """Whether it is a problem; else a note, or an object that could not be read."""
        return self.kind not in NOTES and self.kind is not Kind.UNREACHABLE

    def __str__(self) -> str:
        """Key, byte, what was expected and what was found, in one line."""
        where = f"{self.key} at byte {self.offset}" if self.offset is not None else self.key
        said = f"expected {self.expected}, found {self.found}" if self.expected else self.found
        return f"{where}: {said}" + (f" (entries {self.entries})" if self.entries else "")


NO_DAMAGE = NOTES | {Kind.UNREACHABLE, Kind.LABELS, Kind.LOSSES, Kind.OVERLAP, Kind.GAP, Kind.CONTRADICTION}
"""Kinds that do not affect what readers get; the last three are between segments."""


def first_damage(flaws: Iterable[Flaw]) -> Flaw | None:
    """Return the first flaw in what readers get, for which the source should keep the ledger."""
    return next((one for one in flaws if one.kind not in NO_DAMAGE), None)


def damage_by_segment(flaws: Iterable[Flaw]) -> dict[UUID, str]:
    """Return the first damage of each segment that has any."""
    found: dict[UUID, str] = {}
    for one in flaws:
        if one.segment_id is not None and one.kind not in NO_DAMAGE:
            found.setdefault(one.segment_id, str(one))
    return found


def of_places(places: Sequence[tuple[tuple[str, str], Sequence[Flaw]]]) -> list[Flaw]:
    """Return the flaws of a segment that lies in several places, with the place of each.

    `places` are bucket and prefix with what was found there by the checksums of the manifest. If a place is sound, the
    flaws of the others say so.
    """
    if len(places) == 1:
        return [*places[0][1]]
    sound = next((place for place, flaws in places if first_damage(flaws) is None and not _unknown(flaws)), None)
    found: list[Flaw] = []
    for (bucket, prefix), flaws in places:
        for flaw in flaws:
            advice = flaw.advice
            if sound is not None and flaw.kind not in NO_DAMAGE:
                advice = (
                    f"the one in bucket {sound[0]!r} under prefix {sound[1]!r} is right: copy the object from there"
                )
            said = f"{flaw.found}, in bucket {bucket!r} under prefix {prefix!r}"
            found.append(replace(flaw, found=said, advice=advice))
    return found


def _unknown(flaws: Iterable[Flaw]) -> bool:
    return any(one.kind in {Kind.UNREACHABLE, Kind.ELSEWHERE} for one in flaws)


def corrupt(kind: Kind, error: CorruptData, *, entries: str = "") -> Flaw:
    """Return an error of the formats as a flaw."""
    expected, found = str(error.expected), str(error.found)
    return Flaw(kind=kind, key=error.key, offset=error.offset, expected=expected, found=found, entries=entries)


@contextmanager
def noted(flaws: list[Flaw], key: str, kind: Kind, *, entries: str = "") -> Iterator[None]:
    """Add a missing object, or corrupt data as a flaw of `kind`, to `flaws`."""
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
    """Return the flaw of a segment that could not be read."""
    return Flaw(
        kind=Kind.UNREACHABLE,
        key=keys.data,
        found=error.message,
        entries=str(committed.range) if committed is not None else "",
        topic=topic,
        segment_id=keys.segment_id,
        advice=error.hint,
    )
