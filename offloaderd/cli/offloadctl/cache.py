"""`offloadctl cache`: show, warm and purge the disk cache of a daemon."""

from collections.abc import Awaitable

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import MOMENT, Session, last_of
from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.progress import Bars
from offloaderd.client import DaemonClient
from offloaderd.core.model import TopicName
from offloaderd.protocol.conversion import as_json
from offloaderd.protocol.v1 import cache_pb2

WARM_TIMEOUT_S = 24 * 3600.0


@click.group()
@options.common
def cache(session: Session) -> None:
    """Show, warm and purge the disk cache of the contacted daemon (cache.directory).

    Each daemon has its own, and serves reads of any topic from it.
    """


@cache.command(name="show", short_help="Show what is on the disk, and what that saved.")
@options.common
def show_(session: Session) -> int:
    """Show the state of the disk cache, its size, and its use since the start of the daemon.

    Exit code 1 when it is set and not used; the state says why.

    \b
    Examples:
      offloadctl cache show
      offloadctl cache show -o json | jq '.hits / (.hits + .misses)'
    """
    found = session.ask(lambda client: client.cache())
    session.tell(as_json(found, kept=("directory",)), lambda: show.facts(_facts(found)))
    return OK if found.open or found.state == "not set" else FAILED


def _facts(found: cache_pb2.CacheState) -> list[tuple[str, str]]:
    state = found.state if found.open else f"NOT USED: {found.state}"
    if found.state == "not set":
        return [("daemon", found.daemon_id), ("disk cache", "not set: cache.directory")]
    asked = found.hits + found.misses
    return [
        ("daemon", found.daemon_id),
        ("disk cache", f"{state}, {found.directory}"),
        (
            "on disk",
            f"{show.size(found.used_bytes)} of {show.size(found.limit_bytes)}, {show.number(found.ranges)} ranges",
        ),
        ("requests", f"{show.number(asked)}, {found.hits / asked:.0%} from the disk" if asked else "none yet"),
        ("read", show.size(found.read_bytes)),
        ("written", show.size(found.written_bytes)),
        ("saved", f"{show.plural(found.gets_saved, 'GET')}, {found.money_saved:.4f} by prices.get_1000"),
    ]


@cache.command(short_help="Fetch a topic into the disk cache.")
@click.argument("topic", type=options.TOPIC)
@click.option(
    "--from-time", "from_time_ms", type=MOMENT, metavar="TIME", help="Begin with the first entry that is not older."
)
@options.common
def warm(session: Session, topic: TopicName, *, from_time_ms: int | None) -> int:
    """Fetch what is offloaded of a topic into the disk cache of the contacted daemon, the oldest first.

    What is there already is not fetched again, and what readers use often is not replaced. It ends when as much as the
    disk may hold is warm. Interrupted, what was fetched stays. Exit code 1 when not all of it is on the disk.

    \b
    Examples:
      offloadctl cache warm orders
      offloadctl cache warm orders --from-time 2026-11-21T10:00:00Z
      offloadctl cache warm orders -o json | jq .fetched_bytes
    """
    with Bars() as bars:

        def take(one: cache_pb2.WarmProgress) -> None:
            bars.show("warming", f"{one.segments} of {one.segments_total} segments", one.segments, one.segments_total)

        def warm(client: DaemonClient) -> Awaitable[cache_pb2.WarmProgress]:
            return last_of(client.warm_cache(topic, from_time_ms=from_time_ms, timeout_s=WARM_TIMEOUT_S), take)

        found = session.ask(warm, timeout_s=WARM_TIMEOUT_S)
        bars.clear()
    complete = found.done and not found.full and not found.declined_bytes
    session.tell({"topic": str(topic), **as_json(found)}, "\n".join(_lines(topic, found)))
    return OK if complete else FAILED


def _lines(topic: TopicName, found: cache_pb2.WarmProgress) -> list[str]:
    fetched = f"fetched {show.size(found.fetched_bytes)} with {show.plural(found.gets, 'GET')}"
    lines = [f"{topic}: {fetched}; {show.size(found.present_bytes)} was on the disk"]
    if found.declined_bytes:
        lines.append(
            f"{show.size(found.declined_bytes)} was not put there: the disk is full of what is read more often"
        )
    if found.full:
        rest = found.segments_total - found.segments
        lines.append(
            f"the disk may hold no more: {show.plural(rest, 'segment')} to the end of the topic not, or in part"
        )
    return lines


@cache.command(short_help="Delete a topic, or everything, from the disk cache.")
@click.argument("topic", type=options.TOPIC, required=False)
@click.option("--dry-run", is_flag=True, help="Delete nothing; show how much is there.")
@options.common
def purge(session: Session, topic: TopicName | None, *, dry_run: bool) -> int:
    """Delete what the disk cache of the contacted daemon has of a topic; without TOPIC all that it has.

    The bucket keeps everything. What readers ask for again is fetched and kept again. A topic that was deleted may be
    named as well. Files that the disk cache does not know, as of a directory that is not in use, stay: delete them by
    hand. Exit code 1 when something is left.

    \b
    Examples:
      offloadctl cache purge orders --dry-run
      offloadctl cache purge orders
      offloadctl cache purge -o json | jq .size_bytes
    """
    found = session.ask(lambda client: client.purge_cache(topic, dry_run=dry_run))
    what = f"{show.plural(found.ranges, 'range')}, {show.size(found.size_bytes)}"
    where = f"{topic or 'everything'} on the disk of {found.daemon_id}"
    lines = [f"{where}: {'would delete' if dry_run else 'deleted'} {what}"]
    if found.left:
        lines.append(f"{show.plural(found.left, 'file')} could not be deleted, or came back: the daemon's log says why")
    session.tell({"topic": str(topic or ""), **as_json(found)}, "\n".join(lines))
    return FAILED if found.left else OK
