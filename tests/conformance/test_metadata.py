"""The MetadataStore port, against the memory store, a real and a simulated ZooKeeper: nodes and transactions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Conflict, InvalidInput, NoSpace, NotFound
from offloaderd.metadata.port import Check, Create, Delete, Replace, Versioned
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.testing.memory.metadata import MemoryMetadata
from tests.simulation.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from offloaderd.metadata.port import MetadataStore, Step
    from tests.conformance.metadata_stores import Tree


async def test_versions_count_replaces_from_zero(store: MetadataStore) -> None:
    """A created node has version 0, every replace raises it by one and says so."""
    await store.create("/a", b"one")
    assert await store.get("/a") == Versioned(b"one", 0)
    assert await store.replace("/a", b"two", 0) == 1
    assert await store.replace("/a", b"", 1) == 2
    assert await store.get("/a") == Versioned(b"", 2)


async def test_after_a_sync_a_session_sees_what_another_one_wrote(tree: Tree, store: MetadataStore) -> None:
    """Absence can be believed after a sync; a node that does not exist can be synced as well."""
    other = await tree.connect()
    assert isinstance(other, MemoryMetadata | ZooKeeperStore | ZooKeeper)
    await other.sync("/a/b")
    for number in range(20):
        await store.create(f"/a/{number}", b"")
        await other.sync("/a")
        assert str(number) in await other.children("/a")


async def test_a_replace_with_another_version_changes_nothing(store: MetadataStore) -> None:
    """An old and a future version are both Conflict, and the value stays."""
    await store.create("/a", b"one")
    await store.replace("/a", b"two", 0)
    for version in (0, 2):
        with pytest.raises(Conflict):
            await store.replace("/a", b"three", version)
    assert await store.get("/a") == Versioned(b"two", 1)


async def test_a_node_made_again_starts_at_zero(store: MetadataStore) -> None:
    """Deleting and creating a node is a new node."""
    await store.create("/a", b"")
    await store.replace("/a", b"x", 0)
    await store.delete("/a")
    await store.create("/a", b"y")
    assert await store.get("/a") == Versioned(b"y", 0)


async def test_what_does_not_exist_is_not_found(store: MetadataStore) -> None:
    """get, replace and delete of a missing node raise NotFound; its list of children is empty."""
    with pytest.raises(NotFound):
        await store.get("/a/b")
    with pytest.raises(NotFound):
        await store.replace("/a", b"", 0)
    with pytest.raises(NotFound):
        await store.delete("/a")
    with pytest.raises(NotFound):
        await store.delete("/a", 0)
    assert await store.children("/a") == []


async def test_create_makes_the_parents(store: MetadataStore) -> None:
    """Parents come into being empty, at version 0, and creating beside them works."""
    await store.create("/a/b/c", b"x")
    await store.create("/a/b/d", b"y")
    assert await store.get("/a/b") == Versioned(b"", 0)
    assert await store.children("/a/b") == ["c", "d"]


async def test_create_of_what_exists_is_a_conflict(store: MetadataStore) -> None:
    """The node that was there stays as it was."""
    await store.create("/a", b"one")
    with pytest.raises(Conflict):
        await store.create("/a", b"two")
    assert await store.get("/a") == Versioned(b"one", 0)


async def test_children_are_sorted_names(store: MetadataStore) -> None:
    """Names only, one level, in order; of the root as well."""
    for name in ("b", "a", "c/d", "ab"):
        await store.create(f"/x/{name}", b"")
    assert await store.children("/x") == ["a", "ab", "b", "c"]
    assert await store.children("/") == ["x"]
    assert (await store.get("/")).value == b""


async def test_delete_checks_version_and_children(store: MetadataStore) -> None:
    """Another version and children are Conflict; the right version, and no version, delete."""
    await store.create("/a/b", b"")
    with pytest.raises(Conflict):
        await store.delete("/a")
    with pytest.raises(Conflict):
        await store.delete("/a", 0)
    with pytest.raises(Conflict):
        await store.delete("/a/b", 1)
    await store.delete("/a/b", 0)
    await store.delete("/a")
    assert await store.children("/") == []


async def test_two_sessions_racing_for_one_create(tree: Tree) -> None:
    """Exactly one of many creates succeeds, the others are Conflict, and the node is the winner's."""
    stores = [await tree.connect() for _ in range(3)]
    won: list[bytes] = []

    async def claim(number: int) -> None:
        value = b"%d" % number
        try:
            await stores[number % 3].create("/topics/owner", value, ephemeral=True)
        except Conflict:
            return
        won.append(value)

    async with asyncio.TaskGroup() as group:
        for number in range(9):
            group.create_task(claim(number))
    assert len(won) == 1
    assert (await stores[0].get("/topics/owner")).value == won[0]


async def test_many_requests_at_once_are_all_answered(store: MetadataStore) -> None:
    """Several hundred requests side by side each get their own answer."""
    await store.create("/n", b"")

    async def one(number: int) -> None:
        await store.create(f"/n/{number}", b"%d" % number)
        assert (await store.get(f"/n/{number}")).value == b"%d" % number

    async with asyncio.TaskGroup() as group:
        for number in range(600):
            group.create_task(one(number))
    assert len(await store.children("/n")) == 600


async def test_a_cancelled_call_leaves_the_store_in_order(store: MetadataStore) -> None:
    """Requests that are cancelled on their way free their places; later ones are answered."""
    for _ in range(3):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(store.children("/")) for _ in range(100)]
            await asyncio.sleep(0)  # noqa: TID251 - let them start
            for task in tasks:
                task.cancel()
    assert await store.children("/") == []


# --- transactions -----------------------------------------------------------------------------------------------


async def test_a_transaction_does_all_its_steps(store: MetadataStore) -> None:
    """Every kind of step, and a child of a node that the same transaction makes."""
    for name in ("checked", "replaced", "deleted", "gone"):
        await store.create(f"/{name}", b"old")
    await store.transact(
        [
            Check("/checked", 0),
            Create("/made", b"1"),
            Create("/made/below", b"2"),
            Replace("/replaced", b"3", 0),
            Replace("/replaced", b"4", 1),
            Delete("/deleted", 0),
            Delete("/gone"),
        ]
    )
    assert await store.children("/") == ["checked", "made", "replaced"]
    assert await store.get("/made/below") == Versioned(b"2", 0)
    assert await store.get("/replaced") == Versioned(b"4", 2)
    assert await store.get("/checked") == Versioned(b"old", 0)


async def test_an_empty_transaction_does_nothing(store: MetadataStore) -> None:
    """No steps, no error."""
    await store.transact([])


@pytest.mark.parametrize(
    ("step", "named"),
    [
        (Create("/there", b""), "create /there"),
        (Create("/missing/below", b""), "create /missing/below"),
        (Create("/fleeting/below", b""), "create /fleeting/below"),
        (Replace("/there", b"", 1), "replace /there at version 1"),
        (Replace("/missing", b"", 0), "replace /missing at version 0"),
        (Delete("/there", 1), "delete /there at version 1"),
        (Delete("/missing"), "delete /missing"),
        (Delete("/parent"), "delete /parent"),
        (Check("/there", 1), "check /there at version 1"),
        (Check("/missing", 0), "check /missing at version 0"),
        (Create("/first", b""), "create /first"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_one_failing_step_undoes_all_and_is_named(store: MetadataStore, step: Step, named: str) -> None:
    """Whichever step fails, the error says which, and neither the steps before nor those after have happened."""
    await store.create("/there", b"")
    await store.create("/parent/child", b"")
    await store.create("/fleeting", b"", ephemeral=True)
    before = await store.children("/")
    with pytest.raises(Conflict) as caught:
        await store.transact(
            [Create("/first", b""), Replace("/parent", b"changed", 0), step, Create("/last", b"")],
        )
    assert "step 3 of 4" in str(caught.value)
    assert named in str(caught.value)
    assert await store.children("/") == before
    assert await store.get("/parent") == Versioned(b"", 0)


async def test_a_fenced_transaction_changes_nothing(tree: Tree) -> None:
    """The commit of an owner whose epoch has moved on fails on its check; the new owner's goes through."""
    old, new = await tree.connect(), await tree.connect()
    await old.create("/t/epoch", b"1")
    await old.create("/t/ledgers", b"")
    await new.replace("/t/epoch", b"2", 0)
    with pytest.raises(Conflict, match="check /t/epoch at version 0"):
        await old.transact([Check("/t/epoch", 0), Create("/t/ledgers/1", b"old")])
    await new.transact([Check("/t/epoch", 1), Create("/t/ledgers/1", b"new")])
    assert await old.get("/t/ledgers/1") == Versioned(b"new", 0)


# --- what no store takes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/.", "/a/..", "/a\0b", "/\ud800", "/\U0001f600"])
async def test_malformed_paths_are_refused(store: MetadataStore, path: str) -> None:
    """Every method refuses a path that no node can have, with the same error."""
    for call in (store.get, store.children, store.delete):
        with pytest.raises(InvalidInput):
            await call(path)
    with pytest.raises(InvalidInput):
        await store.create(path, b"")
    with pytest.raises(InvalidInput):
        await store.transact([Check(path, 0)])
    with pytest.raises(InvalidInput):
        await anext(store.watch(path))


@pytest.mark.parametrize("version", [-1, -2, 2**31])
async def test_impossible_versions_are_refused(store: MetadataStore, version: int) -> None:
    """A negative version would mean "any" to ZooKeeper, and one past 31 bits breaks its protocol."""
    await store.create("/a", b"")
    with pytest.raises(InvalidInput):
        await store.replace("/a", b"x", version)
    with pytest.raises(InvalidInput):
        await store.delete("/a", version)
    with pytest.raises(InvalidInput):
        await store.transact([Check("/a", version)])
    assert await store.get("/a") == Versioned(b"", 0)


async def test_the_root_cannot_be_deleted(store: MetadataStore) -> None:
    """The root stays, whoever asks."""
    with pytest.raises(InvalidInput):
        await store.delete("/")
    with pytest.raises(InvalidInput):
        await store.transact([Delete("/")])
    with pytest.raises(Conflict):
        await store.create("/", b"")


async def test_large_nodes_work_up_to_the_limit(store: MetadataStore) -> None:
    """1 MB goes in and comes back; more is NoSpace with a hint, and the session goes on."""
    value = b"x" * 1_029_000
    await store.create("/large", value)
    assert (await store.get("/large")).value == value
    session = await store.session()
    for size in (1_030_000, 1_100_000, 5_000_000):
        with pytest.raises(NoSpace, match="too large"):
            await store.create("/larger", b"x" * size)
        with pytest.raises(NoSpace, match="held in pieces"):
            await store.replace("/large", b"x" * size, 0)
    assert await store.children("/") == ["large"]
    assert await store.session() is session


async def test_a_transaction_is_limited_as_a_whole(store: MetadataStore) -> None:
    """Many steps within the limit work; steps that are too large together are NoSpace, and none is done."""
    await store.transact([Create(f"/{name}", b"x" * 330_000) for name in "abc"])
    with pytest.raises(NoSpace):
        await store.transact([Create(f"/{name}", b"x" * 344_000) for name in "def"])
    await store.transact([Create(f"/n{number}", b"y" * 10) for number in range(1000)])
    assert len(await store.children("/")) == 1003
