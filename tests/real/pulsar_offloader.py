"""Pulsar's own offloader and read handles (tiered-storage-jcloud), driven from Python over a real S3 server or Azurite.

What it writes is V1 (PIP-17), by the classes that a broker runs: `BlobStoreManagedLedgerOffloader` over a ledger of
real bookies. What it reads are objects of V1, and of V2 (PIP-76) by the handle that no broker opens. Calls block.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.real.gateway import java_gateway
from tests.real.jars import server_jars
from tests.real.java_client import Ensemble, JavaClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    from offloaderd.core.clock import Clock
    from tests.real.gateway import RunningGateway
    from tests.servers import S3Server

AZURE_DRIVER, GOOGLE_DRIVER = "azureblob", "google-cloud-storage"
BLOCK_BYTES_MIN = 5 * 1024 * 1024
"""The smallest block that Pulsar accepts for a driver of S3."""
READ_BUFFER_BYTES = 1024 * 1024
S3_DRIVER = "S3"
"""Not `aws-s3`, which asks Amazon for the region of every bucket, wherever the endpoint is."""
CLUSTER, SOFTWARE_VERSION, SOFTWARE_REVISION = "standalone", "4.0.8", "0123abc"
_PASSWORD_FREE = Ensemble()
CLIENT_OF_A_BROKER = {
    "throttle": 0,
    "useV2WireProtocol": True,
    "speculativeReadTimeout": 0,
    "enableDigestTypeAutodetection": True,
    "stickyReadSEnabled": True,
    "numChannelsPerBookie": 16,
}
"""How a broker's own client reads ledgers, by the defaults of broker.conf: `BookKeeperClientFactoryImpl
.createBkClientConfiguration`. The plain client reads no more than 5,000 entries a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTo:
    """Where Pulsar's offloader puts objects, and how it cuts and reads them."""

    driver: str
    endpoint: str
    account: str
    secret: str
    bucket: str
    block_bytes_max: int = BLOCK_BYTES_MIN
    read_buffer_bytes: int = READ_BUFFER_BYTES

    @classmethod
    def s3(cls, server: S3Server, bucket: str, *, block_bytes_max: int = BLOCK_BYTES_MIN) -> OffloadTo:
        """Return a bucket of a server of S3."""
        return cls(
            driver=S3_DRIVER,
            endpoint=server.endpoint,
            account=server.access_key,
            secret=server.secret_key,
            bucket=bucket,
            block_bytes_max=block_bytes_max,
        )


@dataclass(frozen=True, slots=True)
class WrittenBlocks:
    """What Pulsar's classes make of a ledger with a block size that no store of S3 would take."""

    data: bytes
    index: bytes


class PulsarReadHandle:
    """A read handle of Pulsar over offloaded objects. Close it when done."""

    def __init__(self, handle: Any) -> None:  # noqa: ANN401 - a Java object
        self._handle = handle

    @property
    def last_add_confirmed(self) -> int:
        """Last entry of the ledger, as the index says it."""
        return int(self._handle.getLastAddConfirmed())

    @property
    def length_bytes(self) -> int:
        """Payload bytes of the ledger, as the index says it."""
        return int(self._handle.getLength())

    def read(self, first: int, last: int) -> list[tuple[int, bytes]]:
        """Return what the handle answers to a read of [first, last]: ids and payloads. Raises Py4JJavaError."""
        entries = self._handle.readAsync(first, last).get()
        try:
            iterator = entries.iterator()
            found = []
            while iterator.hasNext():
                entry = iterator.next()
                found.append((int(entry.getEntryId()), bytes(entry.getEntryBytes())))
            return found
        finally:
            entries.close()

    def skim(self, first: int, last: int) -> None:
        """Read [first, last] and leave the entries where they are, in the JVM. Raises Py4JJavaError."""
        self._handle.readAsync(first, last).get().close()

    def close(self) -> None:
        """Let go of it."""
        self._handle.closeAsync().get()


class PulsarOffloader:
    """One offloader in one JVM, with a client of BookKeeper beside it. Use `pulsar_offloader` to make one."""

    def __init__(self, gateway: RunningGateway, metadata_uri: str, clock: Clock) -> None:
        self.server = gateway.server
        self._jvm = gateway.java.jvm
        self._jvm.java.lang.System.setProperty("jclouds.max-retries", "2")  # of a hundred, which outlast any test
        self._offloads = self._jvm.org.apache.bookkeeper.mledger.offload.jcloud
        threads = {"numIOThreads": 2, "numWorkerThreads": 2}
        settings = {"metadataServiceUri": metadata_uri, **threads, **CLIENT_OF_A_BROKER}
        self.ledgers = JavaClient(gateway, settings, clock)
        schedulers = self._jvm.org.apache.bookkeeper.common.util.OrderedScheduler
        self._scheduler = schedulers.newSchedulerBuilder().numThreads(1).name("offloader").build()
        self._stats = self._jvm.org.apache.bookkeeper.mledger.LedgerOffloaderStats.create(
            False,
            False,
            self._scheduler,
            60,
        )
        self._offset_caches: list[Any] = []

    def offload(
        self, ledger_id: int, object_id: UUID, managed_ledger: str, to: OffloadTo, ensemble: Ensemble = _PASSWORD_FREE
    ) -> dict[str, str]:
        """Offload a closed ledger as V1; returns the driver's metadata that a broker would record with it.

        Raises Py4JJavaError.
        """
        offloader = self._offloader(to)
        handle = self.ledgers.handle(ledger_id, ensemble)
        try:
            extra = self._map({"ManagedLedgerName": managed_ledger})
            offloader.offload(handle, self._uuid(object_id), extra).get()
        finally:
            handle.close()
        return {str(key): str(value) for key, value in dict(offloader.getOffloadDriverMetadata()).items()}

    def blocks(self, ledger_id: int, *, block_bytes_max: int, ensemble: Ensemble = _PASSWORD_FREE) -> WrittenBlocks:
        """Return what Pulsar's block stream and index make of a closed ledger, with blocks of any size."""
        streams = self._offloads.impl.BlockAwareSegmentInputStreamImpl
        handle = self.ledgers.handle(ledger_id, ensemble)
        try:
            builder = self._offloads.OffloadIndexBlockBuilder.create().withDataBlockHeaderLength(128)
            builder.withLedgerMetadata(handle.getLedgerMetadata())
            first, written, data = 0, 0, []
            while first <= int(handle.getLastAddConfirmed()):
                size = int(streams.calculateBlockSize(block_bytes_max, handle, first, written))
                stream = streams(handle, first, size, self._stats, "a/b/persistent/c")
                data.append(bytes(stream.readAllBytes()))
                assert len(data[-1]) == size
                builder.addBlock(first, len(data), size)
                first, written = int(stream.getEndEntryId()) + 1, written + int(stream.getBlockEntryBytesCount())
                stream.close()
            index = builder.withDataObjectLength(sum(map(len, data))).build()
            return WrittenBlocks(b"".join(data), bytes(index.toStream().readAllBytes()))
        finally:
            handle.close()

    def open_v1(self, ledger_id: int, object_id: UUID, to: OffloadTo) -> PulsarReadHandle:
        """Open an offloaded ledger as a broker does. Raises Py4JJavaError."""
        offloader = self._offloader(to)
        where = offloader.getOffloadDriverMetadata()
        return PulsarReadHandle(offloader.readOffloaded(ledger_id, self._uuid(object_id), where).get())

    def open_v2(self, ledger_id: int, segments: Sequence[UUID], to: OffloadTo) -> PulsarReadHandle:
        """Open a ledger that segments of PIP-76 hold, listed in their order. Raises Py4JJavaError."""
        offloader = self._offloader(to)
        protos = self._jvm.org.apache.bookkeeper.mledger.proto.MLDataFormats
        context = protos.OffloadContext.newBuilder()
        for segment_id in segments:
            uuid = self._uuid(segment_id)
            one = protos.OffloadSegment.newBuilder().setComplete(True)
            one.setUidMsb(uuid.getMostSignificantBits()).setUidLsb(uuid.getLeastSignificantBits())
            context.addOffloadSegment(one.build())
        where = offloader.getOffloadDriverMetadata()
        return PulsarReadHandle(offloader.readOffloaded(ledger_id, context.build(), where).get())

    def close(self) -> None:
        """End its threads."""
        for cache in self._offset_caches:
            cache.close()
        self._scheduler.shutdown()

    def _offloader(self, to: OffloadTo) -> Any:  # noqa: ANN401 - a Java object
        settings = {
            "managedLedgerOffloadDriver": to.driver,
            "managedLedgerOffloadBucket": to.bucket,
            "managedLedgerOffloadServiceEndpoint": to.endpoint,
            "managedLedgerOffloadMaxBlockSizeInBytes": str(to.block_bytes_max),
            "managedLedgerOffloadReadBufferSizeInBytes": str(to.read_buffer_bytes),
        }
        if to.driver != S3_DRIVER:  # others ask their provider's servers, whatever endpoint a broker names
            self._jvm.java.lang.System.setProperty(f"{to.driver}.endpoint", to.endpoint)
        configuration = self._offloads.provider.TieredStorageConfiguration.create(self._map(settings))
        credentials = self._jvm.org.jclouds.domain.Credentials(to.account, to.secret)
        configuration.setProviderCredentials(self._jvm.com.google.common.base.Suppliers.ofInstance(credentials))
        names = self._jvm.org.apache.bookkeeper.mledger.LedgerOffloader
        metadata = {  # as PulsarService.createManagedLedgerOffloader gives it
            names.METADATA_SOFTWARE_VERSION_KEY.lower(): SOFTWARE_VERSION,
            names.METADATA_SOFTWARE_GITSHA_KEY.lower(): SOFTWARE_REVISION,
            names.METADATA_PULSAR_CLUSTER_NAME.lower(): CLUSTER,
        }
        cache = self._offloads.impl.OffsetsCache()
        self._offset_caches.append(cache)
        makers = self._offloads.impl.BlobStoreManagedLedgerOffloader
        threads = self._scheduler, self._scheduler
        return makers.create(configuration, self._map(metadata), *threads, self._stats, cache)

    def _map(self, pairs: Mapping[str, str]) -> Any:  # noqa: ANN401 - a Java object
        made = self._jvm.java.util.HashMap()
        for key, value in pairs.items():
            made.put(key, value)
        return made

    def _uuid(self, value: UUID) -> Any:  # noqa: ANN401 - a Java object
        return self._jvm.java.util.UUID.fromString(str(value))


def refused(error: Py4JJavaError) -> Iterable[str]:
    """Return what a Java exception and its causes say, outermost first."""
    cause = error.java_exception
    while cause is not None:
        yield str(cause.toString())
        cause = cause.getCause()


@asynccontextmanager
async def pulsar_offloader(
    metadata_uri: str, directory: Path, clock: Clock, *, flags: Sequence[str] = ()
) -> AsyncIterator[PulsarOffloader]:
    """Run an offloader over the ledgers of a cluster, in a JVM with these flags behind its own.

    Raises FetchFailed, InvalidConfig (no Java), ServerDied.
    """
    classes = [f"{server_jars('pulsar')}/*", f"{server_jars('offloader')}/*"]
    async with java_gateway(directory, clock, classes, flags=flags) as gateway:
        offloader = PulsarOffloader(gateway, metadata_uri, clock)
        try:
            yield offloader
        finally:
            offloader.close()
