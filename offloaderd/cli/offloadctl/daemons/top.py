"""`offloadctl top`: the topics of a daemon, live on the terminal."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from offloaderd.cli import show
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.cli.options.quantities import duration_param
from offloaderd.core.aio.signal import race
from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.errors import Denied, OffloaderError
from offloaderd.protocol.status_json import Rate, Rates, daemon_json, rated_json
from offloaderd.protocol.status_words import lag_cells
from offloaderd.protocol.v1 import admin_pb2

SORTS = {"l": "lag", "b": "bytes", "r": "rate", "s": "segment", "t": "topic"}
"""Orders by the key that chooses them."""

QUIT = {"q", "Q", "\x04"}
FRAME_ROWS = 5
"""Lines that are no topic: two of the daemon, two of the table, one of the keys."""

KEYS = "sort: l lag  b bytes  r rate  s segment  t topic    q quit"
FAILURES_MAX = 3
WIDE = 130
"""Columns of a terminal that has room for all of the table."""
GAP = 2
NAME_MIN = 8
"""Characters of a topic's name that are shown however narrow the terminal is."""


@dataclass
class View:
    """What is looked at, and how. `rates` are known from the second answer on."""

    sort: str = "lag"
    search: str = ""
    limit: int | None = None
    found: admin_pb2.StatusResponse | None = None
    rates: Rates = field(default_factory=Rates)
    failure: str = ""

    def take(self, found: admin_pb2.StatusResponse, now_s: float) -> None:
        """Look at another answer."""
        self.rates.look(found.topics, now_s)
        self.found, self.failure = found, ""

    def topics(self) -> list[admin_pb2.TopicStatus]:
        """Return the topics whose name holds what is searched for, in order; those that stall first where they lag."""
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
    "--interval",
    metavar="TIME",
    type=duration_param(0.2),
    default=2.0,
    help="Pause between two looks. [default: 2]",
)
@click.option("--once", is_flag=True, help="Look twice, an interval apart, print the table, and end.")
@options.common
def top(session: Session, *, sort: str, search: str, limit: int | None, interval: float, once: bool) -> None:
    """Watch the topics that a daemon works on: lag, rate, open segment, owner, and what holds them up.

    On a terminal the table is live; keys: l, b, r, s and t sort by age of the lag, its bytes, rate, open segment and
    name; q ends. IN/S is what goes into segments, history apart. Elsewhere, and with --once, one table is printed.
    With --json there is one document a look, each on a line, until it is interrupted; with --once a single one.

    \b
    Examples:
      offloadctl top
      offloadctl top --sort rate --search acme/orders
      offloadctl top --once --json | jq '.topics[] | select(.lag_seconds > 60) | .topic'
    """
    view = View(sort=sort, search=search, limit=limit)
    session.run(watch(session, view, SystemClock(), interval, once=once))


async def watch(session: Session, view: View, clock: Clock, interval_s: float, *, once: bool) -> None:
    """Look again and again. Raises what the first look raises; later ones may fail, which is shown."""
    async with session.client() as client:

        async def look() -> None:
            view.take(await client.status(), clock.monotonic())

        await look()
        if once or not (session.json or sys.stdout.isatty()):
            await clock.sleep(interval_s)
            await look()
            print_once(session, view)
        elif session.json:
            while True:
                click.echo(show.json_line(as_json(view)), nl=False)
                await clock.sleep(interval_s)
                await look()
        else:
            await Screen(view, clock, interval_s).run(look)


def print_once(session: Session, view: View) -> None:
    """Print what was seen, as it is wanted."""
    if session.json:
        show.document(as_json(view))
        return
    click.echo(headline(view))
    show.table(COLUMNS, [row(view, one) for one in view.topics()[: view.limit]])
    for line in troubles(view, None):
        click.echo(line)


class Screen:
    """The live table; it has the whole terminal, and leaves it as it was."""

    def __init__(self, view: View, clock: Clock, interval_s: float, console: Console | None = None) -> None:
        self._view = view
        self._clock = clock
        self._interval_s = interval_s
        self._console = console or show.console()
        self._ended = asyncio.Event()
        self._pressed = asyncio.Event()

    async def run(self, look: Callable[[], Coroutine[None, None, None]]) -> None:
        """Show until `q`. An answer that does not come is told; so is one that is refused, which ends it."""
        with Live(console=self._console, screen=True, auto_refresh=False) as live, keys(self._press):
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
        """Do what a key says."""
        if key in QUIT:
            self._ended.set()
        self._view.sort = SORTS.get(key.lower(), self._view.sort)
        self._pressed.set()

    def _table(self) -> Group:
        view, size = self._view, self._console.size
        named, topics = troubles(view, FAILURES_MAX), view.topics()
        room = max(1, size.height - FRAME_ROWS - len(named))
        here = topics[: min(room, view.limit or room)]
        rows = [row(view, one) for one in here]
        kept = [at for at, name in enumerate(COLUMNS) if at and (size.width >= WIDE or name not in FOR_WIDE)]
        others = sum(max(len(cells[at].removeprefix(">")) for cells in (COLUMNS, *rows)) + GAP for at in kept)
        width = max(NAME_MIN, size.width - others)
        head, *lines = show.rendered(
            (COLUMNS[0].ljust(width), *(COLUMNS[at] for at in kept)),
            [(ended(cells[0], width), *(cells[at] for at in kept)) for cells in rows],
        ).splitlines()
        more = f"{len(topics):,} topics" + (f' with "{view.search}"' if view.search else "")
        told = (view.failure, "bold red") if view.failure else (f"{more}, by {view.sort}", "dim")
        styled = [(line, "red" if one.stalled_reason else "") for line, one in zip(lines, here, strict=True)]
        all_lines = [(headline(view), ""), told, (head, ""), *styled, *((line, "red") for line in named), (KEYS, "dim")]
        return Group(*(Text(line, style=style, no_wrap=True, overflow="ellipsis") for line, style in all_lines))


@contextmanager
def keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Hear of every key that is pressed, unless nobody can press any; the terminal is as before afterwards."""
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
"""What a narrow terminal does without."""


def row(view: View, one: admin_pb2.TopicStatus) -> tuple[str, ...]:
    """Return a topic's line; what is not known is a dash."""
    rate = view.rates.get(one.topic)
    return (
        show.visible(one.topic),
        "asleep" if one.asleep else one.state,
        show.visible(one.owner) or "-",
        *lag_cells(one),
        f"{show.size(round(rate.bytes_per_s))}/s" if rate is not None else "-",
        f"{rate.entries_per_s:,.1f}" if rate is not None else "-",
        show.size(one.open_segment_bytes) if one.open_segment_id else "-",
        show.age(one.open_segment_age_s) if one.open_segment_id else "-",
    )


def ended(name: str, width: int) -> str:
    """Return a topic's name in so many columns: its end tells it from others, its begin is most often the same."""
    return name if len(name) <= width else f"…{name[len(name) - max(width - 1, NAME_MIN) :]}"


def headline(view: View) -> str:
    """Say how the daemon is, in one line."""
    found = view.found
    if found is None:
        return ""
    used, budget = show.size(found.memory_used_bytes), show.size(found.memory_budget_bytes)
    down = "".join(f"; {one.name} DOWN: {show.visible(one.message)}" for one in found.dependencies if not one.up)
    lag = max((one.lag_seconds for one in found.topics), default=0.0)
    unknown = sum(1 for one in found.topics if one.lag_age_unknown)
    stalled = sum(1 for one in found.topics if one.stalled_reason)
    return (
        f"{show.visible(found.daemon_id)} {found.version}, {found.state}{down}; memory {used} of {budget}; "
        f"{show.plural(len(found.topics), 'topic')}, {stalled:,} stalled; oldest lag {show.age(lag)}"
        + (f", of {unknown:,} unknown" if unknown else "")
    )


def troubles(view: View, most: int | None) -> list[str]:
    """Return a line for each topic that stalls, at most so many, in the order of the list."""
    stalled = [
        f"{show.visible(one.topic)}: {show.visible(one.stalled_reason)}" for one in view.topics() if one.stalled_reason
    ]
    return stalled[:most]


def as_json(view: View) -> dict[str, object]:
    """Return what was seen as JSON shows it; rates are null until they are known."""
    assert view.found is not None  # noqa: S101 - nothing is shown before the first answer
    return {
        "daemon": daemon_json(view.found),
        "topics_total": len(view.found.topics),
        "topics": [rated_json(one, view.rates.get(one.topic)) for one in view.topics()[: view.limit]],
    }
