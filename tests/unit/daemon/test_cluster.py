"""The checks of the cluster's own nodes that need no server."""

from __future__ import annotations

from offloaderd.daemon.doctor.cluster import other_domains
from offloaderd.daemon.doctor.finding import Case, Verdict
from offloaderd.daemon.settings import Settings
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.memory.metadata import MemoryTree

CASE = Case(Settings(objects=ObjectsSettings(kind="filesystem")), FakeClock())


async def test_topics_of_other_domains_are_warned_of_by_name() -> None:
    """A few of them, however many there are; a cluster of persistent topics is well."""
    async with MemoryTree().connect() as store:
        await store.create("/managed-ledgers/acme/eu/persistent/a", b"")
        assert (await other_domains(CASE, store)).verdict is Verdict.OK
        for number in range(7):
            await store.create(f"/managed-ledgers/acme/eu/segment/b%2F{number}", b"")
        found = await other_domains(CASE, store)
    assert found.verdict is Verdict.WARN
    assert found.found.startswith("7 topics are not covered")
    assert found.found.endswith("segment://acme/eu/b/4, and 2 more")
    assert "BookKeeper" in found.what_to_do
