"""`offloadctl backfill`: history too large for a daemon, offloaded by a Spark job."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from offloaderd.cli import show
from offloaderd.cli.ctl import backfill_words as words
from offloaderd.cli.ctl import options
from offloaderd.cli.ctl.job_options import MASTER, PATIENCE, SPARK_CONF, TOPICS, UPLOAD_RATE, Given, settings_of
from offloaderd.cli.daemon.place import CONFIG
from offloaderd.cli.program import FAILED, OK, report
from offloaderd.cli.progress import Bars
from offloaderd.errors import OffloaderError
from offloaderd.policy.cost import Prices

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from offloaderd.cli.ctl.options import Session
    from offloaderd.config import Settings
    from offloaderd.model import TopicName
    from offloaderd.spark.backfill import Options, Wanted
    from offloaderd.spark.backfill_stores import Stores

T = TypeVar("T")
NAMESPACE = click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="TENANT/NAMESPACE",
    help="All topics of it with history planned for a job. May be repeated.",
)
SEGMENT_SIZE = click.option(
    "--segment-size", metavar="SIZE", help="Instead of the topic's policy's, where history is not split yet."
)


@click.group(short_help="Offload a large history with Spark.")
@options.common
def backfill(session: Session) -> None:
    """Offload history that is too large for a daemon (history.daemon_bytes_max) with a Spark job.

    Works with the metadata, the bucket and the ledgers themselves, by the daemon's own settings: --config and the
    environment, or --standalone. The topic's daemon goes on with what is new, and follows the job's progress.

    By the topic's policy, segments (V2) are written or, under the method ledger-based, whole ledgers (V1): all closed
    ones but the newest, whatever the thresholds. A history that the daemon is offloading by itself is taken over from
    it.
    """


@backfill.command(short_help="Show what a run would do, and cost.")
@TOPICS
@NAMESPACE
@SEGMENT_SIZE
@CONFIG
@options.common
def plan(
    session: Session, names: tuple[str, ...], namespaces: tuple[str, ...], segment_size: str | None, config: Path | None
) -> int:
    """Find the boundaries of segments by binary search on the ledgers' lengths, and show what a run would write.

    Changes nothing and needs no Spark. Costs are by the prices of the settings, section `prices`.

    \b
    Examples:
      offloadctl backfill plan orders --config offloaderd.toml
      offloadctl backfill plan --namespace public/default --segment-size 2GiB --config offloaderd.toml
      offloadctl backfill plan orders --config offloaderd.toml --json | jq '.topics[].segments'
    """
    from offloaderd.spark import backfill as work  # noqa: PLC0415 - --help need not wait for it

    wanted, chosen = Given(names, namespaces, segment_size=segment_size).checked()
    settings = settings_of(session, config)
    found = session.run(_with_stores(settings, lambda stores: work.plan(stores, wanted, chosen.segment_bytes)))
    prices = Prices(**settings.prices.model_dump())
    session.tell({"topics": [words.plan_json(*one, prices) for one in found]}, lambda: words.show_plans(found, prices))
    return FAILED if any(isinstance(one, OffloaderError) for _, one in found) else OK


@backfill.command(short_help="Offload history with Spark.")
@TOPICS
@NAMESPACE
@SEGMENT_SIZE
@MASTER
@SPARK_CONF
@click.option(
    "--parallel", metavar="N", help="Segments written at a time. [default: the cores that Spark has when it starts]"
)
@click.option("--source-rate", metavar="SIZE", help="Bytes a second from all bookies together. [default: as settings]")
@UPLOAD_RATE
@PATIENCE
@CONFIG
@options.common
def run(
    session: Session,
    names: tuple[str, ...],
    namespaces: tuple[str, ...],
    config: Path | None,
    **given: Any,  # noqa: ANN401
) -> int:
    """Have executors read history and upload it, and commit it in order. May be broken off and run again at any time.

    Exit code 1 if a topic could not be brought to its end; the others are.

    \b
    Examples:
      offloadctl backfill run orders --config offloaderd.toml
      offloadctl backfill run --namespace public/default --config offloaderd.toml --parallel 32 --source-rate 400MiB
      offloadctl backfill run orders --config offloaderd.toml --master spark://spark:7077 --parallel 32
    """
    said = Given(names, namespaces, **given)
    wanted, chosen = said.checked()
    return _run(session, settings_of(session, config), wanted, chosen, master=given["master"], conf=said.conf)


def _run(
    session: Session, settings: Settings, wanted: Wanted, chosen: Options, *, master: str | None, conf: dict[str, str]
) -> int:
    from offloaderd.spark import backfill as work  # noqa: PLC0415
    from offloaderd.spark.session import check_libraries, spark_session  # noqa: PLC0415

    check_libraries()
    # Before Spark, which takes its time.
    topics, done = asyncio.run(_with_stores(settings, lambda stores: work.checked(stores, wanted)))
    ended = [work.Ended(topic=topic, nothing=True) for topic in done]
    if topics:
        with (
            spark_session("offloaderd backfill", master=master, options=conf, starting=show.note) as spark,
            Bars() as bars,
        ):
            chosen = work.with_slots(chosen, work.slots_of(spark, chosen.share.slots or None))
            ended += asyncio.run(work.run(settings, spark, topics, chosen, partial(words.show_progress, bars)))
    session.tell({"topics": [words.ended_json(one) for one in ended]}, lambda: words.show_ended(ended))
    for one in ended:
        if one.error is not None:
            report(one.error)
    return FAILED if any(one.error is not None for one in ended) else OK


@backfill.command(short_help="Show how far history is offloaded.")
@TOPICS
@NAMESPACE
@CONFIG
@options.common
def status(session: Session, names: tuple[str, ...], namespaces: tuple[str, ...], config: Path | None) -> None:
    """Show with a bar how much of history is offloaded, who drives it, and how long it may still take.

    Ranges one by one: offloadctl history status TOPIC.

    \b
    Examples:
      offloadctl backfill status orders --config offloaderd.toml
      offloadctl backfill status --namespace public/default --config offloaderd.toml --json
    """
    from offloaderd.spark import backfill as work  # noqa: PLC0415 - as above

    wanted, _ = Given(names, namespaces).checked()
    settings = settings_of(session, config)
    found = session.run(_with_stores(settings, lambda stores: work.status(stores, wanted)))
    session.tell({"topics": [words.status_json(*one) for one in found]}, lambda: words.show_status(found))


@backfill.command(short_help="End a run, from anywhere.")
@click.argument("topic", type=options.TOPIC)
@click.option("--discard", is_flag=True, help="Put what was begun on the trash list, for no later run to go on with.")
@click.option("--to-daemon", is_flag=True, help="Have the topic's daemon offload the rest, however much it is.")
@CONFIG
@options.common
def cancel(session: Session, topic: TopicName, discard: bool, to_daemon: bool, config: Path | None) -> None:
    """Depose the driver of a topic's backfill: it and its executors change nothing any more, and end.

    What is committed stays. What was begun is gone on with by the next run, or goes with --discard. With --to-daemon
    there need be no next run: what is whole is committed, and the daemon goes on behind it, one segment or whole ledger
    at a time.

    \b
    Examples:
      offloadctl backfill cancel orders --config offloaderd.toml
      offloadctl backfill cancel orders --discard --config offloaderd.toml
      offloadctl backfill cancel orders --to-daemon --config offloaderd.toml
    """
    from offloaderd.spark import backfill as work  # noqa: PLC0415 - as above
    from offloaderd.spark.backfill_handback import hand_back  # noqa: PLC0415

    settings = settings_of(session, config)
    if to_daemon:
        found = session.run(_with_stores(settings, lambda stores: hand_back(stores, topic)))
        document = {"topic": str(topic), **words.handed_back_json(found)}
        session.tell(document, lambda: words.show_handed_back(topic, found))
        return
    begun, method = session.run(_with_stores(settings, lambda stores: work.cancel(stores, topic, discard=discard)))
    what = "are on the trash list" if discard else "are gone on with by the next run"
    session.tell(
        {"topic": str(topic), "method": method.value, "begun": begun, "discarded": discard},
        f"nobody drives the {method} backfill of {topic} any more; {words.units(method, begun)} begun {what}",
    )


async def _with_stores(settings: Settings, call: Callable[[Stores], Awaitable[T]]) -> T:
    from offloaderd.clock import SystemClock  # noqa: PLC0415
    from offloaderd.spark.backfill_stores import open_stores  # noqa: PLC0415

    async with open_stores(settings, SystemClock()) as stores:
        return await call(stores)
