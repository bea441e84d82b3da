"""BookKeeper's own Java client, driven from Python: for ledgers that no code of ours had a hand in.

The client runs in a JVM of its own, so a Java runtime without a compiler will do, and to crash a writer is to kill that
JVM. Calls block; entries are written with up to `window` of them in flight, and a reader of an open ledger is kept from
about as many at its end.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from tests.patience import PATIENCE_S
from tests.real.gateway import java_gateway
from tests.real.jars import server_jars

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from pathlib import Path

    from offloaderd.core.clock import Clock
    from tests.real.gateway import RunningGateway

DigestType = Literal["CRC32", "CRC32C", "MAC", "DUMMY"]

WINDOW = 64


def payload(ledger_id: int, entry_id: int, size_bytes: int) -> bytes:
    """Return the content that entry `entry_id` of a ledger has by agreement: its ids, as far as they fit, then bytes.

    Byte k of what follows is (7 * ledger + 31 * entry + k) mod 251, a prime, so that no shift goes unnoticed.
    """
    head = b"%d:%d|" % (ledger_id, entry_id)
    start = (7 * ledger_id + 31 * entry_id) % 251
    turns = -(-(start + size_bytes) // 251)
    return (head + (_WHEEL * turns)[start:])[:size_bytes]


_WHEEL = bytes(range(251))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """How a ledger is replicated and checked. `digest` is the name of the Java client's DigestType."""

    size: int = 3
    write_quorum: int = 2
    ack_quorum: int = 2
    digest: DigestType = "CRC32C"
    password: bytes = b""


class JavaLedger:
    """A ledger that the Java client has open for writing. Leave it to its fate, and it stays open."""

    def __init__(self, handle: Any) -> None:  # noqa: ANN401 - a Java object
        self._handle = handle
        self.ledger_id = int(handle.getId())

    @property
    def last_add_confirmed(self) -> int:
        """Last entry that the writer knows to be stored; -1 when there is none."""
        return int(self._handle.getLastAddConfirmed())

    @property
    def length_bytes(self) -> int:
        """Payload bytes written so far."""
        return int(self._handle.getLength())

    def add(self, entries: int, size_bytes: int = 1024, *, window: int = WINDOW) -> list[bytes]:
        """Add entries with the agreed content; returns it once all are acknowledged."""
        first = int(self._handle.getLastAddPushed()) + 1
        contents = [payload(self.ledger_id, first + number, size_bytes) for number in range(entries)]
        self.write(contents, window=window)
        return contents

    def write(self, contents: Iterable[bytes], *, window: int = WINDOW) -> None:
        """Add these entries; returns once all are acknowledged. Raises Py4JJavaError when one is refused."""
        waiting: deque[Any] = deque()
        for content in contents:
            waiting.append(self._handle.appendAsync(content))
            if len(waiting) >= window:
                waiting.popleft().get()
        for future in waiting:
            future.get()

    def close(self) -> None:
        """Close it as its writer does in order."""
        self._handle.close()


class JavaClient:
    """One client in one JVM. Use `java_client` to make one."""

    def __init__(self, gateway: RunningGateway, settings: Mapping[str, object], clock: Clock) -> None:
        self.server = gateway.server
        self._clock = clock
        packages = gateway.java.jvm.org.apache.bookkeeper
        configuration = packages.conf.ClientConfiguration()
        for key, value in settings.items():
            configuration.setProperty(key, value)
        self._digests = packages.client.BookKeeper.DigestType
        self._client = packages.client.BookKeeper(configuration)

    def create(self, ensemble: Ensemble | None = None) -> JavaLedger:
        """Create a ledger and keep it open for writing. Raises Py4JJavaError when there are too few bookies."""
        how = ensemble or Ensemble()
        arguments = (how.size, how.write_quorum, how.ack_quorum, self._digests.valueOf(how.digest), how.password)
        until = self._clock.monotonic() + PATIENCE_S
        while True:
            try:
                return JavaLedger(self._client.createLedger(*arguments))
            except Py4JJavaError as error:
                if "BKNotEnoughBookies" not in str(error) or self._clock.monotonic() > until:
                    raise
            threading.Event().wait(0.2)

    def recover(self, ledger_id: int, ensemble: Ensemble | None = None) -> int:
        """Open it as another client does that takes over: fences its writer and closes it. Returns the last entry."""
        return self._last(self._client.openLedger, ledger_id, ensemble)

    def confirmed(self, ledger_id: int, ensemble: Ensemble | None = None) -> int:
        """Return the last entry that a Java reader may read now, without disturbing the writer."""
        return self._last(self._client.openLedgerNoRecovery, ledger_id, ensemble)

    def read(self, ledger_id: int, ensemble: Ensemble | None = None) -> list[bytes]:
        """Return every entry that a Java reader may read now, without disturbing the writer."""
        how = ensemble or Ensemble()
        handle = self._client.openLedgerNoRecovery(ledger_id, self._digests.valueOf(how.digest), how.password)
        try:
            last = int(handle.getLastAddConfirmed())
            entries = handle.readEntries(0, last) if last >= 0 else None
            found = []
            while entries is not None and entries.hasMoreElements():
                found.append(bytes(entries.nextElement().getEntry()))
            return found
        finally:
            handle.close()

    def handle(self, ledger_id: int, ensemble: Ensemble | None = None) -> Any:  # noqa: ANN401 - a Java object
        """Open it as the offloader of a broker does, which recovers it; returns the `LedgerHandle`, to be closed."""
        how = ensemble or Ensemble()
        return self._client.openLedger(ledger_id, self._digests.valueOf(how.digest), how.password)

    def delete(self, ledger_id: int) -> None:
        """Delete it, as retention does."""
        self._client.deleteLedger(ledger_id)

    def _last(self, opening: Any, ledger_id: int, ensemble: Ensemble | None) -> int:  # noqa: ANN401 - a Java method
        how = ensemble or Ensemble()
        handle = opening(ledger_id, self._digests.valueOf(how.digest), how.password)
        try:
            return int(handle.getLastAddConfirmed())
        finally:
            handle.close()


@asynccontextmanager
async def java_client(
    metadata_uri: str, directory: Path, clock: Clock, settings: Mapping[str, object] | None = None
) -> AsyncIterator[JavaClient]:
    """Run a client on a cluster. `settings` are the client's own, such as `explicitLacInterval`.

    Raises FetchFailed (no jars), InvalidConfig (no Java), ServerDied.
    """
    async with java_gateway(directory, clock, [f"{server_jars('bookkeeper')}/*"]) as gateway:
        ours = {"metadataServiceUri": metadata_uri, "numIOThreads": 2, "numWorkerThreads": 2}
        yield JavaClient(gateway, {**ours, **(settings or {})}, clock)
