"""The port to a metadata store: a small tree of versioned nodes with transactions, watches and sessions.

The shape is ZooKeeper's. Paths are absolute, `/`-separated, relative to the store's root. Every method may raise
Transient when the request was certainly not carried out, OutcomeUnknown when it may have been (writes only), Denied
and Closed.

All adapters check arguments alike, before the request, since the store's own answer is not clear: ZooKeeper drops the
connection after a request that is too large.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from offloaderd.core.errors import Conflict, InvalidInput, NoSpace


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


REQUEST_BYTES_MAX = 1_030_000
"""Largest write, as one node or one transaction; ZooKeeper's `jute.maxbuffer` is 1,048,575 bytes by default."""
STEP_OVERHEAD_BYTES = 128
VERSION_MAX = 2**31 - 1


_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""Characters that no name has."""


def checked_path(path: str) -> str:
    """Return the absolute path unchanged. Raises InvalidInput if no node can have it."""
    if path == "/":
        return path
    parts = path.split("/")
    if parts[0] or len(parts) < 2 or not all(map(_is_name, parts[1:])):
        raise InvalidInput(f"{path!r} cannot be the path of a node")
    return path


def checked_version(version: int | None) -> int | None:
    """Return the version unchanged. Raises InvalidInput if no node can have it."""
    if version is not None and not 0 <= version <= VERSION_MAX:
        raise InvalidInput(f"{version} cannot be the version of a node")
    return version


def checked_steps(steps: Sequence[Step]) -> Sequence[Step]:
    """Return the steps of a transaction. Raises InvalidInput, and NoSpace if together they are too large."""
    for step in steps:
        checked_path(step.path)
        if not isinstance(step, Create):
            checked_version(step.version)
        if isinstance(step, Delete) and step.path == "/":
            raise InvalidInput("the root of a metadata store cannot be deleted")
    size = request_bytes(steps)
    if size > REQUEST_BYTES_MAX:
        raise NoSpace(
            f"a metadata write of {size} bytes, the first for {steps[0].path}, is too large: "
            f"{REQUEST_BYTES_MAX} bytes is the most",
            hint="a defect: what grows is held in pieces before it comes to this; report it with the topic's nodes",
        )
    return steps


def request_bytes(steps: Sequence[Step]) -> int:
    """Return the approximate size of a transaction for the store, rather too large than too small."""
    values = [step.value for step in steps if isinstance(step, Create | Replace)]
    paths = sum(STEP_OVERHEAD_BYTES + len(step.path.encode()) for step in steps)
    return paths + sum(map(len, values))


def parent(path: str) -> str:
    """Return the path of the node above."""
    return path.rpartition("/")[0] or "/"


def described(step: Step) -> str:
    """Describe a step in an error: kind, path, and expected version."""
    text = f"{type(step).__name__.lower()} {step.path}"
    if isinstance(step, Create) or (isinstance(step, Delete) and step.version is None):
        return text
    return f"{text} at version {step.version}"


def _is_name(part: str) -> bool:
    """Whether ZooKeeper accepts the name: not relative, no control or private character, first plane only."""
    return part not in {"", ".", ".."} and _REFUSED.search(part) is None


def failed_step(number: int, steps: Sequence[Step], why: str) -> Conflict:
    """Return the error for a transaction that failed at one step, so that no step was carried out."""
    return Conflict(f"step {number + 1} of {len(steps)} ({described(steps[number])}) failed: {why}")
