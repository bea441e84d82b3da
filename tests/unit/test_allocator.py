"""The allocator's limit: set where there is glibc, and never against the operator."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from offloaderd.allocator import limit_arenas

PROGRAM = """
import ctypes, re, threading
from offloaderd.allocator import limit_arenas
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
def test_threads_share_two_arenas() -> None:
    """Eight threads that allocate do not make more arenas than the limit."""
    info = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True).stdout
    assert info.count("<heap nr=") <= 2


def test_an_operators_own_limit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has set MALLOC_ARENA_MAX is not overruled."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not limit_arenas()


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no glibc nothing is done."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not limit_arenas()
