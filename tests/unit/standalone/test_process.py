"""Children are started, watched, explained and stopped; Python stands in for the servers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Denied, InvalidConfig, NoSpace
from offloaderd.standalone.process import ChildProcess, Command, ServerDied
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

REAL_TIME = "processes"

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def child(directory: Path, script: str, *, program: str = sys.executable, grace_s: float = 10.0) -> ChildProcess:
    """A child that runs a script."""
    command = Command(
        name="Demo",
        program=Path(program),
        arguments=("-c", script),
        directory=directory,
        environment={"DEMO": "yes"},
        stop_grace_s=grace_s,
    )
    return ChildProcess(command, SystemClock())


def said(directory: Path, words: str) -> Callable[[], Awaitable[bool]]:
    """A readiness check: the log has these words."""

    async def check() -> bool:
        return words in (directory / "demo.log").read_text()

    return check


async def never() -> bool:
    """A readiness check that is never content."""
    return False


async def test_life(tmp_path: Path) -> None:
    """A child gets ready, runs in a session of its own with its environment, and is gone after stop."""
    async with child(tmp_path, f"import os; print(os.environ['DEMO'], flush=True); {SLEEP}") as demo:
        await demo.ready(said(tmp_path, "up"), PATIENCE_S)
        assert demo.running
        assert demo.pid is not None
        assert os.getsid(demo.pid) == demo.pid != os.getsid(0)
        assert demo.tail() == ["yes", "up"]
    assert not demo.running
    with pytest.raises(ProcessLookupError):
        os.kill(demo.pid, 0)
    await demo.stop()


async def test_never_started(tmp_path: Path) -> None:
    """Stopping what was never started is harmless; waiting for it is an error."""
    demo = child(tmp_path, SLEEP)
    await demo.stop()
    with pytest.raises(ServerDied, match="has not been started"):
        await demo.wait()


async def test_early_death(tmp_path: Path) -> None:
    """A child that ends before it is ready is reported with its code and last words."""
    async with child(tmp_path, "print('one'); print(); print('  two  '); raise SystemExit(3)") as demo:
        with pytest.raises(ServerDied, match=r"Demo ended with exit code 3 \(one \| two; log: .*demo\.log\)"):
            await demo.ready(never, PATIENCE_S)


async def test_deadline(tmp_path: Path) -> None:
    """A child that never gets ready is given up, and stopped by its context."""
    async with child(tmp_path, SLEEP) as demo:
        with pytest.raises(ServerDied, match=r"not ready after 0\.2 s"):
            await demo.ready(never, 0.2)
        assert demo.running
    assert not demo.running


async def test_java_traces(tmp_path: Path) -> None:
    """Of a Java trace the reasons are told, not where in the code they arose."""
    trace = "java.io.IOException: why\\n\\tat a.b.C.d(C.java:1)\\nCaused by: X: because\\n\\t... 12 more\\n"
    async with child(tmp_path, f"print('{trace}')") as demo:
        await demo.wait()
    assert demo.tail() == ["java.io.IOException: why", "Caused by: X: because"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("java.io.IOException: No space left on device", NoSpace),
        ("java.net.BindException: Address already in use", InvalidConfig),
        ("listen tcp 127.0.0.1:80: bind: address already in use", InvalidConfig),
        ("something else", ServerDied),
    ],
)
async def test_causes_of_death(tmp_path: Path, words: str, kind: type[Exception]) -> None:
    """What the log says about disk and port decides the error."""
    async with child(tmp_path, f"raise SystemExit({words!r})") as demo:
        with pytest.raises(kind) as caught:
            await demo.ready(never, PATIENCE_S)
    assert type(caught.value) is kind


async def test_watch(tmp_path: Path) -> None:
    """A child that is killed is noticed; one that is stopped is not missed."""
    async with child(tmp_path, SLEEP) as demo:
        await demo.ready(said(tmp_path, "up"), PATIENCE_S)
        assert demo.pid is not None
        os.kill(demo.pid, signal.SIGKILL)
        with pytest.raises(ServerDied, match="ended by SIGKILL"):
            await demo.watch()
    async with child(tmp_path, SLEEP) as demo, asyncio.TaskGroup() as group:
        await demo.ready(said(tmp_path, "up"), PATIENCE_S)
        watching = group.create_task(demo.watch())
        await demo.stop()
    assert watching.result() is None


async def test_stubborn(tmp_path: Path) -> None:
    """A child that ignores SIGTERM is killed after its time of grace."""
    demo = child(tmp_path, STUBBORN, grace_s=0.2)
    demo.start()
    await demo.ready(said(tmp_path, "up"), PATIENCE_S)
    await demo.stop()
    assert await demo.wait() == -signal.SIGKILL


async def test_cancelled_stop(tmp_path: Path) -> None:
    """A stop that is cancelled kills at once: nothing is left behind."""
    demo = child(tmp_path, STUBBORN)
    demo.start()
    await demo.ready(said(tmp_path, "up"), PATIENCE_S)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await demo.stop()
    assert not demo.running


async def test_program_missing(tmp_path: Path) -> None:
    """A program that is not there is named."""
    async with child(tmp_path, SLEEP, program="/nonexistent/program") as demo:
        with pytest.raises(ServerDied, match="cannot run /nonexistent/program: No such file"):
            await demo.ready(never, PATIENCE_S)


async def test_log_of_the_run_before(tmp_path: Path) -> None:
    """The log of the run before is kept beside the new one."""
    for word in ("first", "second"):
        async with child(tmp_path, f"print('{word}')") as demo:
            await demo.wait()
    assert (tmp_path / "demo.log").read_text() == "second\n"
    assert (tmp_path / "demo.log.1").read_text() == "first\n"


def test_log_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that takes no log gives one line, not the system's exception."""

    def refuse(*_arguments: object, **_named: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(Denied, match=str(tmp_path)):
        child(tmp_path, SLEEP).start()


PARENT = """
import pathlib, sys, time
from offloaderd.core.clock import SystemClock
from offloaderd.standalone.process import ChildProcess, Command
script = "import time; print('up', flush=True); time.sleep(60)"
command = Command(
    name="Demo", program=pathlib.Path(sys.executable), arguments=("-c", script), directory=pathlib.Path(sys.argv[1])
)
child = ChildProcess(command, SystemClock())
child.start()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("late", [True, False], ids=["running", "starting"])
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
def test_dies_with_its_parent(tmp_path: Path, late: bool) -> None:
    """A child is gone as soon as its parent is killed, however brutally, and also when it has hardly started."""
    clock = SystemClock()
    until = clock.monotonic() + PATIENCE_S
    with subprocess.Popen([sys.executable, "-c", PARENT, tmp_path], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        while late and "up" not in (tmp_path / "demo.log").read_text():
            assert clock.monotonic() < until, "the child did not start"
            threading.Event().wait(0.02)
        parent.kill()
    while Path(f"/proc/{pid}").exists() and state(pid) != "Z":
        assert clock.monotonic() < until, "the child outlived its parent"
        threading.Event().wait(0.02)


def state(pid: int) -> str:
    """The state of a process; Z for one that is gone, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
