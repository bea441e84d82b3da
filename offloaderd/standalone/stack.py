"""The servers and settings of a standalone daemon: ZooKeeper, an S3 server, ports, credentials.

The first start in a directory chooses them and writes `standalone.json`; every later start is the same system again.
All servers listen on the loopback interface only. They stop in the reverse order of their start, after the daemon,
which the caller runs inside this context.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from offloaderd.core.aio import Group
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidConfig, NotFound, Transient, first_of
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.daemon.settings import Settings, load
from offloaderd.daemon.settings.sections import as_toml
from offloaderd.objects.s3.store import S3Store
from offloaderd.spark.java import find_java
from offloaderd.standalone import state
from offloaderd.standalone.ports import GRPC_OFFSET, LOOPBACK, free_ports, is_free
from offloaderd.standalone.process import ChildProcess
from offloaderd.standalone.seaweed import SeaweedOptions, find_weed, seaweed
from offloaderd.standalone.state import StandaloneState, prepare_directory, write_private
from offloaderd.standalone.zookeeper import ZooKeeperOptions, zookeeper, zookeeper_jars

SEAWEED_PORTS = ("s3_master", "s3_volume", "s3_filer", "s3")
OWN_PORTS = ("zookeeper", "grpc", "http")
FREE_BYTES_MIN = 512 * 1024 * 1024
BUCKET = "offloaderd"
SETTINGS_NAME = "offloaderd.toml"
SETTINGS_HEAD = "# Written at each start of the standalone, for commands that take --config. Its keys are in it.\n\n"
BUCKET_TRIES = 20
BUCKET_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """The data directory; `config` is a settings file for values that the stack does not set itself."""

    directory: Path
    config: Path | None = None
    new_ports: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The running servers, and the settings for their daemon."""

    directory: Path
    state: StandaloneState
    settings: Settings
    children: tuple[ChildProcess, ...]
    restarted: bool


@asynccontextmanager
async def stack(options: StackOptions, environ: Mapping[str, str], clock: Clock) -> AsyncIterator[Stack]:
    """Run the servers; both answer when the body starts and have ended when the context ends. The data stays.

    Raises InvalidConfig (settings, no Java, missing package, port in use), NoSpace and Denied (directory), Conflict
    (another standalone holds the directory), ServerDied.
    """
    directory = options.directory.absolute()
    zookeeper_jars(), find_java(), find_weed()
    prepare_directory(directory, FREE_BYTES_MIN)
    with state.locked(directory):
        restarted, chosen = remembered(directory, clock, new_ports=options.new_ports)
        state.announce(directory)
        settings = settings_for(chosen, directory, options.config, environ)
        write_private(directory / SETTINGS_NAME, SETTINGS_HEAD + as_toml(settings))
        require_ports(chosen)
        async with AsyncExitStack() as exits:
            keeper = zookeeper(
                ZooKeeperOptions(directory=directory / "zookeeper", port=chosen.ports["zookeeper"]), clock
            )
            store = seaweed(seaweed_options(chosen, directory), clock)
            try:
                async with Group() as group:
                    metadata = group.create_task(exits.enter_async_context(keeper), name="start ZooKeeper")
                    objects = group.create_task(exits.enter_async_context(store), name="start SeaweedFS")
            except BaseExceptionGroup as errors:
                raise first_of(errors) from None
            await make_bucket(settings, clock)
            yield Stack(
                directory=directory,
                state=chosen,
                settings=settings,
                children=(metadata.result().child, objects.result().child),
                restarted=restarted,
            )


def remembered(directory: Path, clock: Clock, *, new_ports: bool) -> tuple[bool, StandaloneState]:
    """Return whether the directory was used before, and its state, which the first start chooses and writes."""
    try:
        found = state.load(directory)
    except NotFound:
        chosen = StandaloneState(
            ports=choose_ports(clock),
            bucket=BUCKET,
            access_key=clock.uuid().hex,
            secret_key=clock.uuid().hex + clock.uuid().hex,
        )
        state.save(directory, chosen)
        return False, chosen
    if not {*SEAWEED_PORTS, *OWN_PORTS} <= found.ports.keys():
        raise InvalidConfig(f"{directory / state.FILE_NAME} lacks a port", hint="choose new ones with --new-ports")
    if new_ports:
        found = replace(found, ports=choose_ports(clock))
        state.save(directory, found)
    return True, found


def choose_ports(clock: Clock) -> dict[str, int]:
    """Return a free port for each purpose."""
    names = (*SEAWEED_PORTS, *OWN_PORTS)
    return dict(zip(names, free_ports(len(names), clock, grpc=True), strict=True))


def require_ports(chosen: StandaloneState) -> None:
    """Raise InvalidConfig naming the first port that is taken."""
    for name, port in chosen.ports.items():
        needed = (port, port + GRPC_OFFSET) if name in SEAWEED_PORTS else (port,)
        for one in needed:
            if not is_free(one):
                raise InvalidConfig(
                    f"port {one} ({name}) of the first start is in use by another program",
                    hint="stop that program, or choose other ports with --new-ports",
                )


def seaweed_options(chosen: StandaloneState, directory: Path) -> SeaweedOptions:
    """Return the options of the S3 server."""
    master, volume, filer, s3 = (chosen.ports[name] for name in SEAWEED_PORTS)
    return SeaweedOptions(
        directory=directory / "seaweedfs",
        ports=(master, volume, filer, s3),
        access_key=chosen.access_key,
        secret_key=chosen.secret_key,
    )


def settings_for(chosen: StandaloneState, directory: Path, config: Path | None, environ: Mapping[str, str]) -> Settings:
    """Return the daemon's settings: the user's own, overridden by those of the stack."""
    laid_over = environment_of(chosen, directory)
    own = {name: value for name, value in environ.items() if name.upper() not in laid_over}
    return load(config, {**SHORTER, **own, **laid_over})


def environment_of(chosen: StandaloneState, directory: Path) -> dict[str, str]:
    """Return the settings that a standalone decides, as variables of the environment."""
    decided = {
        "DAEMON__ID": "standalone",
        "DAEMON__CLUSTER": "standalone",
        "GRPC__HOST": LOOPBACK,
        "GRPC__PORT": str(chosen.ports["grpc"]),
        "GRPC__ADVERTISE": "",
        "HTTP__HOST": LOOPBACK,
        "HTTP__PORT": str(chosen.ports["http"]),
        "METADATA__SERVERS": f"{LOOPBACK}:{chosen.ports['zookeeper']}",
        "METADATA__ROOT": "/offloaderd",
        "OBJECTS__KIND": "s3",
        "OBJECTS__BUCKET": chosen.bucket,
        "OBJECTS__ENDPOINT": chosen.s3_endpoint,
        "OBJECTS__REGION": "us-east-1",
        "OBJECTS__ACCESS_KEY": chosen.access_key,
        "OBJECTS__SECRET_KEY": chosen.secret_key,
        "OBJECTS__PATH_STYLE": "true",
        "LEDGERS__KIND": "embedded",
        "LEDGERS__DIRECTORY": str(directory / "ledgers"),
    }
    return {f"OFFLOADERD__{key}": value for key, value in decided.items()}


SHORTER = {"OFFLOADERD__METADATA__SESSION_TIMEOUT_S": "6"}
"""Other defaults of a standalone: with ZooKeeper on the same machine, a restart after a crash need not wait."""


async def make_bucket(settings: Settings, clock: Clock) -> None:
    """Make the bucket; one that exists stays as it is."""
    async with S3Store(settings.objects, Metrics(), clock) as store:
        for _ in range(BUCKET_TRIES):
            try:
                await store.create_bucket()
            except Transient:
                await clock.sleep(BUCKET_PAUSE_S)
            else:
                return
        await store.create_bucket()
