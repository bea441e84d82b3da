"""Ids of bookies, and the addresses that they publish under them.

    address = resolve(bookie_id, content)      # content of available/<id> or available/readonly/<id>; None: neither is
    address.host, address.port, address.tls

Ids are opaque since BookKeeper 4.12; older ones, and those of bookies that publish nothing, are host:port. An address
may change under the same id, so resolve again on every reconnect. WIRE.md, section 9.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from offloaderd.core.errors import CorruptData, NotFound
from offloaderd.format.parsing import parse_message
from offloaderd.format.pb.bookkeeper.registration_pb2 import BookieServiceInfo

RPC_PROTOCOL: Final = "bookie-rpc"
TLS_EXTENSION: Final = "tls"
READONLY: Final = "readonly"
"""A child of `available` that is no bookie but the folder of the read-only ones."""
ID_LENGTH_MAX: Final = 255

_ID = re.compile(r"[!-.0-~]+")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(?:%[\w.-]+)?")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint of a bookie; its storage protocol is `bookie-rpc`, others are for operators."""

    endpoint_id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registration:
    """The registration of a bookie."""

    endpoints: tuple[Endpoint, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BookieAddress:
    """The address of a bookie; `tls`: it offers START_TLS there, and may or may not require it."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        """`host:port`, with brackets round an IPv6 host."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_bookie_id(text: str) -> bool:
    """Whether this may be a bookie's id, and so part of a path: printable ASCII without a slash.

    A little more than BookKeeper documents, since our rule must not make a ledger unreadable.
    """
    reserved = text.lower() == READONLY or text in {".", ".."}
    return len(text) <= ID_LENGTH_MAX and _ID.fullmatch(text) is not None and not reserved


def parse_legacy_id(bookie_id: str) -> BookieAddress | None:
    """Return the address in an id of the old kind; None if it is opaque. The port is at the right end."""
    host, _, port = bookie_id.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        return None
    return BookieAddress(host, int(port))


def decode(content: bytes, *, path: str) -> Registration:
    """Return the content of a registration node; raises CorruptData."""
    message = parse_message(BookieServiceInfo, content, key=path, at=0)
    endpoints = tuple(
        Endpoint(each.id, each.host, each.port, each.protocol, tuple(each.auth), tuple(each.extensions))
        for each in message.endpoints
    )
    return Registration(endpoints, MappingProxyType({pair.key: pair.value for pair in message.properties}))


def resolve(bookie_id: str, content: bytes | None, *, path: str = "") -> BookieAddress:
    """Return the address of a bookie, from its registration node, or (None, or an empty node) from an old id.

    Raises NotFound without any address, CorruptData for an invalid node or address. `path` is for the error.
    """
    where = path or f"the registration of bookie {bookie_id}"
    if content:
        found = next((end for end in decode(content, path=where).endpoints if end.protocol == RPC_PROTOCOL), None)
        if found is None:
            raise NotFound(f"bookie {bookie_id} publishes no endpoint of protocol {RPC_PROTOCOL} in {where}")
        host = found.host.removeprefix("[").removesuffix("]")
        if not _HOST.fullmatch(host) or not 0 < found.port < 65536:
            raise CorruptData(key=where, offset=0, expected="a host and a port", found=f"{found.host!r}, {found.port}")
        return BookieAddress(host, found.port, TLS_EXTENSION in found.extensions)
    address = parse_legacy_id(bookie_id)
    if address is None:
        raise NotFound(
            f"bookie {bookie_id} is not registered, and its id is no address",
            hint="start the bookie, or replace it with `bookkeeper shell recover`",
        )
    return address
