"""A reference in a process of its own: `python -m MODULE` reads a task as JSON and prints what it took."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Took(NamedTuple):
    """What it took, in seconds of time and of the child's CPU."""

    seconds: float
    cpu_s: float


async def in_child(module: str, task: Mapping[str, object]) -> Took:
    """Run a task in a process of its own."""
    return Took(*await answer_of(module, task))


async def answer_of(module: str, task: Mapping[str, object]) -> Any:  # noqa: ANN401 - what the module prints
    """Run a task in a process of its own, and return the JSON that it prints."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", module, stdin=pipe, stdout=pipe)
    output, _ = await child.communicate(json.dumps(task).encode())
    if child.returncode:
        raise RuntimeError(f"{module} failed with code {child.returncode}")
    return json.loads(output)


def used_s() -> float:
    """Return the CPU seconds that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
