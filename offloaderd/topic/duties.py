"""Whether the duties towards an awake topic have something to do: what decides whether it may sleep (`idle.py`)."""

import asyncio
from math import inf


class Rest:
    """Whether all duties of an awake topic are at rest, and until when."""

    __slots__ = ("_dues", "working")

    def __init__(self) -> None:
        self.working = 0
        """How many duties have something to do, or have not said that they have nothing."""
        self._dues: list[float] = []

    def until(self, due_s: float = inf) -> "Resting":
        """Return a context in which the duty that enters it has nothing to do before `due_s` (monotonic)."""
        return Resting(self, due_s)

    def begun(self, duty: asyncio.Task[None]) -> None:
        """A duty begins; one that has ended has nothing to do any more."""
        self.working += 1
        duty.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self.working -= 1

    @property
    def due_s(self) -> float | None:
        """When the first duty has to go on (monotonic), None while one of them is at work."""
        return None if self.working else min(self._dues, default=inf)

    def enter(self, due_s: float) -> None:
        """A duty is at rest."""
        self.working -= 1
        self._dues.append(due_s)

    def leave(self, due_s: float) -> None:
        """It goes on."""
        self.working += 1
        self._dues.remove(due_s)


class Resting:
    """One duty's rest."""

    __slots__ = ("_due_s", "_rest")

    def __init__(self, rest: Rest, due_s: float) -> None:
        self._rest = rest
        self._due_s = due_s

    def __enter__(self) -> None:
        """Have nothing to do."""
        self._rest.enter(self._due_s)

    def __exit__(self, *_: object) -> None:
        """Go on."""
        self._rest.leave(self._due_s)
