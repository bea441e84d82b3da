"""AdminService over a fake engine and metadata in memory: what it answers, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from offloaderd.api import admin as admin_service
from offloaderd.api.admin import AdminService, DaemonSnapshot
from offloaderd.core.aio import Signal
from offloaderd.core.errors import Conflict, InvalidInput, NotFound
from offloaderd.core.health import Dependency
from offloaderd.core.model import (
    Confirmed,
    LedgerInfo,
    OffloadMethod,
    OutagePolicy,
    Position,
    TierRetention,
    TopicName,
)
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.read_options import ReadPriority
from offloaderd.format.v1 import LedgerLayout
from offloaderd.metadata import paths
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records.attempt import Attempt, AttemptStatus, Seal
from offloaderd.metadata.records.ownership import Owner
from offloaderd.metadata.topic_map.map import TopicMap, load
from offloaderd.metadata.topic_map.unnamed import unnamed_places
from offloaderd.policy.records import Selection, TopicPolicy, encode_policy, encode_selection
from offloaderd.policy.selection import Change, Outcome
from offloaderd.protocol.conversion import as_json
from offloaderd.protocol.status import topic_facts, topic_json
from offloaderd.protocol.v1 import admin_pb2, policy_pb2
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.topic.status import TopicStatus
from offloaderd.upkeep.grants import records as grant_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from offloaderd.fleet.engine import Engine
    from offloaderd.metadata.topic_map.unnamed import UnnamedPlace
    from offloaderd.testing.memory.metadata import MemoryMetadata

ORDERS = TopicName.parse("orders")
OTHER = TopicName.parse("acme/web/clicks")
SEGMENT = UUID("2c2f8f6e-8d4f-4b8f-9f36-0d8a6a1f2b11")
OPEN = UUID("5e0b1c9a-1111-4222-8333-444455556666")
CONTEXT: Any = None


@dataclass
class FakeOffloader:
    """A topic that a test moves by hand."""

    topic: TopicName = ORDERS
    offloaded: Position | None = None
    target: Position | None = None
    attempt: Attempt | None = None
    changed: Signal = field(default_factory=Signal)
    by_hand: Any = None
    policy: Any = None
    lag_entries: int = 0
    open_id: str = ""
    stalled_reason: str = ""

    def status(self) -> TopicStatus:
        """Say where it is."""
        return TopicStatus(
            topic=self.topic,
            state="offloading",
            epoch=3,
            confirmed=self.target,
            offloaded=self.offloaded,
            lag_entries=self.lag_entries,
            lag_bytes=self.lag_entries * 10,
            open_segment_id=self.open_id,
            open_segment_entries=4,
            open_segment_bytes=40,
            stalled_reason=self.stalled_reason,
        )


@dataclass
class FakeEngine:
    """An engine whose topics a test sets."""

    store: MemoryMetadata
    running: dict[TopicName, FakeOffloader] = field(default_factory=dict)
    waiting: list[TopicStatus] = field(default_factory=list)
    owners: dict[TopicName, Owner] = field(default_factory=dict)
    maps: dict[TopicName, TopicMap] = field(default_factory=dict)
    refusal: Exception | None = None
    changed: Signal = field(default_factory=Signal)
    said: list[tuple[str, TopicPolicy | None, bool]] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    buckets: frozenset[str] = frozenset({"b"})

    async def select(self, pattern: TopicPattern, policy: TopicPolicy, *, dry_run: bool = False) -> list[Change]:
        """Note it."""
        self.said.append((pattern.text, policy, dry_run))
        return self.changes

    async def deselect(self, pattern: TopicPattern, *, dry_run: bool = False) -> list[Change]:
        """Note it."""
        self.said.append((pattern.text, None, dry_run))
        return self.changes

    def find(self, topic: TopicName) -> FakeOffloader | None:
        """Return what runs."""
        return self.running.get(topic)

    async def wake(self, topic: TopicName) -> None:
        """No topic sleeps here."""

    async def refresh_policy(self, topic: TopicName) -> None:
        """Nothing is said of topics here."""

    async def owned(self, topic: TopicName) -> FakeOffloader:
        """Return what runs, or refuse as told."""
        if topic in self.running:
            return self.running[topic]
        raise self.refusal or NotFound(f"{topic} is not enabled")

    async def owner_of(self, topic: TopicName) -> Owner | None:
        """Return the owner."""
        return self.owners.get(topic)

    def placed(self, topic: TopicName, owner: str) -> str:
        """All topics belong on d-1."""
        return "" if owner == "d-1" else f"to be handed over to d-1 by {owner or 'nobody'}: {topic.local}"

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return what is stored."""
        return await load(self.store, topic)

    def known(self, topic: TopicName) -> TopicMap | None:
        """Return the maps that a test has set."""
        return self.maps.get(topic)

    def unnamed_places(self, topic_map: TopicMap) -> Sequence[UnnamedPlace]:
        """The settings of a test name one bucket."""
        return unnamed_places(topic_map.segments, self.buckets)

    def alarms(self) -> list[str]:
        """One thing is wrong."""
        return ["the selection re:(?=a) is not applied: look-around"]

    def statuses(self) -> list[TopicStatus]:
        """Describe all."""
        return list(self.each_status())

    def each_status(self) -> Iterator[TopicStatus]:
        """Describe them one by one."""
        return iter([*(offloader.status() for offloader in self.running.values()), *self.waiting])

    def status(self, topic: TopicName) -> TopicStatus | None:
        """Describe one."""
        return next((one for one in self.each_status() if one.topic == topic), None)


class FakeSource:
    """Two ledgers of one topic, the second open."""

    async def topics(self, *, tenant: str | None = None, namespace: str | None = None) -> list[TopicName]:
        """One topic."""
        return [ORDERS] if tenant in {None, ORDERS.tenant} and namespace in {None, ORDERS.namespace} else []

    async def ledgers(self, topic: TopicName) -> list[LedgerInfo]:
        """A closed and an open ledger; the open one's count is behind."""
        if topic != ORDERS:
            raise NotFound(str(topic))
        return [
            LedgerInfo(ledger_id=1, closed=True, entries=100, size_bytes=1, closed_at_ms=1),
            LedgerInfo(ledger_id=2, closed=False, entries=3, size_bytes=1),
        ]

    async def confirmed(self, topic: TopicName, ledger_id: int) -> Confirmed:
        """The open ledger's newest entry."""
        assert ledger_id == 2
        return Confirmed(9, closed=False)


def snapshot() -> DaemonSnapshot:
    """Describe a daemon that serves."""
    parts = (Dependency("metadata", up=True), Dependency("objects", up=False, message="refused", since_ms=4))
    return DaemonSnapshot(
        daemon_id="d-1", version="1.2.3", state="serving", started_ms=5, dependencies=parts, memory_used_bytes=7
    )


@dataclass
class Room:
    """Everything round one service."""

    service: AdminService
    engine: FakeEngine
    store: MemoryMetadata


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    """A service over an empty store."""
    async with MemoryTree().connect() as store:
        engine = FakeEngine(store)
        service = AdminService(
            engine=cast("Engine", engine),
            metadata=store,
            source=FakeSource(),  # type: ignore[arg-type]
            snapshot=snapshot,
        )
        yield Room(service, engine, store)


async def commit(store: MemoryMetadata, topic: TopicName, first: int, last: int, segment_id: UUID = SEGMENT) -> None:
    """Commit a segment over entries of ledger 1."""
    segment = CommittedSegment(
        segment_id=segment_id,
        slices=(LedgerSlice(1, first, last, 1_000),),
        object_bytes=1_100,
        assigned_ms=1,
        offloaded_ms=2,
        bucket="b",
        prefix="p/",
    )
    for path in (paths.TOPICS, *paths.folders(topic), paths.ledgers(topic)):
        try:
            await store.create(path, b"")
        except Conflict:
            continue
    steps, _ = (await load(store, topic)).with_commit(segment)
    await store.transact(steps)


async def enable(store: MemoryMetadata, topic: TopicName, *, enabled: bool = True) -> None:
    """Write a topic's policy."""
    await store.create(paths.policy(topic), encode_policy(TopicPolicy(enabled=enabled)))


def an_attempt(begin: Position) -> Attempt:
    """An open segment."""
    return Attempt(
        segment_id=OPEN,
        begin=begin,
        assigned_ms=9,
        epoch=3,
        status=AttemptStatus.ASSIGNED,
        driver_properties={"bucket": "b", "prefix": "p/"},
    )


async def test_list_topics_joins_enabled_and_known_ones(room: Room) -> None:
    """Counts come from the source (the open ledger's from its confirmed entry), owners from the engine."""
    await enable(room.store, OTHER)
    room.engine.owners[OTHER] = Owner(daemon_id="d-2", address="a:1", session_id="s", epoch=1)
    found = (await room.service.ListTopics(admin_pb2.ListTopicsRequest(), CONTEXT)).topics
    rows = [(one.topic, one.enabled, one.owner, one.ledgers, one.entries) for one in found]
    assert rows == [(str(OTHER), True, "d-2", 0, 0), (str(ORDERS), False, "", 2, 110)]


async def test_a_topic_that_was_disabled_is_still_listed(room: Room) -> None:
    """Its segments stay readable, so it must not vanish from sight."""
    await enable(room.store, OTHER, enabled=False)
    found = (await room.service.ListTopics(admin_pb2.ListTopicsRequest(prefix="acme"), CONTEXT)).topics
    assert [(one.topic, one.enabled) for one in found] == [(str(OTHER), False)]


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("acme", [OTHER]),
        ("acme/web", [OTHER]),
        ("acme/we", []),
        ("public/", [ORDERS]),
        ("pub", []),
        ("", [OTHER, ORDERS]),
    ],
)
async def test_a_prefix_is_a_tenant_or_a_namespace(room: Room, prefix: str, expected: list[TopicName]) -> None:
    """Only whole names match."""
    await enable(room.store, OTHER)
    answer = await room.service.ListTopics(admin_pb2.ListTopicsRequest(prefix=prefix), CONTEXT)
    assert [one.topic for one in answer.topics] == [str(topic) for topic in expected]


@pytest.mark.parametrize("prefix", ["a/b/c", "/a", "a//"])
async def test_a_malformed_prefix_is_refused(room: Room, prefix: str) -> None:
    """What is neither tenant nor namespace is an error, not an empty list."""
    with pytest.raises(InvalidInput):
        await room.service.ListTopics(admin_pb2.ListTopicsRequest(prefix=prefix), CONTEXT)


async def test_enable_hands_the_policy_on(room: Room) -> None:
    """What is unset stays None; other spellings are accepted; what is said twice counts as in `policies`."""
    request = admin_pb2.EnableTopicRequest(
        topic="orders",
        segment_bytes_max=5,
        read_priority="tiered-first",
        outage="spill",
        retention="limited",
        retention_bytes=7,
        policies=policy_pb2.OffloadPolicies(method="streaming-based", segment_bytes_max=6, threshold_s=-7.0),
    )
    await room.service.EnableTopic(request, CONTEXT)
    policy = TopicPolicy(
        enabled=True,
        method=OffloadMethod.STREAMING,
        segment_bytes_max=6,
        threshold_s=-1.0,
        read_priority=ReadPriority.TIERED_STORAGE_FIRST,
        outage=OutagePolicy.SPILL,
        retention=TierRetention.LIMITED,
        retention_bytes=7,
    )
    assert room.engine.said == [("public/default/orders", policy, False)]


@pytest.mark.parametrize(
    "request_",
    [
        admin_pb2.EnableTopicRequest(topic="a/b"),
        admin_pb2.EnableTopicRequest(topic="t", segment_bytes_max=0),
        admin_pb2.EnableTopicRequest(topic="t", segment_age_max_s=0),
        admin_pb2.EnableTopicRequest(topic="t", segment_age_max_s=-1),
        admin_pb2.EnableTopicRequest(topic="t", segment_age_min_s=float("nan")),
        admin_pb2.EnableTopicRequest(topic="t", segment_age_max_s=float("inf")),
        admin_pb2.EnableTopicRequest(topic="t", segment_age_max_s=1, segment_age_min_s=2),
        admin_pb2.EnableTopicRequest(topic="t", read_priority="fastest-first"),
        admin_pb2.EnableTopicRequest(topic="t", outage="panic"),
        admin_pb2.EnableTopicRequest(topic="t", retention="forever"),
        admin_pb2.EnableTopicRequest(topic="t", retention="limited"),
        admin_pb2.EnableTopicRequest(topic="t", retention="limited", retention_age_s=0),
        admin_pb2.EnableTopicRequest(topic="t", retention="limited", retention_bytes=0),
        admin_pb2.EnableTopicRequest(topic="t", retention="keep", retention_bytes=5),
        admin_pb2.EnableTopicRequest(topic="t", retention_age_s=5),
        admin_pb2.EnableTopicRequest(topic="t", policies=policy_pb2.OffloadPolicies(method="slow")),
        admin_pb2.EnableTopicRequest(topic="t", policies=policy_pb2.OffloadPolicies(method="none", threshold_s=5.0)),
    ],
)
async def test_a_policy_that_cannot_work_is_refused(room: Room, request_: admin_pb2.EnableTopicRequest) -> None:
    """Nothing is written for a wrong value."""
    with pytest.raises(InvalidInput):
        await room.service.EnableTopic(request_, CONTEXT)
    assert not room.engine.said


async def test_ledgers_are_not_offloaded_without_a_source(room: Room) -> None:
    """A daemon whose topics are only pushed has no closed ledgers to read."""
    request = admin_pb2.EnableTopicRequest(topic="t", policies=policy_pb2.OffloadPolicies(method="ledger-based"))
    await room.service.EnableTopic(request, CONTEXT)
    room.service.source = None
    with pytest.raises(InvalidInput, match="only pushed"):
        await room.service.EnableTopic(request, CONTEXT)


async def test_what_becomes_of_each_topic_is_told(room: Room) -> None:
    """The answer has the pattern as it was understood, and every topic with its outcome and reason."""
    room.engine.changes = [Change(ORDERS, Outcome.ENABLED), Change(OTHER, Outcome.LEFT_ALONE, "disabled by name")]
    asked = admin_pb2.EnableTopicRequest(topic="persistent://public/*", dry_run=True)
    answer = await room.service.EnableTopic(asked, CONTEXT)
    assert answer.pattern == "public/*"
    assert [(one.topic, one.outcome, one.reason) for one in answer.topics] == [
        (str(ORDERS), "enabled", ""),
        (str(OTHER), "left-alone", "disabled by name"),
    ]
    assert room.engine.said == [("public/*", TopicPolicy(), True)]


async def test_disable_is_the_engines_business(room: Room) -> None:
    """The pattern is parsed and handed on."""
    room.engine.changes = [Change(ORDERS, Outcome.DISABLED)]
    answer = await room.service.DisableTopic(admin_pb2.DisableTopicRequest(topic="re:.*"), CONTEXT)
    assert [(one.topic, one.outcome) for one in answer.topics] == [(str(ORDERS), "disabled")]
    await room.service.DisableTopic(admin_pb2.DisableTopicRequest(topic=str(ORDERS), dry_run=True), CONTEXT)
    assert room.engine.said == [("re:.*", None, False), ("public/default/orders", None, True)]
    with pytest.raises(InvalidInput):
        await room.service.DisableTopic(admin_pb2.DisableTopicRequest(topic="*"), CONTEXT)


async def test_selections_are_listed_with_what_they_enabled(room: Room) -> None:
    """Topics that were disabled again do not count; a damaged record shows as one."""
    policy = TopicPolicy(segment_bytes_max=7)
    selection = Selection(pattern=TopicPattern.parse("acme/*"), policy=policy, created_ms=9)
    await room.store.create(paths.selection("acme/*"), encode_selection(selection))
    await room.store.create(paths.selection("public/*"), b"\xff")
    for topic, enabled in ((OTHER, True), (TopicName.parse("acme/web/off"), False)):
        value = TopicPolicy(enabled=enabled, selected_by="acme/*")
        await room.store.create(paths.policy(topic), encode_policy(value))
    found = (await room.service.ListSelections(admin_pb2.ListSelectionsRequest(), CONTEXT)).selections
    assert [(one.pattern, one.topics, one.created_ms) for one in found] == [("acme/*", 1, 9), ("public/*", 0, 0)]
    assert (found[0].segment_bytes_max, found[0].HasField("segment_age_max_s"), found[0].damage) == (7, False, "")
    assert "corrupt data in /selections/public%2F*" in found[1].damage
    first = await room.service.ListSelections(admin_pb2.ListSelectionsRequest(page_size=1), CONTEXT)
    rest = admin_pb2.ListSelectionsRequest(page_token=first.next_page_token)
    assert [*first.selections, *(await room.service.ListSelections(rest, CONTEXT)).selections] == [*found]
    assert len(first.selections) == 1
    rows = (await room.service.ListTopics(admin_pb2.ListTopicsRequest(prefix="acme"), CONTEXT)).topics
    assert [(one.topic, one.selected_by) for one in rows] == [
        (str(OTHER), "acme/*"),
        ("persistent://acme/web/off", ""),
    ]


async def test_a_long_list_is_not_counted(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting asks the source for every topic, so a list above the limit leaves it out."""
    monkeypatch.setattr(admin_service, "COUNTED_TOPICS_MAX", 1)
    await enable(room.store, OTHER)
    rows = (await room.service.ListTopics(admin_pb2.ListTopicsRequest(), CONTEXT)).topics
    assert [one.HasField("entries") for one in rows] == [False, False]
    rows = (await room.service.ListTopics(admin_pb2.ListTopicsRequest(prefix="public"), CONTEXT)).topics
    assert [(one.ledgers, one.entries) for one in rows] == [(2, 110)]


async def test_a_page_reads_the_policies_of_its_own_topics(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a hundred pages all would be read a hundred times; a topic with other nodes alone is not listed."""
    topics = [TopicName.parse(f"acme/web/{number}") for number in range(6)]
    for topic in topics[:5]:
        await enable(room.store, topic)
    await room.store.create(paths.attempt(topics[5]), b"")
    reads: list[str] = []
    get = room.store.get

    async def noted(path: str) -> Any:  # noqa: ANN401 - as the store's
        reads.append(path)
        return await get(path)

    monkeypatch.setattr(room.store, "get", noted)
    found: list[str] = []
    request = admin_pb2.ListTopicsRequest(prefix="acme/web", page_size=2)
    while not found or request.page_token:
        answer = await room.service.ListTopics(request, CONTEXT)
        found += [one.topic for one in answer.topics]
        request.page_token = answer.next_page_token
    assert found == [str(one) for one in topics[:5]]
    assert sorted(reads) == sorted(paths.policy(one) for one in topics)


async def test_a_partitioned_topic_says_to_name_a_partition(room: Room) -> None:
    """What is asked of entries under a name that has none is answered with which names have."""
    value = encode_policy(TopicPolicy(partitioned=True))
    await room.store.create(paths.policy(OTHER), value)
    rows = (await room.service.ListTopics(admin_pb2.ListTopicsRequest(prefix="acme"), CONTEXT)).topics
    assert [(one.enabled, one.partitioned) for one in rows] == [(True, True)]
    with pytest.raises(InvalidInput, match="name a partition"):
        await anext(room.service.Offload(admin_pb2.OffloadRequest(topic=str(OTHER)), CONTEXT))


async def segments(room: Room, topic: TopicName = ORDERS) -> list[admin_pb2.Segment]:
    """List a topic's segments."""
    request = admin_pb2.ListSegmentsRequest(topic=str(topic))
    return [segment async for segment in room.service.ListSegments(request, CONTEXT)]


async def test_segments_are_listed_with_the_open_one_last(room: Room) -> None:
    """Committed ones say range, sizes and key; the open one what its writer knows."""
    await commit(room.store, ORDERS, 0, 9)
    room.engine.running[ORDERS] = FakeOffloader(attempt=an_attempt(Position(1, 10)), open_id=str(OPEN))
    first, opened = await segments(room)
    assert (first.segment_id, first.status, first.entries, first.payload_bytes) == (
        str(SEGMENT),
        "Offloaded",
        10,
        1_000,
    )
    assert (first.begin.entry_id, first.end.entry_id, first.object_bytes) == (0, 9, 1_100)
    assert (first.bucket, first.data_key) == ("b", f"p/{SEGMENT}")
    assert (first.method, first.writer, opened.method) == ("streaming", "offloaderd", "streaming")
    assert (opened.segment_id, opened.status, opened.entries, opened.payload_bytes) == (str(OPEN), "Assigned", 4, 40)
    assert (opened.begin.entry_id, opened.HasField("end"), opened.data_key) == (10, False, f"p/{OPEN}")
    assert (first.state, opened.state) == ("committed", "assigned")


async def test_the_open_segments_method_follows_from_how_it_is_cut(room: Room) -> None:
    """Not from how far it is: one that is sealed and stored to its end is what it was."""
    seal = Seal(sealed_ms=9, epoch=3, software_version="v", data_bytes=0, part_count=0, ledgers=())
    sealed = replace(an_attempt(Position(1, 10)), seal=seal)
    room.engine.running[ORDERS] = FakeOffloader(attempt=sealed, open_id=str(OPEN))
    assert sealed.whole
    assert [one.method for one in await segments(room)] == ["streaming"]
    layout = LedgerLayout(
        block_bytes=64, part_bytes=64, run_bytes=64, dense_index=False, entries=4, payload_bytes=64, metadata=b""
    )
    whole = replace(an_attempt(Position(1, 0)), layout=layout)
    room.engine.running[ORDERS] = FakeOffloader(attempt=whole, open_id=str(OPEN))
    assert not whole.whole
    assert [one.method for one in await segments(room)] == ["ledger-based"]


async def test_a_status_of_another_segment_is_not_mixed_in(room: Room) -> None:
    """Between two segments the attempt is new and the builder old, or the other way round."""
    room.engine.running[ORDERS] = FakeOffloader(attempt=an_attempt(Position(1, 10)), open_id="another")
    (opened,) = await segments(room)
    assert (opened.entries, opened.payload_bytes) == (0, 0)


async def test_an_attempt_that_was_just_committed_is_not_listed_twice(room: Room) -> None:
    """The record is deleted by the commit, but the owner may still hold it for a moment."""
    await commit(room.store, ORDERS, 0, 9, OPEN)
    room.engine.running[ORDERS] = FakeOffloader(attempt=an_attempt(Position(1, 0)), offloaded=Position(1, 9))
    assert [segment.status for segment in await segments(room)] == ["Offloaded"]


async def test_segments_of_another_daemons_topic_come_from_the_store(room: Room) -> None:
    """Map and attempt are read where they are recorded."""
    await commit(room.store, OTHER, 0, 9)
    await room.store.create(paths.attempt(OTHER), attempt_record.encode(an_attempt(Position(1, 10))))
    assert [segment.status for segment in await segments(room, OTHER)] == ["Offloaded", "Assigned"]


@pytest.mark.parametrize("state", ["claiming", "not-owner", "stopped"])
async def test_damage_of_a_topic_that_is_none_of_ours_is_told(room: Room, state: str) -> None:
    """Whoever has found it: whoever is asked says so."""
    await commit(room.store, OTHER, 0, 9)
    await grant_records.revoke(room.store, OTHER, 0, reason="damaged", now_ms=5, damaged=True)
    if state != "stopped":
        room.engine.owners[OTHER] = Owner(daemon_id="d-2", address="a:1", session_id="s", epoch=8)
    if state == "claiming":
        room.engine.waiting = [TopicStatus(topic=OTHER, state=state)]
    (topic,) = (await room.service.Status(admin_pb2.StatusRequest(topic=str(OTHER)), CONTEXT)).topics
    assert [*topic.damaged_ledgers] == [0]


async def test_a_known_topic_may_have_no_segments(room: Room) -> None:
    """Known to the source, or with a policy: an empty list; unknown: an error."""
    assert await segments(room, ORDERS) == []
    with pytest.raises(NotFound, match="unknown topic"):
        await segments(room, OTHER)
    await enable(room.store, OTHER, enabled=False)
    assert await segments(room, OTHER) == []


async def test_status_shows_the_daemon_and_every_topic(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners are filled in; one held by another daemon says whose it is and what is stored, but not of thousands."""
    monkeypatch.setattr(admin_service, "WAITING_READ", 1)
    room.engine.running[ORDERS] = FakeOffloader(offloaded=Position(2, 1), target=Position(2, 9))
    room.engine.waiting = [TopicStatus(topic=OTHER, state="claiming")] * 2
    room.engine.owners[OTHER] = Owner(daemon_id="d-2", address="a:1", session_id="s", epoch=8)
    await commit(room.store, OTHER, 0, 9)
    found = await room.service.Status(admin_pb2.StatusRequest(), CONTEXT)
    assert (found.daemon_id, found.version, found.state, found.memory_used_bytes) == ("d-1", "1.2.3", "serving", 7)
    assert [(one.name, one.up, one.message) for one in found.dependencies] == [
        ("metadata", True, ""),
        ("objects", False, "refused"),
    ]
    mine, theirs, unread = found.topics
    assert (unread.owner, unread.state, unread.HasField("offloaded")) == ("", "claiming", False)
    assert (mine.owner, mine.state, mine.epoch, mine.confirmed.entry_id) == ("d-1", "offloading", 3, 9)
    assert (theirs.owner, theirs.state, theirs.epoch) == ("d-2", "not-owner", 8)
    assert (theirs.offloaded.entry_id, theirs.segments_committed) == (9, 1)
    assert (mine.placement, theirs.placement[:27]) == ("", "to be handed over to d-1 by")


async def test_status_of_a_topic_that_is_none_of_ours(room: Room) -> None:
    """A topic that belongs elsewhere is not waited for here; its owner is told all the same."""
    room.engine.owners[OTHER] = Owner(daemon_id="d-2", address="a:1", session_id="s", epoch=8)
    await commit(room.store, OTHER, 0, 9)
    (topic,) = (await room.service.Status(admin_pb2.StatusRequest(topic=str(OTHER)), CONTEXT)).topics
    assert (topic.state, topic.owner, topic.epoch, topic.offloaded.entry_id) == ("not-owner", "d-2", 8, 9)
    assert topic.placement.startswith("to be handed over to d-1 by d-2")


@pytest.mark.parametrize("state", ["claiming", "stopped"])
async def test_segments_in_a_bucket_that_the_settings_do_not_name_are_told(room: Room, state: str) -> None:
    """Also of a topic that this daemon does not own: its map is read for the answer anyway."""
    await commit(room.store, OTHER, 0, 9)
    if state == "claiming":
        room.engine.waiting = [TopicStatus(topic=OTHER, state=state)]
    request = admin_pb2.StatusRequest(topic=str(OTHER))
    (topic,) = (await room.service.Status(request, CONTEXT)).topics
    assert not topic.unnamed
    room.engine.buckets = frozenset({"new"})
    (topic,) = (await room.service.Status(request, CONTEXT)).topics
    (there,) = topic.unnamed
    assert (there.bucket, there.prefix, there.segments, there.only_bytes) == ("b", "p/", 1, 1_100)
    told = "b/p/: 1 segment (1.1 KiB); 1 segment has no copy elsewhere: UNREADABLE but from the ledger source"
    assert dict(topic_facts(topic, None))["NOT NAMED"] == told
    assert topic_json(topic)["unnamed"] == [as_json(there)]


async def test_status_of_a_topic_nobody_works_on(room: Room) -> None:
    """Stopped with what is stored; unknown is an error."""
    await commit(room.store, OTHER, 0, 9)
    (topic,) = (await room.service.Status(admin_pb2.StatusRequest(topic=str(OTHER)), CONTEXT)).topics
    assert (topic.state, topic.offloaded.entry_id, topic.owner) == ("stopped", 9, "")
    with pytest.raises(NotFound):
        await room.service.Status(admin_pb2.StatusRequest(topic="nowhere"), CONTEXT)


async def test_a_stalled_topic_keeps_its_state(room: Room) -> None:
    """What stalled before it was claimed is not hidden behind an owner."""
    room.engine.waiting = [replace(TopicStatus(topic=OTHER, state="stalled"), stalled_reason="corrupt")]
    room.engine.owners[OTHER] = Owner(daemon_id="d-1", address="a:1", session_id="s", epoch=8)
    (topic,) = (await room.service.Status(admin_pb2.StatusRequest(topic=str(OTHER)), CONTEXT)).topics
    assert (topic.state, topic.stalled_reason) == ("stalled", "corrupt")
