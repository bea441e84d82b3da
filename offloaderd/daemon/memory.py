"""How memory is kept for a process like ours: many threads, large short-lived buffers, many long-lived small objects.

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


def relax_gc() -> None:
    """Have the collector of cycles look more rarely."""
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def freeze_heap() -> None:
    """Have the collector look no more at what there is by now. Call it once, when all that stays has been loaded."""
    gc.collect()
    gc.freeze()
