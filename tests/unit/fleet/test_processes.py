"""Marks of processes: this one lives, one that was killed has ended, and of all others nothing is claimed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from offloaderd.fleet.registration import process_ended, process_mark

CHILD = "from offloaderd.fleet.registration import process_mark; print(process_mark(), flush=True); input()"


def test_a_process_is_known_until_it_has_ended() -> None:
    """While it runs, or hangs, it has not ended; killed it has, collected by its parent or not."""
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    mark = child.stdout.readline().strip()
    assert mark.split()[2] == str(child.pid)
    assert not process_ended(mark)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_ended(mark)
    child.wait()
    assert process_ended(mark)
    child.stdin.close()
    child.stdout.close()


def test_another_process_with_the_same_number_is_not_the_same() -> None:
    """Numbers are used again: the moment of the start tells."""
    boot, namespace, process_id, started = process_mark().split()
    assert not process_ended(process_mark())
    assert process_ended(f"{boot} {namespace} {process_id} {int(started) - 1}")


@pytest.mark.parametrize("changed", [0, 1])
def test_of_other_machines_and_containers_nothing_is_claimed(changed: int) -> None:
    """Another boot, or another namespace, may have a living process of that number."""
    parts = process_mark().split()
    parts[changed] += "x"
    parts[3] = "1"
    assert not process_ended(" ".join(parts))


@pytest.mark.parametrize("mark", ["", "x", "a b c d", "a b 1"])
def test_what_is_no_mark_proves_nothing(mark: str) -> None:
    """A run of an older version, or on a system that has no /proc, leaves none."""
    assert not process_ended(mark)


def test_a_process_of_another_user_is_never_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It exists, though /proc may hide it."""
    parts = process_mark().split()

    def refused(process_id: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert not process_ended(" ".join([*parts[:3], "1"]))
