"""`offloaderd serve` with several processes: what the parent opens, in order, and closes in reverse."""

import asyncio
import json
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path

import structlog

from offloaderd.core.aio import Group
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import InvalidConfig, first_of
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.metrics.processes import ProcessMetrics
from offloaderd.daemon.doctor.examination import listen
from offloaderd.daemon.guard import Guard
from offloaderd.daemon.http import HttpServer
from offloaderd.daemon.log_levels import LogLevels
from offloaderd.daemon.process import attended
from offloaderd.daemon.reload import Reloader
from offloaderd.daemon.settings import Settings
from offloaderd.daemon.settings.share import divided, port_of, socket_of
from offloaderd.daemon.siblings import ask
from offloaderd.processes.pages import ProcessesSite, gathered
from offloaderd.processes.parent import HostHealth, Parent, View
from offloaderd.standalone.process import ChildProcess, Command

PROGRAM = (sys.executable, "-m", "offloaderd.cli.offloaderd")
STOP_GRACE_S = 5.0
"""How long a process may take to end where another one cannot serve."""

log = structlog.get_logger(__name__)


async def run_processes(
    settings: Settings,
    config: Path | None,
    *,
    reread: Callable[[], Settings],
    environ: Mapping[str, str],
    program: Sequence[str] = PROGRAM,
    options: Sequence[str] = (),
) -> int:
    """Run all processes until a signal stops them; returns the exit code (0 after a complete drain, else 1).

    Raises InvalidConfig for settings that can never work. `reread` reads the settings again; `program` is the command
    line before `serve`, `options` what is to follow it beside the file and the number of processes.
    """
    clock, count = SystemClock(), settings.daemon.processes
    unused = Metrics()  # those of all processes are on the page
    metrics, health = ProcessMetrics(), HostHealth(clock.wall_ms)
    guard, levels = Guard(settings, clock, unused), LogLevels(settings.log, clock, unused)
    reloader = Reloader(settings, reread, clock, unused)
    reloader.connect(partial(_prepared, guard, levels))
    with ExitStack() as held:
        directory = held.enter_context(directory_of_sockets())
        port = held.enter_context(reserved(settings))
        file = ["--config", str(config)] if config is not None else []
        arguments = ["serve", *file, "--processes", str(count), *options]
        parent = Parent(
            count,
            lambda number: _child(
                number, [*program, *arguments, "--as-process", str(number), str(port), str(directory)]
            ),
            partial(_view, directory),
            clock=clock,
            metrics=metrics,
            drain_s=lambda: reloader.settings.shutdown.drain_s,
            health=health,
        )
        site = ProcessesSite(guard.gate, health, directory, count, private=guard.is_private)
        share = divided(settings)
        log.info("processes.starting", processes=count, port=port, memory_bytes_each=share.memory.budget_bytes)
        async with (
            HttpServer(
                settings.http,
                gathered(metrics, directory, count),
                health,
                guard.certificates,
                site if settings.http.status_page else None,
            ),
            attended(health, clock, environ),
        ):
            held.enter_context(_signals(parent, reloader))
            try:
                async with Group() as group:
                    keeping = group.create_task(guard.keep(), name="certificates")
                    code = await parent.run()
                    keeping.cancel()
            except BaseExceptionGroup as errors:
                raise first_of(errors) from None
        log.info("processes.stopped", exit_code=code)
    return code


@contextmanager
def _signals(parent: Parent, reloader: Reloader) -> Iterator[None]:
    """SIGTERM and SIGINT stop the processes; SIGHUP has the parent and all processes read the settings again."""
    loop = asyncio.get_running_loop()

    def on_stop(name: str) -> None:
        log.info("processes.stop_requested", signal=name)
        parent.stop(f"received {name}")

    def on_reload() -> None:
        reloader.on_signal()
        parent.reload()

    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: partial(on_stop, "SIGTERM"),
        signal.SIGINT: partial(on_stop, "SIGINT"),
        signal.SIGHUP: on_reload,
    }
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


def _prepared(guard: Guard, levels: LogLevels, settings: Settings) -> Callable[[], None]:
    steps = [guard.prepare(settings), levels.prepare(settings.log)]

    def follow() -> None:
        for step in steps:
            step()

    return follow


def _child(number: int, line: Sequence[str]) -> ChildProcess:
    """Return a process, which writes to this one's log. Only the parent reports to systemd."""
    command = Command(
        name=f"process {number}",
        program=Path(line[0]),
        arguments=tuple(line[1:]),
        directory=Path.cwd(),
        environment={"NOTIFY_SOCKET": ""},
        stop_grace_s=STOP_GRACE_S,
        keeps_log=False,
    )
    return ChildProcess(command, SystemClock())


async def _view(directory: Path, number: int) -> View | None:
    """Return what a process says of itself; None for nothing, and for an error of its HTTP server, which is no view."""
    answer = await ask(socket_of(directory, number), "/readyz")
    if answer is None or answer.status not in {HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE}:
        return None
    found: View = json.loads(answer.body)
    return found


@contextmanager
def directory_of_sockets() -> Iterator[Path]:
    """Yield a directory for sockets, which only this user can open."""
    try:
        with tempfile.TemporaryDirectory(prefix="offloaderd-", ignore_cleanup_errors=True) as name:
            yield Path(name)
    except FileNotFoundError as error:
        raise InvalidConfig(
            f"several processes need a directory for their sockets: {error}",
            hint="set TMPDIR to one that can be written",
        ) from error


@contextmanager
def reserved(settings: Settings) -> Iterator[int]:
    """Hold the port that all processes share, and yield it. Raises InvalidConfig if one of the ports is in use.

    It is held without SO_REUSEADDR, with which another server could take a port on which nobody listens just now.
    The processes bind their ports such that others of the same user could as well, and would get a part of the calls:
    so the parent tries first.
    """
    grpc = settings.grpc
    for port in (grpc.port, *(port_of(settings, number + 1) for number in range(settings.daemon.processes))):
        try:
            listen(grpc.host, port)
        except OSError as error:
            raise InvalidConfig(
                f"cannot listen on {grpc.host}:{port} for gRPC: {error.strerror or error}",
                hint="is another offloaderd running? set grpc.port, or grpc.process_port for those of the processes",
            ) from error
    family = socket.AF_INET6 if ":" in grpc.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((grpc.host.strip("[]"), grpc.port))
        yield held.getsockname()[1]
