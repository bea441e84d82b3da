"""A mount: plans for the topics of a bucket, compared with a cluster's metadata, and written into it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from offloaderd.core.aio import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import (
    Archived,
    BucketMissing,
    Conflict,
    CorruptData,
    InvalidConfig,
    InvalidInput,
    NoSpace,
    NotFound,
)
from offloaderd.core.model import TopicName
from offloaderd.core.names.managed_ledgers import system_reason
from offloaderd.core.retry import retried
from offloaderd.core.units import plural
from offloaderd.format import manifest_bytes
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.mount.captured import NONE, Captured, Subscriptions
from offloaderd.mount.cluster import TargetCluster, names_driver
from offloaderd.mount.lists import difference, encode_list
from offloaderd.mount.plan import AtGap, MountPlan, plan_mount
from offloaderd.objects.port import ObjectReader
from offloaderd.objects.whole import whole

BY_NAME = ("__change_events", "__transaction_buffer_snapshot")
"""Begins of the names of Pulsar's own topics that hold what users need: policies of topics, aborted transactions."""
READY, MOUNTED, BLOCKED = "ready", "mounted", "blocked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A topic before its mount. `why`: what keeps it from being mounted; `content`: its list, if nothing does."""

    plan: MountPlan
    state: str
    why: tuple[str, ...] = ()
    content: bytes = b""
    subscriptions: Subscriptions = NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """All chosen topics, and the placeholder of their lists, above every ledger id in the bucket.

    `namespaces` are those that are to be made, each with the nodes of its tenant and of its policies; the policies of
    `without_driver` do not name the driver.
    """

    topics: tuple[Prepared, ...]
    placeholder: int
    captured: Captured | None = None
    namespaces: Mapping[str, tuple[bytes, bytes]] = field(default_factory=dict)
    without_driver: Sequence[str] = ()

    @property
    def ready(self) -> list[Prepared]:
        """The topics that are to be written."""
        return [one for one in self.topics if one.state == READY]


def newest_ledger(maps: Iterable[TopicMap]) -> int:
    """Return the greatest ledger id of these topics; 0 without any."""
    return max((one.segments[-1].end.ledger_id for one in maps if one.segments), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What a mount reads: objects, and the maps of all their topics.

    `unread` returns segments of a topic that cannot be read, and that may be anywhere in it (`BucketTopics.unread`).
    """

    objects: ObjectReader
    maps: Mapping[TopicName, TopicMap]
    unread: Callable[[TopicName], Sequence[str]]
    clock: Clock


async def prepare(
    bucket: Bucket,
    cluster: TargetCluster,
    chosen: Collection[TopicName],
    *,
    at_gap: AtGap,
    any_retention: bool,
    captured: Captured | None = None,
    named: Collection[TopicName] = (),
) -> Preparation:
    """Plan the mount of chosen topics of a bucket, with what a capture has of them.

    Of Pulsar's own topics only those of BY_NAME are mounted, where they are `named`.
    Raises InvalidConfig, Conflict or Transient where the cluster takes no topics, and as the stores do.
    """
    await cluster.check()
    placeholder = await cluster.placeholder(newest_ledger(bucket.maps.values()))
    plans = {topic: plan_mount(bucket.maps[topic], at_gap) for topic in chosen}
    in_use = await _in_use(cluster, plans.values())
    names = {f"{topic.tenant}/{topic.namespace}" for topic in chosen}
    namespaces = await _namespaces(cluster, names, captured) if captured is not None else {}
    hindrances = {} if any_retention else await cluster.namespace_hindrances(names - namespaces.keys())

    async def one(topic: TopicName) -> Prepared:
        plan = plans[topic]
        unread = bucket.unread(topic) if at_gap is AtGap.REFUSE else ()
        why = [*_reasons(plan, unread, is_named=topic in named), *_clashes(plan, in_use)]
        why += [found for found in [hindrances.get(f"{topic.tenant}/{topic.namespace}")] if found]
        try:
            there = await cluster.mounted_as(topic)
        except (Conflict, CorruptData, InvalidConfig) as error:
            why.append(str(error))
        else:
            if there is not None:
                why = [found for found in [difference(*there, plan)] if found] + _clashes(plan, in_use)
                return Prepared(plan=plan, state=BLOCKED if why else MOUNTED, why=tuple(why))
        if not why:
            try:
                read_index = partial(_index_max, bucket.objects, plan.ledgers[-1].last)
                index_max = await retried(read_index, clock=bucket.clock)
                properties = captured.properties(topic) if captured is not None else {}
                content = encode_list(plan, placeholder=placeholder, index_max=index_max, properties=properties)
                subscriptions = captured.subscriptions(plan) if captured is not None else NONE
                return Prepared(plan=plan, state=READY, content=content, subscriptions=subscriptions)
            except (NotFound, CorruptData, Archived) as error:
                why.append(str(error))
        return Prepared(plan=plan, state=BLOCKED, why=tuple(why))

    topics = tuple(await each(sorted(chosen), one))
    there = await cluster.without_driver(names - namespaces.keys())
    made = [name for name, (_, policies) in namespaces.items() if not names_driver(policies)]
    return Preparation(
        topics=topics,
        placeholder=placeholder,
        captured=captured,
        namespaces=namespaces,
        without_driver=sorted([*there, *made]),
    )


async def _namespaces(
    cluster: TargetCluster, names: Iterable[str], captured: Captured
) -> dict[str, tuple[bytes, bytes]]:
    """Return the captured namespaces that the cluster lacks, each with the nodes of its tenant and of its policies.

    None where it knows several clusters: which of them it is itself is not in its metadata.
    """
    missing = [name for name in await cluster.namespaces_to_make(names) if name in captured.namespaces]
    clusters = await cluster.clusters() if missing else []
    if len(clusters) != 1:
        return {}
    (here,) = clusters
    return {name: (captured.tenant(name.partition("/")[0], here), captured.policies(name, here)) for name in missing}


def own_reason(topic: TopicName, *, is_named: bool) -> str:
    """Return why a topic of Pulsar's own is not mounted; empty for one that is, and for users' topics."""
    system = system_reason(topic)
    if system is None or (is_named and topic.local.startswith(BY_NAME)):
        return ""
    if topic.local.startswith(BY_NAME):
        return f"a topic of Pulsar's own is mounted only where it is named: {system}"
    return f"a topic of Pulsar's own is not mounted: {system}"


def _reasons(plan: MountPlan, unread: Sequence[str], *, is_named: bool) -> list[str]:
    """Return why a topic cannot be mounted as it is, whatever the cluster. Reasons of gaps name what is `unread`."""
    if own := own_reason(plan.topic, is_named=is_named):
        return [own]
    gaps = [f"entries {gap} are in no readable segment ({gap.why})" for gap in plan.gaps]
    if not plan.ledgers:
        return ["no ledger of it is in the bucket from its first entry on", *gaps]
    missing = gaps if plan.undecided else []
    if plan.undecided and plan.left_out:
        part, reason = plan.left_out[0]
        missing.append(f"{plan.entries_left_out} entries of the bucket would not come up, first {part.range}: {reason}")
    if not plan.gaps:
        missing += [f"its newest entries may be missing: {text}" for text in unread]
    return [*missing, f"decide with --at-gap {AtGap.SKIP} or --at-gap {AtGap.STOP}"] if missing else []


async def _in_use(cluster: TargetCluster, plans: Collection[MountPlan]) -> set[int]:
    return await cluster.ids_in_use(ledger.ledger_id for plan in plans for ledger in plan.ledgers)


def _clashes(plan: MountPlan, in_use: Collection[int]) -> list[str]:
    """Return why a topic must not have its ledgers here: BookKeeper has others of their ids.

    Brokers delete each ledger of a topic by its number alone. Whether one that survived is the same ledger cannot be
    seen here; if it is, to delete it with the topic may be as wrong.
    """
    found = [one.ledger_id for one in plan.ledgers if one.ledger_id in in_use]
    if not found:
        return []
    return [
        f"BookKeeper here has {len(found)} of its {len(plan.ledgers)} ledger ids in use, first {found[0]}: brokers "
        "that delete the topic would delete these ledgers, whatever is in them. Delete the topics that they are of, or "
        "mount into a cluster whose ids were raised before its brokers were started: offloaderd mount raise-ids"
    ]


async def _index_max(objects: ObjectReader, segment: CommittedSegment) -> int | None:
    """Return the greatest message index up to the end of a segment, by its manifest; None if no entry has one.

    Raises NotFound, CorruptData or Archived if no copy of the manifest can be read, and as the store does.
    """
    if segment.foreign:
        return None  # a broker's own object has no manifest
    failure: NotFound | CorruptData | Archived | None = None
    for one in segment.each_place:
        store, key = objects.at(one.bucket), one.keys.manifest
        try:
            async with whole(partial(store.get, key, 0)) as (data,):
                found = manifest_bytes.decode(data, key=key, data_bytes=segment.object_bytes)
        except BucketMissing:
            raise
        except (NotFound, CorruptData, Archived) as error:
            failure = error
            continue
        known = [found.past.index_max if found.past is not None else None]
        known += [block.last_index if block.survey is None else block.survey.index_max for block in found.blocks]
        return max((index for index in known if index is not None), default=None)
    assert failure is not None  # noqa: S101 - a segment has a place
    raise failure


async def apply(
    cluster: TargetCluster, prepared: Preparation, progress: Callable[[int], None]
) -> tuple[list[TopicName], list[str]]:
    """Write what is ready; return the topics written, and what is left to do for others.

    May be repeated after an interruption. Raises Transient and Denied as the metadata store does.
    """
    if prepared.ready:
        await cluster.raise_ids(prepared.placeholder)
    in_use = await _in_use(cluster, [one.plan for one in prepared.ready])  # made until the ids were raised
    written: list[TopicName] = []
    problems: list[str] = []
    others = set()
    for name, (tenant, policies) in prepared.namespaces.items() if prepared.ready else ():
        if not await cluster.make_namespace(name, tenant, policies):
            others.add(name)

    async def write(one: Prepared) -> None:
        namespace = f"{one.plan.topic.tenant}/{one.plan.topic.namespace}"
        if namespace in others:  # its retention has not been looked at
            problems.append(f"{one.plan.topic}: {namespace} was made by others meanwhile: repeat the command")
            return
        if clashes := _clashes(one.plan, in_use):
            problems.extend(f"{one.plan.topic}: {why}" for why in clashes)
            return
        try:
            await cluster.write(one.plan.topic, one.content, one.subscriptions.nodes)
        except (Conflict, InvalidInput, NoSpace) as error:
            ledgers = plural(len(one.plan.ledgers), "ledger")
            problems.append(f"{one.plan.topic}: its list of {ledgers} is not written: {error.message}")
            return
        written.append(one.plan.topic)
        progress(len(written))

    await each(prepared.ready, write)
    there = [*written, *(one.plan.topic for one in prepared.topics if one.state == MOUNTED)]
    counted = prepared.captured.partitions if prepared.captured is not None else lambda _: 0
    return sorted(written), sorted(problems) + await cluster.write_partitions(there, counted)
