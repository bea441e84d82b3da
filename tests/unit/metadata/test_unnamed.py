"""What lies in places that the settings do not name is counted by place and by what of it can be read elsewhere."""

from __future__ import annotations

from uuid import UUID

from offloaderd.core.model import TopicName
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.topic_map import unnamed
from offloaderd.metadata.topic_map.unnamed import PLACES_MAX, UnnamedPlace, UnnamedPlaces, by_copy, described

NAMED = {"new"}
OLD, NEW, OTHER = ("old", "p/"), ("new", ""), ("other", "")


def segment(place: tuple[str, str], mirror: tuple[str, str] | None = None, size_bytes: int = 1024) -> CommittedSegment:
    """Return a segment of ten entries in a place, and perhaps a second one."""
    return CommittedSegment(
        segment_id=UUID(int=1),
        slices=(LedgerSlice(1, 0, 9, 100),),
        object_bytes=size_bytes,
        assigned_ms=1,
        offloaded_ms=2,
        bucket=place[0],
        prefix=place[1],
        mirror=mirror,
    )


def test_each_copy_counts_for_its_place() -> None:
    """A segment counts as one that only unnamed places have if no copy of it is in a named one, and once."""
    segments = [
        segment(NEW),
        segment(OLD),
        segment(OLD, NEW),
        segment(NEW, OLD),
        segment(OLD, OTHER),
        segment(NEW, NEW),
    ]
    old, other = unnamed.unnamed_places(segments, NAMED)
    counts = {"segments": 3, "segment_bytes": 3072, "only_segments": 2, "only_bytes": 2048}
    assert old == UnnamedPlace(bucket="old", prefix="p/", **counts, copies=1, copy_bytes=1024)
    assert other == UnnamedPlace(bucket="other", prefix="", copies=1, copy_bytes=1024)
    assert by_copy([old, other]) == {"only": (2, 2048), "first": (1, 1024), "mirror": (2, 2048)}


def test_a_prefix_need_not_be_named() -> None:
    """A bucket is read under every prefix."""
    assert unnamed.unnamed_places([segment(("new", "before/"))], NAMED) == ()


def test_places_are_bounded() -> None:
    """However often the bucket was changed, no segment is left out."""
    found = unnamed.unnamed_places([segment((f"b{number}", "")) for number in range(PLACES_MAX + 5)], NAMED)
    assert len(found) == PLACES_MAX
    assert sum(one.segments for one in found) == PLACES_MAX + 5


def test_they_are_searched_for_after_a_change_alone() -> None:
    """A status is made every few seconds, of every topic."""
    asked: list[str] = []

    class Asked(set[str]):
        def __contains__(self, bucket: object) -> bool:
            asked.append(str(bucket))
            return super().__contains__(bucket)

    places, segments = UnnamedPlaces(Asked(NAMED)), (segment(OLD),)
    found = places.of(segments)
    count = len(asked)
    assert (found, len(asked)) == (places.of(segments), count)
    assert places.of((segment(NEW),)) == ()


def test_the_sentence_names_place_topics_and_what_cannot_be_read() -> None:
    """One for each place, with a few topics."""
    row = UnnamedPlace(bucket="old", prefix="p/", segments=1, segment_bytes=2048, only_segments=1, only_bytes=2048)
    copy = UnnamedPlace(bucket="", prefix="", copies=2, copy_bytes=10)
    topics = [TopicName.parse(f"public/default/t{number}") for number in range(5)]
    first, second = described({topic: [row, copy] if topic == topics[0] else [row] for topic in topics})
    assert first == (
        "the settings do not name the place /, where parts of 1 topic (persistent://public/default/t0) lie: "
        "2 mirror copies (10 B)"
    )
    assert second.startswith("the settings do not name the place old/p/, where parts of 5 topics (persistent://public/")
    assert "t2, and 2 more) lie: 5 segments (10.0 KiB); 5 segments have no copy elsewhere" in second
