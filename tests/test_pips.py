"""The table of what the proposals promise names what is there, and has no empty cell without a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tools import pips
from tools.pips import Row, Status

if TYPE_CHECKING:
    from pathlib import Path

ROW = Row(
    pip="PIP-17",
    section="High level",
    says="a promise",
    status=Status.DONE,
    what="kept",
    where=("offloaderd/core/model.py",),
    tests=("tests/test_pips.py::test_the_table_is_sound",),
)


def test_the_table_is_sound() -> None:
    """Every row has a status and a reason; every module and test that is named exists."""
    assert list(pips.mistakes(pips.rows())) == []


@pytest.mark.parametrize("pip", list(pips.PROPOSALS))
def test_every_proposal_has_its_rows(pip: str) -> None:
    """None is left out, and what is not done says so."""
    table = [row for row in pips.rows() if row.pip == pip]
    assert len(table) >= 10
    for row in table:
        assert row.status in SHOWN_OR_SAID


SHOWN_OR_SAID = {*pips.SHOWN, Status.OUTSIDE, Status.NOT_DONE}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (replace(ROW, pip="PIP-18"), "no such proposal"),
        (replace(ROW, status="perhaps"), "no such status"),
        (replace(ROW, what=""), "an empty cell"),
        (replace(ROW, tests=()), "nothing that does it or shows it"),
        (replace(ROW, where=("offloaderd/gone.py",)), "there is no offloaderd/gone.py"),
        (replace(ROW, tests=("tests/test_pips.py::test_gone",)), "there is no test"),
        (replace(ROW, tests=("tests/gone.py::test_the_table_is_sound",)), "there is no test"),
    ],
)
def test_what_is_wrong_is_told(row: Row, said: str) -> None:
    """A cell that is empty, a word that is none, a module or a test that was renamed."""
    (mistake,) = pips.mistakes([row])
    assert said in mistake


def test_a_row_that_is_not_done_needs_no_test(tmp_path: Path) -> None:
    """It needs a reason; and no promise is listed twice."""
    row = replace(ROW, status=Status.NOT_DONE, where=(), tests=())
    assert list(pips.mistakes([row], tmp_path)) == []
    (mistake,) = pips.mistakes([row, row], tmp_path)
    assert mistake.endswith("twice")
