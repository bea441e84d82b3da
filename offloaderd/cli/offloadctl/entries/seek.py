"""`offloadctl seek`: find the position of a time, a message or an entry."""

from collections.abc import Mapping

import click

from offloaderd.cli import show
from offloaderd.cli.offloadctl.entries.read_styles import TIERS
from offloaderd.cli.options import common as options
from offloaderd.cli.options.common import Session
from offloaderd.cli.options.quantities import MOMENT, ago_ms, duration_param
from offloaderd.cli.program import NOT_FOUND, OK
from offloaderd.core.clock import SystemClock
from offloaderd.core.model import TopicName
from offloaderd.core.read_options import Goal, SeekKind
from offloaderd.protocol.message_json import picked
from offloaderd.protocol.v1 import read_pb2

NUMBER = click.IntRange(min=0, max=2**64 - 1)


@click.command()
@click.argument("topic", type=options.TOPIC)
@click.option("--time", type=MOMENT, metavar="TIME", help="The first entry that is not older: ISO 8601 (UTC) or ms.")
@click.option(
    "--ago",
    type=duration_param(0),
    metavar="DURATION",
    help="The first entry not older than this: 90s, 15min, 2h.",
)
@click.option("--index", type=NUMBER, metavar="N", help="The entry with the message that has this index (PIP-70).")
@click.option(
    "--sequence", type=NUMBER, metavar="N", help="The entry with this number, counted over all ledgers from 0."
)
@options.common
def seek(session: Session, topic: TopicName, *, ago: float | None, **wanted: int | None) -> int:
    """Find the first entry, in the order of the topic, that is not older than a time, or has a number or a greater one.

    An entry's time is the broker's timestamp (PIP-70) or, without one, the time at which its producer published it.
    Positions can be read from: offloadctl read --from POSITION, or directly with --from-time. Exit code 4 when there is
    no such entry yet; the position is then where the next one may come.

    \b
    Examples:
      offloadctl seek orders --time 2026-11-21T10:00:00Z
      offloadctl seek orders --ago 2h
      offloadctl seek orders --index 1000000 --json | jq -r .position
    """
    if ago is not None:
        if wanted["time"] is not None:
            raise click.UsageError("--time and --ago exclude each other")
        wanted["time"] = ago_ms(SystemClock(), ago)
    goal = one_goal(wanted)
    if goal is None:
        raise click.UsageError("say what to look for: --time, --ago, --index or --sequence")
    found = session.ask(lambda client: client.seek(topic, goal))
    document = {"topic": str(topic), str(goal.kind): goal.value, **as_json(found)}
    session.tell(document, lambda: show.facts(facts(found)))
    return OK if there(found) else NOT_FOUND


def one_goal(wanted: Mapping[str, int | None]) -> Goal | None:
    """Return the goal that options named after SeekKind give, None for none. Raises UsageError for two."""
    goals = [Goal(SeekKind(name), value) for name, value in wanted.items() if value is not None]
    if len(goals) > 1:
        raise click.UsageError("a time, an index and a sequence number exclude each other")
    return goals[0] if goals else None


def there(found: read_pb2.SeekResponse) -> bool:
    """Whether the entry exists."""
    return found.answer != read_pb2.SEEK_ANSWER_NOTHING


def facts(found: read_pb2.SeekResponse) -> list[tuple[str, str]]:
    """Return the known facts, each a name and a value."""
    position = show.position_of(found, "position")
    if not there(found):
        where = f"nothing yet; the next entry may come at {position}" if position else "the topic has no entries yet"
        return [("position", where), ("cost", cost(found))]
    return [
        ("position", position or "-"),
        ("time", f"{show.moment(found.time_ms)} ({found.time_ms} ms)" if found.HasField("time_ms") else "none"),
        ("index", show.number(found.index) if found.HasField("index") else "none"),
        ("sequence", show.number(found.sequence) if found.HasField("sequence") else "not counted"),
        ("tier", TIERS.get(found.tier, "unknown")),
        ("cost", cost(found)),
    ]


def cost(found: read_pb2.SeekResponse) -> str:
    """Return the requests and reads that the search took, as text."""
    parts = [
        show.plural(found.tables, "manifest") if found.tables else "",
        f"{show.plural(found.gets, 'GET')} of {show.size(found.get_bytes)}" if found.gets else "",
        show.plural(found.source_reads, "read") + " of the ledger source" if found.source_reads else "",
    ]
    return ", ".join(filter(None, parts)) or "nothing was read: all is in memory"


def as_json(found: read_pb2.SeekResponse) -> dict[str, object]:
    """Return an answer as JSON shows it; unknown values are null."""
    return {
        "found": there(found),
        **picked(found, "position", "time_ms", "message_index=index", "entry_sequence=sequence"),
        "tier": TIERS.get(found.tier) if there(found) else None,
        "answered_by": read_pb2.SeekAnswer.Name(found.answer).removeprefix("SEEK_ANSWER_").lower(),
        **picked(found, "gets", "get_bytes", "tables", "source_reads"),
    }
