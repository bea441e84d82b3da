"""The data directory of a standalone: its checks, its state in `standalone.json`, and the lock against a second one.

`standalone.json` (mode 0600) holds the ports and the credentials that the first start chose, so that every later start
is the same system again; offloadctl finds the daemon by it. `standalone.lock` is held by flock for the life of the
process, so it needs no clean-up after a crash.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from offloaderd.core.errors import Conflict, Denied, InvalidConfig, NoSpace, NotFound, OffloaderError
from offloaderd.standalone.ports import LOOPBACK

FREE_BYTES_MIN = 64 * 1024 * 1024
"""With less free space a server would start and then fail."""

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def prepare_directory(directory: Path, free_bytes_min: int = FREE_BYTES_MIN) -> None:
    """Create `directory` (for this user only) and write a probe file into it.

    Raises NoSpace on a full disk, Denied on a read-only one or missing rights, InvalidConfig when the path is taken
    by a file.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_probe(directory / ".probe")
        free_bytes = shutil.disk_usage(directory).free
    except OSError as error:
        raise directory_error(error, directory) from error
    if free_bytes < free_bytes_min:
        raise NoSpace(
            f"only {free_bytes >> 20} MiB free at {directory}",
            hint=f"at least {free_bytes_min >> 20} MiB are needed: free some, or choose another directory",
        )


def directory_error(error: OSError, directory: Path) -> OffloaderError:
    """Return an error of the system about `directory` as ours, with a hint."""
    if error.errno in _FULL:
        return NoSpace(f"the disk at {directory} is full", hint="free some space, or choose another directory")
    if error.errno in _DENIED:
        return Denied(
            f"cannot write to {directory}: {error.strerror}",
            hint="give this user the right to write there, or choose another directory",
        )
    if error.errno in {errno.EEXIST, errno.ENOTDIR}:
        return InvalidConfig(f"{directory} is not a directory", hint="choose another directory")
    return OffloaderError(f"cannot use {directory}: {error.strerror or error}")


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user may read, whole or not at all (temporary name, then rename). Raises OSError."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _write_probe(probe: Path) -> None:
    """Write and remove a small file, through to the disk."""
    with probe.open("wb") as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
    probe.unlink()


DEFAULT_DIRECTORY = "data/standalone"
LINK_NAME = "standalone"
"""Link, in the directory of the user's configuration, to the data directory of the standalone that started last."""
FILE_NAME = "standalone.json"
LOCK_NAME = "standalone.lock"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneState:
    """The choices of the first start. `ports` is by purpose; every port is on the loopback interface."""

    ports: Mapping[str, int]
    bucket: str
    access_key: str
    secret_key: str
    version: int = VERSION

    @property
    def address(self) -> str:
        """`host:port` of the daemon's gRPC server."""
        return f"{LOOPBACK}:{self.ports['grpc']}"

    @property
    def http(self) -> str:
        """URL of the daemon's HTTP server (metrics and health)."""
        return f"http://{LOOPBACK}:{self.ports['http']}"

    @property
    def s3_endpoint(self) -> str:
        """URL of the S3 server."""
        return f"http://{LOOPBACK}:{self.ports['s3']}"

    def __repr__(self) -> str:
        """Return its text without the secret, which must not reach a log."""
        return f"StandaloneState(ports={dict(self.ports)}, bucket={self.bucket!r})"


def load(directory: Path) -> StandaloneState:
    """Read the state of a data directory. Raises NotFound when there is none, InvalidConfig when it is damaged."""
    path = directory / FILE_NAME
    try:
        return decoded(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            f"no standalone in {directory}", hint=f"start one with `offloaderd standalone --data {directory}`"
        ) from None
    except OSError as error:
        raise directory_error(error, directory) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidConfig(
            f"{path} is damaged: {error}",
            hint="its ports and credentials are those of the data beside it: restore it, or start in a new directory",
        ) from None


def address(directory: str | Path = DEFAULT_DIRECTORY) -> str:
    """Return `host:port` of a standalone's daemon, for programs. Raises NotFound, InvalidConfig."""
    return load(Path(directory)).address


def decoded(text: str) -> StandaloneState:
    """Read a state file's text. Raises ValueError, TypeError, KeyError or AttributeError for any other text."""
    found = json.loads(text)
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']!r} is not {VERSION}")
    state = StandaloneState(**found)
    if not all(type(port) is int and 0 < port < 65_536 for port in state.ports.values()):  # True is an int, and no port
        raise ValueError("a port is out of range")
    if not {"grpc", "http", "s3"} <= state.ports.keys():
        raise ValueError("a port is missing")
    if not all(isinstance(text, str) for text in (state.bucket, state.access_key, state.secret_key)):
        raise TypeError("bucket or credentials are no text")
    return state


def save(directory: Path, state: StandaloneState) -> None:
    """Write the state, readable by its owner only; all or nothing. Raises NoSpace, Denied, OffloaderError."""
    path = directory / FILE_NAME
    try:
        write_private(path, json.dumps(asdict(state), indent=2) + "\n")
    except OSError as error:
        raise directory_error(error, directory) from error


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory for this process; raises Conflict when another one holds it."""
    path = directory / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise directory_error(error, directory) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            raise Conflict(
                f"another standalone (process {holder or 'unknown'}) is running on {directory}",
                hint="stop it, or choose another directory with --data",
            ) from None
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise directory_error(error, directory) from error
        yield
    finally:
        os.close(descriptor)


def user_directory() -> Path:
    """Return the directory of this user's configuration; it may be missing."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(given) if given.startswith("/") else Path.home() / ".config") / "offloaderd"


def announce(directory: Path) -> None:
    """Let programs of this user find the standalone of this directory. It runs as well where that cannot be written."""
    link = user_directory() / LINK_NAME
    draft = link.with_name(f".{LINK_NAME}.{os.getpid()}")
    with suppress(OSError):
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.symlink_to(directory.absolute())
        draft.replace(link)


def found() -> Path | None:
    """Return the directory of a standalone that runs: below the current directory, else the one that started last."""
    link = user_directory() / LINK_NAME
    return next(filter(running, (Path(DEFAULT_DIRECTORY), link)), None)


def running(directory: Path) -> bool:
    """Return whether a standalone holds the directory."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
