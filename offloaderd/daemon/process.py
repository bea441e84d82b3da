"""The process of the daemon: its memory, and notifications for systemd (sd_notify(3)).

glibc's allocator: by default every thread may get an arena of its own, up to eight for each core. Payloads are
allocated in one thread (gRPC's, the ledger store's, the disk cache's) and freed in another, so each arena has free
memory that others cannot use: 30 to 45 MiB beyond the budgets under load, and with two arenas 60 to 75 MiB of what a
disk cache reads. One arena had no measurable cost, since Python's own lock lets one thread at a time run.

Python's collector of cycles: by default it runs after every 700 new objects, which a daemon of many idle topics makes
in milliseconds without making cycles; that was nearly a fifth of its processor time with 550 topics. A full collection
visits all objects while everything else waits: 95 % of that time went to the objects that were there when the daemon
began to serve, some 150,000 of its libraries that are never freed.

systemd: each notification is a datagram to the socket in NOTIFY_SOCKET; without that variable nothing is sent. The
event loop notifies the watchdog, so a blocked loop leads to a restart, as with a liveness probe. A daemon counts as
started once its loop runs and its HTTP port is open, not once it serves: systemd ends a start that takes too long, and
that would not help a daemon that waits for ZooKeeper or the bucket.
"""

import ctypes
import gc
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from offloaderd.core.aio import Tasks
from offloaderd.core.clock import Clock
from offloaderd.core.health import Health, HealthState, HealthView

ARENAS_MAX = 1
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


@asynccontextmanager
async def attended(health: Health, clock: Clock, environ: Mapping[str, str]) -> AsyncIterator[None]:
    """Send READY now, WATCHDOG twice in WATCHDOG_USEC, each change of `health`, and STOPPING at the drain or end."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        yield
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as connection:

        def send(*lines: str) -> None:
            with suppress(OSError):  # systemd may not listen now; the next notification follows
                connection.sendto("\n".join(lines).encode(), f"\0{address[1:]}" if address[0] == "@" else address)

        def changed(view: HealthView) -> None:
            stopping = ["STOPPING=1"] if view.state is HealthState.DRAINING else []
            send(*stopping, f"STATUS={' '.join(view.reason.split())}")

        send("READY=1")
        health.listen(changed)
        async with Tasks("the daemon") as tasks:
            if limit_us := int(environ.get("WATCHDOG_USEC", "0")):
                tasks.start(_beat(send, clock, limit_us / 2e6), name="systemd's watchdog")
            try:
                yield
            finally:
                send("STOPPING=1")


async def _beat(send: Callable[[str], None], clock: Clock, pause_s: float) -> None:
    while True:
        send("WATCHDOG=1")
        await clock.sleep(pause_s)
