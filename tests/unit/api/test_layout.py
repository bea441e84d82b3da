"""Where the entries of a topic are, as a daemon tells it: its buffer, the source, places, declared tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest

from offloaderd.api.inspect import InspectService, Layouts
from offloaderd.core.errors import TopicNotFound, Transient
from offloaderd.core.model import EntryBatch, TopicName
from offloaderd.metadata import paths
from offloaderd.metadata.port import Replace
from offloaderd.metadata.records.ownership import Owner
from offloaderd.protocol.status import holder_label, holder_words
from offloaderd.protocol.v1 import inspect_pb2
from offloaderd.read.layout import UNNAMED
from offloaderd.tables import store as tables
from offloaderd.tables.declaration import Declaration
from offloaderd.tables.store import States, TableState
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryMetadata, MemoryTree
from tests.unit.read.build import TOPIC, Piece, ReadRig, make_read_rig, payloads, put_segment
from tests.unit.read.shelf import Shelf

if TYPE_CHECKING:
    from offloaderd.api.calls import Context
    from offloaderd.fleet.engine import Engine
    from offloaderd.metadata.topic_map.map import TopicMap
    from tests.unit.read.build import Map

NO_CALL = cast("Context", None)


@dataclass
class Owners:
    """Who owns the topic."""

    map: Map
    owner: Owner | None = field(default_factory=lambda: Owner(daemon_id="d1", address="h:1", session_id="s", epoch=4))

    async def owner_of(self, topic: TopicName) -> Owner | None:
        """Return the owner."""
        return self.owner

    async def present_map(self, topic: TopicName) -> TopicMap:
        """Return the map, which wakes nothing."""
        return await self.map.topic_map(topic)


@dataclass
class Scene:
    """A topic with a segment of 1:0 to 1:5 and a buffer of 1:4 to 1:8."""

    rig: ReadRig
    metadata: MemoryMetadata
    owners: Owners
    clock: FakeClock
    buckets: set[str] = field(default_factory=lambda: {"bucket"})

    async def layout(self, topic: TopicName = TOPIC) -> dict[str, str]:
        """Return what the call says, as words by label."""
        kind = "bookkeeper" if self.rig.reader.source is not None else ""
        engine = cast("Engine", self.owners)
        layouts = Layouts(self.rig.reader, engine, self.metadata, self.clock, "d1", kind, frozenset(self.buckets))
        service = InspectService(None, None, None, self.metadata, layouts=layouts.of)  # type: ignore[arg-type]
        found = await service.Layout(inspect_pb2.LayoutRequest(topic=str(topic)), NO_CALL)
        return {holder_label(one): holder_words(one) for one in found.holders}

    async def declare(self, name: str, topics: str, *states: TableState) -> None:
        """Declare tables, and say how they are."""
        await tables.create(self.metadata, Declaration(name=name, topics=topics, to=f"lake.{name}"))
        if states:
            said = States(writer="w", at_ms=self.clock.wall_ms(), tables=states)
            await tables.put_states(self.metadata, name, said)


@pytest.fixture
async def scene() -> Scene:
    """The scene; nothing is declared."""
    rig = make_read_rig()
    rig.map.enabled = True
    rig.map.segments = [await put_segment(rig.store, [Piece(1, 0, payloads(1, 0, 5))], segment_id=rig.clock.uuid())]
    rig.hot.add(EntryBatch(1, 4, payloads(1, 4, 8)))
    return Scene(rig, MemoryTree().connect(), Owners(rig.map), FakeClock())


async def test_a_buffer_and_a_place(scene: Scene) -> None:
    """The nearest first."""
    assert await scene.layout() == {
        "buffer d1": "1:4 to 1:8, 5 entries",
        "bucket bucket/p/": "1:0 to 1:5, 6 entries",
    }


async def test_a_place_that_the_settings_do_not_name_is_told(scene: Scene) -> None:
    """After a change of the bucket in the settings, what was stored in the old one may be out of reach."""
    scene.buckets = {"another"}
    assert (await scene.layout())["bucket bucket/p/"] == f"1:0 to 1:5, 6 entries; {UNNAMED}"


async def test_a_look_does_not_wake_a_suspended_topic(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page is loaded every few seconds: the map is not read in the way of reads, which wakes the topic."""

    async def wakes(topic: TopicName) -> TopicMap:
        raise AssertionError(f"{topic} was woken")

    scene.owners.map = replace(scene.rig.map)
    monkeypatch.setattr(scene.rig.map, "topic_map", wakes)
    assert (await scene.layout())["bucket bucket/p/"] == "1:0 to 1:5, 6 entries"


async def test_the_buffer_of_another_daemon_is_not_told_as_empty(scene: Scene) -> None:
    """The caller is led to the owner."""
    scene.owners.owner = Owner(daemon_id="d2", address="h:2", session_id="s", epoch=5)
    assert (await scene.layout())["buffer d2"] == "only its owner knows, at h:2"


async def test_a_source_that_does_not_answer_is_asked_once(scene: Scene) -> None:
    """With its retries; the rest is told all the same, as long as anything is offloaded."""
    shelf = Shelf()
    shelf.stumbles = 100
    rig = make_read_rig(source=shelf, store=scene.rig.store)
    rig.map.enabled, rig.map.segments = True, scene.rig.map.segments
    away = replace(scene, rig=rig, owners=Owners(rig.map))
    found = await away.layout()
    assert found["source bookkeeper"] == "the source stumbles"
    assert found["bucket bucket/p/"] == "1:0 to 1:5, 6 entries"
    assert shelf.stumbles == 97
    rig.map.segments = []
    with pytest.raises(Transient, match="the source stumbles"):
        await away.layout()


async def test_a_topic_of_which_there_is_no_trace(scene: Scene) -> None:
    """It is not told as one without entries."""
    scene.rig.hot.clear()
    scene.rig.map.segments = []
    scene.rig.map.enabled = False
    with pytest.raises(TopicNotFound, match="unknown topic"):
        await scene.layout()


async def test_tables_show_how_far_they_are(scene: Scene) -> None:
    """The position, the lag since it was said, an error; a table that nobody writes; other topics' tables are not."""
    await scene.declare(
        "lake",
        "public/default/*",
        TableState(table="orders", topic=str(TOPIC), positions={"orders": "1:3"}, lag_entries=2, lag_s=10.0),
        TableState(table="others", topic="persistent://public/default/others", positions={"others": "1:3"}),
    )
    await scene.declare("bad", "orders", TableState(table="orders", topic=str(TOPIC), error="no space"))
    await scene.declare("idle", "orders")
    await scene.declare("elsewhere", "acme/shop/orders")
    await scene.metadata.create(paths.table("broken"), b"{}")
    await scene.clock.advance(5)
    found = await scene.layout()
    assert found["table lake/orders"] == "1:0 to 1:3, 4 entries, 15.0 s behind"
    assert found["table bad/orders"] == "no space"
    assert found["table idle"] == "no application has written it yet: offloaderd spark tables run"
    assert paths.table("broken") in found["table broken"]
    assert set(found) == {
        "buffer d1", "bucket bucket/p/", "table lake/orders", "table bad/orders", "table idle", "table broken",
    }  # fmt: skip


async def test_each_partition_has_its_own_position(scene: Scene) -> None:
    """The table is that of the partitioned topic."""
    partition = TopicName(TOPIC.tenant, TOPIC.namespace, "orders-partition-1")
    state = TableState(
        table="orders", topic=str(TOPIC), positions={"orders-partition-0": "9:9", "orders-partition-1": "1:1"}
    )
    await scene.declare("lake", "orders", state)
    assert (await scene.layout(partition))["table lake/orders"] == "1:0 to 1:1, 2 entries"


async def test_system_topics_have_no_tables_by_a_namespace(scene: Scene) -> None:
    """A pattern does not include them."""
    await scene.declare("lake", "public/default/*")
    assert set(await scene.layout(TopicName("public", "default", "__change_events"))) == {
        "buffer d1",
        "bucket bucket/p/",
    }


async def test_states_of_an_earlier_release_have_no_positions(scene: Scene) -> None:
    """They are read, and say so."""
    await scene.declare("lake", "orders", TableState(table="orders", topic=str(TOPIC)))
    path = paths.table_state("lake")
    node = await scene.metadata.get(path)
    await scene.metadata.transact([Replace(path, node.value.replace(b', "positions": {}', b""), node.version)])
    assert b"positions" not in (await scene.metadata.get(path)).value
    assert (await scene.layout())["table lake/orders"] == "its application has not said how far it is"


async def test_without_metadata_it_is_said_at_once(scene: Scene) -> None:
    """Neither tables nor segments are known then."""
    await scene.metadata.__aexit__(None, None, None)
    with pytest.raises(Transient):
        await scene.layout()
