"""Bars of what takes long: on a terminal, and without one."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from offloaderd.cli.progress import Bars

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


def test_without_a_terminal_each_step_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A line where a name is a step further, without a bar; what counts no steps, or is hidden, says nothing."""
    with Bars() as bars, Bars(hidden=True) as hidden:
        for done in (0, 1, 1, 2):
            bars.show("orders", f"{done} of 2", done, 2, step=done)
            bars.show("reading", f"{done}", done)
            hidden.show("orders", f"{done} of 2", done, 2, step=done)
        bars.show("waiting", "for something", step=1)
        bars.note("it fails")
        hidden.note("it fails")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["orders 50.0 %: 1 of 2", "orders 100.0 %: 2 of 2", "waiting: for something", "it fails"]


def test_on_a_terminal_bars_are_drawn_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets are text, the cursor comes back before something else is written, and bars can go on after that."""
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with Bars() as bars:
        bars.show("a/b/c", "1 of [2]", 1, 2)
        bars.clear()
        assert "1 of [2]" in terminal.getvalue()
        assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") == 1
        bars.show("a/b/c", "2 of [2]", 2, 2)
    assert "2 of [2]" in terminal.getvalue()
    assert terminal.getvalue().count("\x1b[?25h") == 2
    assert terminal.getvalue().endswith("\x1b[2K")
