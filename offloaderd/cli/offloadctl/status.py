"""`offloadctl status`, `top` and `doctor`: the state of a daemon and its topics, and checks of what it needs."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from offloaderd.cli import forms, options, show
from offloaderd.cli.options import Session, duration_param
from offloaderd.client import DaemonClient
from offloaderd.core.aio import race
from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.errors import Denied, OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.protocol.status import (
    POSITIONS,
    Rate,
    Rates,
    daemon_facts,
    daemon_json,
    history_text,
    lag_cells,
    pause_text,
    rated_json,
    table_lines,
    tables_json,
    topic_facts,
    topic_json,
)
from offloaderd.protocol.v1 import admin_pb2, read_pb2


@click.command()
@click.argument("topic", type=options.TOPIC, required=False)
@options.common
def status(session: Session, topic: TopicName | None) -> None:
    """Show the daemon, its dependencies, each topic's progress and declared tables; or one topic with its positions.

    Tables are those of the whole cluster (offloadctl tables): the largest lag of each declaration, how many of its
    tables fail, and who writes them.

    \b
    Examples:
      offloadctl status
      offloadctl status orders
      offloadctl status orders -o json | jq '.topics[0].lag_entries'
      offloadctl status -o json | jq '.tables.declarations[] | select(.failing > 0 or .writer == null)'
    """

    async def asked(client: DaemonClient) -> tuple[admin_pb2.StatusResponse, read_pb2.LastPositionsResponse | None]:
        """Return the status, and the positions of a topic unless ZooKeeper is unreachable."""
        found = await client.status(topic, tables=topic is None)
        if topic is None or not all(one.up for one in found.dependencies if one.name == "metadata"):
            return found, None
        return found, await client.last_positions(topic)

    found, positions = session.ask(asked)
    document: dict[str, object] = {"daemon": daemon_json(found), "topics": [topic_json(one) for one in found.topics]}
    if topic is None:
        document["tables"] = tables_json(found)
    if positions is not None:
        document["positions"] = {field: show.position_of(positions, field) for field in POSITIONS}
    session.tell(document, lambda: _show_status(topic, found, positions))


def _show_status(
    topic: TopicName | None, found: admin_pb2.StatusResponse, positions: read_pb2.LastPositionsResponse | None
) -> None:
    show.facts(daemon_facts(found))
    if topic is not None:
        for one in found.topics:
            click.echo()
            show.facts(topic_facts(one, positions))
        return
    if found.topics:
        click.echo()
        TABLE.show(found.topics)
        for line in _state_lines(found.topics):
            click.echo(line)
    if found.tables.declarations or found.tables.failure:
        click.echo()
        if found.tables.declarations:
            DECLARED.show(found.tables.declarations)
        for line in table_lines(found):
            click.echo(line)


NAMED_MAX = 10


def _state_lines(topics: Sequence[admin_pb2.TopicStatus]) -> list[str]:
    """Return what holds topics up, a line each: the first that are stalled, that are paused, and that wait."""
    kinds = {
        "stalled": [f"{one.topic}: {one.stalled_reason}" for one in topics if one.stalled_reason],
        "paused": [f"{one.topic}: paused {pause_text(one)}" for one in topics if one.paused_ms],
        "waiting for history": [
            f"{one.topic}: {history_text(one.history)}" for one in topics if one.history.live_waits
        ],
    }
    return [
        line for kind, lines in kinds.items() for line in show.abridged(lines, NAMED_MAX, f"more {kind}: see -o json")
    ]


TABLE: show.Table[admin_pb2.TopicStatus] = show.Table(
    ("TOPIC", "topic"),
    ("STATE", lambda one: "suspended" if one.asleep else one.state),
    ("CONFIRMED", "confirmed"),
    ("OFFLOADED", "offloaded"),
    (">LAG", lambda one: lag_cells(one)[0]),
    (">LAG BYTES", lambda one: lag_cells(one)[1]),
    (">LAG AGE", lambda one: lag_cells(one)[2]),
    (">OPEN SEGMENT", lambda one: show.size(one.open_segment_bytes) if one.open_segment_id else "-"),
    (">SEGMENTS", "segments_committed"),
)

DECLARED: show.Table[admin_pb2.DeclaredTables.Declaration] = show.Table(
    ("TABLES", "name"),
    ("TOPICS", "topics"),
    (">NUMBER", "tables"),
    (">FAILING", "failing"),
    (">LAG", lambda one: show.age(one.lag_seconds) if one.lag_entries else "-"),
    (">LAG ENTRIES", "lag_entries"),
    ("WRITER", lambda one: f"{one.writer or 'nobody'}, states of {show.moment(one.said_ms)}" if one.said_ms else ""),
)


@click.command()
@options.common
def doctor(session: Session) -> int:
    """Check ZooKeeper, bookies, the admin API of brokers, the bucket and the clocks, from the machine of the daemon.

    One line a check, with a hint; exit code 1 when anything failed. When no daemon can be reached, or none can
    start, use: offloaderd doctor --config PATH.

    \b
    Examples:
      offloadctl doctor
      offloadctl doctor -o json | jq -r '.checks[] | select(.verdict == "fail") | .found'
    """

    async def examined(client: DaemonClient) -> int:
        write = partial(session.tell, text="") if session.form != forms.TABLE else None
        return await show.show_checks(client.examine(timeout_s=session.timeout_s), write)

    return session.ask(examined)


SORTS = {"l": "lag", "b": "bytes", "r": "rate", "s": "segment", "t": "topic"}
"""Orders by the key that chooses them."""

QUIT = {"q", "Q", "\x04"}
FRAME_ROWS = 5
"""Lines without a topic: two of the daemon, two of the table, one of the keys."""

KEYS = "sort: l lag  b bytes  r rate  s segment  t topic    q quit"
FAILURES_MAX = 3
WIDE = 130
"""Columns of a terminal that has room for all of the table."""
GAP = 2
NAME_MIN = 8
"""Characters of a topic's name that are shown however narrow the terminal is."""


@dataclass
class View:
    """The answer that is shown, and how. `rates` are known from the second answer on."""

    sort: str = "lag"
    search: str = ""
    limit: int | None = None
    found: admin_pb2.StatusResponse | None = None
    rates: Rates = field(default_factory=Rates)
    failure: str = ""

    def take(self, found: admin_pb2.StatusResponse, now_s: float) -> None:
        """Replace the answer."""
        taken = {one.topic: (one.epoch, one.taken_entries, one.taken_bytes) for one in found.topics}
        self.rates.look(taken, now_s)
        self.found, self.failure = found, ""

    def topics(self) -> list[admin_pb2.TopicStatus]:
        """Return the topics whose name contains the searched text, in the chosen order."""
        nothing, needle = Rate(0.0, 0.0), self.search.casefold()
        keys: dict[str, Callable[[admin_pb2.TopicStatus], object]] = {
            "lag": lambda one: (not one.lag_age_unknown, -one.lag_seconds, -one.lag_entries),
            "bytes": lambda one: -one.lag_bytes,
            "rate": lambda one: -self.rates.get(one.topic, nothing).bytes_per_s,
            "segment": lambda one: -one.open_segment_bytes,
            "topic": lambda _: 0,
        }
        key = keys[self.sort]
        topics = self.found.topics if self.found is not None else ()
        return sorted((one for one in topics if needle in one.topic.casefold()), key=lambda one: (key(one), one.topic))


@click.command()
@click.option(
    "--sort", type=click.Choice(tuple(SORTS.values())), default="lag", help="What comes first. [default: lag]"
)
@click.option("--search", metavar="TEXT", default="", help="Only topics with this in their name.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), help="So many topics. [default: what fits; --once: all]"
)
@click.option(
    "--interval", metavar="TIME", type=duration_param(0.2), default=2.0, help="Pause between two looks. [default: 2]"
)
@click.option("--once", is_flag=True, help="Read the status twice, an interval apart, print the table, and end.")
@options.common
def top(session: Session, *, sort: str, search: str, limit: int | None, interval: float, once: bool) -> None:
    """Watch the topics that a daemon works on: lag, rate, open segment, owner, and what holds them up.

    On a terminal the table is live; keys: l, b, r, s and t sort by age of the lag, its bytes, rate, open segment and
    name; q ends. IN/S is what goes into segments, history apart. Elsewhere, and with --once, one table is printed.
    With -o json there is one document a look, each on a line, until it is interrupted; with --once a single one.

    \b
    Examples:
      offloadctl top
      offloadctl top --sort rate --search acme/orders
      offloadctl top --once -o json | jq '.topics[] | select(.lag_seconds > 60) | .topic'
    """
    view = View(sort=sort, search=search, limit=limit)
    session.run(_watch(session, view, SystemClock(), interval, once=once))


async def _watch(session: Session, view: View, clock: Clock, interval_s: float, *, once: bool) -> None:
    """Refresh the status until interrupted. Raises what the first call raises; failures of later calls are shown."""
    async with session.client() as client:

        async def look() -> None:
            view.take(await client.status(), clock.monotonic())

        await look()
        if once or not (session.structured or sys.stdout.isatty()):
            await clock.sleep(interval_s)
            await look()
            session.tell(_view_json(view), lambda: _print_once(view))
        elif session.structured:
            while True:
                session.item(_view_json(view))
                await clock.sleep(interval_s)
                await look()
        else:
            await Screen(view, clock, interval_s).run(look)


def _print_once(view: View) -> None:
    click.echo(_headline(view))
    show.table(COLUMNS, [_row(view, one) for one in view.topics()[: view.limit]])
    for line in _failure_lines(view, NAMED_MAX):
        click.echo(line)


class Screen:
    """The live table; it fills the terminal, and restores it at the end."""

    def __init__(self, view: View, clock: Clock, interval_s: float, console: Console | None = None) -> None:
        self._view = view
        self._clock = clock
        self._interval_s = interval_s
        self._console = console or show.console()
        self._ended = asyncio.Event()
        self._pressed = asyncio.Event()

    async def run(self, look: Callable[[], Coroutine[None, None, None]]) -> None:
        """Show the table until `q`. A failed call is shown; a refused one ends the table."""
        with Live(console=self._console, screen=True, auto_refresh=False) as live, _keys(self._press):
            while not self._ended.is_set():
                live.update(self._table(), refresh=True)
                self._pressed.clear()
                await race(self._pressed.wait(), self._clock.sleep(self._interval_s))
                if not self._pressed.is_set():
                    await self._again(look)

    async def _again(self, look: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await race(look(), self._ended.wait())
        except Denied:
            raise
        except OffloaderError as error:
            self._view.failure = f"no answer: {error.message}"

    def _press(self, key: str) -> None:
        """Handle a key."""
        if key in QUIT:
            self._ended.set()
        self._view.sort = SORTS.get(key.lower(), self._view.sort)
        self._pressed.set()

    def _table(self) -> Group:
        view, size = self._view, self._console.size
        named, topics = _failure_lines(view, FAILURES_MAX), view.topics()
        room = max(1, size.height - FRAME_ROWS - len(named))
        here = topics[: min(room, view.limit or room)]
        rows = [_row(view, one) for one in here]
        kept = [at for at, name in enumerate(COLUMNS) if at and (size.width >= WIDE or name not in FOR_WIDE)]
        others = sum(max(len(cells[at].removeprefix(">")) for cells in (COLUMNS, *rows)) + GAP for at in kept)
        width = max(NAME_MIN, size.width - others)
        head, *lines = show.rendered(
            (COLUMNS[0].ljust(width), *(COLUMNS[at] for at in kept)),
            [(_shortened(cells[0], width), *(cells[at] for at in kept)) for cells in rows],
        ).splitlines()
        more = f"{len(topics):,} topics" + (f' with "{view.search}"' if view.search else "")
        told = (view.failure, "bold red") if view.failure else (f"{more}, by {view.sort}", "dim")
        styled = [(line, "red" if one.stalled_reason else "") for line, one in zip(lines, here, strict=True)]
        first, last = (_headline(view), ""), (KEYS, "dim")
        all_lines = [first, told, (head, ""), *styled, *((line, "red") for line in named), last]
        return Group(*(Text(line, style=style, no_wrap=True, overflow="ellipsis") for line, style in all_lines))


@contextmanager
def _keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Call `pressed` for every key, if standard input is a terminal; its mode is restored afterwards."""
    if not sys.stdin.isatty():
        yield
        return
    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        for key in os.read(terminal, 64).decode(errors="replace"):
            pressed(key)

    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


COLUMNS = ("TOPIC", "STATE", "OWNER", ">LAG", ">LAG BYTES", ">LAG AGE", ">IN/S", ">ENTRIES/S", ">OPEN SEGMENT", ">AGE")
FOR_WIDE = ("OWNER", ">ENTRIES/S", ">AGE")
"""Columns that a narrow terminal does not show."""


def _row(view: View, one: admin_pb2.TopicStatus) -> tuple[str, ...]:
    """Return the line of a topic; unknown values are a dash."""
    rate = view.rates.get(one.topic)
    return (
        show.visible(one.topic),
        "suspended" if one.asleep else one.state,
        show.visible(one.owner) or "-",
        *lag_cells(one),
        f"{show.size(round(rate.bytes_per_s))}/s" if rate is not None else "-",
        f"{rate.entries_per_s:,.1f}" if rate is not None else "-",
        show.size(one.open_segment_bytes) if one.open_segment_id else "-",
        show.age(one.open_segment_age_s) if one.open_segment_id else "-",
    )


def _shortened(name: str, width: int) -> str:
    """Return a topic's name shortened to so many columns: its end is shown, since names often begin alike."""
    return name if len(name) <= width else f"…{name[len(name) - max(width - 1, NAME_MIN) :]}"


def _headline(view: View) -> str:
    found = view.found
    if found is None:
        return ""
    used, budget = show.size(found.memory_used_bytes), show.size(found.memory_budget_bytes)
    down = "".join(f"; {one.name} DOWN: {show.visible(one.message)}" for one in found.dependencies if not one.up)
    lag = max((one.lag_seconds for one in found.topics), default=0.0)
    unknown = sum(one.lag_age_unknown for one in found.topics)
    stalled = sum(bool(one.stalled_reason) for one in found.topics)
    return (
        f"{show.visible(found.daemon_id)} {found.version}, {found.state}{down}; memory {used} of {budget}; "
        f"{show.plural(len(found.topics), 'topic')}, {stalled:,} stalled; oldest lag {show.age(lag)}"
        + (f", of {unknown:,} unknown" if unknown else "")
    )


def _failure_lines(view: View, most: int) -> list[str]:
    """Return a line for each of the first stalled topics, in the order of the list, and how many more there are."""
    stalled = [one for one in view.topics() if one.stalled_reason]
    lines = [f"{show.visible(one.topic)}: {show.visible(one.stalled_reason)}" for one in stalled]
    return show.abridged(lines, most, "more stalled")


def _view_json(view: View) -> dict[str, object]:
    """Return the answer as JSON shows it; rates are null until they are known."""
    assert view.found is not None  # noqa: S101 - nothing is shown before the first answer
    return {
        "daemon": daemon_json(view.found),
        "topics_total": len(view.found.topics),
        "topics": [rated_json(one, view.rates.get(one.topic)) for one in view.topics()[: view.limit]],
    }
