"""The settings: a frozen value for each section, each field with its default, its bounds and the reason.

Each package has the section of what it does; those of the daemon itself are here, and all of them together. Settings
are values and hold no component. Constructing them reads neither file nor environment; `daemon/settings/loading.py`
does. Fields check themselves; what concerns two of them is in `daemon/settings/rules.py`.
configs/offloaderd.toml and docs/settings.md are generated from these fields. Sizes are bytes (`Bytes` reads "64MiB"),
durations are seconds (`Seconds` reads "10min"); core/units.py reads both.
"""

import re
import socket
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from offloaderd.access.settings import AccessSettings, TlsSettings
from offloaderd.api.settings import GrpcSettings
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.core.errors import InvalidInput
from offloaderd.core.section import Bytes, Lines, OptionalSecret, OptionalText, Port, Seconds, Section, Shape, Url
from offloaderd.daemon.log.modules import parsed_levels
from offloaderd.fleet.settings import PlacementSettings
from offloaderd.history.settings import HistorySettings
from offloaderd.ledgers.settings import LedgersSettings, PulsarSettings
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.policy.settings import Prices
from offloaderd.read.settings import ReadSettings
from offloaderd.segment.settings import LedgerBasedSettings, OffloadSettings, UploadSettings
from offloaderd.topic.settings import OutageSettings, SpillSettings
from offloaderd.upkeep.settings import GcSettings, GrantSettings, RetentionSettings, ScrubSettings

MiB = 1024**2


def _levels(value: tuple[str, ...]) -> tuple[str, ...]:
    try:
        parsed_levels(value)
    except InvalidInput as error:
        raise ValueError(f"{error.message} ({error.hint})") from error
    return value


Levels = Annotated[Lines, AfterValidator(_levels), Shape("a list of MODULE LEVEL")]
NodeName = Annotated[str, Field(max_length=200, pattern=r"^[^/\x00-\x1f]*$"), Shape("up to 200 characters, no slash")]
ClusterName = Annotated[
    str, Field(max_length=200, pattern=r"^[-.\w]+$"), Shape("1 to 200 letters, digits, dots, dashes, underscores")
]


class DaemonSettings(Section):
    """The identity of this daemon."""

    id: NodeName = ""
    """Name of this daemon, unique in the cluster: two daemons with one id would evict each other in turn. Empty: the
    host name, which fits one daemon a machine or pod."""

    cluster: ClusterName = "pulsar"
    """Name of the Pulsar cluster; part of every metadata path, so that clusters can share a ZooKeeper."""

    @field_validator("id")
    @classmethod
    def _named(cls, value: str) -> str:
        return value or socket.gethostname()


class HttpSettings(Section):
    """The status page, /metrics, /healthz and /readyz."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. The pages show topic names but no entries, and change nothing: "0.0.0.0" is right where a
    scraper or a probe comes from another host."""

    port: Port = 7651
    """Port to listen on; 0 takes any free one."""

    tls: Literal["off", "server", "mutual"] = "off"
    """server: HTTPS with tls.cert_file. mutual: clients, probes too, need a certificate of tls.client_ca_file as well
    (Kubernetes' probes have none)."""

    topic_metrics: bool = True
    """Show per-topic metrics on /metrics. With thousands of topics turn it off and scrape /metrics/topics less
    often."""

    status_page: bool = True
    """Serve the status page, /status and /status.json, to callers that may call Status. With authentication they give a
    token as the password, or a certificate where http.tls is mutual."""


class MemorySettings(Section):
    """Budgets. Together with some 100 MiB for the process itself they limit its memory."""

    buffer_bytes: Bytes = Field(default=256 * MiB, ge=1 * MiB)
    """Tailing buffers of all topics. What does not fit is read from the source again."""

    upload_bytes: Bytes = Field(default=128 * MiB, ge=1 * MiB)
    """Parts that are assembled and uploaded; must hold three parts or more."""

    cache_bytes: Bytes = Field(default=128 * MiB, ge=1 * MiB)
    """Blocks that were read from the store or read ahead; must hold four blocks or more."""

    unpack_bytes: Bytes = Field(default=64 * MiB, ge=1 * MiB)
    """Memory for what ReadMessages unpacks. One half is for compressed entries that are being unpacked and sent; reads
    wait for their turn there. The other half is for chunks that wait for the rest of their message. One identity cannot
    use up either half."""

    @property
    def budget_bytes(self) -> int:
        """All of them together."""
        return self.buffer_bytes + self.upload_bytes + self.cache_bytes + self.unpack_bytes


class ShutdownSettings(Section):
    """How the daemon stops."""

    drain_s: Seconds = Field(default=25.0, ge=0, le=3600)
    """How long the daemon may finish open segments after SIGTERM; then they are left for the next start. Keep it below
    the 30 s after which Kubernetes kills."""


class LogSettings(Section):
    """The log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written."""

    levels: Levels = Field(default=(), examples=[("read info", "topic.tailer debug", "kazoo error")])
    """Modules with a level of their own, each as MODULE LEVEL: a package or module of offloaderd with everything below
    it, or a library. `offloadctl log-level` sets one for a while. In the environment separated by semicolons."""

    format: Literal["auto", "json", "console"] = "auto"
    """json: one object a line. console: for people. auto: console on a terminal, else json."""


class TracingSettings(Section):
    """The life of segments as traces of OpenTelemetry, sent by OTLP over gRPC."""

    enabled: bool = False
    """Send traces. Needs OpenTelemetry: pip install 'offloaderd[otel]'. Off, it costs nothing."""

    endpoint: Url = "http://127.0.0.1:4317"
    """The collector. While it is away, spans that do not fit into a queue of 4096 are dropped."""

    ca_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/collector-ca.crt"])
    """Authorities that sign the collector's certificate (PEM), with https. Not set: the system's."""

    headers: OptionalSecret = Field(default=None, examples=["authorization=Bearer TOKEN"])
    """Sent with every export: NAME=VALUE, several with commas between them. Never shown."""

    ratio: float = Field(default=1.0, ge=0, le=1, allow_inf_nan=False)
    """Share of the segments that are traced, chosen by their ids: 0.01 is one in a hundred, the same ones for all
    daemons."""


def header_pairs(text: str) -> dict[str, str]:
    """Return the headers in a text by their names, as gRPC wants them; none if one of them is malformed."""
    pairs = [pair.strip().partition("=") for pair in text.split(",")]
    found = {name.strip().lower(): value.strip() for name, _, value in pairs if value.strip().isprintable()}
    good = len(found) == len(pairs) and all(re.fullmatch(r"[a-z0-9_.-]+", name) and found[name] for name in found)
    return found if good else {}


class Settings(Section):
    """All sections. The code that loads them checks the rules between them: `rules.broken_rules`."""

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
    prices: Prices = Prices()
    shutdown: ShutdownSettings = ShutdownSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()
    renamed: tuple[str, ...] = ()
    """Not a section: which names of the release before were given, each with its place and the name of now."""

    @property
    def is_authenticated(self) -> bool:
        """Whether callers have to authenticate."""
        return self.tls.client_ca_file is not None or self.access.has_tokens

    @property
    def cluster_servers(self) -> str:
        """The ZooKeeper of the cluster whose ledgers are read."""
        return self.bookkeeper.servers or self.metadata.servers
