"""Quotas and usage as records: what is stored reads back, damage keeps what was known, and mistakes are reported."""

from __future__ import annotations

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


def test_a_record_of_usage_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many namespaces those that have stored or moved least are left out."""
    monkeypatch.setattr(quotas, "USAGES_MAX", 2)
    many = {Scope("acme", str(number)): Usage(written_bytes=number) for number in range(1, 5)}
    stored = quotas.encode_usage(DaemonUsage(since_ms=1, at_ms=2, namespaces=many))
    assert {scope.namespace for scope in quotas.decode_usage(stored, path="p").namespaces} == {"3", "4"}


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
