"""Progress on stderr: bars on a terminal, removed when the work ends; elsewhere a line for each step, or nothing."""

import sys
from collections.abc import Callable
from typing import Self

import click
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from offloaderd.cli import show


class Bars:
    """A progress bar for each name; a context manager, since the cursor of the terminal has to be restored."""

    def __init__(self, *, hidden: bool = False) -> None:
        console = show.console(sys.stderr)
        self._hidden = hidden
        self._tasks: dict[str, TaskID] = {}
        self._steps: dict[str, int] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[said]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,  # it may be another file than the terminal
            redirect_stderr=False,
            disable=hidden or not console.is_interactive,
        )

    def __enter__(self) -> Self:
        """Return the bars; they are drawn from the first `show` on."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove them."""
        self.clear()

    def show(self, name: str, said: str, done: float = 0, total: float | None = None, *, step: int = 0) -> None:
        """Draw how much is done of a total (None: unknown), with a text beside it.

        Without a terminal a line is written whenever `step` changes, with the share in percent; 0 writes none.
        """
        if not self._progress.disable:
            self._progress.start()
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=total, said=said)
            self._progress.update(self._tasks[name], total=total, completed=done, said=said)
        elif not self._hidden and self._steps.get(name, 0) != step:
            self._steps[name] = step
            share = f" {100 * share_of(done, total):.1f} %" if total else ""
            click.echo(f"{name}{share}: {said}", err=True)

    def note(self, text: str) -> None:
        """Write a line of its own, unless all is hidden."""
        self.clear()
        if not self._hidden:
            show.note(text)

    def counter(self, name: str) -> Callable[[int], None]:
        """Return a function that shows a number without a total."""
        return lambda count: self.show(name, show.number(count))

    def clear(self) -> None:
        """Remove the bars, so that other output can be written; the next `show` draws them again."""
        self._progress.stop()


def share_of(done: float, total: float) -> float:
    """Return how much of a total is done, from 0 to 1; all of nothing."""
    return min(1.0, max(0.0, done / total)) if total else 1.0
