"""Segments in places that the settings do not name: after a change of the bucket nobody reads them there. Pure.

A bucket is read under every prefix, so a place is named if a service of the settings has its bucket.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from offloaderd.core.model import TopicName
from offloaderd.core.units import abridged, plural
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map.mirroring import Place
from offloaderd.protocol.status import unnamed_text

PLACES_MAX = 20
"""Unnamed places of one topic that are told apart; what lies in further ones counts for the last."""
TOPICS_NAMED = 3
"""Topics that a text names."""
WHAT_TO_DO = (
    "name the bucket again, in objects.places if service and keys are those of objects, else as a table of "
    "objects.services ('' is a directory of kind filesystem), and restart. To leave the place for good, then move its "
    "topics: offloadctl places move TOPIC --to BUCKET/PREFIX --delete-old"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnnamedPlace:
    """A place whose bucket no service of the settings has, and what of a topic lies there; bytes of data objects.

    `segments` have it as their first place, `only_segments` of them have no copy in a named place; `copies` are of
    segments whose mirror it is.
    """

    bucket: str
    prefix: str
    segments: int = 0
    segment_bytes: int = 0
    only_segments: int = 0
    only_bytes: int = 0
    copies: int = 0
    copy_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.bucket}/{self.prefix}"

    def plus(self, other: "UnnamedPlace") -> "UnnamedPlace":
        """Return this place with what lies in another one added."""
        return replace(
            self,
            segments=self.segments + other.segments,
            segment_bytes=self.segment_bytes + other.segment_bytes,
            only_segments=self.only_segments + other.only_segments,
            only_bytes=self.only_bytes + other.only_bytes,
            copies=self.copies + other.copies,
            copy_bytes=self.copy_bytes + other.copy_bytes,
        )


def unnamed_places(segments: Iterable[CommittedSegment], buckets: Container[str]) -> tuple[UnnamedPlace, ...]:
    """Return the places of segments that are in none of the `buckets`, which the settings name."""
    first: defaultdict[Place, list[CommittedSegment]] = defaultdict(list)
    copies: defaultdict[Place, list[CommittedSegment]] = defaultdict(list)
    for one in segments:
        if one.bucket not in buckets:
            first[one.place].append(one)
        if one.mirror is not None and one.mirror[0] not in buckets:
            copies[one.mirror].append(one)
    rows = [_row(place, first[place], copies[place], buckets) for place in dict.fromkeys([*first, *copies])]
    last = rows[PLACES_MAX - 1 :]
    return (*rows[: PLACES_MAX - 1], *([reduce(UnnamedPlace.plus, last)] if last else []))


def _row(
    place: Place, first: Sequence[CommittedSegment], copies: Sequence[CommittedSegment], buckets: Container[str]
) -> UnnamedPlace:
    only = [one for one in first if one.mirror is None or one.mirror[0] not in buckets]
    bucket, prefix = place
    return UnnamedPlace(
        bucket=bucket,
        prefix=prefix,
        segments=len(first),
        segment_bytes=sum(one.object_bytes for one in first),
        only_segments=len(only),
        only_bytes=sum(one.object_bytes for one in only),
        copies=len(copies),
        copy_bytes=sum(one.object_bytes for one in copies),
    )


def by_copy(rows: Iterable[UnnamedPlace]) -> dict[str, tuple[int, int]]:
    """Return the number of segments in unnamed places and the bytes of their data objects, by the copy that is there.

    `only`: no copy is in a named place; `first`: the mirror is; `mirror`: it is the second copy.
    """
    total = reduce(UnnamedPlace.plus, rows, UnnamedPlace(bucket="", prefix=""))
    return {
        "only": (total.only_segments, total.only_bytes),
        "first": (total.segments - total.only_segments, total.segment_bytes - total.only_bytes),
        "mirror": (total.copies, total.copy_bytes),
    }


class UnnamedPlaces:
    """The unnamed places of one topic; they are searched for only after a change of its segments."""

    def __init__(self, buckets: Container[str]) -> None:
        self._buckets = buckets
        self._seen: Sequence[CommittedSegment] | None = None
        self._found: tuple[UnnamedPlace, ...] = ()

    def of(self, segments: Sequence[CommittedSegment]) -> tuple[UnnamedPlace, ...]:
        """Return the unnamed places of the topic's segments."""
        if self._seen is not segments:
            self._seen, self._found = segments, unnamed_places(segments, self._buckets)
        return self._found


def described(found: Mapping[TopicName, Sequence[UnnamedPlace]]) -> list[str]:
    """Return a sentence for each unnamed place of some topics: what lies there, of which topics."""
    places: dict[str, UnnamedPlace] = {}
    topics: dict[str, list[TopicName]] = {}
    for topic, rows in found.items():
        for row in rows:
            name = str(row)
            places[name] = places[name].plus(row) if name in places else row
            topics.setdefault(name, []).append(topic)
    return [_sentence(name, one, sorted(topics[name])) for name, one in sorted(places.items())]


def _sentence(name: str, one: UnnamedPlace, topics: Sequence[TopicName]) -> str:
    of = f"{plural(len(topics), 'topic')} ({', '.join(abridged(list(map(str, topics)), TOPICS_NAMED))})"
    return f"the settings do not name the place {name}, where parts of {of} lie: {unnamed_text(one)}"
