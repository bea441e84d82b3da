"""Construction of kazoo's client, and protocols of its methods in use, because kazoo has no types.

`Client` is for the life cycle, `ZooKeeperClient` for requests. Only `stop` blocks; kazoo's threads deliver results.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, UnimplementedError
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from offloaderd.core.errors import InvalidConfig
from offloaderd.metadata.settings import MetadataSettings

T_co = TypeVar("T_co", covariant=True)


class Client(Protocol):
    """The part of a client that its life cycle needs."""

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """Id and password of the session while connected."""

    @property
    def client_state(self) -> str:
        """Detailed state."""

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Register a listener; some thread calls it with CONNECTED, SUSPENDED or LOST."""

    def start_async(self) -> object:
        """Start the client's threads."""

    def stop(self) -> None:
        """End the session and the threads; blocks."""

    def close(self) -> None:
        """Free the remaining resources."""


class Result(Protocol[T_co]):
    """A future result: `value` or `exception` is set before the callback is called."""

    @property
    def value(self) -> T_co:
        """The value of a successful request."""

    @property
    def exception(self) -> Exception | None:
        """The error of a failed request."""

    def successful(self) -> bool:
        """Whether the request has succeeded."""

    def rawlink(self, callback: Callable[[object], None]) -> None:
        """Register a callback for the result; some thread calls it, perhaps more than once."""


class WatchEvent(Protocol):
    """A watch's event; its type is NONE for a change of the connection, not of the node."""

    @property
    def type(self) -> str:
        """Kind of event."""


Watch = Callable[[WatchEvent], None]


class Stat(Protocol):
    """A node's statistics."""

    @property
    def version(self) -> int:
        """Number of changes of the node's value."""

    @property
    def ctime(self) -> int:
        """Time of the node's creation, by the leader's clock, in milliseconds since the epoch."""

    @property
    def mtime(self) -> int:
        """Time of the value's last change, by the leader's clock, in milliseconds since the epoch."""


class Identity(Protocol):
    """The clients that an entry of an access list is for."""

    @property
    def scheme(self) -> str:
        """The way in which clients authenticate; `world` is everybody."""


class Permission(Protocol):
    """One entry of a node's access list."""

    @property
    def perms(self) -> int:
        """Rights, as ZooKeeper's bits."""

    @property
    def id(self) -> Identity:
        """The clients with these rights."""


class Transaction(Protocol):
    """Steps that succeed or fail together."""

    def create(self, path: str, value: bytes, *, ephemeral: bool) -> None:
        """Add a step that creates a node."""

    def set_data(self, path: str, value: bytes, version: int) -> None:
        """Add a step that replaces a node's value."""

    def delete(self, path: str, version: int) -> None:
        """Add a step that deletes a node; version -1 is any."""

    def check(self, path: str, version: int) -> None:
        """Add a step that checks a node's version."""

    def commit_async(self) -> Result[Sequence[object]]:
        """Send the transaction; the value has an answer or an exception for each step."""


class Read(NamedTuple):
    """A node to read, or whose children to list, by its whole path; `what` says so in errors."""

    path: str
    children: bool
    what: str


class ZooKeeperClient(Client, Protocol):
    """A client's requests."""

    def read_async(self, reads: Sequence[Read]) -> Result[Sequence[object]]:
        """Read all as one request; the value has an answer or an exception for each, and of a single one its answer."""

    def get_acls_async(self, path: str) -> Result[tuple[Sequence[Permission], Stat]]:
        """Read a node's access list."""

    def exists_async(self, path: str, watch: Watch | None = None) -> Result[Stat | None]:
        """Read whether a node exists; `watch` is called when it is created, deleted or replaced."""

    def get_children_async(self, path: str, watch: Watch | None = None) -> Result[list[str]]:
        """List the names below a node; `watch` is called when they change."""

    def create_async(self, path: str, value: bytes, *, ephemeral: bool = False) -> Result[str]:
        """Create a node."""

    def set_async(self, path: str, value: bytes, version: int) -> Result[Stat]:
        """Replace a node's value."""

    def delete_async(self, path: str, version: int) -> Result[object]:
        """Delete a node; version -1 is any."""

    def sync_async(self, path: str) -> Result[object]:
        """Bring the connected server up to date with its leader."""

    def transaction(self) -> Transaction:
        """Begin a transaction."""


class _MultiRead:
    """The request `multiRead` of ZooKeeper 3.6, which kazoo does not have; its reads set no watches."""

    type: ClassVar = 22
    _END: ClassVar = wire.MultiHeader(-1, True, -1).serialize()

    def __init__(self, reads: Sequence[Any]) -> None:
        self._reads = reads

    def serialize(self) -> bytes:
        heads = (wire.MultiHeader(read.type, done=False, err=-1).serialize() + read.serialize() for read in self._reads)
        return b"".join([*heads, self._END])

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> Sequence[object]:
        """Return the answers: value and stat, names, or an exception."""
        found: list[object] = []
        while True:
            head, offset = wire.MultiHeader.deserialize(answer, offset)
            if head.done:
                return found
            if head.type == wire.GetData.type:
                value, offset = wire.read_buffer(answer, offset)
                found.append((value, ZnodeStat._make(wire.stat_struct.unpack_from(answer, offset))))
                offset += wire.stat_struct.size
            elif head.type == wire.GetChildren.type:
                (count,) = wire.int_struct.unpack_from(answer, offset)
                offset, names = offset + wire.int_struct.size, []
                for _ in range(count):
                    name, offset = wire.read_string(answer, offset)
                    names.append(name)
                found.append(names)
            else:
                (code,) = wire.int_struct.unpack_from(answer, offset)
                offset += wire.int_struct.size
                found.append(EXCEPTIONS[code]())


def is_unknown(error: Exception | None) -> bool:
    """Return whether an error says that the server does not know the kind of request."""
    return isinstance(error, UnimplementedError)


class _Client(KazooClient):  # type: ignore[misc] # kazoo has no types
    """kazoo's client, which can read many nodes by one request."""

    def read_async(self, reads: Sequence[Read]) -> Result[Sequence[object]]:
        """See ZooKeeperClient; a single read is a request that every server knows."""
        kinds = {False: wire.GetData, True: wire.GetChildren}
        chroot = self.chroot.rstrip("/")
        asked = [kinds[read.children]((chroot + read.path).rstrip("/") or "/", None) for read in reads]
        result: Result[Sequence[object]] = self.handler.async_result()
        self._call(_MultiRead(asked) if len(asked) > 1 else asked[0], result)
        return result


RECONNECT_PAUSE_S, RECONNECT_PAUSE_MAX_S = 0.1, 2.0
GREETING_S = 3.0
"""About how long a server may take to answer a new connection before the next one is tried."""


def kazoo_options(options: MetadataSettings) -> dict[str, Any]:
    """Return kazoo's options. Raises InvalidConfig for a missing file, because kazoo would retry for ever."""
    told: dict[str, Any] = {}
    if options.tls:
        files = {"ca": options.tls_ca_file, "certfile": options.tls_cert_file, "keyfile": options.tls_key_file}
        for name, file in files.items():
            if file is not None and not Path(file).is_file():
                raise InvalidConfig(f"metadata.tls_*: {file} ({name}) is not there", hint="name a PEM file")
        told |= {"use_ssl": True, "verify_certs": True, "check_hostname": options.tls_hostname_check, **files}
    if options.username is not None:
        password = options.password.get_secret_value() if options.password else ""
        if options.auth == "sasl":
            if find_spec("puresasl") is None:
                raise InvalidConfig('metadata.auth = "sasl" needs pure-sasl', hint="pip install 'offloaderd[sasl]'")
            told["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": options.username, "password": password}
        else:
            told["auth_data"] = [("digest", f"{options.username}:{password}")]
    if options.acl == "creator":
        told["default_acl"] = CREATOR_ALL_ACL
    return told


def make_client(servers: str, options: MetadataSettings) -> ZooKeeperClient:
    """Return a client that is not started yet. Raises InvalidConfig."""
    retry = KazooRetry(max_tries=-1, delay=RECONNECT_PAUSE_S, backoff=2, max_delay=RECONNECT_PAUSE_MAX_S)
    try:
        client: ZooKeeperClient = _Client(
            hosts=_hosts(servers, options.session_timeout_s),
            timeout=options.session_timeout_s,
            connection_retry=retry,
            command_retry=KazooRetry(max_tries=1),
            **kazoo_options(options),
        )
    except ValueError as error:
        raise InvalidConfig(
            f"metadata.servers is not a list of servers: {servers!r} ({error})", hint="write HOST:PORT,HOST:PORT"
        ) from None
    return client


def _hosts(servers: str, session_timeout_s: float) -> str:
    """Return the list of servers, repeated: kazoo gives each entry an equal share of the session's time to answer.

    A server that is just starting may accept a connection and never answer. With a single entry, the wait for it would
    last as long as the session, and lose it.
    """
    hosts, slash, root = servers.partition("/")
    share_s = session_timeout_s / (hosts.count(",") + 1)
    return ",".join([hosts] * max(1, int(share_s / GREETING_S))) + slash + root
