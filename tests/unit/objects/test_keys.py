"""Keys are made and read back in one place."""

from __future__ import annotations

import string
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.core.model import LEDGER_ID_MAX
from offloaderd.objects import keys
from offloaderd.objects.keys import ObjectKind, ObjectName
from offloaderd.objects.port import ObjectInfo
from offloaderd.upkeep.stored import StoredSegment

SEGMENT = UUID("0c1f4bd1-6e4f-4a0e-8c7d-2f8f2a1b3c4d")


def test_shapes() -> None:
    """Pulsar's names, behind the prefix as it is."""
    name = "0c1f4bd1-6e4f-4a0e-8c7d-2f8f2a1b3c4d"
    assert keys.SegmentKeys("", SEGMENT).data == name
    assert keys.SegmentKeys("a/", SEGMENT).data == f"a/{name}"
    assert keys.SegmentKeys("a-", SEGMENT).index == f"a-{name}-index"
    assert keys.SegmentKeys("", SEGMENT).manifest == f"{name}-manifest"
    assert keys.SegmentKeys("p/", SEGMENT, 12).data == f"p/{name}-ledger-12"
    assert keys.SegmentKeys("", SEGMENT, 0).index == f"{name}-ledger-0-index"


@given(
    prefix=st.text(string.ascii_letters + "/-0", max_size=10),
    object_id=st.uuids(),
    ledger_id=st.integers(0, LEDGER_ID_MAX),
)
def test_round_trip(prefix: str, object_id: UUID, ledger_id: int) -> None:
    """What is made can be taken apart."""
    made = {
        keys.SegmentKeys(prefix, object_id).data: (ObjectKind.DATA, None),
        keys.SegmentKeys(prefix, object_id).index: (ObjectKind.INDEX, None),
        keys.SegmentKeys(prefix, object_id).manifest: (ObjectKind.MANIFEST, None),
        keys.SegmentKeys(prefix, object_id).draft: (ObjectKind.DRAFT, None),
        keys.SegmentKeys(prefix, object_id, ledger_id).draft: (ObjectKind.DRAFT, ledger_id),
        keys.SegmentKeys(prefix, object_id, ledger_id).data: (ObjectKind.DATA, ledger_id),
        keys.SegmentKeys(prefix, object_id, ledger_id).index: (ObjectKind.INDEX, ledger_id),
        keys.SegmentKeys(prefix, object_id, ledger_id).manifest: (ObjectKind.MANIFEST, ledger_id),
    }
    assert len(made) == 8
    for key, (kind, ledger) in made.items():
        assert keys.parse(prefix, key) == ObjectName(kind=kind, object_id=object_id, ledger_id=ledger)
        assert keys.parse(f"{prefix}x", key) is None


@pytest.mark.parametrize(
    "key",
    [
        "",
        "p/",
        f"{SEGMENT}",
        f"p/{SEGMENT}".upper(),
        f"p/{str(SEGMENT).upper()}",
        f"p/{SEGMENT.hex}",
        f"p/{SEGMENT}-",
        f"p/{SEGMENT}-Index",
        f"p/{SEGMENT}-index-index",
        f"p/{SEGMENT}-manifest\n",
        f"p/{SEGMENT}-ledger-",
        f"p/{SEGMENT}-ledger-01",
        f"p/{SEGMENT}-ledger--1",
        f"p/{SEGMENT}-ledger-\u0661",
        f"p/{SEGMENT}-ledger-{LEDGER_ID_MAX + 1}",
        f"p/x{SEGMENT}",
    ],
)
def test_foreign_keys(key: str) -> None:
    """A key that nothing here would make belongs to somebody else."""
    assert keys.parse("p/", key) is None


def test_metadata() -> None:
    """The metadata that Pulsar's readers check is there, and every key is in lower case."""
    segment = keys.segment_metadata("west")
    assert segment["s3managedledgeroffloaderformatversion"] == "1"
    assert segment["pulsarclustername"] == "west"
    assert "role" not in segment
    ledger = keys.ledger_metadata("west", "t/n/persistent/topic", index=True)
    assert ledger == segment | {"role": "index", "managedledgername": "t/n/persistent/topic"}
    assert keys.ledger_metadata("west", "m", index=False)["role"] == "data"
    assert all(name == name.lower() and value for name, value in ledger.items())


def test_a_draft_is_ours_and_goes_with_its_segment() -> None:
    """A job's ledger that was never committed is no broker's; whoever deletes a segment deletes its draft with it."""
    where = keys.SegmentKeys("p/", SEGMENT, 12)
    assert {*where.every} == {where.of(kind) for kind in ObjectKind}
    info = ObjectInfo(key="k", size_bytes=1, etag="e", modified_ms=0)
    written = StoredSegment(bucket="b", keys=where, objects={ObjectKind.DATA: info, ObjectKind.INDEX: info})
    assert written.may_be_brokers
    written.objects[ObjectKind.DRAFT] = info
    assert not written.may_be_brokers


@pytest.mark.parametrize("prefix", ["", "p/", "p-"])
def test_what_is_beside_segments_is_distinguished_from_copies(prefix: str) -> None:
    """Heads and markers are of no segment; what readers, brokers and the collector take for a copy is none of them."""
    beside = [
        keys.head(prefix, "c", "public/default/persistent/t"),
        keys.head(prefix, "a/b", "public/default/persistent/" + "t" * 300),
        keys.marker(prefix, "c"),
        keys.marker(prefix, "a/b"),
        keys.provisional_marker(prefix, "c", str(SEGMENT)),
    ]
    assert all(keys.is_beside(prefix, key) and keys.parse(prefix, key) is None for key in beside)
    for of in (keys.SegmentKeys(prefix, SEGMENT), keys.SegmentKeys(prefix, SEGMENT, 12)):
        assert not any(keys.is_beside(prefix, key) for key in (of.data, of.index, of.manifest))
