"""Callers: their names, from a verified certificate or a token, and how many calls each may make in a second.

Each name has a token bucket. A bucket that has been idle for a second is full again and may be forgotten; others are
kept. Names beyond `BUCKETS_MAX` share one bucket for each kind: a caller with thousands of names slows down only new
names of that kind, never a known one. An IPv6 network of 64 bits is one name, because one host has all its addresses.
"""

import ipaddress
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from offloaderd.access.roles import Identity, Kind, checked_identity
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidInput, Unauthenticated
from offloaderd.core.limits import TokenBucket

NAMES_MAX = 32
"""Alternative names of a certificate that are read."""
PROPERTIES = {Kind.CERTIFICATE: "x509_common_name", Kind.URI: "peer_uri", Kind.DNS: "peer_dns"}
"""Keys under which gRPC has the names of a certificate."""


def of_certificate(found: Mapping[str, Any]) -> tuple[Identity, ...]:
    """Return all names in a certificate, the one for display first. Raises Unauthenticated if there is none.

    A common name counts only if there is exactly one, and only printable names count.
    """
    names: list[Identity] = []
    for kind, key in PROPERTIES.items():
        given = list(found.get(key, ()))
        if kind is Kind.CERTIFICATE and len(given) != 1:
            continue
        for one in given[:NAMES_MAX]:
            try:
                names.append(Identity(kind, checked_identity(bytes(one).decode())))
            except (InvalidInput, UnicodeDecodeError):
                continue
    if not names:
        raise Unauthenticated(
            "the certificate names nobody",
            hint="it needs exactly one common name (CN), or alternative names: URI (SPIFFE) or DNS",
        )
    return tuple(names)


def bearer_text(metadata: Any) -> str | None:  # noqa: ANN401 - pairs, as gRPC gives them
    """Return the token that was sent. Raises Unauthenticated for several tokens or another scheme."""
    given = [value for key, value in metadata if key == "authorization"]
    if not given:
        return None
    scheme, _, token = str(given[0]).partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not token:
        raise Unauthenticated("malformed authorization", hint="send one `authorization: Bearer TOKEN`")
    return token.strip()


BUCKETS_MAX = 10_000
"""Names of one kind with buckets of their own."""
SHARED = ""
NETWORK_BITS = 64


class CallRate:
    """At most `per_s` calls a second for each name, in bursts of as many; 0 is no limit."""

    def __init__(self, per_s: int, clock: Clock) -> None:
        self._per_s = per_s
        self._clock = clock
        self._kinds: defaultdict[str, OrderedDict[str, TokenBucket]] = defaultdict(OrderedDict)

    def take(self, kind: str, name: str) -> bool:
        """Count one call; whether it is within the limit. There are few kinds."""
        if not self._per_s:
            return True
        buckets = self._kinds[kind]
        while buckets and next(iter(buckets.values())).full:
            buckets.popitem(last=False)
        if name not in buckets and len(buckets) >= BUCKETS_MAX:
            name = SHARED
        bucket = buckets[name] = buckets.get(name) or TokenBucket(self._per_s, self._clock)
        buckets.move_to_end(name)
        return bucket.take_now(1)


def network_of(peer: str) -> str:
    """Return the address or network that counts as one name, of a peer as gRPC writes it (`ipv4:192.0.2.1:7`,
    `ipv6:%5B2001:db8::1%5D:7`).
    """
    host = peer.rpartition(":")[0]
    text = unquote(host.partition(":")[2]).strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, NETWORK_BITS), strict=False))
