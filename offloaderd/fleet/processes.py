"""Marks of processes: whether a former run of this program on the same machine has ended for certain.

Linux only. A process is known by the machine's boot, its namespace of process ids, its id and its start time, all from
/proc. Where any of that cannot be read, or belongs to another machine or container, nothing is claimed.
"""

import os
from pathlib import Path

PROC = Path("/proc")
STATE, STARTED = 0, 19
"""Fields of /proc/PID/stat behind the command's name."""


def mark() -> str:
    """Return the mark of this process, empty where it cannot be known."""
    machine, started = _machine(), _started(os.getpid())
    return f"{machine} {os.getpid()} {started}" if machine and started else ""


def has_ended(other: str) -> bool:
    """Whether the process with this mark has certainly ended; False does not prove that it lives."""
    boot, _, rest = other.partition(" ")
    namespace, _, rest = rest.partition(" ")
    process_id, _, started = rest.partition(" ")
    if not (process_id.isdecimal() and started) or _machine() != f"{boot} {namespace}":
        return False
    try:
        os.kill(int(process_id), 0)  # signal 0 only checks whether the process exists
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # there is one, and it is another user's
    now = _started(int(process_id))
    return now is not None and now != started


def _machine() -> str:
    """Return the machine's boot and namespace of process ids, empty when they cannot be read."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(PROC / 'self/ns/pid')}"  # noqa: PTH115 - a link to nowhere, read as text
    except OSError:
        return ""


def _started(process_id: int) -> str | None:
    """Return a process's start in ticks since the boot; empty when it is dead, None when that cannot be read."""
    try:
        fields = (PROC / str(process_id) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[STATE] in {"Z", "X"} else fields[STARTED]
