"""How bookies are reached and how much is asked of them, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from offloaderd.bookkeeper.metadata.layout import ROOT_DEFAULT
from offloaderd.bookkeeper.wire.framing import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """TLS with every bookie. Files are PEM; no `ca_file` means the system's authorities, no `cert_file` no client's."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    hostname_check: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslOptions:
    """A user of the bookies, by SASL DIGEST-MD5; the password is kept out of logs.

    `service` and `host` are what the digest is made for: BookKeeper's own on both sides, whatever bookie is asked.
    """

    username: str
    password: str = field(repr=False)
    service: str = "bookkeeper"
    host: str = "bookkeeper"


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieOptions:
    """Settings of BookiePool.

    One bookie has at most `window` single reads and `batches_max` batch reads in flight. A bookie that cannot be had is
    left in peace for `backoff_min_s`, then twice as long each time, up to `backoff_max_s`. One without batch reads is
    asked for none for `no_batch_s`; so is one without long polls, of which `long_polls_max` may be out. A connection
    that nobody used for `idle_s` is closed.
    """

    request_timeout_s: float = 5.0
    connect_timeout_s: float = 5.0
    window: int = 256
    batches_max: int = 4
    frame_bytes_max: int = FRAME_BYTES_MAX
    idle_s: float = 300.0
    backoff_min_s: float = 0.2
    backoff_max_s: float = 30.0
    no_batch_s: float = 3600.0
    long_polls_max: int = 1000
    ledgers_root: str = ROOT_DEFAULT
    tls: TlsOptions | None = None
    sasl: SaslOptions | None = None
