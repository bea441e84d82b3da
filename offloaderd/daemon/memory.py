"""Memory of a process with many threads, large short-lived buffers and many long-lived small objects.

glibc's allocator: by default every thread may get an arena of its own, up to eight for each core. Payloads are made in
one thread (gRPC's, the ledger store's) and freed in another, so each arena keeps what others cannot use: 30 to 45 MiB
beyond the budgets under load. Two arenas cost nothing that could be measured, as Python's own lock lets one thread at a
time through.

Python's collector of cycles: by default it looks after every 700 new objects, which a daemon of many quiet topics makes
in milliseconds without making cycles; that was nearly a fifth of its processor time with 550 topics. Now and then it
goes over all there is, while everything else waits: 95 % of that time went to what was there when the daemon began to
serve, some 150,000 objects of its libraries that never go.
"""

import ctypes
import gc
import os
import sys

ARENAS_MAX = 2
COLLECTOR_THRESHOLDS = (10_000, 20, 20)
"""New objects before a collection of the youngest, and how many of those before one of the older generations."""
_M_ARENA_MAX = -8


def limit_arenas() -> bool:
    """Bound the arenas of this process; returns whether it was possible.

    A MALLOC_ARENA_MAX of the operator, and allocators other than that of glibc, stay unchanged. Call it before there
    are threads: existing arenas stay.
    """
    if sys.platform != "linux" or "MALLOC_ARENA_MAX" in os.environ:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, ARENAS_MAX))


def relax_gc() -> None:
    """Run the collector of cycles less often."""
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def freeze_heap() -> None:
    """Exclude all present objects from collections. Call it once, when the permanent objects have been loaded."""
    gc.collect()
    gc.freeze()
