"""How memory is kept: the allocator's limit, set where there is glibc and never against the operator; the collector."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys

import pytest

from offloaderd.daemon.process import COLLECTOR_THRESHOLDS, freeze_heap, limit_arenas, relax_gc

PROGRAM = """
import ctypes, re, threading
from offloaderd.daemon.process import limit_arenas
limit_arenas()
held, all_there = [], threading.Barrier(9)
def work():
    held.append([bytes(1000) for _ in range(100)])
    all_there.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
all_there.wait()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.malloc_info(0, libc.fdopen(1, b"w"))
libc.fflush(None)
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")


@glibc
def test_threads_share_one_arena() -> None:
    """Eight threads that allocate make no further one."""
    info = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True).stdout
    assert info.count("<heap nr=") == 1


def test_an_operators_own_limit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has set MALLOC_ARENA_MAX is not overruled."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not limit_arenas()


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no glibc nothing is done."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not limit_arenas()


def test_the_collector_looks_more_rarely() -> None:
    """Cycles are still collected, after more new objects than by default."""
    before = gc.get_threshold()
    try:
        relax_gc()
        assert gc.get_threshold() == COLLECTOR_THRESHOLDS
        assert all(ours > theirs for ours, theirs in zip(COLLECTOR_THRESHOLDS, (700, 10, 10), strict=True))
    finally:
        gc.set_threshold(*before)


def test_what_is_there_is_spared() -> None:
    """The collector's oldest generation is empty afterwards, and cycles that are made later are still collected."""
    try:
        freeze_heap()
        assert gc.get_freeze_count() > 10_000
        assert len(gc.get_objects(generation=2)) < 1_000
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect()
    finally:
        gc.unfreeze()
