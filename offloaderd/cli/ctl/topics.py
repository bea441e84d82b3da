"""`offloadctl topics`: which topics there are, and which of them are offloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from offloaderd.cli import show
from offloaderd.cli.ctl import options

if TYPE_CHECKING:
    from offloaderd.cli.ctl.options import Session
    from offloaderd.model import TopicName


@click.group(short_help="List, enable and disable topics.")
@options.common
def topics(session: Session) -> None:
    """List topics, and say which of them are offloaded."""


@topics.command("list", short_help="List the topics.")
@click.argument("prefix", default="")
@options.common
def list_topics(session: Session, prefix: str) -> int:
    """List the topics that are enabled or that the ledger source knows.

    PREFIX is a tenant, or TENANT/NAMESPACE; without it all topics are listed.

    \b
    Examples:
      offloadctl topics list
      offloadctl topics list public/default --json
    """
    return session.run(_list(session, prefix))


async def _list(session: Session, prefix: str) -> None:
    async with session.client() as client:
        found = await client.topics(prefix)
    if session.json:
        rows = [
            {
                "topic": one.topic,
                "enabled": one.enabled,
                "owner": one.owner or None,
                "ledgers": one.ledgers,
                "entries": one.entries,
            }
            for one in found
        ]
        show.document({"topics": rows})
        return
    if not found:
        click.echo("no topics" + (f" below {prefix}" if prefix else ""), err=True)
        return
    show.table(
        ["TOPIC", "OFFLOADED", "OWNER", ">LEDGERS", ">ENTRIES"],
        [
            (
                one.topic,
                "yes" if one.enabled else "no",
                one.owner or "-",
                show.number(one.ledgers),
                show.number(one.entries),
            )
            for one in found
        ],
    )


@topics.command(short_help="Start offloading a topic.")
@click.argument("topic", type=options.TOPIC)
@click.option("--segment-size", "segment_bytes_max", type=options.SIZE, help="Roll segments at this size, e.g. 256M.")
@click.option(
    "--segment-age",
    "segment_age_max_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Roll a segment this long after its first entry.",
)
@click.option(
    "--segment-age-min",
    "segment_age_min_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Let a segment that is full wait at least this long.",
)
@click.option("--read-priority", type=options.PRIORITY, help="tiered-storage-first or bookkeeper-first.")
@options.common
def enable(session: Session, topic: TopicName, **policy: Any) -> int:  # noqa: ANN401 - the options above
    """Start offloading a topic, or change its policy.

    What is not given is left to the daemon's configuration.

    \b
    Examples:
      offloadctl topics enable persistent://public/default/orders
      offloadctl topics enable orders --segment-size 256M --segment-age 60
    """

    async def work() -> None:
        async with session.client() as client:
            await client.enable(topic, **policy)
        answer(session, topic, enabled=True)

    return session.run(work())


@topics.command(short_help="Stop offloading a topic.")
@click.argument("topic", type=options.TOPIC)
@options.common
def disable(session: Session, topic: TopicName) -> int:
    """Complete the topic's open segment and stop offloading it.

    What was offloaded stays readable.

    \b
    Examples:
      offloadctl topics disable persistent://public/default/orders
      offloadctl topics disable orders --timeout 300
    """

    async def work() -> None:
        async with session.client() as client:
            await client.disable(topic)
        answer(session, topic, enabled=False)

    return session.run(work())


def answer(session: Session, topic: TopicName, *, enabled: bool) -> None:
    """Confirm a change."""
    if session.json:
        show.document({"topic": str(topic), "enabled": enabled})
    else:
        click.echo(f"{'enabled' if enabled else 'disabled'} {topic}")
