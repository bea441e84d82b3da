"""The certificate of one drill: clients of its proxy to ZooKeeper and of its daemon have to present it.

That proxy speaks TLS to ZooKeeper with the daemon's own certificate, and the drill's daemon has the operator's rights
to the bucket, while every process on the machine, or in the pod, can reach loopback.
"""

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from offloaderd.core.clock import Clock

DAYS = 2


@dataclass(frozen=True, slots=True)
class Pair:
    """A self-signed certificate for 127.0.0.1 and its key, as files; both sides present it and trust only it."""

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
