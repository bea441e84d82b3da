"""offloadctl explain and verify, over gRPC: what they show, their JSON, and their exit codes."""

# ruff: noqa: ANN401, N802 - a servicer's methods are named by the proto, and generated messages come as they are
from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from offloaderd.api.inspect import InspectService
from offloaderd.cli.program import NOT_FOUND, exit_code
from offloaderd.core.errors import TopicNotFound, Transient
from offloaderd.core.model import LedgerEnd, Position
from offloaderd.metadata import paths
from offloaderd.metadata.records import grant as grant_record
from offloaderd.metadata.records import verified as verified_record
from offloaderd.metadata.records.grant import Grant
from offloaderd.metadata.records.ownership import Owner
from offloaderd.metadata.records.verified import SegmentVerified, Verified
from offloaderd.objects.retrying import RetryingReader
from offloaderd.protocol.v1 import common_pb2, inspect_pb2, inspect_pb2_grpc
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.upkeep.explain import Explainer, Held
from offloaderd.upkeep.flaws import Kind, Level
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify import cluster
from offloaderd.upkeep.verify.cluster import Between, SegmentReport, TopicVerifier
from tests.unit.cli.conftest import Ctl
from tests.unit.cli.fake_daemon import serving
from tests.unit.read.build import FastClock
from tests.unit.upkeep.site import (
    BUCKET,
    CLUSTER,
    PREFIX,
    TOPIC,
    Ground,
    data_key,
    index_key,
    manifest_key,
    runs,
    segment_id,
)
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from offloaderd.core.model import TopicName
    from offloaderd.fleet.engine import Engine
    from offloaderd.metadata.topic_map.map import TopicMap
    from offloaderd.objects.port import ObjectInfo, SegmentStore


@dataclass
class Known:
    """Maps, tiers and owners of a small site."""

    ground: Ground

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """What is committed."""
        return await self.ground.map(topic)

    async def held(self, topic: TopicName, position: Position) -> Held:
        """The source holds one entry more."""
        return Held(buffer=False, source=position == Position(3, 4), in_source=True, ended=None, newest=Position(3, 4))

    async def layout(self, topic: TopicName) -> inspect_pb2.LayoutResponse:
        """Return a buffer and a source that is away, over 120 entries, of which the first sixty are in a bucket."""
        at, extent = common_pb2.Position, inspect_pb2.LayoutResponse.Extent
        held = inspect_pb2.LayoutResponse.Holder
        newest = extent(begin=at(ledger_id=3, entry_id=1), end=at(ledger_id=3, entry_id=4), offset=115, entries=5)
        stored = extent(begin=at(ledger_id=1), end=at(ledger_id=1, entry_id=60), offset=0, entries=61)
        return inspect_pb2.LayoutResponse(
            first=at(ledger_id=1),
            last=at(ledger_id=3, entry_id=4),
            entries=120,
            deleted=at(ledger_id=0, entry_id=9),
            holders=[
                held(kind="buffer", name="d1", extents=[newest], entries=5),
                held(kind="source", name="bookkeeper", problem="no answer within 4 s"),
                held(kind="place", name=f"{BUCKET}/{PREFIX}", extents=[stored], entries=61),
            ],
        )

    async def owner_of(self, topic: TopicName) -> Owner:
        """Somebody."""
        return Owner(daemon_id="d1", address="h:1", session_id="s", epoch=4)


class Threaded(inspect_pb2_grpc.InspectServiceServicer):
    """The real service, for gRPC's threaded server: each call has a loop of its own."""

    def __init__(self, service: InspectService) -> None:
        self._service = service

    def Explain(self, request: Any, context: Any) -> Any:
        """Explain."""
        return virtually(self._service.Explain(request, context))

    def Layout(self, request: Any, context: Any) -> Any:
        """Show the layout of a topic."""
        return virtually(self._service.Layout(request, context))

    def Verify(self, request: Any, context: Any) -> Any:
        """Verify."""

        async def events() -> list[Any]:
            return [event async for event in self._service.Verify(request, context)]

        yield from virtually(events())


async def filled() -> Ground:
    """Two segments; the first was scrubbed, and its ledger has a grant."""
    site = Ground()
    await site.enable()
    await site.commit(await site.store(1, [*runs(1, 0, 4), *runs(1, 4, 6)]))
    await site.commit(await site.store(2, [*runs(1, 10, 5), *runs(3, 0, 4)], ends=((1, LedgerEnd(15, 3)),)))
    seen = SegmentVerified(verified_ms=1_700_000_000_000, level="full")
    await site.metadata.create(paths.verified(TOPIC), verified_record.encode(Verified({segment_id(1): seen})))
    grant = Grant(ledger_id=1, revoked_ms=1_700_000_000_000, revoked_reason="why")
    await site.metadata.create(paths.grant(TOPIC, 1), grant_record.encode(grant))
    return site


@pytest.fixture
def ground() -> Ground:
    """The site."""
    return virtually(filled())


async def only_known(topic: TopicName) -> None:
    """Refuse other topics, as a reader does that finds no trace of one."""
    if str(topic) != str(TOPIC):
        raise TopicNotFound(f"unknown topic {topic}", hint="`offloadctl topics list` shows what there is")


async def test_a_topic_of_which_there_is_no_trace_is_not_verified() -> None:
    """A typo in a nightly job is not told as sound: the exit code of what does not exist is 4."""
    store = MemoryTree().connect()
    service = InspectService(None, None, None, store, known=only_known)  # type: ignore[arg-type]
    events = service.Verify(inspect_pb2.VerifyRequest(topic="nosuch"), None)  # type: ignore[arg-type]
    with pytest.raises(TopicNotFound, match="unknown topic") as caught:
        await anext(events)
    assert exit_code(caught.value) == NOT_FOUND


@pytest.fixture
def ctl(ground: Ground) -> Iterator[Ctl]:
    """Offloadctl, talking to the service."""
    site, known = Site(cluster=CLUSTER, bucket=BUCKET, prefix=PREFIX), Known(ground)

    def retrying_reader() -> RetryingReader:
        return RetryingReader(ground.objects, clock=FastClock())

    explainer = Explainer(known, known.held, ground.metadata, retrying_reader(), [site])
    verifier = TopicVerifier(known, retrying_reader, [site])
    service = InspectService(
        explainer, verifier, cast("Engine", known), ground.metadata, known=only_known, layouts=known.layout
    )
    with serving(partial(inspect_pb2_grpc.add_InspectServiceServicer_to_server, Threaded(service))) as address:
        yield Ctl(address)


def flip(ground: Ground, key: str, at: int) -> None:
    """Flip a bit."""

    async def change() -> None:
        info, data = await ground.objects.head(key), bytearray(await ground.objects.get(key))
        data[at] ^= 1
        await ground.objects.put(key, bytes(data), metadata=info.metadata)

    virtually(change())


def test_where_an_entry_is(ctl: Ctl) -> None:
    """Segment, object, block, bytes, who verified it, and what may be deleted."""
    answer = ctl("explain", "flights", "1:5")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0] == f"1:5 of {TOPIC}: offloaded; its block was read and is as it was written"
    facts = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[1:]}
    assert facts["tiers"] == "bucket"
    assert facts["segment"].startswith(f"{segment_id(1)} (1:0 to 1:9), offloaded ")
    assert facts["object"].startswith(f"{BUCKET}/{data_key(1)} (")
    assert facts["block"].startswith("2 of 2 (1:4 to 1:9), bytes 192 to 413, CRC-32C ")
    assert facts["entry"] == "head at byte 335, payload of 3 bytes from byte 347 on"
    assert facts["verified"] == "2023-11-14 22:13:20 by the scrub, level full: sound"
    assert facts["owner"] == "d1 (h:1), epoch 4"
    assert facts["ledger"] == "closed, offloaded to its end (15 entries)"
    assert facts["grant"] == "revoked 2023-11-14 22:13:20: why"


def test_where_the_entries_of_a_topic_are(ctl: Ctl) -> None:
    """A line for each tier and place, with a cell for each two entries; a cell that is half there looks so."""
    answer = ctl("explain", "flights")
    assert answer.code == 0, answer.err
    head, deleted, buffer, source, place = answer.out.splitlines()
    assert head == f"{TOPIC}: 120 entries, 1:0 to 3:4"
    assert deleted == "deleted by retention: all up to 0:9"
    labels = ["buffer d1", "source bookkeeper", f"bucket {BUCKET}/{PREFIX}"]
    assert [" ".join(one.split()[:2]) for one in (buffer, source, place)] == labels
    assert buffer.split()[2:] == ["·" * 57 + "▒██", "3:1", "to", "3:4,", "5", "entries"]
    assert source.endswith("·" * 60 + "  no answer within 4 s")
    assert place.split()[2:] == ["█" * 30 + "▒" + "·" * 29, "1:0", "to", "1:60,", "61", "entries"]
    found = ctl("explain", "flights", "--json").json
    assert found["holders"][0]["extents"] == [{"begin": "3:1", "end": "3:4", "offset": 115, "entries": 5}]
    assert found["holders"][1]["problem"] == "no answer within 4 s"


def test_an_explanation_as_a_document(ctl: Ctl, ground: Ground) -> None:
    """Byte offsets for programs; they are right."""
    found = ctl("explain", "flights", "1:5", "--json").json
    place = found["place"]
    assert (found["state"], found["tiers"]) == ("offloaded", {"buffer": False, "source": False, "objects": True})
    payload = virtually(ground.objects.get(place["data_key"], place["payload_offset"], place["payload_bytes"]))
    assert payload == b"1:5"
    assert place["verified"]["level"] == "full"
    assert found["grant"]["revoked_reason"] == "why"
    assert found["owner"] == {"daemon_id": "d1", "address": "h:1", "epoch": 4}


def test_exit_codes_of_explain(ctl: Ctl, ground: Ground) -> None:
    """Not offloaded yet is there; beyond the end is not; damage is damage."""
    answer = ctl("explain", "flights", "3:4")
    assert (answer.code, "not offloaded yet" in answer.out) == (0, True)
    answer = ctl("explain", "flights", "3:5")
    assert (answer.code, "beyond the end" in answer.out) == (4, True)
    flip(ground, data_key(1), 340)
    answer = ctl("explain", "flights", "1:5")
    assert answer.code == 5
    assert "-> restore the object" in answer.out
    with capture_logs():  # the daemon of this process has nowhere else to log
        assert ctl("explain", "flights", "1:5", "--json").json["place"]["flaw"]["kind"] == "block"


class Failing:
    """A store that answers 503 for some keys, and works otherwise."""

    def __init__(self, objects: SegmentStore, keys: Container[str]) -> None:
        self._objects = objects
        self._keys = keys

    def at(self, bucket: str) -> Failing:
        """Every bucket is like this."""
        return self

    async def get(self, key: str, first: int = 0, length: int | None = None) -> bytes:
        """Give bytes, or fail."""
        if key in self._keys:
            raise Transient(f"get {key}: 503", hint="ask the store")
        return await self._objects.get(key, first, length)

    async def head(self, key: str) -> ObjectInfo:
        """Answer always."""
        return await self._objects.head(key)


async def verified(ground: Ground, *failing: str) -> tuple[list[SegmentReport | Between], str]:
    """Return what a verification tells, and with what error it ends."""
    objects = Failing(ground.objects, failing)
    site = Site(cluster=CLUSTER, bucket=BUCKET, prefix=PREFIX)
    verifier = TopicVerifier(Known(ground), lambda: RetryingReader(objects, clock=FastClock()), [site])  # type: ignore[arg-type]
    told: list[SegmentReport | Between] = []
    try:
        async for one in verifier.run(TOPIC, Level.FULL):
            told.append(one)  # noqa: PERF401 - kept also when it fails
    except Transient as error:
        return told, error.message
    return told, ""


async def test_one_object_that_always_fails_leaves_the_other_segments_verified() -> None:
    """What could not be looked at is named with its entries, and is no success."""
    (first, second, between), error = await verified(await filled(), data_key(1))
    assert [(flaw.kind, flaw.key, flaw.entries) for flaw in first.flaws] == [
        (Kind.UNREACHABLE, data_key(1), "1:0..1:9")
    ]
    assert (second.flaws, between.flaws) == ([], [])
    assert second.read_bytes
    assert error.startswith(f"1 of 2 segments of {TOPIC} could not be read, the others were; the last: ")
    assert error.endswith(f"get {data_key(1)}: 503 (entries 1:0..1:9)")


async def test_a_store_that_is_away_ends_a_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a thousand segments that each fail."""
    monkeypatch.setattr(cluster, "IN_A_ROW_MAX", 1)
    told, error = await verified(await filled(), data_key(1), data_key(2))
    assert len(told) == 2
    assert error.startswith("1 of 2 segments")
    assert "the rest was not tried" in error


@pytest.mark.parametrize("level", ["metadata", "headers", "full"])
def test_a_sound_topic(ctl: Ctl, level: str) -> None:
    """One line, and exit code 0."""
    answer = ctl("verify", "flights", "--level", level)
    assert answer.code == 0
    assert answer.out.splitlines()[-1].endswith(" of 2 segments: no problem")


def test_damage_is_shown_with_what_to_do(ctl: Ctl, ground: Ground) -> None:
    """Segment, key, byte; exit code 5; the metadata alone do not show it."""
    flip(ground, data_key(2), 140)
    answer = ctl("verify", "flights")
    assert answer.code == 5
    lines = answer.out.splitlines()
    assert lines[0] == f"segment {segment_id(2)} (1:10 to 3:3):"
    assert lines[1].startswith(f"  BLOCK        {data_key(2)} at byte 0: expected a block with checksum")
    assert lines[2].strip().startswith("-> restore")
    assert lines[-1].endswith("of 2 segments: 1 problem")
    assert ctl("verify", "flights", "--level", "metadata").code == 0
    found = [json.loads(line) for line in ctl("verify", "flights", "--json").out.splitlines()]
    assert [len(one.get("flaws", [])) for one in found] == [0, 1, 0]
    assert found[1]["flaws"][0]["offset"] == 0
    assert found[2]["summary"] == {"segments": 2, "flaws": []}


def test_a_segment_that_is_gone(ctl: Ctl, ground: Ground) -> None:
    """Each of its objects is missed by name."""
    virtually(ground.objects.delete([data_key(1), index_key(1), manifest_key(1)]))
    answer = ctl("verify", "flights")
    assert answer.code == 5
    assert [line.split()[1] for line in answer.out.splitlines() if "MISSING" in line] == [
        f"{manifest_key(1)}:",
        f"{data_key(1)}:",
        f"{index_key(1)}:",
    ]
