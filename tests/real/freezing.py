"""Stopping a process from running (SIGSTOP): its connections stay open, and nothing answers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from offloaderd.core.errors import Transient

if TYPE_CHECKING:
    from offloaderd.core.clock import Clock

STOPPED_S = 10.0
"""A process stands still long before so many seconds after SIGSTOP."""


def freeze(pid: int, clock: Clock) -> None:
    """Stop a process; returns when none of its threads runs, for until then one may still answer."""
    os.kill(pid, signal.SIGSTOP)
    until = clock.monotonic() + STOPPED_S
    while not _stands_still(pid):
        if clock.monotonic() > until:
            raise Transient(f"process {pid} still runs {STOPPED_S:g} s after SIGSTOP")


def _stands_still(pid: int) -> bool:
    """Whether all threads of a process are stopped, or gone."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        stats = [(task / "stat").read_text() for task in tasks.iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return not tasks.exists()  # if only a thread has ended meanwhile: look again
    return all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats)
