"""Every guard of a promise has a test that fails when the guard is taken away (docs/proof/invariants.md)."""

from __future__ import annotations

import pytest

from tools import invariants
from tools.invariants import Guard, Outcome, Verdict

PROMISES = {f"P{number}" for number in range(1, 12)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("guard", invariants.guards(), ids=lambda guard: f"{guard.promise}-{guard.does[:60]}")
def test_a_promise_breaks_without_its_guard(guard: Guard) -> None:
    """The guard's test fails on a copy of the tree from which the guard is gone."""
    outcome = invariants.try_without(guard)
    assert outcome.verdict is Verdict.CAUGHT, outcome.output


def test_every_promise_has_guards() -> None:
    """P1 to P11 are all listed, each with a guard at least."""
    listed = {promise.name: promise.guards for promise in invariants.promises()}
    assert listed.keys() == PROMISES
    assert all(listed.values())


def test_a_mutation_that_changes_nothing_survives() -> None:
    """The check can fail: with the guard still in place its test passes, and that is told."""
    guard = invariants.guards()[0]
    same = Guard(promise="P0", does="stay", file=guard.file, old=guard.old, new=guard.old, test=guard.test)
    assert invariants.try_without(same).verdict is Verdict.SURVIVED


def test_a_mutation_that_does_not_fit_is_told() -> None:
    """A guard that has moved, or a test that is gone, is no success."""
    guard = invariants.guards()[0]
    moved = Guard(promise="P0", does="move", file=guard.file, old="no such line", new="", test=guard.test)
    assert invariants.try_without(moved).verdict is Verdict.BROKEN
    gone = Guard(
        promise="P0", does="go", file=guard.file, old=guard.old, new=guard.new, test="tests/test_tidy.py::test_no_such"
    )
    outcome: Outcome = invariants.try_without(gone)
    assert outcome.verdict is Verdict.BROKEN, outcome.output
