"""How many calls somebody may make in a second: a bucket of tokens for each name, and a bound on the names.

A bucket that has been idle for a second is full again, so that forgetting it changes nothing; no other is forgotten.
Names for which there is no room share one bucket, each kind its own: who comes under thousands of names at once holds
up others of that kind that are new, and nobody who is known. Of IPv6 a network of 64 bits is one name, as a single
host has all of its addresses.
"""

import ipaddress
from collections import OrderedDict, defaultdict
from urllib.parse import unquote

from offloaderd.core.clock import Clock
from offloaderd.core.limits import TokenBucket

NAMES_MAX = 10_000
"""So many names of one kind have buckets of their own."""
SHARED = ""
NETWORK_BITS = 64


class CallRate:
    """At most `per_s` calls a second for each name, in bursts of as many; 0 is no limit."""

    def __init__(self, per_s: int, clock: Clock) -> None:
        self._per_s = per_s
        self._clock = clock
        self._kinds: defaultdict[str, OrderedDict[str, TokenBucket]] = defaultdict(OrderedDict)

    def take(self, kind: str, name: str) -> bool:
        """Count one call; whether it is within the limit. Kinds are few."""
        if not self._per_s:
            return True
        buckets = self._kinds[kind]
        while buckets and next(iter(buckets.values())).full:
            buckets.popitem(last=False)
        if name not in buckets and len(buckets) >= NAMES_MAX:
            name = SHARED
        bucket = buckets[name] = buckets.get(name) or TokenBucket(self._per_s, self._clock)
        buckets.move_to_end(name)
        return bucket.take_now(1)


def network_of(peer: str) -> str:
    """Return who counts as one, of a peer as gRPC writes it (`ipv4:192.0.2.1:7`, `ipv6:%5B2001:db8::1%5D:7`)."""
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
