"""A reference in a process of its own: `python -m MODULE` reads a task as JSON and prints what it took."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.machine import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping


class Took(NamedTuple):
    """The cost of a call: seconds of time, seconds of the child's CPU, and the child's peak of resident memory."""

    seconds: float
    cpu_s: float
    peak_bytes: int = 0


async def in_child(module: str, task: Mapping[str, object]) -> Took:
    """Run a task in a process of its own."""
    return Took(*await answer_of(module, task))


async def answer_of(module: str, task: Mapping[str, object]) -> Any:  # noqa: ANN401 - what the module prints
    """Run a task in a process of its own, and return the JSON that it prints."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-X", "faulthandler", "-m", module]
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    output, _ = await child.communicate(json.dumps(task).encode())
    if child.returncode:
        raise RuntimeError(f"{module} failed with code {child.returncode}")
    return json.loads(output)


def used_s() -> float:
    """Return the CPU seconds that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_bytes() -> int:
    """Return the most resident memory that this process has had; ru_maxrss also has what its parent had."""
    return memory_bytes(os.getpid())[1]
