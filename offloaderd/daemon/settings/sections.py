"""The settings: a frozen value for each section, each field with its default, its bounds and the reason.

Each package has the section of what it does; those of the daemon itself are here, and all of them together. Settings
are values and hold no component. Constructing them reads neither file nor environment; `daemon/settings/loading.py`
does. Fields check themselves; what concerns two of them is in `daemon/settings/rules.py`. Sizes are bytes (`Bytes`
reads "64MiB"), durations are seconds (`Seconds` reads "10min"); core/units.py reads both.

Descriptions of the settings (`all_settings`) are read from the sections, so that error messages,
configs/offloaderd.toml and docs/settings.md, which are generated with them, always agree with the checks.
"""

import json
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal, get_args, get_origin

from pydantic import AfterValidator, Field, SecretStr, field_validator
from pydantic.fields import FieldInfo

from offloaderd.access.settings import AccessSettings, TlsSettings
from offloaderd.api.settings import GrpcSettings
from offloaderd.bookkeeper.settings import BookkeeperSettings
from offloaderd.capture.settings import CaptureSettings
from offloaderd.core.errors import InvalidInput
from offloaderd.core.section import (
    Bytes,
    Lines,
    OptionalSecret,
    OptionalText,
    Port,
    Seconds,
    Section,
    Shape,
    SizeMark,
    Url,
)
from offloaderd.core.units import format_bytes
from offloaderd.daemon.log import MASK, parsed_levels
from offloaderd.fleet.settings import PlacementSettings
from offloaderd.history.settings import HistorySettings
from offloaderd.ledgers.settings import LedgersSettings, PulsarSettings
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.objects.settings import SERVICES, ObjectsSettings, ServiceSettings
from offloaderd.policy.settings import Prices
from offloaderd.read.settings import CacheSettings, ReadSettings
from offloaderd.segment.settings import LedgerBasedSettings, OffloadSettings, UploadSettings
from offloaderd.topic.settings import OutageSettings, SpillSettings
from offloaderd.upkeep.settings import GcSettings, GrantSettings, MirrorSettings, RetentionSettings, ScrubSettings

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

    processes: int = Field(default=1, ge=1, le=256)
    """Processes of this host: one keeps little more than one core busy. With more than one, each is a daemon with the
    id ID.NUMBER under a parent, which has the HTTP server; [memory], cache.disk_bytes and spill.bytes_max are divided
    among them. `offloaderd serve --processes` sets it as well."""

    read_only: bool = False
    """Serve what the bucket holds, and nothing else: no ZooKeeper, no brokers, no bookies, and read rights on the
    bucket alone. Any number of such daemons may read one bucket. `offloaderd serve --read-only` sets it as well."""

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
    """Budgets. Together with some 100 MiB for the process itself they limit its memory. Several processes divide them,
    and each takes its 100 MiB."""

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
    cache: CacheSettings = CacheSettings()
    gc: GcSettings = GcSettings()
    scrub: ScrubSettings = ScrubSettings()
    mirror: MirrorSettings = MirrorSettings()
    capture: CaptureSettings = CaptureSettings()
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


ENVIRONMENT_PREFIX = "OFFLOADERD__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: `key` is `section.field`, a section may be `objects.services.NAME`.

    `default` and `example` are written as in the settings file.
    """

    section: str
    name: str
    default: str
    example: str
    allowed: str
    words: tuple[str, ...]
    is_size: bool
    is_secret: bool
    description: str

    @property
    def key(self) -> str:
        """`section.field`."""
        return f"{self.section}.{self.name}"

    @property
    def environment(self) -> str:
        """Name of the environment variable that sets it."""
        return environment_name(self.key)


def environment_name(key: str) -> str:
    """Name of the environment variable for `section.field`."""
    return ENVIRONMENT_PREFIX + key.replace(".", "__").upper()


def section_types(services: Iterable[str] = ()) -> dict[str, type[Section]]:
    """Sections by name, in the order of the settings file, with those of the further `services` behind `objects`."""
    found: dict[str, type[Section]] = {}
    for name, info in Settings.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            found[name] = kind
        if kind is ObjectsSettings:
            found |= {f"{SERVICES}.{one}": ServiceSettings for one in services}
    return found


def section_of(settings: Settings, name: str) -> Section:
    """Return a section by its name; a further service that the settings do not have is one of defaults alone."""
    if name.startswith(f"{SERVICES}."):
        return settings.objects.services.get(name.rpartition(".")[2], ServiceSettings())
    return getattr(settings, name)  # type: ignore[no-any-return] # a section, by its name


def value_of(settings: Settings, key: str) -> object:
    """Return the value of `section.field`."""
    section, _, name = key.rpartition(".")
    return getattr(section_of(settings, section), name)


def all_settings(services: Iterable[str] = ()) -> Iterator[Setting]:
    """Yield every setting, section by section, with those of the further `services`."""
    for section, kind in section_types(services).items():
        for name, info in fields_of(kind).items():
            yield _setting(section, name, info)


def fields_of(kind: type[Section]) -> dict[str, FieldInfo]:
    """Return the fields of a section that are settings: all but tables."""
    return {name: info for name, info in kind.model_fields.items() if get_origin(info.annotation) is not Mapping}


def literal(value: object, *, is_size: bool = False) -> str:
    """Return a value as in TOML; `not set` for None, which TOML does not have."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and is_size:
        return f'"{format_bytes(value)}"' if format_bytes(value).endswith("B") else str(value)
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(literal, value))}]"
    return json.dumps(printable(str(value)), ensure_ascii=False)


def shown(setting: Setting, value: object) -> str:
    """Return a value as in TOML, a secret masked."""
    return MASK if isinstance(value, SecretStr) else literal(value, is_size=setting.is_size)


def printable(text: str) -> str:
    """Return the text with bytes that are not UTF-8 (from the environment) as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _setting(section: str, name: str, info: FieldInfo) -> Setting:
    words = _words(info.annotation)
    is_size = any(isinstance(mark, SizeMark) for mark in info.metadata)
    is_secret = SecretStr in get_args(info.annotation)
    default = literal(info.default, is_size=is_size)
    return Setting(
        section=section,
        name=name,
        default=default,
        example=literal(info.examples[0]) if info.examples else default,
        allowed=_allowed(info, words, is_size=is_size),
        words=words,
        is_size=is_size,
        is_secret=is_secret,
        description=" ".join((info.description or "").split()),
    )


def _words(annotation: object) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(str(member) for member in annotation)
    return ()


def _allowed(info: FieldInfo, words: tuple[str, ...], *, is_size: bool) -> str:
    """Return the allowed values as text, from the marks that are checked."""
    for mark in info.metadata:
        if isinstance(mark, Shape):
            return mark.text
    if words:
        return "one of " + ", ".join(words)
    if info.annotation is bool:
        return "true or false"
    show = format_bytes if is_size else (lambda number: f"{number:,}".replace(",", "_"))
    bounds = {name: getattr(mark, name) for mark in info.metadata for name in ("ge", "gt", "le") if hasattr(mark, name)}
    low = show(bounds["ge"]) if "ge" in bounds else f"more than {show(bounds['gt'])}" if "gt" in bounds else ""
    high = show(bounds["le"]) if "le" in bounds else ""
    if low and high:
        return f"{low} to {high}"
    if low:
        return low if low.startswith("more") else f"{low} or more"
    return f"{high} or less" if high else ""


def as_toml(settings: Settings) -> str:
    """Return a settings file with the values that are no defaults; secrets are not masked."""
    lines: list[str] = []
    for section, kind in section_types(settings.objects.services).items():
        found = [
            f"{name} = {_written(value)}"
            for name, info in fields_of(kind).items()
            if (value := value_of(settings, f"{section}.{name}")) != info.get_default(call_default_factory=True)
        ]
        lines += [f"[{section}]", *found, ""] if found else []
    return "\n".join(lines)


def _written(value: object) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None:
        return '""'
    return repr(value) if isinstance(value, float) else literal(value)
