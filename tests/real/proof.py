"""How a history on real servers ends: everything offloaded and read by a sound daemon, then checked from three sides.

The history of what clients were told, the bucket against the metadata, and the bucket's own entries have to agree.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.integration.processes import CLOCK, DaemonProcess
from tests.patience import PATIENCE_S
from tests.real.audit import audit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.client import DaemonClient
    from offloaderd.core.model import TopicName
    from tests.integration.processes import Site
    from tests.real.audit import Audit
    from tests.real.workload import Workload


async def at_rest(site: Site, topics: Sequence[TopicName]) -> Audit:
    """Return what the audit finds once the trash has been emptied, or after a while."""
    deadline = CLOCK.monotonic() + PATIENCE_S
    while True:
        found = await audit(site, topics)
        if not (found.trash or found.attempts) or CLOCK.monotonic() > deadline:
            return found
        await CLOCK.sleep(0.1)


async def collect(client: DaemonClient) -> Counter[str]:
    """Collect garbage of any age once; returns what was found, by kind. Nothing may be an alarm or fail."""
    kinds: Counter[str] = Counter()
    async for event in client.gc(apply=True, grace_s=0, timeout_s=PATIENCE_S):
        if event.HasField("find"):
            assert event.find.verdict == "deleted", event.find
            kinds[event.find.kind] += 1
    return kinds


async def check(site: Site, client: DaemonClient, *workloads: Workload) -> Audit:
    """Check histories whose entries are all offloaded and whose last reads were whole, while a daemon still runs.

    They are all that the site's bucket was used for. One collection of garbage has to leave nothing behind that is not
    referred to, and take nothing that is.
    """
    topics = [workload.topic for workload in workloads]
    await at_rest(site, topics)
    collected = await collect(client)
    found = await audit(site, topics)
    found.collected = sum(collected.values())
    assert not found.problems
    for workload in workloads:
        stored = found.stored[workload.topic]
        assert not workload.history.problems(stored, found.floors[workload.topic])
        last = workload.history.reads[-1]
        assert last.whole
        assert stored.keys() == {position for position, _ in last.entries}
        assert stored
    return found


async def ends_well(site: Site, workload: Workload, *, entries: int = 60) -> Audit:
    """Let a sound daemon bring everything to its end, and check it."""
    async with DaemonProcess(site) as daemon, daemon.client() as client:
        await client.enable(workload.topic)
        await workload.append(client, entries)
        await workload.offload(client)
        await workload.read(client)
        found = await check(site, client, workload)
    assert workload.history.acked >= entries
    return found
