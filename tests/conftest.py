"""What every test gets: the plugins of real servers, and the check that it leaves no task and no thread behind."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import threading
from collections import Counter
from typing import TYPE_CHECKING

import hypothesis
import pytest
import structlog
from _pytest.faulthandler import fault_handler_stderr_fd_key

from offloaderd.standalone import ports
from tools import invariants

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

pytest_plugins = ["tests.servers", "tests.bookkeeper_servers"]

# A busy machine is no failure: an example may take its time, the whole test has pytest's time limit. What is submitted
# is judged by the same examples as what it is compared with; everywhere else new ones are drawn.
hypothesis.settings.register_profile("patient", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("patient")

THREAD_GRACE_S = 120.0
"""A thread that was told to stop may need a moment; one that still runs then has no owner."""

FOREIGN_TASK_GRACE_S = 120.0
FOREIGN_TASKS = ("_cython", "BaseSelectorEventLoop._accept_connection2")
"""gRPC's calls and servers, and asyncio's taking up of a connection."""

TEARDOWN_S = 1200.0
"""What a test may take to clean up, before its process ends with the stack of every thread."""

FOREIGN_THREADS = (
    "_poll_wrapper",  # gRPC's one poller a process: ends when the last of its objects is collected, not when closed
)


def pytest_configure() -> None:
    """Give each worker ports of its own: what one has chosen, and nobody listens on yet, the other may not choose.

    And have commands hear Ctrl-C even where a shell has started all this in the background, deaf to it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % workers  # a crashed one's heir: gw2
    share = (ports.PORT_MAX - ports.PORT_MIN + 1) // workers
    ports.PORT_MIN += share * worker
    ports.PORT_MAX = ports.PORT_MIN + share - 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many guards of promises were proven in this run, and how many before (tests/test_invariants.py)."""
    passed = terminalreporter.getreports("passed")
    guards = Counter(str(value) for report in passed for name, value in report.user_properties if name == "guard")
    if guards:
        terminalreporter.write_line(invariants.summary(guards))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Watch over the end of a test: pytest itself stops watching (faulthandler_timeout) once the test has failed."""
    faulthandler.dump_traceback_later(TEARDOWN_S, file=item.config.stash[fault_handler_stderr_fd_key], exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fail a test that ends with a thread running that did not run before it."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and not is_foreign(thread)]
    for thread in left:
        thread.join(THREAD_GRACE_S)
    running = [thread.name for thread in left if thread.is_alive()]
    assert not running, f"threads left running: {running}"


def is_foreign(thread: threading.Thread) -> bool:
    """Tell whether a library owns the thread for as long as the process lives."""
    return any(mark in thread.name for mark in FOREIGN_THREADS)


@pytest.fixture(autouse=True)
def unconfigured_log() -> Iterator[None]:
    """Undo what a test configured the log to, so that the next one captures every level."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def no_task_left(request: pytest.FixtureRequest, no_thread_left: None) -> None:
    """Fail a coroutine test that ends with a task still on its loop (pytest-asyncio alone lets it pass)."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("loop_without_tasks")


def is_foreign_task(task: asyncio.Task[object]) -> bool:
    """Tell whether a task is a library's own: they end some turns after their call, server or connection."""
    return any(mark in str(task.get_coro()) for mark in FOREIGN_TASKS)


@pytest.fixture
async def loop_without_tasks() -> AsyncIterator[None]:
    """Compare the loop's tasks at the end with those at the start."""
    before = asyncio.all_tasks()
    yield
    left = [task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()]
    if theirs := [task for task in left if is_foreign_task(task)]:
        await asyncio.wait(theirs, timeout=FOREIGN_TASK_GRACE_S)
    left = [task for task in left if not task.done()]
    names = [f"{task.get_name()}: {task.get_coro()}" for task in left]
    for task in left:
        task.cancel()
    assert not names, f"{len(names)} tasks left running: {names[:5]}"
