"""Quotas and usage as records: what is stored reads back, damage keeps what was known, and mistakes are reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.names.patterns import Scope
from offloaderd.core.quotas import QUOTAS, Quotas, Usage
from offloaderd.metadata import paths
from offloaderd.policy import quotas
from offloaderd.policy.quota_fields import FIELDS
from offloaderd.policy.quotas import DaemonUsage, LevelQuotas, checked, level_of
from offloaderd.testing.memory.metadata import MemoryTree
from tests.virtual import LoopClock

if TYPE_CHECKING:
    from offloaderd.metadata.port import MetadataStore

EU = Scope("acme", "eu")


async def test_quotas_are_stored_by_level() -> None:
    """With who set them and when; without a value they are removed; each change moves the folder's version."""
    store, clock = MemoryTree().connect(), LoopClock()
    limits = Quotas(stored_bytes=10, readers=-1, weight=3)
    await quotas.put(store, clock, EU, limits, by="alice")
    await quotas.put(store, clock, Scope(), Quotas(calls=7), by="bob")
    found = await quotas.load(store)
    assert found[EU] == LevelQuotas(quotas=limits, changed_ms=clock.wall_ms(), changed_by="alice")
    assert found[Scope()].quotas == Quotas(calls=7)
    version = (await store.get(paths.QUOTAS)).version
    await quotas.put(store, clock, EU, Quotas(), by="alice")
    await quotas.put(store, clock, EU, Quotas(), by="alice")
    assert (await quotas.load(store)).keys() == {Scope()}
    assert (await store.get(paths.QUOTAS)).version == version + 1


async def test_a_damaged_level_keeps_its_quotas() -> None:
    """A tenant gets no more because a node cannot be read."""
    store, clock = MemoryTree().connect(), LoopClock()
    await quotas.put(store, clock, EU, Quotas(readers=1), by="alice")
    known = await quotas.load(store)
    path = paths.quota("acme/eu")
    await store.replace(path, b"\xff", (await store.get(path)).version)
    assert await quotas.load(store, known) == known
    assert not await quotas.load(store)
    with pytest.raises(CorruptData):
        quotas.decode(b"\xff", path=path)


async def test_usage_is_stored_by_daemon() -> None:
    """Stored bytes are those of the living daemons; sums are of all."""
    store = MemoryTree().connect()
    usage = Usage(written_bytes=1, read_bytes=2, requests=3, stored_byte_s=4.5, stored_bytes=6)
    for daemon_id in ("d-1", "d-2"):
        one = DaemonUsage(since_ms=1, at_ms=2, namespaces={EU: usage})
        await store.create(paths.usage(daemon_id), quotas.encode_usage(one))
    found = await quotas.usages(store)
    assert found["d-1"] == found["d-2"] == DaemonUsage(since_ms=1, at_ms=2, namespaces={EU: usage})
    assert quotas.stored_of(found, {"d-2"}) == {EU: 6}


def used(*names: str, written_bytes: int = 1) -> DaemonUsage:
    """Return the usage of some namespaces, in this order."""
    spaces = {Scope("acme", name): Usage(written_bytes=written_bytes) for name in names}
    return DaemonUsage(since_ms=1, at_ms=written_bytes, namespaces=spaces)


async def test_the_usage_of_many_namespaces_is_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, each in the same piece as before: who reads between two writes finds each once."""
    monkeypatch.setattr(quotas, "USAGES_A_NODE", 2)
    store = MemoryTree().connect()
    await quotas.put_usage(store, "d-1", used("b", "a", "c"))
    assert await store.children(paths.usage("d-1")) == ["1"]
    wanted = used("b", "a", "c", "d", "0", written_bytes=7)
    await quotas.put_usage(store, "d-1", wanted)
    assert await store.children(paths.usage("d-1")) == ["1", "2"]
    found = (await quotas.usages(store))["d-1"]
    assert found == wanted
    assert list(found.namespaces) == list(wanted.namespaces), "their order is their place"
    await store.replace(paths.usage("d-1"), quotas.encode_usage(used("b", "a")), 1)  # as if the others were newer
    assert {scope.namespace: one.written_bytes for scope, one in (await usage(store)).namespaces.items()} == {
        "b": 1, "a": 1, "c": 7, "d": 7, "0": 7
    }  # fmt: skip


async def usage(store: MetadataStore) -> DaemonUsage:
    """Return what daemon d-1 has written."""
    found = await quotas.usage_of(store, "d-1")
    assert found is not None
    return found


async def test_a_release_without_pieces_loses_no_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts from 0 what it has not read, in the node alone; both are one sum afterwards, in one piece."""
    monkeypatch.setattr(quotas, "USAGES_A_NODE", 2)
    store = MemoryTree().connect()
    await quotas.put_usage(store, "d-1", used("a", "b", "c", "d", written_bytes=5))
    older = used("a", "b", "d", written_bytes=7)
    await store.replace(paths.usage("d-1"), quotas.encode_usage(older), 0)
    found = await usage(store)
    assert {scope.namespace: one.written_bytes for scope, one in found.namespaces.items()} == {
        "a": 7, "b": 7, "d": 12, "c": 5
    }  # fmt: skip
    await quotas.put_usage(store, "d-1", found)
    assert await usage(store) == found


async def test_a_damaged_piece_damages_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its daemon is left out, and begins no sums anew."""
    monkeypatch.setattr(quotas, "USAGES_A_NODE", 1)
    store = MemoryTree().connect()
    await quotas.put_usage(store, "d-1", used("a", "b"))
    await quotas.put_usage(store, "d-2", used("a"))
    await store.replace(paths.usage("d-1", 1), b"\xff", 0)
    assert (await quotas.usages(store)).keys() == {"d-2"}
    with pytest.raises(CorruptData, match="/usage/d-1/1"):
        await quotas.usage_of(store, "d-1")


def test_all_mistakes_are_reported_at_once() -> None:
    """A rate of 0 would stop everything, a weight has no `off`."""
    assert tuple(FIELDS) == QUOTAS
    with pytest.raises(InvalidInput) as refused:
        checked({"write_bytes_per_s": 0, "weight": -1, "readers": 4})
    assert refused.value.message.splitlines() == [
        f"write_bytes_per_s: 0 is not 1 to {2**63 - 1} bytes, or negative for none",
        "weight: -1 is not 1 to 1000",
    ]
    assert FIELDS["readers"].read("off") == -1
    assert FIELDS["stored_bytes"].read("1K") == 1024
    with pytest.raises(InvalidInput):
        FIELDS["readers"].read("many")


@pytest.mark.parametrize("text", ["", "acme/", "/eu", "a/b/c", "re:x", "acme/*"])
def test_what_is_no_level_is_refused(text: str) -> None:
    """A level is a tenant, a namespace or the broker level."""
    with pytest.raises(InvalidInput, match="malformed level"):
        level_of(text)
    assert level_of("acme/eu") == EU
    assert (level_of("acme"), level_of("*")) == (Scope("acme"), Scope())
