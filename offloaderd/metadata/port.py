"""The port to a metadata store: a small tree of versioned nodes with transactions, watches and sessions.

The shape is ZooKeeper's. Paths are absolute, `/`-separated, relative to the store's root. Every method may raise
Transient when the request was certainly not carried out, OutcomeUnknown when it may have been (writes only), Denied
and Closed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Versioned:
    """A node's value, its version for compare-and-set, and its creation time by the store's clock (0 if not kept)."""

    value: bytes
    version: int
    created_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Create:
    """Transaction step: create a node. `ephemeral` ties it to the session."""

    path: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """Transaction step: set a node's value if its version is `version`."""

    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Transaction step: delete a node if its version is `version` (any version when None)."""

    path: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Transaction step: fail unless the node has this version."""

    path: str
    version: int


Step = Create | Replace | Delete | Check


class Session:
    """One session with the store; its ephemeral nodes are deleted at its end."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        """Id of the session, never used for another one."""
        self.lost = asyncio.Event()
        """Set once the session has ended or can no longer be known to live; a new Session follows."""


class MetadataStore(Protocol):
    """Versioned nodes in a tree."""

    async def get(self, path: str) -> Versioned:
        """Return a node's value and version. Raises NotFound."""

    async def children(self, path: str) -> Sequence[str]:
        """Return the sorted names below a node; a node that does not exist has none."""

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        """Create a node and its missing parents. Raises Conflict if it exists."""

    async def replace(self, path: str, value: bytes, version: int) -> int:
        """Set a node's value if its version is `version`; returns the new version. Raises Conflict, NotFound."""

    async def delete(self, path: str, version: int | None = None) -> None:
        """Delete a node without children. Raises Conflict (version differs, or it has children), NotFound."""

    async def transact(self, steps: Sequence[Step]) -> None:
        """Carry out all steps or none. Parents of new nodes must exist by then. Raises Conflict naming the step."""

    def watch(self, path: str) -> AsyncGenerator[None, None]:
        """Yield at once, then whenever the node's value or its list of children may have changed.

        Changes are coalesced; a change of session counts as one. The node need not exist. Ends only by being closed.
        """

    async def session(self) -> Session:
        """Return the current session; waits for one."""


class SessionState(IntEnum):
    """State of the session; the numbers are those of the metric `offloaderd_zk_session_state`."""

    LOST = 0
    SUSPENDED = 1
    CONNECTED = 2


SessionObserver = Callable[[SessionState], None]
"""Called on the loop at every change of state; LOST exactly once for each lost session."""
