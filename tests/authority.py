"""Certificates and tokens for tests, good ones and those of an attacker; nothing of it outlives the test."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import jwt
import trustme

from offloaderd.access.certificates import TlsFiles

if TYPE_CHECKING:
    from pathlib import Path

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
"""When certificates ended that have expired."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority whose files lie in a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._name = name
        self._ca = trustme.CA()
        self._issued = 0
        self.file = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, common_name: str, *hosts: str, ended: bool = False) -> Pair:
        """Issue a certificate, for a server if hosts are given; `ended`: one that has expired."""
        self._issued += 1
        stem = self._directory / f"{self._name}-{self._issued}"
        found = self._ca.issue_cert(
            *(hosts or ("client.invalid",)),
            common_name=common_name or None,
            not_before=LONG_AGO.replace(year=2019) if ended else None,
            not_after=LONG_AGO if ended else None,
        )
        pair = Pair(stem.with_suffix(".crt"), stem.with_suffix(".key"))
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in found.cert_chain_pems))
        found.private_key_pem.write_to_path(str(pair.key))
        return pair

    def server(self, client_ca: Path | None = None) -> TlsFiles:
        """Issue a daemon's certificate for this machine."""
        pair = self.issue("daemon", "localhost", "127.0.0.1")
        return TlsFiles(cert=pair.cert, key=pair.key, client_ca=client_ca)


def token(secret: bytes, subject: str = "alice", *, algorithm: str = "HS256", **claims: Any) -> str:  # noqa: ANN401 - claims are JSON
    """Sign a token as `pulsar tokens create` does."""
    return jwt.encode({"sub": subject, **claims}, secret, algorithm=algorithm)
