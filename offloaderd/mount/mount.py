"""A mount: plans for the topics of a bucket, compared with a cluster's metadata, and written into it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from offloaderd.core.aio import each
from offloaderd.core.errors import Archived, BucketMissing, Conflict, CorruptData, InvalidConfig, NotFound
from offloaderd.core.model import TopicName
from offloaderd.core.names.managed_ledgers import system_reason
from offloaderd.format import manifest_bytes
from offloaderd.metadata.committed import CommittedSegment
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.mount.cluster import TargetCluster
from offloaderd.mount.lists import difference, encode_list
from offloaderd.mount.plan import AtGap, MountPlan, plan_mount
from offloaderd.objects.port import ObjectReader
from offloaderd.objects.whole import whole

READY, MOUNTED, BLOCKED = "ready", "mounted", "blocked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A topic before its mount. `why`: what keeps it from being mounted; `content`: its list, if nothing does."""

    plan: MountPlan
    state: str
    why: tuple[str, ...] = ()
    content: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """All chosen topics, and the placeholder of their lists, above every ledger id in the bucket."""

    topics: tuple[Prepared, ...]
    placeholder: int

    @property
    def ready(self) -> list[Prepared]:
        """The topics that are to be written."""
        return [one for one in self.topics if one.state == READY]


async def prepare(
    objects: ObjectReader,
    cluster: TargetCluster,
    maps: Mapping[TopicName, TopicMap],
    chosen: Collection[TopicName],
    *,
    at_gap: AtGap,
    any_retention: bool,
) -> Preparation:
    """Plan the mount of the chosen topics of a bucket, whose maps are all in `maps`.

    Raises InvalidConfig, Conflict or Transient where the cluster takes no topics, and as the stores do.
    """
    await cluster.check()
    newest = max((one.segments[-1].end.ledger_id for one in maps.values() if one.segments), default=0)
    placeholder = await cluster.placeholder(newest)
    namespaces = {f"{topic.tenant}/{topic.namespace}" for topic in chosen}
    hindrances = {} if any_retention else await cluster.namespace_hindrances(namespaces)

    async def one(topic: TopicName) -> Prepared:
        plan = plan_mount(maps[topic], at_gap)
        why = list(_reasons(plan))
        why += [found for found in [hindrances.get(f"{topic.tenant}/{topic.namespace}")] if found]
        try:
            there = await cluster.mounted_as(topic)
        except (Conflict, CorruptData, InvalidConfig) as error:
            why.append(str(error))
        else:
            if there is not None:
                differs = difference(*there, plan)
                return Prepared(plan=plan, state=BLOCKED if differs else MOUNTED, why=(differs,) if differs else ())
        if not why:
            try:
                index_max = await _index_max(objects, plan.ledgers[-1].last)
                content = encode_list(plan, placeholder=placeholder, index_max=index_max)
                return Prepared(plan=plan, state=READY, content=content)
            except (NotFound, CorruptData, Archived) as error:
                why.append(str(error))
        return Prepared(plan=plan, state=BLOCKED, why=tuple(why))

    return Preparation(topics=tuple(await each(sorted(chosen), one)), placeholder=placeholder)


def _reasons(plan: MountPlan) -> list[str]:
    """Return why a topic cannot be mounted as it is, whatever the cluster."""
    if (system := system_reason(plan.topic)) is not None:
        return [f"a topic of Pulsar's own is not mounted: {system}"]
    if not plan.ledgers:
        return ["no ledger of it is in the bucket from its first entry on"]
    if not plan.undecided:
        return []
    missing = [f"entries {gap} are in no readable segment ({gap.why})" for gap in plan.gaps]
    if plan.left_out:
        part, reason = plan.left_out[0]
        missing.append(f"{plan.entries_left_out} entries of the bucket would not come up, first {part.range}: {reason}")
    return [*missing, f"decide with --at-gap {AtGap.SKIP} or --at-gap {AtGap.STOP}"]


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
    written: list[TopicName] = []
    problems: list[str] = []

    async def write(one: Prepared) -> None:
        try:
            await cluster.write(one.plan.topic, one.content)
        except Conflict as error:
            problems.append(str(error))
            return
        written.append(one.plan.topic)
        progress(len(written))

    await each(prepared.ready, write)
    there = [*written, *(one.plan.topic for one in prepared.topics if one.state == MOUNTED)]
    return sorted(written), sorted(problems) + await cluster.write_partitions(there)
