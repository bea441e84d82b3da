"""The few calls of kazoo's client that are used, as Protocols: kazoo ships no types.

`Client` is what its life cycle needs, `ZooKeeperClient` what requests need. Everything here returns at once, except
`stop`; results come on threads of kazoo.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Client(Protocol):
    """What is needed of a client to run it."""

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """Id and password of the session while connected."""

    @property
    def client_state(self) -> str:
        """Detailed state."""

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Have `listener` called, on some thread, with CONNECTED, SUSPENDED or LOST."""

    def start_async(self) -> object:
        """Start the client's threads."""

    def stop(self) -> None:
        """End the session and the threads; blocks."""

    def close(self) -> None:
        """Free what is left."""


class Result(Protocol[T_co]):
    """A result to come; `value` or `exception` is there once a callback has been called."""

    @property
    def value(self) -> T_co:
        """What a successful request returned."""

    @property
    def exception(self) -> Exception | None:
        """Why a request failed."""

    def successful(self) -> bool:
        """Whether there is a value."""

    def rawlink(self, callback: Callable[[object], None]) -> None:
        """Have `callback` called, on some thread, when the result is there; perhaps more than once."""


class WatchEvent(Protocol):
    """What a watch tells; of type NONE when the connection changed and not the node."""

    @property
    def type(self) -> str:
        """Kind of event."""


Watch = Callable[[WatchEvent], None]


class Stat(Protocol):
    """A node's statistics."""

    @property
    def version(self) -> int:
        """How often the node's value has been replaced."""

    @property
    def ctime(self) -> int:
        """When the node was created, by the leader's clock, in milliseconds since the epoch."""

    @property
    def mtime(self) -> int:
        """When the value was last replaced, by the leader's clock, in milliseconds since the epoch."""


class Identity(Protocol):
    """Whom an access list speaks of."""

    @property
    def scheme(self) -> str:
        """How clients prove it: `world` is everybody."""


class Permission(Protocol):
    """One entry of a node's access list."""

    @property
    def perms(self) -> int:
        """Rights, as ZooKeeper's bits."""

    @property
    def id(self) -> Identity:
        """Who has them."""


class Transaction(Protocol):
    """Steps that are carried out together."""

    def create(self, path: str, value: bytes, *, ephemeral: bool) -> None:
        """Add a create."""

    def set_data(self, path: str, value: bytes, version: int) -> None:
        """Add a replace."""

    def delete(self, path: str, version: int) -> None:
        """Add a delete; version -1 is any."""

    def check(self, path: str, version: int) -> None:
        """Add a check of a version."""

    def commit_async(self) -> Result[Sequence[object]]:
        """Send it; the value holds an answer or an exception a step."""


class ZooKeeperClient(Client, Protocol):
    """The requests."""

    def get_async(self, path: str) -> Result[tuple[bytes | None, Stat]]:
        """Read a node."""

    def get_acls_async(self, path: str) -> Result[tuple[Sequence[Permission], Stat]]:
        """Read a node's access list."""

    def exists_async(self, path: str, watch: Watch | None = None) -> Result[Stat | None]:
        """Look whether a node exists; `watch` is called when it is created, deleted or replaced."""

    def get_children_async(self, path: str, watch: Watch | None = None) -> Result[list[str]]:
        """List the names below a node; `watch` is called when they change."""

    def create_async(self, path: str, value: bytes, *, ephemeral: bool = False) -> Result[str]:
        """Create a node."""

    def set_async(self, path: str, value: bytes, version: int) -> Result[Stat]:
        """Replace a node's value."""

    def delete_async(self, path: str, version: int) -> Result[object]:
        """Delete a node; version -1 is any."""

    def sync_async(self, path: str) -> Result[object]:
        """Have the server that we talk to catch up with its leader."""

    def transaction(self) -> Transaction:
        """Begin a transaction."""
