#!/usr/bin/env python3
"""Make the certificates of docker-compose.yml: an authority, one for the daemons, one for whoever operates them.

For one machine, to try it: keys lie beside certificates, and everything ends after a year. Once all are made they stay;
what was interrupted begins again.
"""

import argparse
import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 365
LAST = "operator.crt"  # is made last: with it all are there
Key = ec.EllipticCurvePrivateKey


def main() -> None:
    """Make what is not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where the files are, or go")
    parser.add_argument(
        "names", nargs="*", default=[], metavar="NAME", help="a name, beside localhost, that a daemon is reached under"
    )
    parser.add_argument("--owner", type=int, metavar="UID", help="whose the files are to be; needs root")
    given = parser.parse_args()
    place: Path = given.directory
    if given.owner is not None and os.geteuid() != 0:
        parser.error("--owner needs root; without it the files are yours")
    if (place / LAST).exists():
        print(f"{place}: all are there and stay; without {LAST} all would be made anew")  # noqa: T201 - a command
        return
    if not place.exists():
        place.mkdir(mode=0o700, parents=True)
        give(place, given.owner)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "offloaderd on this machine")])
    ca = begun(ca_name, ca_name, ca_key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca_usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    signed = ca.add_extension(ca_usage, critical=True).sign(ca_key, hashes.SHA256())
    files = {
        "ca.crt": signed.public_bytes(serialization.Encoding.PEM),
        **issued("daemon", [*given.names, "localhost"], ca_name, ca_key),
        **issued("operator", [], ca_name, ca_key),
    }
    for name, content in files.items():
        store(place / name, content, given.owner)
    print(f"{place}: {', '.join(files)}")  # noqa: T201 - a command


def issued(name: str, hosts: list[str], ca_name: x509.Name, ca_key: Key) -> dict[str, bytes]:
    """Return a key and a certificate: of a server if it has hosts, else of a client whose name is its common name."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = begun(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), ca_name, key)
    usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    if hosts:
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        known = [x509.DNSName(host) for host in hosts]
        made = made.add_extension(x509.SubjectAlternativeName([*known, loopback]), critical=False)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    signed = made.sign(ca_key, hashes.SHA256())
    return {f"{name}.key": secret, f"{name}.crt": signed.public_bytes(serialization.Encoding.PEM)}


def begun(subject: x509.Name, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    """Return a certificate with its names, key and days."""
    now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - a program of its own
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def store(path: Path, content: bytes, owner: int | None) -> None:
    """Put a whole file that only its owner reads, in place of one from an interrupted run."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(0o600, exist_ok=False)
    new.write_bytes(content)
    new.chmod(0o400)
    give(new, owner)
    new.replace(path)


def give(path: Path, owner: int | None) -> None:
    """Make somebody the owner of what was made; without one it stays the caller's."""
    if owner is not None:
        os.chown(path, owner, owner)


if __name__ == "__main__":
    main()
