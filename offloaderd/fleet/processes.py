"""Telling one run of this program from another on the same machine, and whether a run has ended for certain.

Linux only: a process is known by the machine's boot, its namespace of process ids, its id and the moment of its start,
all of which /proc tells. Where any of that cannot be read, or is not ours to see (another machine, another container),
nothing is claimed.
"""

import os
from pathlib import Path

PROC = Path("/proc")
STATE, STARTED = 0, 19
"""Fields of /proc/PID/stat behind the command's name."""


def mark() -> str:
    """Return what tells this process from all others; empty where that cannot be known."""
    machine, started = _machine(), _started(os.getpid())
    return f"{machine} {os.getpid()} {started}" if machine and started else ""


def has_ended(other: str) -> bool:
    """Whether the process with this mark has ended for certain; False is no proof that it lives."""
    boot, _, rest = other.partition(" ")
    namespace, _, rest = rest.partition(" ")
    process_id, _, started = rest.partition(" ")
    if not (process_id.isdecimal() and started) or _machine() != f"{boot} {namespace}":
        return False
    try:
        os.kill(int(process_id), 0)  # signal 0 is none: it only asks whether there is such a process
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # there is one, and it is another user's
    now = _started(int(process_id))
    return now is not None and now != started


def _machine() -> str:
    """Return this boot of the machine and this namespace of process ids; empty when they cannot be read."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(PROC / 'self/ns/pid')}"  # noqa: PTH115 - a link to nowhere, read as text
    except OSError:
        return ""


def _started(process_id: int) -> str | None:
    """Return when a process started, in ticks since the boot; empty when it is dead, None when that cannot be read."""
    try:
        fields = (PROC / str(process_id) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[STATE] in {"Z", "X"} else fields[STARTED]
