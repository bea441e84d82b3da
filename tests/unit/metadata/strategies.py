"""Random topics, records and segments for the property tests of this folder."""

from __future__ import annotations

from hypothesis import strategies as st

from offloaderd.core.model import LedgerEnd, Loss, OutagePolicy, Position, TierRetention, TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.read_options import ReadPriority
from offloaderd.format.manifest import Past
from offloaderd.format.v2 import SegmentLayout
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus, Seal, StoredPart, stored_part
from offloaderd.metadata.records.context import LedgerContext, LedgerSegment
from offloaderd.metadata.records.deletion import Floor
from offloaderd.metadata.records.grant import Grant, GrantedObject, GrantedSegment, Summary
from offloaderd.policy.records import Selection, TopicPolicy
from tests.unit.format import builders

INT63 = st.integers(0, 2**63 - 1)
UINT64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
NAME = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
SIZE = st.integers(1, 2**63)
SECONDS = st.floats(0, 1e9)

topic_parts = st.from_regex(r"[-=:.\w]{1,10}", fullmatch=True)
local_names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=12)
topic_names = st.builds(TopicName, topic_parts, topic_parts, local_names)

positions = st.builds(Position, INT63, INT63)
properties = st.dictionaries(TEXT, TEXT, max_size=4)


@st.composite
def _parts(draw: st.DrawFn) -> tuple[StoredPart, ...]:
    """A segment's blocks in a few parts."""
    blocks = draw(builders.segments).manifest.blocks
    cut = draw(st.integers(1, len(blocks)))
    halves = [half for half in (blocks[:cut], blocks[cut:]) if half]
    return tuple(stored_part(draw(TEXT), draw(UINT64), half) for half in halves)


@st.composite
def _seals(draw: st.DrawFn) -> Seal:
    """The end of a segment, with what was known of its ledgers."""
    ledgers = draw(builders.segments).manifest.ledgers
    return Seal(
        sealed_ms=draw(UINT64),
        epoch=draw(UINT64),
        software_version=draw(TEXT),
        data_bytes=draw(UINT64),
        part_count=draw(st.integers(0, 10_000)),
        ledgers=ledgers,
        losses=tuple(draw(st.lists(st.builds(Loss, positions, positions, UINT64, UINT64), max_size=2))),
        ends=tuple((part.ledger_id, LedgerEnd(draw(INT63), draw(st.none() | INT63))) for part in ledgers[:1]),
        past=draw(st.none() | st.builds(Past, UINT64, positions, st.none() | UINT64, st.none() | UINT64)),
    )


attempts = st.builds(
    Attempt,
    segment_id=st.uuids(),
    begin=positions,
    assigned_ms=UINT64,
    epoch=UINT64,
    status=st.sampled_from(AttemptStatus),
    upload_id=TEXT,
    driver=TEXT,
    driver_properties=properties,
    tries=st.integers(0, 2**32 - 1),
    last_error=TEXT,
    layout=st.none() | st.builds(SegmentLayout, block_bytes=SIZE, part_bytes=SIZE, preamble=st.booleans()),
    parts=st.just(()) | _parts(),
    seal=st.none() | _seals(),
    storage_class=TEXT,
    tags=st.dictionaries(TEXT, TEXT, max_size=3),
    created=st.dictionaries(INT63, UINT64, max_size=3),
)
policies = st.builds(
    TopicPolicy,
    enabled=st.booleans(),
    segment_bytes_max=st.none() | UINT64,
    segment_age_max_s=st.none() | SECONDS,
    segment_age_min_s=st.none() | SECONDS,
    read_priority=st.none() | st.sampled_from(ReadPriority),
    selected_by=st.sampled_from(["", "public/default/*"]),
    partitioned=st.booleans(),
    retention=st.none() | st.sampled_from(TierRetention),
    outage=st.none() | st.sampled_from(OutagePolicy),
    retention_age_s=st.none() | SECONDS,
    retention_bytes=st.none() | UINT64,
    storage_class=st.none() | TEXT,
    tags=st.none() | TEXT,
)
selections = st.builds(
    Selection,
    pattern=st.sampled_from(["public/default/*", "public/*", "re:.*/eu-(a|b).*", "persistent://re:a/*"]).map(
        TopicPattern.parse
    ),
    policy=policies,
    created_ms=UINT64,
)


@st.composite
def ledger_contexts(draw: st.DrawFn) -> LedgerContext:
    """A ledger's segments, contiguous; the first may begin anywhere."""
    begin = draw(st.sampled_from([0, 1, 1000, 2**40]) | st.integers(0, 2**50))
    segments = []
    for length in draw(st.lists(st.integers(1, 2**40), max_size=5)):
        segments.append(
            LedgerSegment(
                segment_id=draw(st.uuids()),
                begin_entry_id=begin,
                end_entry_id=begin + length - 1,
                assigned_ms=draw(INT63),
                offloaded_ms=draw(INT63),
                object_bytes=draw(INT63),
                payload_bytes=draw(INT63),
                driver=draw(TEXT),
                properties=draw(properties),
            )
        )
        begin += length
    times = st.none() | INT63
    return LedgerContext(segments=tuple(segments), deleted_ms=draw(times), created_ms=draw(times))


@st.composite
def _floors(draw: st.DrawFn) -> Floor:
    position = draw(st.builds(Position, st.integers(0, 2**40), st.integers(0, 2**40)))
    following = draw(st.none() | st.integers(position.ledger_id + 1, 2**62))
    ended = LedgerEnd(position.entry_id + 1 + draw(st.integers(0, 9)), following)
    return Floor(
        position=position,
        end=draw(st.sampled_from([None, ended])),
        deleted_ms=draw(UINT64),
        segments=draw(UINT64),
        object_bytes=draw(UINT64),
        reason=draw(TEXT),
    )


floors = _floors()


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    """A grant of a ledger in a few segments, or the bare word that there is to be none."""
    objects = st.builds(
        GrantedObject, key=NAME, size_bytes=UINT64, crc32c=st.none() | st.integers(0, 2**32 - 1), etag=TEXT
    )
    segments: list[GrantedSegment] = []
    entries = 0
    for length in draw(st.lists(st.integers(1, 2**40), max_size=4)):
        segments.append(
            GrantedSegment(
                segment_id=draw(st.uuids()),
                first_entry_id=entries,
                last_entry_id=entries + length - 1,
                objects=tuple(draw(st.lists(objects, max_size=3))),
            )
        )
        entries += length
    held = tuple(segments)
    short = draw(st.booleans())
    summary = Summary.of(held) if held and short else None
    return Grant(
        ledger_id=draw(INT63),
        entries=entries,
        segments=held if summary is None else (),
        summary=summary,
        readback=draw(st.booleans()),
        verified_ms=draw(UINT64),
        daemon_id=draw(TEXT),
        epoch=draw(UINT64),
        not_before_ms=draw(UINT64),
        revoked_ms=draw(UINT64),
        revoked_reason=draw(TEXT),
        source_deleted_ms=draw(UINT64),
    )
