"""Notifications for systemd (sd_notify(3)): the daemon has started, its loop runs, its state, it stops.

Each is a datagram to the socket in NOTIFY_SOCKET; without that variable nothing is sent. The event loop of the daemon
notifies the watchdog, so a blocked loop leads to a restart, as with a liveness probe. A daemon counts as started once
its loop runs and its HTTP port is open, not once it serves: systemd ends a start that takes too long, and that would
not help a daemon that waits for ZooKeeper or the bucket.
"""

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from offloaderd.core.aio.tasks import Tasks
from offloaderd.core.clock import Clock
from offloaderd.core.health import Health, HealthState, HealthView


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
