"""`offloaderd mount`: bring topics up in another cluster out of the bucket."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from offloaderd.cli import captures, options, show
from offloaderd.cli.captures import CAPTURE
from offloaderd.cli.options import YES, Parsed
from offloaderd.cli.program import FAILED, OK
from offloaderd.cli.progress import Bars
from offloaderd.cli.settings import CONFIG, settings_at
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Denied, InvalidConfig, InvalidInput
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import DRIVER, Loss, TopicName
from offloaderd.core.names.managed_ledgers import compacted_of
from offloaderd.core.names.patterns import TopicPattern, partitioned_topic
from offloaderd.daemon import log
from offloaderd.daemon.stores import sites
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.mount import mount as work
from offloaderd.mount.captured import Captured
from offloaderd.mount.cluster import TargetCluster, Undone
from offloaderd.mount.mount import BLOCKED, Bucket, Preparation, Prepared
from offloaderd.mount.plan import AtGap
from offloaderd.mount.schemas import SchemaAdmin, restored
from offloaderd.objects.opening import bucket_store
from offloaderd.objects.port import SegmentStore
from offloaderd.protocol.conversion import picked
from offloaderd.upkeep.bucket_topics import BucketTopics

if TYPE_CHECKING:
    from offloaderd.daemon.settings import Settings

PATTERNS = click.argument(
    "patterns", metavar="TOPIC|PATTERN...", nargs=-1, required=True, type=Parsed("pattern", TopicPattern.parse)
)
AT_GAP = click.option(
    "--at-gap",
    type=click.Choice([one.value for one in AtGap]),
    default=AtGap.REFUSE.value,
    show_default=True,
    help="Topics with entries that are missing, or that a list of ledgers cannot name: refuse them, skip these "
    "entries, or stop at the first gap.",
)
ANY_RETENTION = click.option(
    "--any-retention",
    is_flag=True,
    help="Mount also where retention is limited or unknown, or messages expire: brokers may delete them at once.",
)
CLUSTER_HINT = "daemon.cluster has to be the name of the cluster that offloaded it"
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Answer in JSON: one document.")


@click.group()
def mount() -> None:
    """Bring topics up in an empty cluster out of the bucket: their brokers read them under the old message ids.

    The list of ledgers of each topic is written into the cluster's ZooKeeper (bookkeeper.servers), each ledger as one
    that was offloaded and deleted from BookKeeper. Nothing is copied. Brokers need the driver, and a daemon that serves
    the bucket: `offloaderd serve --read-only`, or one with rebuilt metadata. docs/mount.md has the whole way.

    \b
    Examples:
      offloaderd mount raise-ids --config offloaderd.toml
      offloaderd mount plan 'public/default/*' --config offloaderd.toml
      offloaderd mount apply 'public/*' 're:acme/.*/orders-.*' --config offloaderd.toml
      offloaderd mount undo public/default/orders --config offloaderd.toml
    """


@mount.command()
@CONFIG
@AS_JSON
def raise_ids(*, config: Path | None, as_json: bool) -> int:
    """Raise the ids of new ledgers above all of the bucket, for good. The first step, before brokers are started.

    Ledgers that brokers make before that may get ids of ledgers in the bucket, and topics with such ids are not
    mounted. Repeatable; `apply` does it as well.

    \b
    Examples:
      offloaderd mount raise-ids --config offloaderd.toml
    """

    async def raised() -> tuple[int, int, bool]:
        async with AsyncExitStack() as stack:
            opened = await _Opened.on(stack, settings_at(config, None))
            await opened.cluster.check()
            newest = work.newest_ledger(opened.bucket.maps.values())
            placeholder = await opened.cluster.placeholder(newest)
            return newest, placeholder + 1, await opened.cluster.raise_ids(placeholder)

    log.configure("critical")
    newest, first_new, wrote = asyncio.run(raised())
    if as_json:
        show.document({"greatest_ledger_id": newest, "first_new_ledger_id": first_new, "raised": wrote})
    else:
        done = "raised the ids of new ledgers" if wrote else "the ids of new ledgers are raised already"
        click.echo(f"{done}: they begin at {first_new}, and the greatest in the bucket is {newest}")
    return OK


@mount.command()
@PATTERNS
@CONFIG
@AT_GAP
@ANY_RETENTION
@CAPTURE
@AS_JSON
def plan(**arguments: object) -> int:
    """Show which topics would come up, how far, what would not, and why. Nothing is written.

    Exit code 1 when a topic would not be mounted.

    \b
    Examples:
      offloaderd mount plan 'public/default/*' --config offloaderd.toml
      offloaderd mount plan 're:.*' --config offloaderd.toml --json | jq '.topics[] | select(.state == "blocked")'
    """
    return _mounted(write=False, **arguments)  # type: ignore[arg-type] # the options above


@mount.command()
@PATTERNS
@CONFIG
@AT_GAP
@ANY_RETENTION
@CAPTURE
@AS_JSON
def apply(**arguments: object) -> int:
    """Mount the topics that `plan` shows as ready. The same command again continues after an interruption.

    First the ids of new ledgers are raised above all of the bucket, for good. Topics that the cluster has already are
    never touched.

    Exit code 1 when a topic was not mounted.

    \b
    Examples:
      offloaderd mount apply 'public/default/*' --config offloaderd.toml
      offloaderd mount apply acme/eu/orders --at-gap stop --config offloaderd.toml
    """
    return _mounted(write=True, **arguments)  # type: ignore[arg-type] # the options above


@mount.command()
@PATTERNS
@CONFIG
@CAPTURE
@AS_JSON
def schemas(*, patterns: Sequence[TopicPattern], config: Path | None, capture: str, as_json: bool) -> int:
    """Write the captured schemas of mounted topics, once the brokers run: they alone store schemas.

    Goes through the brokers' admin API (pulsar.admin_url, with a token that may write schemas). Each version gets its
    old number, which the messages name. Repeatable. Exit code 1 when a schema was not written.

    \b
    Examples:
      offloaderd mount schemas 'public/default/*' --config offloaderd.toml
    """

    async def written() -> tuple[dict[TopicName, int], dict[TopicName, str]]:
        settings, clock = settings_at(config, None), SystemClock()
        if settings.pulsar.admin_url is None:
            raise InvalidConfig("schemas are written by brokers", hint="set pulsar.admin_url to their web service")
        async with bucket_store(settings.objects, clock) as objects, _cluster(settings) as cluster:
            captured = await _captured(objects, settings, capture)
            if captured is None:
                raise InvalidInput("there is no capture in the bucket, and so no schema", hint="see docs/mount.md")
            mounted = {partitioned_topic(one) or one for one in await cluster.mounted(patterns)}
        async with SchemaAdmin(settings.pulsar.admin_url, settings.pulsar) as admin:
            return await restored(admin, captured, sorted(mounted))

    log.configure("critical")
    counts, problems = asyncio.run(written())
    if as_json:
        rows = [{"topic": str(topic), "versions_written": count} for topic, count in counts.items()]
        show.document({"topics": rows, "problems": {str(topic): why for topic, why in problems.items()}})
    else:
        for topic, why in problems.items():
            click.echo(f"LEFT  {topic}: {why}")
        versions = show.plural(sum(counts.values()), "version")
        click.echo(f"wrote {versions} of the schemas of {show.plural(len(counts), 'topic')}")
    return FAILED if problems else OK


@mount.command()
@PATTERNS
@CONFIG
@YES
@AS_JSON
def undo(*, patterns: Sequence[TopicPattern], config: Path | None, yes: bool, as_json: bool) -> int:
    """Take mounted topics out of the cluster again. The bucket keeps everything.

    A topic that has subscriptions, or that producers have written to, is left as it is. Never delete a mounted topic
    by pulsar-admin instead: its brokers would have its segments deleted as well. The raised ledger ids stay.

    Exit code 1 when a topic was left.

    \b
    Examples:
      offloaderd mount undo public/default/orders --config offloaderd.toml
      offloaderd mount undo 'public/*' --yes --config offloaderd.toml
    """

    async def undone() -> tuple[list[Undone], list[TopicName]]:
        async with _cluster(settings_at(config, None)) as cluster:
            await cluster.check()
            found = [await cluster.plan_undo(topic) for topic in await cluster.mounted(patterns)]
            possible = [one for one in found if not one.why]
            if possible and not yes:
                options.confirm(f"take {show.plural(len(possible), 'topic')} out of the cluster?")
            found = [one if one.why else await cluster.undo(one) for one in found]
            return found, await cluster.undo_partitions(patterns)

    log.configure("critical")
    found, partitioned = asyncio.run(undone())
    left = [one for one in found if one.why]
    if as_json:
        rows = [{**picked(one, "topic", "ledgers", "why"), "undone": not one.why} for one in found]
        show.document({"topics": rows, "partitioned_topics": list(map(str, partitioned))})
    else:
        for one in left:
            click.echo(f"LEFT  {one.topic}: {one.why}")
        counts = show.plural(len(found) - len(left), "topic"), show.plural(len(partitioned), "partitioned topic")
        click.echo(f"took {counts[0]} and {counts[1]} out of the cluster")
    return FAILED if left else OK


@asynccontextmanager
async def _cluster(settings: "Settings") -> AsyncIterator[TargetCluster]:
    """Open the cluster's ZooKeeper with rights to write. Brokers have to be able to change what is written."""
    options_open = settings.metadata.model_copy(update={"acl": "open"})
    ledgers_root, lists_root = settings.bookkeeper.ledgers_root, settings.bookkeeper.managed_ledgers_root
    try:
        async with ZooKeeperStore(settings.cluster_servers, "/", options_open) as store:
            yield TargetCluster(store, ledgers_root=ledgers_root, lists_root=lists_root)
    except Denied as error:
        if "metadata.root" not in error.hint:
            raise  # it is the bucket that refuses
        todo = (
            "give the user of the mount (metadata.username, or its certificate) the right to read everything below "
            f"{ledgers_root}, {lists_root} and /admin, and to create and delete nodes there"
        )
        raise Denied(error.message, hint=todo) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """Both stores of a mount, and the topics of the bucket with their maps."""

    objects: SegmentStore
    cluster: TargetCluster
    topics: BucketTopics
    bucket: Bucket

    @classmethod
    async def on(cls, stack: AsyncExitStack, settings: "Settings") -> Self:
        """Open the stores and list the bucket. Raises InvalidInput for one without topics, and as the stores do."""
        clock = SystemClock()
        objects = await stack.enter_async_context(bucket_store(settings.objects, clock))
        cluster = await stack.enter_async_context(_cluster(settings))
        topics = BucketTopics(objects, sites(settings), listing_s=inf, head_s=inf, clock=clock, metrics=Metrics())
        with Bars() as bars:
            await topics.refresh(bars.counter("segments read"))
        maps = {topic: found for topic in topics.topics if (found := topics.known(topic)) is not None}
        if not maps:
            raise InvalidInput(f"no topic of cluster {settings.daemon.cluster!r} in the bucket", hint=CLUSTER_HINT)
        bucket = Bucket(objects=objects, maps=maps, unread=topics.unread, clock=clock)
        return cls(objects=objects, cluster=cluster, topics=topics, bucket=bucket)


async def _captured(objects: SegmentStore, settings: "Settings", name: str) -> Captured | None:
    capture = await captures.chosen(objects, settings, name)
    return Captured(capture) if capture is not None else None


def _mounted(
    *,
    write: bool,
    patterns: Sequence[TopicPattern],
    config: Path | None,
    at_gap: str,
    any_retention: bool,
    capture: str,
    as_json: bool,
) -> int:
    log.configure("critical")
    clock = SystemClock()
    started = clock.monotonic()

    async def mounted() -> Shown:
        settings = settings_at(config, None)
        written: Collection[TopicName] = ()
        problems: Sequence[str] = ()
        async with AsyncExitStack() as stack:
            opened = await _Opened.on(stack, settings)
            matching = [topic for topic in opened.bucket.maps if any(pattern.matches(topic) for pattern in patterns)]
            named = {topic for topic in matching for pattern in patterns if pattern.topic == topic}
            chosen = [topic for topic in matching if topic in named or compacted_of(topic) is None]
            if not chosen:
                raise InvalidInput(
                    f"no topic of cluster {settings.daemon.cluster!r} in the bucket matches", hint=CLUSTER_HINT
                )
            prepared = await work.prepare(
                opened.bucket,
                opened.cluster,
                chosen,
                at_gap=AtGap(at_gap),
                any_retention=any_retention,
                captured=await _captured(opened.objects, settings, capture),
                named=named,
            )
            if write:
                with Bars() as bars:
                    written, problems = await work.apply(opened.cluster, prepared, bars.counter("topics written"))
        seconds = clock.monotonic() - started
        return Shown(
            prepared=prepared,
            written=set(written),
            problems=problems,
            unread=[one.text for one in opened.topics.problems],
            applied=write,
            seconds=seconds,
        )

    shown = asyncio.run(mounted())
    if as_json:
        show.document(shown.document())
    else:
        shown.write()
    return FAILED if shown.blocked or shown.problems else OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The result, for people and for programs. `problems` are what an operator has to do besides.

    `unread`: what cannot be read in the bucket, and may be of any topic.
    """

    prepared: Preparation
    written: Collection[TopicName]
    problems: Sequence[str]
    unread: Sequence[str]
    applied: bool
    seconds: float

    @property
    def blocked(self) -> list[Prepared]:
        """The topics that are not mounted."""
        return [one for one in self.prepared.topics if one.state == BLOCKED]

    def write(self) -> None:
        """Write the result as text."""
        TABLE.show(map(self._topic, self.prepared.topics))
        click.echo()
        for text in self._notes():
            click.echo(text)
        if self.applied:
            click.echo(f"mounted {show.plural(len(self.written), 'topic')} in {show.age(self.seconds)}")
        elif self.prepared.ready:
            count = show.plural(len(self.prepared.ready), "topic")
            click.echo(f"would mount {count}; nothing was written: offloaderd mount apply does it")

    def _notes(self) -> Iterator[str]:
        """Yield what is to be told beside the table."""
        topics, captured = self.prepared.topics, self.prepared.captured
        yield from (f"BLOCKED  {one.plan.topic}: {why}" for one in self.blocked for why in one.why)
        yield from (f"lost     {one.plan.topic}: {_lost(loss)}" for one in topics for loss in one.plan.losses)
        for one in topics:
            for name, why in one.subscriptions.left_out.items():
                yield f"left out {one.plan.topic}: subscription {name}: {why}"
        yield from (f"UNREAD   {text}" for text in self.unread)
        yield from (f"TO DO    {problem}" for problem in self.problems)
        yield from (f"LATER    {text}" for text in self._later)
        if captured is None:
            yield "no capture: topics come up without subscriptions, properties and partitions that are empty"
            return
        yield from (f"not captured: {text}" for text in captured.problems)
        yield f"capture of {show.moment(captured.taken_ms)}: what was acknowledged later is delivered again"

    @property
    def _later(self) -> list[str]:
        """What is to be done with namespaces: with all whose brokers may lack the driver, and those that are made."""
        driver = [
            f"the policies of {name} do not name the driver: its brokers read what is mounted only if broker.conf "
            f"does, or after pulsar-admin namespaces set-offload-policies {name} --driver {DRIVER}"
            for name in self.prepared.without_driver
        ]
        captured = self.prepared.captured
        if captured is None:
            return driver
        return [*driver, *(text for name in self.prepared.namespaces for text in captured.later(name))]

    def _topic(self, one: Prepared) -> dict[str, object]:
        plan = one.plan
        return {
            "topic": str(plan.topic),
            "state": "written" if plan.topic in self.written else one.state,
            "ledgers": len(plan.ledgers),
            "entries": plan.entries,
            "payload_bytes": plan.size_bytes,
            "begin": str(plan.begin) if plan.begin is not None else None,
            "end": str(plan.end) if plan.end is not None else None,
            "entries_left_out": plan.entries_left_out,
            "subscriptions": len(one.subscriptions.nodes),
        }

    def document(self) -> dict[str, object]:
        """Return the result as JSON shows it."""
        return {
            **picked(self, "applied", "seconds"),
            "topics": [
                {
                    **self._topic(one),
                    "why": list(one.why),
                    "gaps": [str(gap) for gap in one.plan.gaps],
                    "losses": list(map(_lost, one.plan.losses)),
                    "subscriptions_left_out": dict(one.subscriptions.left_out),
                }
                for one in self.prepared.topics
            ],
            "captured_ms": self.prepared.captured.taken_ms if self.prepared.captured is not None else None,
            "namespaces": sorted(self.prepared.namespaces),
            "later": self._later,
            "problems": list(self.problems),
            "unread": list(self.unread),
        }


def _lost(loss: Loss) -> str:
    many = show.plural(loss.entries, "entry", "entries") if loss.certain else "possibly entries"
    return f"{many} after {loss.after} and before {loss.before}, lost before they were offloaded"


TABLE = show.Table[dict[str, object]](
    ("STATE", "state"),
    ("TOPIC", "topic"),
    (">LEDGERS", "ledgers"),
    (">ENTRIES", "entries"),
    (">PAYLOAD", "payload_bytes"),
    ("BEGIN", "begin"),
    ("END", "end"),
    (">LEFT OUT", "entries_left_out"),
    (">SUBSCRIPTIONS", "subscriptions"),
)
