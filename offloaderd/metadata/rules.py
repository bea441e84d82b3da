"""Checks of arguments that all adapters of metadata stores share.

They come before the request, since the store's own answer is not clear: ZooKeeper drops the connection after a request
that is too large.
"""

from collections.abc import Sequence

from offloaderd.core.errors import Conflict, InvalidInput, NoSpace
from offloaderd.metadata.port import Create, Delete, Replace, Step

REQUEST_BYTES_MAX = 1_030_000
"""Largest write, as one node or one transaction; ZooKeeper's `jute.maxbuffer` is 1,048,575 bytes by default."""
STEP_OVERHEAD_BYTES = 128
VERSION_MAX = 2**31 - 1


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
    return part not in {"", ".", ".."} and not any(
        char <= "\x1f" or "\x7f" <= char <= "\x9f" or "\ud800" <= char <= "\uf8ff" or char >= "\ufff0" for char in part
    )


def failed_step(number: int, steps: Sequence[Step], why: str) -> Conflict:
    """Return the error for a transaction that failed at one step, so that no step was carried out."""
    return Conflict(f"step {number + 1} of {len(steps)} ({described(steps[number])}) failed: {why}")
