"""A process that has imported what tests need, and runs each selection of tests in a fork.

The server (`python -m tools.fork_server`) imports pytest, its plugins and libraries of others, never this tree: a fork
imports the tree itself, and so with whatever module is changed for it. The server has one thread, for a fork keeps no
other. Requests and replies are lines of JSON on its standard input and output; when the input ends, so do the server
and its fork. `ForkServer` is the side of whoever asks.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self, TypeVar, cast

import hypothesis
import pytest

from tools import changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

J = TypeVar("J")
R = TypeVar("R")

ROOT = Path(__file__).resolve().parent.parent
OURS = ("offloaderd", "tests")
LIBRARIES = (
    "numpy",
    "aiobotocore.session",
    "aiohttp.web",
    "blockbuster",
    "click.testing",
    "cryptography.x509",
    "fastavro",
    "google.protobuf.json_format",
    "google_crc32c",
    "grpc.aio",
    "grpc_health.v1.health",
    "grpc_reflection.v1alpha.reflection",
    "jinja2",
    "jwt",
    "kazoo.client",
    "pulsar",
    "packaging.version",
    "prometheus_client.core",
    "pydantic.functional_validators",
    "pydantic.json_schema",
    "pydantic.main",
    "pydantic.types",
    "pyspark.sql.datasource",
    "re2",
    "structlog.testing",
    "trustme",
    "xdist.scheduler",
    "zstandard",
)
"""What many tests import, and takes time; not pyarrow, which starts a thread."""
OUTPUT_CHARACTERS = 6000
LIMIT_S = 60.0
PATIENCE_S = 60.0
STACKS_BEFORE_LIMIT_S = 5
"""The stacks of a test that hangs are in its output."""


@dataclass(slots=True, kw_only=True)
class Run:
    """What became of a selection of tests. `failed`: tests whose call failed; `errors`: what failed outside of one.

    `code` is pytest's exit code; None when the fork was killed at its limit, or ended without a report.
    """

    code: int | None = None
    hung: bool = False
    passed: dict[str, float] = field(default_factory=dict)
    """The tests whose call passed, each with its seconds."""
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    imported: bool = False
    """The changed module was imported by the process of the tests (a child of it may have done so unseen)."""
    import_error: str = ""
    """The changed module could not be imported."""
    output: str = ""

    @property
    def sound(self) -> bool:
        """Whether there were tests, and nothing failed."""
        return self.code == 0 and bool(self.passed) and not self.errors


class Recorder:
    """A plugin that writes down what becomes of the tests of a run."""

    def __init__(self) -> None:
        self.run = Run()

    def pytest_configure(self) -> None:
        """Have Hypothesis draw the same examples each time, and not look for smaller ones."""
        hypothesis.settings.register_profile(
            "in a fork",
            derandomize=True,
            database=None,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        )
        hypothesis.settings.load_profile("in a fork")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Note the result; what fails later, as pytest ends, is an error."""
        self.run.code = int(exitstatus)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported, or a name that is not there."""
        if report.failed:
            self.run.errors.append(f"collecting {report.nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the result of a test's call, and errors before and after it."""
        if report.when == "call":
            if report.passed:
                self.run.passed[report.nodeid] = report.duration
            elif report.failed:
                self.run.failed.append(report.nodeid)
        elif report.failed:
            self.run.errors.append(f"{report.when} of {report.nodeid}")


class ForkServer:
    """A server of one's own, which runs one selection of tests at a time. Use it as a context."""

    def __init__(self, share: tuple[int, int] | None = None) -> None:
        """`share`: which one of how many workers this is, where no worker of pytest-xdist asks (for ports)."""
        self._share = share

    def __enter__(self) -> Self:
        """Start the server; what it has to import takes two seconds."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name.startswith("PYTEST_XDIST_WORKER") or not name.startswith(("PYTEST", "PYTHONDONTWRITEBYTECODE"))
        }
        if self._share:
            environment |= {
                "PYTEST_XDIST_WORKER": f"gw{self._share[0]}",
                "PYTEST_XDIST_WORKER_COUNT": f"{self._share[1]}",
            }
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.fork_server"],
            cwd=ROOT,
            # one order of sets, and no threads of numpy's
            env=environment | {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for whoever asks
        )
        self._requests, self._replies = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
        self._process = process
        return self

    def __exit__(self, *_: object) -> None:
        """End the server, and its fork if there is one."""
        self._requests.close()
        self._replies.close()
        self._process.wait()

    def run(
        self,
        tests: list[str],
        change: tuple[str, str] | None = None,
        *,
        root: Path = ROOT,
        patience_s: float = PATIENCE_S,
        limit_s: float = LIMIT_S,
    ) -> Run:
        """Run tests of a tree, with a file of it changed to another text. RuntimeError: the server has ended."""
        request = {"root": str(root), "tests": tests, "change": change, "patience_s": patience_s, "limit_s": limit_s}
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        if not (reply := self._replies.readline()):
            raise RuntimeError(f"the fork server has ended with {self._process.wait()}; its standard error says why")
        return Run(**json.loads(reply))


def on_servers(work: Callable[[ForkServer, J], R], jobs: Sequence[J], workers: int) -> Iterator[R]:
    """Yield what `work` returns for each job, as it comes in; who stops early gives up what has not begun."""
    workers = min(workers, len(jobs))
    if not workers:
        return
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(workers) as pool:
        idle: queue.SimpleQueue[ForkServer] = queue.SimpleQueue()
        for worker in range(workers):
            idle.put(stack.enter_context(ForkServer((worker, workers))))

        def one(job: J) -> R:
            server = idle.get()
            try:
                return work(server, job)
            finally:
                idle.put(server)

        try:
            for done in as_completed([pool.submit(one, job) for job in jobs]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Request:
    """What a fork does, and how long it may take."""

    root: str
    tests: list[str]
    change: tuple[str, str] | None
    patience_s: float
    limit_s: float


def serve() -> None:
    """Answer requests until there are no more."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123 - for its number
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    with tempfile.TemporaryDirectory(prefix="offloaderd-forks-") as scratch:
        prepare(Path(scratch))
        while line := requests.readline():
            run = in_fork(Request(**json.loads(line)), Path(scratch), (requests, replies))
            if run is None:
                return
            replies.write(json.dumps(asdict(run)) + "\n")
            replies.flush()


def prepare(scratch: Path) -> None:
    """Import pytest's plugins, as an empty run of it does, and the libraries."""
    pytest.main(
        [
            *("-c", os.devnull, "--rootdir", str(scratch), "--noconftest", "-p", "no:cacheprovider"),
            *("-o", "asyncio_default_fixture_loop_scope=function", str(scratch)),
        ]
    )
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):  # an extra that is not installed: no test needs it, or all say so
            importlib.import_module(library)
    gc.collect()
    gc.freeze()


def check_fit_to_fork() -> None:
    """RuntimeError: a fork would lack a thread, or have something of this tree already."""
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()
    if threads != 1:
        raise RuntimeError(f"the fork server has {threads} threads, not one: a library in LIBRARIES starts them")
    if found := [name for name in sys.modules if name.partition(".")[0] in OURS]:
        raise RuntimeError(f"the fork server has imported {found[0]}: forks would not import it again")


def in_fork(request: Request, scratch: Path, channels: tuple[IO[str], IO[str]]) -> Run | None:
    """Run a request in a fork and return its report; None when nobody waits for it any more."""
    check_fit_to_fork()
    place = scratch / "fork"
    place.mkdir()
    readable, writable = os.pipe()
    with tempfile.TemporaryFile(dir=scratch) as output:
        process_id = os.fork()
        if process_id == 0:
            os.close(readable)
            for channel in channels:
                os.close(channel.fileno())
            _child(request, place, output, writable)
        os.close(writable)
        run = Run()
        try:
            ready, _, _ = select.select([readable, channels[0].fileno()], [], [], request.limit_s)
            if readable in ready:
                with os.fdopen(readable, closefd=False) as report:
                    run = Run(**json.loads(report.readline() or "{}"))
            elif ready:
                return None
            run.hung = not ready
        finally:
            os.close(readable)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process_id, signal.SIGKILL)  # with all that its tests have left behind
            os.waitpid(process_id, 0)
            shutil.rmtree(place, ignore_errors=True)
        output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_CHARACTERS))
        run.output = output.read().decode(errors="replace")
    return run


def _child(request: Request, place: Path, output: IO[bytes], report: int) -> None:
    """Run the tests in this process, which is a fork, report, and end."""
    recorder = Recorder()
    run, change = recorder.run, None
    try:
        os.setsid()
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.chdir(request.root)
        os.environ |= {"TMPDIR": str(place), "TEST_PATIENCE_S": f"{request.patience_s:g}"}
        tempfile.tempdir = None
        sys.path.insert(0, request.root)
        change = changed.install(Path(request.root), *request.change) if request.change else None
        run.code = int(pytest.main(arguments(request, place), plugins=[recorder]))
    except BaseException as error:  # noqa: BLE001 - this process ends here, whatever it was
        run.errors.append(f"the end of pytest: {error!r}")
        traceback.print_exc()
    finally:
        if change is not None:
            run.imported, run.import_error = change.imported, change.error
        sys.stdout.flush()
        sys.stderr.flush()
        with os.fdopen(report, "w") as line:
            line.write(json.dumps(asdict(run)) + "\n")
        os._exit(0)


def arguments(request: Request, place: Path) -> list[str]:
    """Return pytest's arguments."""
    return [
        "-q",
        "-x",
        *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # hypothesis was imported before its plugin
        *(word for plugin in ("cacheprovider", "xdist", "randomly") for word in ("-p", f"no:{plugin}")),
        f"--basetemp={place / 'tests'}",
        *("-o", f"faulthandler_timeout={max(1.0, request.limit_s - STACKS_BEFORE_LIMIT_S):g}"),
        *("-o", "faulthandler_exit_on_timeout=false"),
        *request.tests,
    ]


if __name__ == "__main__":
    serve()
