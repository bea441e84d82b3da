"""The settings: one frozen value a section, each field with its default, its bounds and why it is so.

Settings are values and hold no component. Constructing them reads neither file nor environment; `loading.py` does.
Fields check themselves; what concerns two of them is in `rules.py`. Those of the ledger source are in
`sections_source.py`. configs/offloaderd.toml and docs/settings.md
are generated from these fields. Sizes are bytes (`Bytes` reads "64MiB"), durations are
seconds (`Seconds` reads "10min"); units.py reads both.
"""

from __future__ import annotations

import socket
from typing import Literal

from pydantic import Field, field_validator

from offloaderd.config.kinds import (
    Address,
    Bytes,
    ClusterName,
    Levels,
    NodeName,
    Port,
    Priority,
    Seconds,
)
from offloaderd.config.section import Section
from offloaderd.config.sections_access import AccessSettings, TlsSettings
from offloaderd.config.sections_gc import GcSettings
from offloaderd.config.sections_history import HistorySettings
from offloaderd.config.sections_ledger_based import LedgerBasedSettings
from offloaderd.config.sections_outage import OutageSettings, SpillSettings, UploadSettings
from offloaderd.config.sections_placement import PlacementSettings
from offloaderd.config.sections_prices import PricesSettings
from offloaderd.config.sections_retention import GrantSettings, RetentionSettings
from offloaderd.config.sections_scrub import ScrubSettings
from offloaderd.config.sections_source import BookkeeperSettings, LedgersSettings, PulsarSettings
from offloaderd.config.sections_stores import MetadataSettings, ObjectsSettings
from offloaderd.config.sections_tracing import TracingSettings
from offloaderd.model import ReadPriority

KiB, MiB, GiB = 1024, 1024**2, 1024**3


class DaemonSettings(Section):
    """Who this daemon is."""

    id: NodeName = ""
    """Name of this daemon, unique in the cluster: two with one id would take turns at evicting each other. Empty: the
    host's name, which is right for one daemon a machine or pod."""

    cluster: ClusterName = "pulsar"
    """Name of the Pulsar cluster; part of every metadata path, so that clusters can share a ZooKeeper."""

    @field_validator("id")
    @classmethod
    def _named(cls, value: str) -> str:
        return value or socket.gethostname()


class GrpcSettings(Section):
    """The API: StreamingOffload, Read, Admin, health and reflection."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Loopback; another one needs authentication (tls.client_ca_file, or access with tokens)."""

    port: Port = 7650
    """Port to listen on; 0 takes any free one."""

    advertise: Address = Field(default=None, examples=["offloaderd-0.example:7650"])
    """HOST:PORT under which others reach this daemon, told to clients of another daemon's topics. Not set: grpc.host
    and the port in use."""

    insecure_elsewhere: bool = False
    """Allow grpc.host to be other than loopback without authentication: whoever reaches the port may read and change
    everything then. Off, so that nobody opens it by accident."""

    message_bytes_max: Bytes = Field(default=16 * MiB, ge=6 * MiB, le=1 * GiB)
    """Largest message taken or sent. Must hold a batch and one more entry of 5 MiB."""

    streams_max: int = Field(default=256, ge=1, le=100_000)
    """Calls served at the same time on one connection; more wait. Bounds what one client can hold."""

    calls_max: int = Field(default=2048, ge=1, le=1_000_000)
    """Calls served at the same time on all connections, probes apart; the next is refused and may come again."""

    call_s_max: Seconds = Field(default=900.0, gt=0, le=86_400)
    """How long a call with one answer may take, whatever its client allows. Changing the policies of ten thousand
    topics takes some ten seconds. Streams may last."""

    send_s_max: Seconds = Field(default=120.0, gt=0, le=86_400)
    """How long the client of a stream may take nothing of an answer that is ready, before the call is cut: what a read
    holds in memory is not held for somebody who sleeps."""

    handshake_s_max: Seconds = Field(default=10.0, gt=0, le=300)
    """How long a new connection may take over TLS and the first frames; then it is closed."""


class HttpSettings(Section):
    """The status page, /metrics, /healthz and /readyz."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Loopback by default; it shows topic names but no data and takes no orders, so "0.0.0.0" is
    what a scraper or a probe from elsewhere needs."""

    port: Port = 7651
    """Port to listen on; 0 takes any free one."""

    tls: Literal["off", "server", "mutual"] = "off"
    """server: HTTPS with tls.cert_file. mutual: clients, probes too, need a certificate of tls.client_ca_file as well
    (Kubernetes' probes have none)."""

    topic_metrics: bool = True
    """Show per-topic metrics on /metrics. With thousands of topics turn it off and scrape /metrics/topics less
    often."""

    status_page: bool = True
    """Serve the status page, /status and /status.json, to whoever may call Status: with authentication a token as the
    password, or a certificate where http.tls is mutual."""


class OffloadSettings(Section):
    """How entries become segments; a topic's policy may say otherwise for its rolling."""

    segment_bytes_max: Bytes = Field(default=1 * GiB, ge=1)
    """Roll at this size (PIP-76 maxSizePerOffloadSegmentMbytes). Large enough that a topic's metadata stays small,
    small enough to be read back after a crash in seconds."""

    segment_age_max_s: Seconds = Field(default=600.0, gt=0)
    """Roll this long after the first entry (PIP-76 maxOffloadSegmentRolloverTimeMinutes): an upper bound on what only
    the source holds. Shorter means more and smaller objects."""

    segment_age_min_s: Seconds = Field(default=0.0, ge=0)
    """Do not roll by size before this age (PIP-76 minOffloadSegmentRolloverTimeMinutes). 0: roll as soon as the size is
    reached."""

    sleep_after_s: Seconds = Field(default=60.0, ge=0, le=86_400)
    """Put a topic down that nothing has happened to for so long: it takes less than half of the memory then, and is
    taken up again when something does. 0: never."""

    block_bytes: Bytes = Field(default=1 * MiB, ge=4 * KiB, le=1 * GiB)
    """Soft size of a block, the unit that is recorded, and fetched, checked and cached by whoever reads on. A cold read
    of one entry fetches 64 or 128 KiB of it; all of it where it was stored before a crash by another process than the
    one that sealed its segment, or by an older version."""

    part_bytes: Bytes = Field(default=8 * MiB, ge=64 * KiB, le=5 * GiB)
    """Size of a multipart part; S3 wants 5 MiB or more and takes 10,000. 8 MiB fills a connection and is cheap to send
    again."""

    parts_in_flight_max: int = Field(default=4, ge=1, le=1000)
    """Parts of one segment uploaded at the same time. More helps only over long lines."""

    preamble: bool = False
    """Begin data objects with four pad bytes, so that Pulsar's own reader manages segments that start inside a ledger.
    Off: objects are exactly as PIP-76 says."""

    verify: Literal["head", "readback"] = "head"
    """What is done before a commit. head: size and checksum as the store reports them. readback: every byte is read
    again and checked, which doubles the traffic."""


class MemorySettings(Section):
    """Budgets; together with a fixed base of about 100 MiB they bound the process."""

    buffer_bytes: Bytes = Field(default=256 * MiB, ge=1 * MiB)
    """Tailing buffers of all topics. What does not fit is read from the source again."""

    upload_bytes: Bytes = Field(default=128 * MiB, ge=1 * MiB)
    """Parts being assembled and uploaded; holds three parts or more."""

    cache_bytes: Bytes = Field(default=128 * MiB, ge=1 * MiB)
    """Blocks read from the store and read ahead; holds four blocks or more."""

    unpack_bytes: Bytes = Field(default=64 * MiB, ge=1 * MiB)
    """What ReadMessages unpacks of compressed entries: half for entries that are unpacked and sent, where a read waits
    for its turn, half for chunks that wait for the rest of their message. One identity leaves room for others in
    both."""

    @property
    def budget_bytes(self) -> int:
        """All of them together."""
        return self.buffer_bytes + self.upload_bytes + self.cache_bytes + self.unpack_bytes


class ReadSettings(Section):
    """Reading back."""

    priority: Priority = ReadPriority.TIERED_STORAGE_FIRST
    """Which tier is asked first when both have an entry (PIP-73); tiered-first is accepted too. The store first spares
    the bookies."""

    batch_bytes: Bytes = Field(default=1 * MiB, ge=1 * KiB, le=256 * MiB)
    """Payload bytes of one answer of a read, at least one entry; a client may ask for less. An answer that is not taken
    is in no budget of memory: readers_max times twice as much may be held so."""

    read_ahead_bytes: Bytes = Field(default=16 * MiB, ge=0)
    """Most that a sequential read fetches ahead; it begins with one block and grows while it is used."""

    readers_max: int = Field(default=256, ge=1, le=100_000)
    """Reads open at the same time; the next is refused and may come again."""


class ShutdownSettings(Section):
    """Going down."""

    drain_s: Seconds = Field(default=25.0, ge=0, le=3600)
    """How long SIGTERM may take to finish open segments; then they are left for the next start. Below the 30 s after
    which Kubernetes kills."""


class LogSettings(Section):
    """The log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is written."""

    levels: Levels = Field(default=(), examples=[("read info", "offload.tailer debug", "kazoo error")])
    """Modules that are written from another level on, each as MODULE LEVEL: a package or module of offloaderd with all
    below it, or a library. `offloadctl log-level` does it for a while. In the environment separated by semicolons."""

    format: Literal["auto", "json", "console"] = "auto"
    """json: one object a line. console: for people. auto: console on a terminal, else json."""


class Settings(Section):
    """All of it. What must hold between the sections is asked by who reads them: `rules.broken_rules`."""

    daemon: DaemonSettings = DaemonSettings()
    grpc: GrpcSettings = GrpcSettings()
    http: HttpSettings = HttpSettings()
    tls: TlsSettings = TlsSettings()
    access: AccessSettings = AccessSettings()
    metadata: MetadataSettings = MetadataSettings()
    objects: ObjectsSettings = ObjectsSettings()
    ledgers: LedgersSettings = LedgersSettings()
    bookkeeper: BookkeeperSettings = BookkeeperSettings()
    pulsar: PulsarSettings = PulsarSettings()
    offload: OffloadSettings = OffloadSettings()
    ledger_based: LedgerBasedSettings = LedgerBasedSettings()
    upload: UploadSettings = UploadSettings()
    outage: OutageSettings = OutageSettings()
    spill: SpillSettings = SpillSettings()
    placement: PlacementSettings = PlacementSettings()
    history: HistorySettings = HistorySettings()
    retention: RetentionSettings = RetentionSettings()
    grants: GrantSettings = GrantSettings()
    memory: MemorySettings = MemorySettings()
    read: ReadSettings = ReadSettings()
    gc: GcSettings = GcSettings()
    scrub: ScrubSettings = ScrubSettings()
    prices: PricesSettings = PricesSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()

    @property
    def is_authenticated(self) -> bool:
        """Whether callers have to say who they are."""
        return self.tls.client_ca_file is not None or self.access.has_tokens
