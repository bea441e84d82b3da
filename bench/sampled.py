"""A daemon whose CPU is split by the work that it goes to: `python -m bench.sampled FILE serve`.

SIGUSR1 begins the account, a second one ends it and writes it to FILE as JSON. While it is open, a timer of the
process's own CPU time interrupts the thread of the event loop every few milliseconds, and the CPU time that this thread
has used since the last interrupt is booked for the part that it is in. So an interrupt that comes late, or that other
threads have caused, adds no time. A call of C ends before Python sees the interrupt: it is booked for its caller.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import defaultdict
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from bench.child import used_s
from bench.site import CLOCK
from offloaderd.cli.offloaderd.__main__ import main

if TYPE_CHECKING:
    from types import FrameType

    from bench.site import Daemon

INTERVAL_S = 0.002
WRITTEN_S = 10.0
RECEIVE = "wire"
PARTS = {
    "digest": ("offloaderd/bookkeeper/wire/entry.py",),
    "wire": ("offloaderd/bookkeeper/", "offloaderd/ledgers/", "offloaderd/api/", "offloaderd/protocol/", "/grpc/"),
    "checksum": ("offloaderd/format/chunks.py",),
    "times": ("offloaderd/format/pulsar/",),
    "blocks": ("offloaderd/segment/builder.py", "offloaderd/core/entries.py", "offloaderd/format/"),
    "buffer": ("offloaderd/topic/", "offloaderd/segment/feed.py"),
    "store": ("offloaderd/objects/", "offloaderd/segment/upload.py", "/aiobotocore/", "/botocore/", "/aiohttp/"),
}
"""Parts by the files of their code; the innermost call that has a part counts."""
OTHER, THREADS = "other", "other threads"


class Account(TypedDict):
    """CPU seconds by part, and by the function of this program in which they were used."""

    parts: dict[str, float]
    functions: dict[str, float]


class Sampler:
    """The account of this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: dict[str, float] = defaultdict(float)
        self._functions: dict[str, float] = defaultdict(float)
        self._known: dict[str, str | None] = {}
        self._open = False
        self._used_s = self._seen_s = 0.0
        signal.signal(signal.SIGUSR1, self._switch)
        signal.signal(signal.SIGPROF, self._sample)

    def _switch(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._open = not self._open
        interval_s = INTERVAL_S if self._open else 0.0
        signal.setitimer(signal.ITIMER_PROF, interval_s, interval_s)
        if self._open:
            self._used_s, self._seen_s = used_s(), time.thread_time()
            return
        threads_s = used_s() - self._used_s - sum(self._parts.values())
        functions = dict(sorted(self._functions.items(), key=itemgetter(1), reverse=True))
        account = Account(parts={**self._parts, THREADS: max(0.0, threads_s)}, functions=functions)
        self._parts.clear()
        self._functions.clear()
        unfinished = self._path.with_suffix(".new")
        unfinished.write_text(json.dumps(account))
        unfinished.replace(self._path)

    def _sample(self, number: int, frame: FrameType | None) -> None:
        del number
        now_s = time.thread_time()
        part, function = self._place(frame)
        self._parts[part] += now_s - self._seen_s
        self._functions[function] += now_s - self._seen_s
        self._seen_s = now_s

    def _place(self, frame: FrameType | None) -> tuple[str, str]:
        """Return the part and the function of a call."""
        function = ""
        while frame is not None:
            code = frame.f_code
            function = function or f"{Path(code.co_filename).stem}.{code.co_qualname}"
            if code.co_name.startswith("_read_ready"):
                return RECEIVE, function
            if code.co_filename not in self._known:
                self._known[code.co_filename] = next(
                    (part for part, files in PARTS.items() if any(file in code.co_filename for file in files)), None
                )
            part = self._known[code.co_filename]
            if part is not None:
                return part, function
            frame = frame.f_back
        return OTHER, function


class Sampled(NamedTuple):
    """The account of a running daemon, which writes it to `path`."""

    daemon: Daemon
    path: Path

    def begin(self) -> None:
        """Begin the account."""
        self.path.unlink(missing_ok=True)
        os.kill(self.daemon.pid, signal.SIGUSR1)

    async def end(self) -> Account:
        """End the account and return it."""
        os.kill(self.daemon.pid, signal.SIGUSR1)
        until_s = CLOCK.monotonic() + WRITTEN_S
        while not self.path.exists():
            if CLOCK.monotonic() > until_s:
                raise TimeoutError(f"the daemon has not written {self.path}")
            await CLOCK.sleep(0.01)
        account: Account = json.loads(self.path.read_text())
        return account


if __name__ == "__main__":
    Sampler(Path(sys.argv.pop(1)))
    main()
