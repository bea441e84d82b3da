"""`offloadctl top`: order, rates, JSON, what it says of trouble; live on a terminal that a test holds."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING

import grpc
import pytest
from rich.console import Console

from offloaderd.cli.offloadctl.status import Screen, View
from offloaderd.protocol.v1 import admin_pb2
from offloaderd.testing.clock import FakeClock
from tests.unit.cli.fake_daemon import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.cli.conftest import Ctl
    from tests.unit.cli.fake_daemon import FakeDaemon

REAL_TIME = "processes"

DEADLINE_S = 60.0


def topic(name: str, lag_s: float = 0.0, **others: object) -> admin_pb2.TopicStatus:
    """Return a topic that runs under one claim."""
    fields: dict[str, object] = {"state": "offloading", "owner": "d-1", "epoch": 4, "lag_seconds": lag_s}
    fields["lag_entries"] = int(lag_s)
    return admin_pb2.TopicStatus(topic=f"persistent://a/b/{name}", **{**fields, **others})  # type: ignore[arg-type]


def answer(*topics: admin_pb2.TopicStatus) -> admin_pb2.StatusResponse:
    """Return what the daemon says."""
    down = admin_pb2.StatusResponse.Dependency(name="objects", up=False, message="no route")
    return admin_pb2.StatusResponse(
        daemon_id="d-1", version="1.2", state="serving", dependencies=[down], topics=topics, memory_budget_bytes=1 << 20
    )


def names(out: str) -> list[str]:
    """Return the topics of a table, in its order."""
    return [line.split()[0].rpartition("/")[2] for line in out.splitlines() if line.startswith("persistent://a/b/")]


def test_the_oldest_lag_comes_first(ctl: Ctl, fake: FakeDaemon) -> None:
    """Without a terminal one table is printed, sorted by age of the lag, under a line about the daemon."""
    fake.status = answer(topic("x", 1), topic("y", 70), topic("z", 7, stalled_reason="bucket full", state="stalled"))
    said = ctl("top", "--interval", "0.2")
    assert said.code == 0
    head, columns, *lines = said.out.splitlines()
    assert head.startswith("d-1 1.2, serving; objects DOWN: no route; memory 0 B of 1.0 MiB; 3 topics, 1 stalled")
    assert head.endswith("oldest lag 1 min 10 s")
    assert columns.split()[:3] == ["TOPIC", "STATE", "OWNER"]
    assert names("\n".join(lines[:3])) == ["y", "z", "x"]
    assert lines[3] == "persistent://a/b/z: bucket full"


def test_other_orders_searches_and_limits(ctl: Ctl, fake: FakeDaemon) -> None:
    """Topics come in the order that is asked for, ties by name; a search and a limit leave others away."""
    fake.status = answer(
        topic("b1", 1, lag_bytes=9), topic("b2", 2, open_segment_bytes=9), topic("a1", 3), topic("a2", 3)
    )

    def order(*words: str) -> list[str]:
        return names(ctl("top", "--once", "--interval", "0.2", *words).out)

    assert order("--sort", "bytes") == ["b1", "a1", "a2", "b2"]
    assert order("--sort", "segment") == ["b2", "a1", "a2", "b1"]
    assert order("--sort", "topic") == ["a1", "a2", "b1", "b2"]
    assert order("--search", "B/A") == ["a1", "a2"]
    assert order("--limit", "1") == ["a1"]


def test_rates_are_of_two_looks_under_one_claim() -> None:
    """The rate is what went into segments between two looks; another claim's numbers are no rate."""
    view = View()
    view.take(answer(topic("x"), topic("y"), topic("z")), 10.0)
    assert view.rates == {}
    later = answer(topic("x", taken_entries=30, taken_bytes=3000), topic("y", taken_entries=30, epoch=5), topic("w"))
    view.take(later, 12.0)
    assert {name.rpartition("/")[2]: tuple(rate) for name, rate in view.rates.items()} == {"x": (15.0, 1500.0)}
    view.sort = "rate"
    assert view.topics()[0].topic.endswith("/x")


def test_one_document(ctl: Ctl, fake: FakeDaemon) -> None:
    """--once --json is one document of the daemon and its topics, as `status` has them, with rates."""
    fake.status = answer(topic("x", 5), topic("y", 9))
    found = ctl("top", "--once", "--json", "--interval", "0.2", "--limit", "1").json
    assert found["daemon"]["id"] == "d-1"
    assert found["topics_total"] == 2
    (only,) = found["topics"]
    assert only["topic"] == "persistent://a/b/y"
    assert only["taken_bytes_per_s"] == 0.0
    assert only["lag_seconds"] == 9
    assert len(fake.requests) == 2


def test_who_may_not_is_told(ctl: Ctl, fake: FakeDaemon) -> None:
    """A refusal ends it with the code and the hint of any other command."""
    fake.failure = Failure(grpc.StatusCode.PERMISSION_DENIED, "eve may not call Status", "DENIED", "ask an admin")
    said = ctl("top")
    assert (said.code, said.out) == (7, "")
    assert "error: eve may not call Status\nhint: ask an admin" in said.err
    assert ctl("top", at="127.0.0.1:1").code == 3
    assert ctl("top", "--interval", "0").code == 2


def test_no_name_plays_with_the_terminal(ctl: Ctl, fake: FakeDaemon) -> None:
    """What is not printable in a name or a message comes out as an escape, as text that is turned round does."""
    fake.status = answer(topic("x\u202egnp", state="stalled", stalled_reason="\x1b[2J\x07gone"))
    said = ctl("top", "--once", "--interval", "0.2")
    assert "x\\u202egnp" in said.out
    assert "\\x1b[2J\\x07gone" in said.out
    assert not {"\x1b", "\x07", "\u202e"} & set(said.out)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_narrow_table_shows_the_end_of_a_name(width: int) -> None:
    """The begin is most often the same, so the end tells one topic from the other; a short name is whole."""
    view = View(sort="topic")
    long = [f"namespace-of-some-length/orders-partition-{number}" for number in range(3)]
    view.take(answer(*(topic(name, 3) for name in ("x", *long))), 10.0)
    console = Console(width=width, height=24, file=io.StringIO(), color_system=None, legacy_windows=False)
    console.print(Screen(view, FakeClock(), 2.0, console)._table())
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().splitlines()
    assert all(len(line.rstrip()) <= width for line in shown)
    for number in range(3):
        assert sum(f"partition-{number} " in line for line in shown) == 1, shown
    assert any(line.startswith(("persistent://a/b/x ", "…")) and "/b/x " in line for line in shown)


class Terminal:
    """A terminal with offloadctl on it."""

    def __init__(self, process: Popen[bytes], master: int) -> None:
        self.process = process
        self.master = master
        self.seen = ""

    def until(self, text: str) -> None:
        """Read what is shown until there is a text, and forget what was before it."""
        deadline = time.monotonic() + DEADLINE_S  # noqa: TID251 - another process has no clock of ours
        while text not in self.seen:
            left = deadline - time.monotonic()  # noqa: TID251
            assert left > 0, f"not shown: {text!r} in {self.seen[-3000:]!r}"
            if select.select([self.master], [], [], left)[0]:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def press(self, key: str) -> None:
        """Press a key."""
        os.write(self.master, key.encode())


@contextmanager
def terminal(*words: str) -> Iterator[Terminal]:
    """Run offloadctl on a terminal of 100 by 20; it is ended if it does not end by itself."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "offloaderd.cli.offloadctl.__main__", *words]
    surroundings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "20"}
    process = Popen(command, stdin=slave, stdout=slave, stderr=slave, env=surroundings, cwd=Path.cwd())
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        os.close(master)


def test_live_on_a_terminal(fake: FakeDaemon) -> None:
    """It takes the whole terminal, sorts by keys, shows news and failures, goes on after them, and ends with q."""
    fake.status = answer(*(topic(f"t{number:02}", 100 - number, lag_bytes=number) for number in range(50)))
    with terminal("top", "--interval", "0.2", "--address", fake.address) as shown:
        shown.until("\x1b[?1049h")
        shown.until("50 topics, by lag")
        shown.until("persistent://a/b/t00")
        shown.press("b")
        shown.until("50 topics, by bytes")
        shown.until("persistent://a/b/t49")
        fake.status.topics[0].stalled_reason = "the bucket is full"
        shown.until("persistent://a/b/t00: the bucket is full")
        fake.failure = Failure(grpc.StatusCode.UNAVAILABLE, "draining now", "TRANSIENT")
        shown.until("no answer: draining now")
        fake.failure = None
        shown.until("50 topics, by bytes")
        shown.press("q")
        shown.until("\x1b[?1049l")
        assert shown.process.wait(DEADLINE_S) == 0


def test_lines_of_json_until_interrupted(fake: FakeDaemon) -> None:
    """--json alone is a document a line, look by look, until it is interrupted."""
    fake.status = answer(topic("x", 5))
    with terminal("top", "--json", "--interval", "0.2", "--address", fake.address) as shown:
        shown.until('"taken_bytes_per_s":null')
        shown.until('"taken_bytes_per_s":0.0')
        shown.until('"taken_bytes_per_s":0.0')
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(DEADLINE_S) == 130
