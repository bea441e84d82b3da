"""`offloadctl offload`: PIP-76's manual offload."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from offloaderd.cli import show
from offloaderd.cli.ctl import options
from offloaderd.errors import OffloaderError

if TYPE_CHECKING:
    from offloaderd.cli.ctl.options import Session
    from offloaderd.model import TopicName
    from offloaderd.rpc.v1 import admin_pb2


@click.command(short_help="Offload what a topic holds now.")
@click.argument("topic", type=options.TOPIC)
@click.option("--wait", is_flag=True, help="Return when all of it is in the bucket and committed.")
@options.common
def offload(session: Session, topic: TopicName, *, wait: bool) -> int:
    """Close the topic's open segment, so that everything confirmed by now is offloaded.

    With --wait a progress bar runs on stderr until it is. Interrupting the wait does not stop the offload.

    \b
    Examples:
      offloadctl offload orders
      offloadctl offload orders --wait --timeout 120
    """
    return session.run(_offload(session, topic, wait=wait))


async def _offload(session: Session, topic: TopicName, *, wait: bool) -> None:
    last: admin_pb2.OffloadProgress | None = None
    timeout_s = session.timeout_s if wait else session.timeout_s or options.CALL_TIMEOUT_S
    async with session.client() as client:
        with Bar(hidden=session.json or not wait) as bar:
            async for progress in client.offload(topic, wait=wait, timeout_s=timeout_s):
                last = progress
                bar.show(progress)
    if last is None:
        raise OffloaderError("the daemon ended the call without an answer")
    if session.json:
        show.document(as_json(topic, last))
    else:
        click.echo(sentence(topic, last))


def sentence(topic: TopicName, last: admin_pb2.OffloadProgress) -> str:
    """Return the result in one line."""
    target = show.position_of(last, "target")
    if target is None:
        return f"{topic} holds nothing to offload"
    if last.done:
        return f"offloaded {topic} up to {show.position_of(last, 'offloaded')}"
    remaining = show.plural(last.remaining_entries, "entry", "entries")
    trouble = f"; it does not move: {last.message}" if last.message else ""
    return f"offloading {topic} up to {target}: {remaining} ({show.size(last.remaining_bytes)}) to go{trouble}"


def as_json(topic: TopicName, last: admin_pb2.OffloadProgress) -> dict[str, object]:
    """Return the result as JSON shows it."""
    return {
        "topic": str(topic),
        "done": last.done,
        "target": show.position_of(last, "target"),
        "offloaded": show.position_of(last, "offloaded"),
        "remaining_entries": last.remaining_entries,
        "remaining_bytes": last.remaining_bytes,
        "message": last.message or None,
    }


class Bar:
    """A progress bar over remaining entries, on stderr, gone when done; nothing where there is no terminal."""

    def __init__(self, *, hidden: bool) -> None:
        console = Console(file=sys.stderr)
        self._progress = Progress(
            TextColumn("offloading"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=hidden or not console.is_terminal,
        )
        self._task = self._progress.add_task("offload", total=None, left="")
        self._most = 0

    def __enter__(self) -> Bar:
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self._progress.stop()

    def show(self, progress: admin_pb2.OffloadProgress) -> None:
        """Draw one report."""
        self._most = max(self._most, progress.remaining_entries)
        left = "" if progress.done else f"{show.plural(progress.remaining_entries, 'entry', 'entries')} left"
        left += f"; {progress.message}" if progress.message else ""
        self._progress.update(
            self._task,
            total=self._most or None,
            completed=self._most - progress.remaining_entries,
            left=left,
        )
