"""The scratch area of a drill: a cluster's name, a prefix and a directory of its own, its certificate; their deletion.

The settings are the operator's own where they describe the stores, which are reached through proxies on loopback.
Entries come from a ledger store in the directory, so neither bookies nor brokers are used.
"""

import ipaddress
import os
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, InvalidConfig, InvalidInput, NotFound
from offloaderd.core.model import TopicName
from offloaderd.daemon.settings import Settings, check
from offloaderd.daemon.settings.sections import all_settings
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.objects.opening import bucket_store
from offloaderd.objects.port import PART_BYTES_MIN

DAYS = 2


@dataclass(frozen=True, slots=True)
class Pair:
    """A self-signed certificate for 127.0.0.1 and its key, as files; both sides present it and trust only it.

    Clients of the proxy to ZooKeeper and of the drill's daemon have to present it: that proxy speaks TLS to ZooKeeper
    with the daemon's own certificate, and the drill's daemon has the operator's rights to the bucket, while every
    process on the machine, or in the pod, can reach loopback.
    """

    NAME: ClassVar = "offloaderd-drill"

    cert: Path
    key: Path

    @classmethod
    def made(cls, directory: Path, clock: Clock) -> Self:
        """Create a pair in a private directory."""
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cls.NAME)])
        hosts = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=DAYS))
            .not_valid_after(now + timedelta(days=DAYS))
            .add_extension(hosts, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        found = cls(directory / "line.crt", directory / "line.key")
        found.key.touch(mode=0o600)
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        found.key.write_bytes(key.private_bytes(*form))
        found.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return found

    def server(self) -> ssl.SSLContext:
        """Return the context of a server that accepts only clients with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        context.load_verify_locations(self.cert)
        context.verify_mode = ssl.CERT_REQUIRED
        return context


TOPIC = TopicName.parse("public/default/offloaderd-drill")
MARK = "offloaderd-drill-"
KiB, MiB = 1024, 1024**2
SEGMENT_AGE_S = 3.0
SESSION_S = 4.0
KEPT = ("metadata.", "objects.")
"""Sections of the operator's settings that apply in the drill: the connections to the stores."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """One drill's places. `settings` are the operator's, `name` is unique."""

    settings: Settings
    name: str

    @classmethod
    def named(cls, settings: Settings, word: str) -> "Scratch":
        """Return the places of a drill by the word in its name. Raises InvalidInput, InvalidConfig."""
        if not re.fullmatch(r"[0-9a-f]{12}", word):
            raise InvalidInput(f"{word!r} is no drill", hint="a drill is named by twelve hexadecimal digits")
        if settings.objects.kind != "s3":
            raise InvalidConfig(
                f"a drill needs S3: objects.kind = {settings.objects.kind} has no faults to inject",
                hint="name the settings of a daemon that stores in S3",
            )
        return cls(settings, f"{MARK}{word}")

    @property
    def cluster(self) -> str:
        """The cluster of all of its records."""
        return f"{self.settings.daemon.cluster}-{self.name}"[-200:]

    @property
    def root(self) -> str:
        """The node above all of its records."""
        return f"{self.settings.metadata.root}/{self.cluster}"

    @property
    def prefix(self) -> str:
        """The prefix of all of its keys."""
        return f"{self.settings.objects.prefix}{self.name}/"

    @property
    def endpoint(self) -> str:
        """The address of the store itself."""
        objects = self.settings.objects
        return objects.endpoint or f"https://s3.{objects.region}.amazonaws.com"

    def of_daemon(self, directory: Path, *, zookeeper: str, s3: str, ports: tuple[int, int], pair: Pair) -> Settings:
        """Return the settings of the drill's daemon, which reaches the stores at these addresses.

        `ports` are those of gRPC and HTTP; `pair` is the certificate for the daemon's clients, and for those of the
        proxy to ZooKeeper where that speaks TLS.
        """
        line = pair if self.settings.metadata.tls else None
        given = {setting.key: self._given(setting.key) for setting in all_settings() if setting.key.startswith(KEPT)}
        host = self.endpoint.partition("://")[2].rstrip("/")
        given |= {
            "daemon.id": self.name,
            "daemon.cluster": self.cluster,
            "grpc.port": ports[0],
            "http.port": ports[1],
            "metadata.servers": zookeeper,
            "metadata.session_timeout_s": SESSION_S,
            "metadata.connect_timeout_s": 3.0,
            "tls.cert_file": pair.cert,
            "tls.key_file": pair.key,
            "tls.client_ca_file": pair.cert,
            "access.grants": f"admin cert:{pair.NAME} *",
            "metadata.tls": line is not None,
            "metadata.tls_ca_file": line and line.cert,
            "metadata.tls_cert_file": line and line.cert,
            "metadata.tls_key_file": line and line.key,
            "metadata.tls_hostname_check": True,
            "metadata.acl": self.settings.metadata.acl if self.settings.metadata.username else "open",
            "objects.endpoint": s3,
            "objects.signed_host": self.settings.objects.signed_host or host,
            "objects.path_style": True,
            "objects.prefix": self.prefix,
            "objects.places": "",
            "objects.read_timeout_s": 5.0,
            "ledgers.kind": "embedded",
            "ledgers.directory": str(directory / "ledgers"),
            "ledgers.ledger_entries_max": 1000,
            "offload.segment_bytes_max": 6 * MiB,
            "offload.segment_age_max_s": SEGMENT_AGE_S,
            "offload.block_bytes": 64 * KiB,
            "offload.part_bytes": PART_BYTES_MIN,
            "memory.buffer_bytes": 8 * MiB,
            "memory.upload_bytes": 3 * PART_BYTES_MIN,
            "memory.cache_bytes": 2 * MiB,
            "memory.unpack_bytes": 1 * MiB,
            "grants.deletion_lag_s": 0.0,
            "grants.interval_s": 1.0,
            "read.read_ahead_bytes": 1 * MiB,
            "gc.mode": "off",
            "scrub.enabled": "false",
        }
        report = check(None, {}, {key: text for key, value in given.items() if (text := _text(value)) is not None})
        if report.settings is None:
            raise InvalidConfig("\n  ".join(["these settings do not go with a drill:", *report.mistakes]))
        return report.settings

    def _given(self, key: str) -> object:
        section, _, name = key.partition(".")
        return getattr(getattr(self.settings, section), name)

    def zookeeper_tls(self) -> ssl.SSLContext | None:
        """Return the TLS context of the proxy for ZooKeeper; None without TLS. Raises InvalidConfig."""
        options = self.settings.metadata
        if not options.tls:
            return None
        try:
            context = ssl.create_default_context()
            if options.tls_ca_file is not None:
                context.load_verify_locations(options.tls_ca_file)
            if options.tls_cert_file is not None and options.tls_key_file is not None:
                context.load_cert_chain(options.tls_cert_file, options.tls_key_file)
        except OSError as error:
            raise InvalidConfig(f"the files of metadata.tls cannot be used: {error}") from error
        if not options.tls_hostname_check:
            context.check_hostname = False
        return context

    @staticmethod
    def s3_tls() -> ssl.SSLContext:
        """Return the TLS context of the proxy for the store; AWS_CA_BUNDLE names authorities, as for botocore."""
        return ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))

    def metadata_store(self, *, above: bool = False) -> ZooKeeperStore:
        """Return the drill's records (`above`: all clusters'), past the proxy. Raises Transient on entering."""
        options = self.settings.metadata
        return ZooKeeperStore(options.servers, options.root if above else self.root, options)

    async def clean(self, clock: Clock) -> tuple[int, int]:
        """Delete the drill's keys, uploads and records; return their numbers. Raises as the stores; may be repeated."""
        if MARK not in self.prefix or MARK not in self.root:
            raise Conflict(f"{self.prefix!r} and {self.root!r} are no drill's")
        objects = 0
        async with bucket_store(self.settings.objects, clock) as store:
            async for upload in store.list_uploads(self.prefix):
                await store.abort_upload(upload.key, upload.upload_id)
                objects += 1
            keys = [info.key async for info in store.list(self.prefix)]
            if keys:
                await store.delete(keys)
        async with self.metadata_store(above=True) as metadata:
            records = await _remove(metadata, f"/{self.cluster}")
        return objects + len(keys), records


async def _remove(store: MetadataStore, path: str) -> int:
    """Remove a node of the drill's own tree with everything below it."""
    removed = 0
    for name in await store.children(path):
        removed += await _remove(store, f"{path}/{name}")
    try:
        await store.delete(path)
    except NotFound:
        return removed
    return removed + 1


def _text(value: object) -> str | None:
    """Return a setting as text for an option, None if it is not set."""
    if value is None:
        return None
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
