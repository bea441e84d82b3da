"""A trust store for Java with the authorities that this machine's Python trusts.

| size | field |
|---|---|
| 4, 4, 4 | magic `fe ed fe ed`, version 2, number of entries |
| 4 | of each entry: 2, a trusted certificate |
| 2+n | alias |
| 8 | when it was added, ms |
| 2+n | `X.509` |
| 4+n | the certificate, DER |
| 20 | at the end: SHA-1 over the password, a salt and all of the above |

It is Java's oldest format (JKS), which every Java reads.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PASSWORD = "changeit"
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def trusted_by_python() -> list[bytes]:
    """Return the authorities' certificates (DER): of SSL_CERT_FILE, OpenSSL's own file or the system's usual places.

    None when there is no such file; Java then has its own.
    """
    for file in (os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile, *_BUNDLES):
        if file and Path(file).is_file():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(file)
            return context.get_ca_certs(binary_form=True)
    return []


def write_trust_store(path: Path, certificates: Sequence[bytes]) -> None:
    """Write a trust store with these certificates (DER) and the password of Java's own."""
    parts = [bytes.fromhex("feedfeed"), (2).to_bytes(4, "big"), len(certificates).to_bytes(4, "big")]
    for number, certificate in enumerate(certificates):
        parts += [(2).to_bytes(4, "big"), _text(f"authority{number}"), bytes(8), _text("X.509")]
        parts += [len(certificate).to_bytes(4, "big"), certificate]
    content = b"".join(parts)
    seal = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + content
    path.write_bytes(content + hashlib.sha1(seal, usedforsecurity=False).digest())


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()
