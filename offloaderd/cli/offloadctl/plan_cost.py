"""`offloadctl plan-cost`: requests and costs by segment size and age, for measured or given rates."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from offloaderd.cli import options, show
from offloaderd.cli.options import DURATION, SIZE, Session
from offloaderd.client import DaemonClient
from offloaderd.core.errors import NotFound
from offloaderd.core.model import TopicName
from offloaderd.daemon.settings import Settings, load
from offloaderd.policy.cost import (
    GIB,
    HOUR_S,
    MONTH_S,
    CopyCosts,
    Cutting,
    Estimate,
    Load,
    class_costs,
    copy_costs,
    estimate,
)
from offloaderd.policy.prices import SOURCES, TABLE, ClassPrices
from offloaderd.protocol.v1 import admin_pb2, policy_pb2

WRITER = "offloaderd"
OWN_PRICES = "in the currency of the settings' prices (their defaults: US dollars)"
ENTRY_BYTES = 1024
TOPICS_MAX = 200
"""Topics that are measured when none are named; they represent all."""


class Plan(NamedTuple):
    """A choice of segment size and age, and its requests and costs."""

    size_bytes: int
    age_s: float
    present: bool
    takes: Estimate
    copies: CopyCosts | None = None
    """In a mirror, if one is counted."""


@click.command("plan-cost")
@click.argument("topics", nargs=-1, type=options.TOPIC)
@click.option("--rate", type=SIZE, metavar="SIZE", help="Payload a second and topic, instead of measuring.")
@click.option("--topics", "count", type=click.IntRange(min=1), default=1, help="With --rate: how many such topics.")
@click.option("--entry", type=SIZE, default=ENTRY_BYTES, metavar="SIZE", help="With --rate: size of an entry.")
@click.option("--size", "sizes", type=SIZE, multiple=True, metavar="SIZE", help="A segment size to compare.")
@click.option("--age", "ages", type=DURATION, multiple=True, metavar="DURATION", help="A segment age to compare.")
@click.option(
    "--config",
    envvar="OFFLOADERD_CONFIG",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="PATH",
    help="Settings of the daemon: prices, sizes, scrub. [env: OFFLOADERD_CONFIG; default: the settings' defaults]",
)
@click.option("--prices", "priced", type=click.Choice(sorted(TABLE)), help="Use list prices of a class.")
@click.option("--mirror", type=click.Choice(sorted(TABLE)), help="Count a mirror, by list prices of a class.")
@click.option("--traffic", type=click.FloatRange(min=0), default=0, metavar="PRICE", help="With --mirror: of a GiB.")
@click.option("--compare", is_flag=True, help="Compare services and classes by list prices, for the present choice.")
@options.common
def plan_cost(
    session: Session,
    topics: tuple[TopicName, ...],
    *,
    rate: int | None,
    count: int,
    entry: int,
    sizes: tuple[int, ...],
    ages: tuple[float, ...],
    **money: Any,  # noqa: ANN401 - the options above
) -> None:
    """Show what requests and storage cost for several segment sizes and ages.

    Rates are measured from the segments that the daemon has committed: of the topics named, or of all of them (at most
    200 are measured, and represent the others). A topic that is catching up shows the rate at which it does so. With
    --rate no daemon is called. Prices are those of the settings, section `prices`, in its currency: by default US
    dollars. A line with * is the present choice: of the policies of the topics named, else of the settings.

    A mirror is counted with --mirror alone, whatever policies say, and for all topics: its requests and storage by list
    prices of its class in US dollars, what the scrub reads there, and what it costs to read each segment once to copy
    it. Between regions and providers traffic costs as well: --traffic is the price of a GiB, for the copies and for
    what the scrub reads. Not counted is that offload.verify = "readback" reads each copy once more.

    --compare shows what that choice costs in each storage class of S3, Azure Blob and Google Cloud Storage, by list
    prices with their date and source: requests, storage, and what the scrub pays to read. They are no offer: look up
    those of your region.

    \b
    Examples:
      offloadctl plan-cost
      offloadctl plan-cost orders payments --age 1min --age 10min
      offloadctl plan-cost --rate 1KiB --topics 1000 --size 64MiB --size 1GiB
      offloadctl plan-cost --compare
      offloadctl plan-cost --rate 1MiB --prices aws/STANDARD_IA --mirror gcs/NEARLINE --traffic 0.09
      offloadctl plan-cost -o json | jq '.plans[] | {size_bytes, age_s, requests_month}'
    """
    if rate is not None and topics:
        raise click.UsageError("name topics to have them measured, or say --rate; not both")
    config, priced, mirror, compare = (money[name] for name in ("config", "priced", "mirror", "compare"))
    if money["traffic"] and mirror is None:
        raise click.UsageError("--traffic is that of a mirror: name its class with --mirror")
    settings = load(config, os.environ) if config is not None else Settings.model_construct(None)
    prices, offload = settings.prices if priced is None else TABLE[priced].prices, settings.offload
    if rate is None:
        loads, held = session.ask(lambda client: measured_with_policies(client, topics, settings))
    else:
        loads, held = [Load(topics=count, bytes_per_s=rate, entry_bytes=entry)], set()
    held = held or {(offload.segment_bytes_max, offload.segment_age_max_s)}
    chosen = {(size, age) for size in sizes or {one for one, _ in held} for age in ages or (60.0, 600.0, 3600.0)}
    scrub_s = settings.scrub.interval_s if settings.scrub.enabled else None
    cut = partial(Cutting, block_bytes=offload.block_bytes, part_bytes=offload.part_bytes)
    kind = settings.objects.kind if priced is None else TABLE[priced].kind

    def takes(size: int, age: float, kind: str, *, copies: bool = False) -> Estimate:
        cutting = cut(segment_bytes_max=size, segment_age_max_s=age, kind=kind, copies=copies)
        return estimate(loads, cutting, prices, scrub_interval_s=scrub_s)

    plans = [Plan(size, age, (size, age) in held, takes(size, age, kind)) for size, age in sorted(chosen | held)]
    if mirror is not None:
        row, retrieval = TABLE[mirror], TABLE[priced].retrieval_gib if priced is not None else 0.0
        costs = partial(copy_costs, row=row, first=prices, traffic_gib=money["traffic"], retrieval_gib=retrieval)
        plans = [one._replace(copies=costs(takes(*one[:2], row.kind, copies=True))) for one in plans]
    text, document = told(plans, OWN_PRICES if priced is None else f"list prices of {priced}, US dollars", mirror)
    document["prices"] = prices.model_dump()
    if compare:
        present = next(one for one in plans if one.present)
        offers, compared = offers_for(present, partial(takes, present.size_bytes, present.age_s))
        document["classes"] = [offer_json(one) for one in offers]
        text += compared
    session.tell(document, text)


def told(plans: Sequence[Plan], whose: str, mirror: str | None) -> tuple[str, dict[str, Any]]:
    """Return plans as a table and as JSON; `whose` prices they have, and the class of a mirror."""
    topic_count, rate_s = plans[0].takes.topics, plans[0].takes.gib_per_hour * GIB / HOUR_S
    text = (
        f"{show.plural(round(topic_count), 'topic')}, {show.size(round(rate_s))}/s of payload\n\n"
        f"{(PLANS if mirror is None else MIRRORED).rendered(plans)}\n"
        f"costs are a month's, {whose}\n"
    )
    if mirror is None:
        text += "a mirror is not counted: --mirror SERVICE/CLASS"
    else:
        text += f"the mirror's by list prices of {mirror}, US dollars"
    rates = {"topics": topic_count, "bytes_per_s": rate_s}
    return text, {"load": rates, "plans": [as_json(one) for one in plans]}


async def measured_with_policies(
    client: DaemonClient, topics: Sequence[TopicName], settings: Settings
) -> tuple[list[Load], set[tuple[int, float]]]:
    """Return the rates of topics, and the sizes and ages of segments that hold for them. Raises NotFound."""
    return await measured(client, topics), {await held_by(client, name, settings) for name in topics}


async def held_by(client: DaemonClient, topic: TopicName, settings: Settings) -> tuple[int, float]:
    """Return the effective segment size and age of a topic."""
    held = (await client.policies(policy_pb2.PolicyLevel(topic=str(topic)))).effective
    size = held.segment_bytes_max if held.HasField("segment_bytes_max") else settings.offload.segment_bytes_max
    age = held.segment_age_max_s if held.HasField("segment_age_max_s") else settings.offload.segment_age_max_s
    return size, age


async def measured(client: DaemonClient, topics: Sequence[TopicName]) -> list[Load]:
    """Return the rates of topics, measured from their committed segments. Raises NotFound without any."""
    names = list(topics)
    share = 1.0
    if not names:
        known = [TopicName.parse(one.topic) for one in await client.topics()]
        names = known[:: -(-len(known) // TOPICS_MAX)] if known else []
        share = len(known) / len(names) if names else 1.0
    loads = [load_of(await client.segments(name), topics=share) for name in names]
    if not any(load.bytes_per_s for load in loads):
        raise NotFound("no segments to measure a rate from", hint="say a rate: --rate 1MiB --topics 50")
    return loads


def load_of(segments: Iterable[admin_pb2.Segment], *, topics: float = 1.0) -> Load:
    """Return a topic's rate from the begin of its first segment to the commit of its last; 0 when there is none."""
    own = [one for one in segments if one.offloaded_ms and one.entries and one.writer in {"", WRITER}]
    if not own:
        return Load(topics=topics, bytes_per_s=0.0, entry_bytes=ENTRY_BYTES)
    payload_bytes = sum(one.payload_bytes for one in own)
    seconds = (max(one.offloaded_ms for one in own) - min(one.assigned_ms for one in own)) / 1000
    entry_bytes = max(1.0, payload_bytes / sum(one.entries for one in own))
    return Load(topics=topics, bytes_per_s=payload_bytes / max(seconds, 0.001), entry_bytes=entry_bytes)


_COLUMNS: tuple[tuple[str, str | Callable[[Plan], str]], ...] = (
    (">SIZE", "size_bytes"),
    (">AGE", "age_s"),
    ("", lambda one: "*" if one.present else " "),
    (">SEGMENTS/H", lambda one: f"{one.takes.segments_per_hour:,.1f}"),
    (">DURABLE WITHIN", lambda one: show.age(one.takes.durable_s_max)),
    (">REQUESTS/GIB", lambda one: f"{one.takes.requests_per_gib:,.0f}"),
    (">REQUESTS/TOPIC/H", lambda one: f"{one.takes.requests_per_topic_hour:,.1f}"),
    (">ZOOKEEPER WRITES/S", lambda one: f"{one.takes.metadata_writes_per_s:,.2f}"),
    (">REQUEST COST/MONTH", lambda one: f"{one.takes.requests_month:,.2f}"),
    (">STORAGE COST/MONTH", lambda one: f"{one.takes.stored_month:,.2f}"),
)
"""Costs are for a month, storage for what one month writes."""
PLANS = show.Table[Plan](*_COLUMNS)
MIRRORED = show.Table[Plan](*_COLUMNS, (">MIRROR COST/MONTH", lambda one: f"{sum(one.copies or ()):,.2f}"))


class Offer(NamedTuple):
    """What the present choice costs in a storage class, a month."""

    row: ClassPrices
    requests: float
    storage: float
    reads: float

    @property
    def whole(self) -> float:
        """All of it."""
        return self.requests + self.storage + self.reads


OFFERS = show.Table[Offer](
    ("CLASS", lambda one: one.row.name),
    (">REQUESTS", lambda one: f"{one.requests:,.2f}"),
    (">STORAGE", lambda one: f"{one.storage:,.2f}"),
    (">SCRUB READS", lambda one: f"{one.reads:,.2f}"),
    (">TOGETHER", lambda one: f"{one.whole:,.2f}"),
    (">LEAST DAYS", lambda one: str(one.row.days_min or "-")),
)


def offers_for(present: Plan, takes: Callable[[str], Estimate]) -> tuple[list[Offer], str]:
    """Return what a choice costs in each class, and the text of it with the sources of the prices.

    `takes` estimates the choice for a kind of store.
    """
    offers = [Offer(row, *class_costs(takes(row.kind), row)) for row in TABLE.values()]
    segments = f"{show.size(present.size_bytes)} or {show.age(present.age_s)}"
    sources = "\n".join(f"{name}: {one.region}, {one.date}, {one.url}" for name, one in SOURCES.items())
    return offers, (
        f"\n\nin segments of {segments}, by list prices in US dollars:\n\n{OFFERS.rendered(offers)}\n{sources}"
    )


def offer_json(one: Offer) -> dict[str, object]:
    """Return an offer as JSON shows it, with the date and source of its prices."""
    source = SOURCES[one.row.service]
    return {
        "name": one.row.name,
        "prices": one.row.prices.model_dump(),
        "retrieval_gib": one.row.retrieval_gib,
        "days_min": one.row.days_min,
        "requests_month": one.requests,
        "stored_month": one.storage,
        "scrub_reads_month": one.reads,
        "date": source.date,
        "source": source.url,
    }


def as_json(plan: Plan) -> dict[str, object]:
    """Return a plan as JSON shows it; requests are per hour, by price class."""
    takes = plan.takes
    rates = ("requests_per_gib", "requests_per_topic_hour", "metadata_writes_per_s")
    return {
        **{name: getattr(plan, name) for name in ("size_bytes", "age_s", "present")},
        **{name: getattr(takes, name) for name in ("segments_per_hour", "durable_s_max")},
        "write_requests": takes.write._asdict(),
        "scrub_requests": takes.scrub._asdict(),
        **{name: getattr(takes, name) for name in rates},
        "written_gib_month": takes.gib_per_hour * MONTH_S / HOUR_S,
        **{name: getattr(takes, name) for name in ("requests_month", "stored_month")},
        **({"mirror_month": plan.copies._asdict()} if plan.copies is not None else {}),
    }
