"""Certificates and keys: read from PEM files, checked together, and read again when the files change.

A file may be read while another program writes it. Files that do not fit each other are refused together, so the last
valid pair stays in use until a rotation is complete.
"""

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from offloaderd.core.errors import InvalidConfig, OffloaderError


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of the PEM files; with `client_ca` clients must have a certificate of that authority."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file."""
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Contents of the files; `expires_s` is the end of the daemon's own certificate (seconds since 1970)."""

    files: TlsFiles
    cert: bytes
    key: bytes
    client_ca: bytes | None
    expires_s: float

    def __repr__(self) -> str:
        """Never the key."""
        return f"Certificates({self.files.cert}, expires_s={self.expires_s:.0f})"


def load_certificates(files: TlsFiles) -> Certificates:
    """Read the files. Raises InvalidConfig for files that cannot be read, are no PEM or do not fit each other."""
    cert, key = _read(files.cert, "tls.cert_file"), _read(files.key, "tls.key_file")
    client_ca = None if files.client_ca is None else _read(files.client_ca, "tls.client_ca_file")
    chain = _certificates(cert, files.cert, "tls.cert_file")
    if files.client_ca is not None and client_ca is not None:
        _certificates(client_ca, files.client_ca, "tls.client_ca_file")
    try:
        private = load_pem_private_key(key, None)
    except TypeError:
        hint = "store it without one, readable by us alone"
        raise InvalidConfig(f"tls.key_file: {files.key} is protected by a passphrase", hint=hint) from None
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidConfig(f"tls.key_file: {files.key} holds no private key", hint="it must be PEM") from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != chain[0].public_key().public_bytes(*form):
        raise InvalidConfig(
            f"tls.key_file: {files.key} is not the key of the certificate in {files.cert}",
            hint="the daemon's own certificate comes first in its file, then those that sign it",
        )
    expires_s = chain[0].not_valid_after_utc.timestamp()
    return Certificates(files=files, cert=cert, key=key, client_ca=client_ca, expires_s=expires_s)


def server_context(certificates: Certificates, *, mutual: bool) -> ssl.SSLContext:
    """Return the TLS context of an HTTP server; with `mutual` clients must have a certificate. At least TLS 1.2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificates.files.cert, certificates.files.key)
    if mutual and certificates.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=certificates.client_ca.decode("ascii"))
    return context


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        hint = "it must be a PEM file that this user may read"
        raise InvalidConfig(f"{setting}: cannot read {path}: {error.strerror}", hint=hint) from None


def _certificates(pem: bytes, path: Path, setting: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise InvalidConfig(f"{setting}: {path} holds no certificate", hint="it must be PEM") from None


T = TypeVar("T")
log = structlog.get_logger(__name__)


class Watched(Generic[T]):
    """Value made of files. The first read raises as `load`; a later failure is logged."""

    def __init__(self, paths: Iterable[Path], load: Callable[[], T]) -> None:
        self._paths = tuple(paths)
        self._load = load
        self._signature = self._stat()
        self.value = load()
        self.failing = False
        self._listeners: list[Callable[[T], None]] = []

    def listen(self, listener: Callable[[T], None]) -> None:
        """Call `listener` with every later value."""
        self._listeners.append(listener)

    def refresh(self) -> bool:
        """Read again if a file has changed, or if the last read failed; return whether there is a new value."""
        signature = self._stat()
        if signature == self._signature and not self.failing:
            return False
        files = [str(path) for path in self._paths]
        try:
            value = self._load()
        except OffloaderError as error:
            if not self.failing or signature != self._signature:
                log.warning("files.not_reloaded", files=files, error=str(error))
            self._signature, self.failing = signature, True
            return False
        self._signature, self.failing = signature, False
        if value == self.value:
            return False
        self.value = value
        log.info("files.reloaded", files=files)
        for listener in self._listeners:
            listener(value)
        return True

    def _stat(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_signature, self._paths))


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Return values that change with a file's content: Kubernetes swaps links, others rename or write in place."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
