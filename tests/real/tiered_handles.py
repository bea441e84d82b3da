"""The read handles that a broker would open over offloaded ledgers, in a JVM of their own: the read path by itself.

Both drivers are loaded from the archives as a broker does it. No cache of a broker, no dispatcher and no consumer take
part: a read is asked for when the one before is answered, and its entries are let go of at once. Calls block.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.real.broker import offloaders
from tests.real.gateway import java_gateway
from tests.real.jars import server_jars

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from pathlib import Path
    from uuid import UUID

    from offloaderd.core.clock import Clock
    from tests.real.gateway import RunningGateway

READ_ENTRIES = 100
"""As many as a broker's dispatcher asks for at a time (dispatcherMaxReadBatchSize)."""


class OffloadedLedger(NamedTuple):
    """A ledger in the tier, as Pulsar's list names it."""

    ledger_id: int
    object_id: UUID
    entries: int
    metadata: Mapping[str, str]


class TieredHandles:
    """Drivers in one JVM. Use `tiered_handles` to make it."""

    def __init__(self, gateway: RunningGateway, home: Path) -> None:
        self.server = gateway.server
        self._jvm = gateway.java.jvm
        self._managed = self._jvm.org.apache.bookkeeper.mledger
        found = self._managed.offload.OffloaderUtils
        self._archives = found.searchForOffloaders(str(home / "offloaders"), str(home / "tmp"))
        schedulers = self._jvm.org.apache.bookkeeper.common.util.OrderedScheduler
        self._scheduler = schedulers.newSchedulerBuilder().numThreads(2).name("offloader").build()
        self._stats = self._managed.LedgerOffloaderStats.create(False, False, self._scheduler, 60)

    def offloader(self, policies: Mapping[str, object], extra: Mapping[str, str]) -> Any:  # noqa: ANN401 - a Java object
        """Make a namespace's offloader. Raises Py4JJavaError."""
        said = self._jvm.java.util.Properties()
        for name, value in policies.items():
            said.setProperty(name, str(value))
        found = self._jvm.org.apache.pulsar.common.policies.data.OffloadPoliciesImpl.create(said)
        found.setManagedLedgerExtraConfigurations(self._map(extra))
        factory = self._archives.getOffloaderFactory(str(policies["managedLedgerOffloadDriver"]))
        return factory.create(found, self._map({}), self._scheduler, self._stats)

    def skim(self, offloader: Any, ledgers: Iterable[OffloadedLedger]) -> None:  # noqa: ANN401 - a Java object
        """Read ledgers from the first entry to the last, one after the other. Raises Py4JJavaError."""
        uuids = self._jvm.java.util.UUID
        for ledger in ledgers:
            where = self._map(ledger.metadata)
            handle = offloader.readOffloaded(ledger.ledger_id, uuids.fromString(str(ledger.object_id)), where).get()
            for first in range(0, ledger.entries, READ_ENTRIES):
                last = min(first + READ_ENTRIES, ledger.entries) - 1
                handle.readAsync(first, last).get().close()
            handle.closeAsync().get()

    def close(self) -> None:
        """End its threads."""
        self._archives.close()
        self._scheduler.shutdown()

    def _map(self, pairs: Mapping[str, str]) -> Any:  # noqa: ANN401 - a Java object
        made = self._jvm.java.util.HashMap()
        for key, value in pairs.items():
            made.put(key, value)
        return made


OURS = ["-Xmx384m", "-Doffloaderd.NamespaceAddresses=true"]


@asynccontextmanager
async def tiered_handles(
    home: Path, clock: Clock, *, flags: Iterable[str], environment: Mapping[str, str]
) -> AsyncIterator[TieredHandles]:
    """Load both drivers below a directory. Raises CannotBuild, FetchFailed, InvalidConfig (no Java), ServerDied."""
    offloaders(home)
    classes = [f"{server_jars('pulsar')}/*"]
    async with java_gateway(home, clock, classes, flags=[*OURS, *flags], environment=environment) as gateway:
        handles = TieredHandles(gateway, home)
        try:
            yield handles
        finally:
            handles.close()
