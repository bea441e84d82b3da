"""The base class of all tables in the settings file, and the types of their values with parsers and descriptions."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from offloaderd.core.units import parse_bytes, parse_seconds


class Section(BaseModel):
    """A table of the settings file: frozen; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True)


class SizeMark:
    """Marks a field as a size, which is shown with a unit."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Describes a field's pattern for people."""

    text: str


def _seconds(value: object) -> object:
    """Read a duration given as text; plain numbers, also negative ones, are validated as numbers."""
    if not isinstance(value, str) or re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", value.strip(), re.IGNORECASE):
        return value
    return parse_seconds(value)


def _absent(value: object) -> object:
    """Read the empty text as `not set`, since an environment variable has no other way to unset a value."""
    return None if value == "" else value


def _lines(value: object) -> object:
    """Read a list from one text with semicolons or line breaks, as in an environment variable."""
    return tuple(filter(None, map(str.strip, re.split(r"[;\n]", value)))) if isinstance(value, str) else value


Bytes = Annotated[int, BeforeValidator(parse_bytes), SizeMark()]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(allow_inf_nan=False)]
Port = Annotated[int, Field(ge=0, le=65535)]
Lines = Annotated[tuple[str, ...], BeforeValidator(_lines)]
OptionalText = Annotated[str | None, BeforeValidator(_absent)]
OptionalSecret = Annotated[SecretStr | None, BeforeValidator(_absent)]
Address = Annotated[
    Annotated[str, Field(pattern=r"^\S+:\d{1,5}$")] | None, BeforeValidator(_absent), Shape("HOST:PORT")
]


def _zookeeper(value: object) -> object:
    """Read a ZooKeeper address in Pulsar's form (`zk:HOST:PORT/ROOT`). Raises ValueError for another metadata store."""
    if not isinstance(value, str):
        return _absent(value)
    scheme, _, rest = value.partition(":")
    if _HOST_AND_PORT.match(value):
        return value  # a host may have a scheme's name: `zk:2181`
    if scheme in _NO_ZOOKEEPER and rest:
        raise ValueError(
            f"{scheme} as Pulsar's metadata store is not supported, only ZooKeeper; see docs/quickstart.md"
        )
    return _absent(rest.removeprefix("//") if scheme == "zk" else value)


_HOST_AND_PORT = re.compile(r"[^\s,/:]+:\d{1,5}([,/]|$)")
_NO_ZOOKEEPER = ("oxia", "rocksdb", "etcd", "memory")
"""Schemes of Pulsar's other metadata stores."""
_SERVERS = r"^[^\s,/:]+:\d{1,5}(,[^\s,/:]+:\d{1,5})*(/[^\s,/]+)*$"
_SERVERS_SHAPE = Shape("HOST:PORT,HOST:PORT without blanks, with /ROOT behind them if all nodes are below one")
Servers = Annotated[Annotated[str, Field(pattern=_SERVERS)], BeforeValidator(_zookeeper), _SERVERS_SHAPE]
OptionalServers = Annotated[Annotated[str, Field(pattern=_SERVERS)] | None, BeforeValidator(_zookeeper), _SERVERS_SHAPE]
NodePath = Annotated[str, Field(pattern=r"^(/[^/\s]+)+$"), Shape("/NAME, no slash at the end")]
Url = Annotated[
    Annotated[str, Field(pattern=r"^https?://[^\s/]+/?$")] | None,
    BeforeValidator(_absent),
    Shape("http://HOST:PORT or https://HOST"),
]


def is_loopback(host: str) -> bool:
    """Whether `host` is reachable from this machine alone; names other than localhost are not looked up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_private(url: str) -> bool:
    """Whether no third party can read the traffic."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")
