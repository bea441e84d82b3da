"""One standalone from start to stop: servers, daemon, and perhaps a walkthrough, in one process tree.

The first SIGINT or SIGTERM drains the daemon and then stops the servers; during the start it stops those that run. The
second ends everything at once. A server that dies ends everything, with an error.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

from offloaderd.core.aio import Group, finished, race
from offloaderd.core.clock import Clock
from offloaderd.core.errors import OffloaderError, first_of
from offloaderd.daemon.daemon import Addresses, Daemon
from offloaderd.standalone.stack import Stack, StackOptions, stack

Work = Callable[[Stack], Awaitable[None]]
"""Runs while the daemon serves; the standalone stops when it returns."""


class Interrupted(OffloaderError):
    """A signal came before the work was done."""


class Stopper:
    """Requests to stop, from signals: the first sets `requested`, and cancels the task unless it drains by itself."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.drains = False
        self._main = asyncio.current_task()

    def stop(self) -> None:
        """Request the stop; a second request, or one during the start, cancels."""
        early = not self.drains or self.requested.is_set()
        self.requested.set()
        if early and self._main is not None:
            self._main.cancel()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


async def run(
    options: StackOptions,
    environ: Mapping[str, str],
    clock: Clock,
    *,
    starting: Callable[[Stack], None],
    ready: Callable[[Stack], None],
    work: Work | None = None,
    keep: bool = False,
) -> int:
    """Run until a signal, or until `work` is done (unless `keep`); returns the exit code of the daemon.

    `starting` is called when the servers run, `ready` when the daemon serves. Raises Interrupted when a signal came
    before that, or before the work was done; what the work raised, after the drain; and what stack() raises.
    """
    stopper = Stopper()
    with stopper.signals():
        try:
            async with stack(options, environ, clock) as running:
                starting(running)
                return await _serve(running, clock, stopper, ready, work, keep=keep)
        except asyncio.CancelledError:
            if stopper.requested.is_set():
                raise Interrupted("interrupted") from None
            raise


async def _serve(
    running: Stack, clock: Clock, stopper: Stopper, ready: Callable[[Stack], None], work: Work | None, *, keep: bool
) -> int:
    serving = asyncio.Event()

    def on_ready(_: Addresses) -> None:
        serving.set()

    daemon = Daemon(running.settings, on_ready, clock=clock)
    failure: OffloaderError | None = None
    try:
        async with Group() as group:
            watchers = [group.create_task(child.watch(), name=f"watch {child.name}") for child in running.children]
            life = group.create_task(daemon.run(), name="daemon")
            stopper.drains = True
            await race(serving.wait(), stopper.requested.wait(), finished(life))
            if serving.is_set() and not stopper.requested.is_set():
                ready(running)
                failure = await _run_work(group, running, work, stopper, life, keep=keep)
            elif work is not None and stopper.requested.is_set():
                failure = Interrupted("interrupted before the daemon was ready")
            daemon.stop("stop requested")
            await finished(life)
            for watcher in watchers:
                watcher.cancel()
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    if failure is not None:
        raise failure
    return daemon.exit_code


async def _run_work(
    group: asyncio.TaskGroup,
    running: Stack,
    work: Work | None,
    stopper: Stopper,
    life: asyncio.Task[None],
    *,
    keep: bool,
) -> OffloaderError | None:
    """Run the work and wait for the time to stop; returns the error of the work."""
    failure: list[OffloaderError] = []

    async def run(work: Work) -> None:
        try:
            await work(running)
        except OffloaderError as error:
            failure.append(error)
        except BaseExceptionGroup as errors:
            worst = first_of(errors)
            if not isinstance(worst, OffloaderError):
                raise
            failure.append(worst)

    if work is not None:
        task = group.create_task(run(work), name="guest")
        await race(finished(task), stopper.requested.wait(), finished(life))
        if not task.done():
            task.cancel()
            await finished(task)
            return Interrupted("interrupted before the walkthrough was done")
        if failure or not keep:
            return failure[0] if failure else None
    await race(stopper.requested.wait(), finished(life))
    return None
