"""Tells glibc's allocator how to keep memory for a process like ours: many threads, large short-lived buffers.

By default every thread may get an arena of its own, up to eight for each core. Payloads are made in one thread (gRPC's,
the ledger store's) and freed in another, so each arena keeps what others cannot use: 30 to 45 MiB beyond the budgets
under load. Two arenas cost nothing that could be measured, as Python's own lock lets one thread at a time through.
"""

from __future__ import annotations

import ctypes
import os
import sys

ARENAS_MAX = 2
_M_ARENA_MAX = -8


def limit_arenas() -> bool:
    """Bound the arenas of this process; says whether it was done.

    An operator's own MALLOC_ARENA_MAX, and allocators other than glibc's, are left alone. Call it before there are
    threads: arenas that exist stay.
    """
    if sys.platform != "linux" or "MALLOC_ARENA_MAX" in os.environ:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, ARENAS_MAX))
