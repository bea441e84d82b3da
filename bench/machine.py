"""What the kernel says of a process: CPU time and memory, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> tuple[int, int]:
    """Return the resident memory of a process: now, and its peak since the start."""
    found = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Vm")
    )
    return _kilobytes(found["VmRSS"]), _kilobytes(found["VmHWM"])


def _kilobytes(text: str) -> int:
    return int(text.split(maxsplit=1)[0]) * 1024


def describe() -> str:
    """Return the machine in a few words: what the figures depend on, and no name."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{cores} cores, {memory:.0f} GiB of memory; the servers, the daemon and its client share them"
