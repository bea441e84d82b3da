"""Figures of processes and of the machine, read from /proc."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> tuple[int, int]:
    """Return the resident memory of a process: now, and its peak since the start or the last `forget_peak`."""
    found = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Vm")
    )
    return _kilobytes(found["VmRSS"]), _kilobytes(found["VmHWM"])


def forget_peak(pid: int) -> None:
    """Let the peak of a process begin with what it has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _kilobytes(text: str) -> int:
    return int(text.split(maxsplit=1)[0]) * 1024


def describe() -> str:
    """Return what the figures depend on: processor, cores, memory, kernel, Python; and no name."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    processor = found[1].strip() if found else platform.machine()
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = platform.release().partition("-")[0]
    return f"{processor}, {cores} cores, {memory:.0f} GiB of memory, Linux {kernel}, Python {platform.python_version()}"


def load() -> float:
    """Return how many processes have wanted a core in the last minute."""
    return os.getloadavg()[0]
