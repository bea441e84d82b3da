"""The caller of the status page: an HTTP request, in the form that the gate of the API takes.

A visit needs the role of the call Status. A browser sends a token as the password (the user name is ignored), a program
as `authorization: Bearer TOKEN`; a certificate counts if http.tls is mutual.
"""

import ipaddress
from base64 import b64decode
from typing import Any

from aiohttp import web

from offloaderd.core.errors import Unauthenticated

ALTERNATIVE = {"URI": "peer_uri", "DNS": "peer_dns"}
"""Names of a certificate as Python's TLS calls them, and as gRPC does."""


class HttpCaller:
    """A request with the methods of a call context that the gate uses."""

    def __init__(self, request: web.Request) -> None:
        self._request = request

    def peer(self) -> str:
        """Return the peer of the request in the form of gRPC; the port is always 0."""
        return f"http:{self._request.remote}:0"

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """Return the credentials of the request. Raises Unauthenticated if they were sent unencrypted."""
        given = self._request.headers.getall("Authorization", [])
        if given and not self._request.secure and not is_local(self._request.remote or ""):
            raise Unauthenticated(
                "a token was sent in the clear: whoever listened has it now",
                hint="have it replaced; set http.tls of the daemon",
            )
        return [("authorization", bearer_of(one)) for one in given]

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the names in the verified certificate. Raises Unauthenticated without one."""
        transport = self._request.transport
        certificate: dict[str, Any] | None = transport.get_extra_info("peercert") if transport is not None else None
        if not certificate:
            raise Unauthenticated(
                "this address asks for no certificate, so nobody is known here",
                hint="set http.tls = mutual of the daemon, or have it take tokens",
            )
        pairs = [pair for name in certificate.get("subject", ()) for pair in name]
        found = {"x509_common_name": [value.encode() for key, value in pairs if key == "commonName"]}
        for kind, name in certificate.get("subjectAltName", ()):
            if kind in ALTERNATIVE:
                found.setdefault(ALTERNATIVE[kind], []).append(name.encode())
        return found


def bearer_of(header: str) -> str:
    """Return a header in the form of the API: the password of a browser becomes a bearer token."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return header
    try:
        _, _, token = b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:  # no base64, or not of ASCII or UTF-8
        token = ""
    if not token:
        raise Unauthenticated("malformed authorization", hint="give the token as the password")
    return f"Bearer {token}"


def is_local(host: str) -> bool:
    """Whether an address is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_this_machine(host: str) -> bool:
    """Whether a Host header is an address or localhost, and no name that another server may resolve to this machine.

    A foreign page can resolve its own name to 127.0.0.1, and would read what only this machine may (DNS rebinding).
    """
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() == "localhost"
    return True
