"""Whether the duties towards an active topic have something to do: if so, it is not suspended (`idle.py`)."""

import asyncio
from math import inf


class Rest:
    """Whether all duties of an active topic rest, and until when."""

    __slots__ = ("dues", "working")

    def __init__(self) -> None:
        self.working = 0
        """How many duties have something to do, or have not reported that they have nothing."""
        self.dues: list[float] = []
        """When each duty that rests continues (monotonic)."""

    def until(self, due_s: float = inf) -> "Resting":
        """Return a context in which the duty that enters it has nothing to do before `due_s` (monotonic)."""
        return Resting(self, due_s)

    def begun(self, duty: asyncio.Task[None]) -> None:
        """Count a duty that begins; one that has ended has nothing to do any more."""
        self.working += 1
        duty.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self.working -= 1

    @property
    def due_s(self) -> float | None:
        """When the first duty continues (monotonic), None while one of them works."""
        return None if self.working else min(self.dues, default=inf)


class Resting:
    """One duty's rest."""

    __slots__ = ("_due_s", "_rest")

    def __init__(self, rest: Rest, due_s: float) -> None:
        self._rest = rest
        self._due_s = due_s

    def __enter__(self) -> None:
        """Have nothing to do."""
        self._rest.working -= 1
        self._rest.dues.append(self._due_s)

    def __exit__(self, *_: object) -> None:
        """Continue."""
        self._rest.working += 1
        self._rest.dues.remove(self._due_s)
