"""Rebuild of the metadata from the buckets alone: read all manifests, plan each topic, write the plans that are not
blocked.

The metadata must be empty. A rebuild may be interrupted: a marker records that it is under way, the same command
continues it, and a topic's policy, by which daemons find it, is its last node. Topics come back disabled, until an
operator has checked them.

Ledgers that brokers have offloaded have no manifest; where segments do not join, or join over a loss, such objects are
searched to fill the gap, by labels, index and last block of each. So entries that were recorded as lost while the
settings named another place come back once they name the right one. No object shows whether a broker refers to it; one
that a failed try left looks the same. So these ledgers only fill gaps and losses, and two copies of one ledger fill
none.

An object in an archive is a problem like a damaged one, so that all of them are named at once. Marks of deleted
ledgers, grants, and ends of ledgers or losses that were found after a topic's last segment are not in a bucket and do
not come back; policies, selections and revocations come out of a capture (package capture).
"""

import hashlib
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

import structlog

from offloaderd.core.aio import each
from offloaderd.core.errors import (
    Archived,
    BucketMissing,
    Conflict,
    CorruptData,
    InvalidInput,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
)
from offloaderd.core.model import OffloadMethod, Position, RefusalKind, TopicName
from offloaderd.format import head, manifest_bytes
from offloaderd.format.head import TopicHead
from offloaderd.format.manifest import Broken, SegmentManifest
from offloaderd.format.manifest_bytes import managed_ledger
from offloaderd.history.adoption import verified_index
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.committed import CommittedSegment, LedgerSlice
from offloaderd.metadata.identity import ensure_deployment
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records import loss as loss_record
from offloaderd.metadata.records import ownership
from offloaderd.metadata.records.identity import Acceptance, Deployment, TopicIdentityRecord, head_evidence
from offloaderd.objects import keys, marker
from offloaderd.objects.keys import ObjectKind
from offloaderd.objects.port import ObjectReader
from offloaderd.objects.whole import apart, whole
from offloaderd.policy.records import TopicPolicy, encode_policy
from offloaderd.upkeep import stored
from offloaderd.upkeep.flaws import Kind
from offloaderd.upkeep.gc.findings import WRITER
from offloaderd.upkeep.rebuild_plan import Known, Problem, TopicPlan, plan_topic, with_copies
from offloaderd.upkeep.stored import Counts, Site, StoredSegment

log = structlog.get_logger(__name__)

TRIES = 5
_BLOCK = struct.Struct(">qqqqI")
OF_ONE_PLACE = frozenset({Kind.UNREADABLE, Kind.INCOMPLETE, Kind.ORPHAN})
"""Problems that do not matter for a segment that is sound in another place."""
INCOMPLETE = frozenset({Kind.GAP, Kind.DOUBT, Kind.FRONT})
"""Problems that a ledger of a broker may solve."""
AUTHOR = "rebuild"
"""Name of the last claimant in the epoch's record."""


@dataclass(slots=True)
class Found:
    """Contents of the buckets."""

    known: list[Known] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    epochs: dict[TopicName, int] = field(default_factory=dict)
    """Epochs of the newest commits, from the heads of the topics."""
    deployments: set[str] = field(default_factory=set)
    """Deployments of those commits, from the same heads."""
    marked: set[str] = field(default_factory=set)
    """Deployments to which the places belong, by their markers: a mirror has those alone."""
    at_heads: dict[TopicName, set[UUID]] = field(default_factory=dict)
    """The segments that the same heads name."""
    brokers: list[Known] = field(default_factory=list)
    """Ledgers that brokers have offloaded, once they were searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plans of all topics, and the problems that concern no single topic."""

    topics: tuple[TopicPlan, ...]
    problems: tuple[Problem, ...]
    deployment_id: str = ""
    """The deployment that committed all of it; empty if no head names exactly one, and without heads no marker."""

    @property
    def blocked(self) -> bool:
        """Whether an operator has to decide before anything may be written."""
        return any(problem.blocks for problem in self.problems)


async def read_buckets(objects: ObjectReader, sites: Sequence[Site], progress: Callable[[int], None]) -> Found:
    """Read every manifest of all sites. `progress` gets the number of segments read."""
    found = Found()
    for site in sites:
        async for batch in stored.batches(objects, site, found.counts):
            found.problems += [_orphan(one) for one in batch if ObjectKind.MANIFEST not in one.objects]
            described = [one for one in batch if ObjectKind.MANIFEST in one.objects]
            for one in await each(described, lambda one: read_sound(objects, site, one)):  # noqa: B023 - awaited here
                if isinstance(one, Known):
                    found.known.append(one)
                else:
                    found.problems.append(one)
            progress(found.counts.segments)
        await _read_heads(objects, site, found)
        await _read_marker(objects, site, found)
    return found


async def _read_marker(objects: ObjectReader, site: Site, found: Found) -> None:
    """Read the marker of a place; one that is damaged or archived says nothing."""
    with suppress(CorruptData, Archived):
        marked = await marker.read(objects.at(site.bucket), site.prefix, site.cluster)
        found.marked |= {marked.marker.deployment_id} if marked is not None else set()


async def read_head(objects: ObjectReader, site: Site, topic: TopicName) -> TopicHead | None:
    """Return a topic's head in a place; None without one, or if it is damaged. Raises Archived, Transient, Denied."""
    key = keys.head(site.prefix, site.cluster, topic.managed_ledger)
    try:
        found = head.decode_head(await objects.at(site.bucket).get(key), key=key)
    except BucketMissing:
        raise
    except (NotFound, CorruptData):
        return None  # of a version without heads, or damaged: the manifests have to do
    return found if found.managed_ledger == topic.managed_ledger else None  # else a long name with the same digest


async def _read_heads(objects: ObjectReader, site: Site, found: Found) -> None:
    """Read the epoch of each topic's last commit: the next owner's has to be above it."""
    topics = sorted({one.topic for one in found.known})

    async def read(topic: TopicName) -> TopicHead | None:
        try:
            return await read_head(objects, site, topic)
        except Archived as error:
            found.problems.append(_archived(f"the head of {topic}", error, topic))
            return None

    for topic, one in zip(topics, await each(topics, read), strict=True):
        if one is not None:
            found.epochs[topic] = max(found.epochs.get(topic, 0), one.epoch)
            found.deployments |= {one.deployment_id} - {""}
            named = {segment.segment_id for segment in (one.newest, one.history) if segment is not None}
            found.at_heads[topic] = found.at_heads.get(topic, set()) | named


async def read_brokers(objects: ObjectReader, sites: Sequence[Site], found: Found) -> None:
    """Search ledgers that brokers have offloaded, of topics whose segments do not join without them or over a loss."""
    plans = make_plan(found).topics
    lacking = (one for one in plans if one.map.losses or any(problem.kind in INCOMPLETE for problem in one.problems))
    incomplete = {one.topic for one in lacking}
    for site in {site.bucket: replace(site, prefix="") for site in sites}.values() if incomplete else ():
        found.brokers += await broker_ledgers(objects, site, incomplete, found.problems)


async def broker_ledgers(
    objects: ObjectReader, site: Site, topics: Collection[TopicName], problems: list[Problem]
) -> list[Known]:
    """Return the ledgers of these topics that brokers have offloaded; unsound ones are logged and left out.

    Reads the labels of every such object of the site, which is a whole bucket. Archived ones are added to `problems`.
    Raises as the listing, Transient, Denied.
    """

    async def look(one: StoredSegment) -> Known | None:
        if not one.may_be_brokers or not {ObjectKind.DATA, ObjectKind.INDEX} <= one.objects.keys():
            return None
        try:
            return await _known_ledger(objects, site, topics, one)
        except BucketMissing:
            raise
        except (CorruptData, NotFound) as error:
            log.warning("rebuild.broker_object_skipped", key=one.keys.data, error=str(error))
            return None
        except Archived as error:
            problems.append(_archived(f"ledger {one.keys.ledger_id} of a broker", error, segment_id=one.segment_id))
            return None

    known: list[Known | None] = []
    async for batch in stored.batches(objects, site, Counts(), with_brokers=True):
        known += await each(batch, look)
    return [one for one in known if one is not None]


async def _known_ledger(
    objects: ObjectReader, site: Site, topics: Collection[TopicName], one: StoredSegment
) -> Known | None:
    """Return a broker's ledger of one of the topics. Raises NotFound, CorruptData."""
    data, objects = one.objects[ObjectKind.DATA], objects.at(site.bucket)
    labels = (await objects.head(data.key)).metadata
    name = labels.get(keys.MANAGED_LEDGER_KEY, "")
    ours = labels.get(keys.SOFTWARE_VERSION_KEY, "").startswith(WRITER)
    if ours or labels.get(keys.CLUSTER_KEY) != site.cluster or one.keys.ledger_id is None:
        return None
    try:
        topic = TopicName.from_managed_ledger(name)
    except InvalidInput:
        return None
    if topic not in topics:
        return None
    index, data_bytes = await verified_index(objects, one.keys, managed_ledger=name)
    ledger = index.ledger()
    segment = CommittedSegment(
        segment_id=one.segment_id,
        slices=(LedgerSlice(one.keys.ledger_id, 0, ledger.lastEntryId, ledger.length),),
        object_bytes=data_bytes,
        assigned_ms=data.modified_ms,
        offloaded_ms=data.modified_ms,
        bucket=site.bucket,
        prefix="",
        method=OffloadMethod.LEDGER_BASED,
        driver=site.broker_driver,
    )
    return Known(topic=topic, segment=segment, epoch=0, closed={one.keys.ledger_id: ledger.lastEntryId + 1})


async def read_sound(objects: ObjectReader, site: Site, one: StoredSegment) -> Known | Problem:
    """Read the manifest of a segment, and compare it with the sizes of the listing."""
    return complete(await read_manifest(objects, site, one), one)


async def read_manifest(objects: ObjectReader, site: Site, one: StoredSegment) -> Known | Problem:
    """Read the manifest of a segment; a problem if it is damaged, gone, archived or of another cluster."""
    key, store = one.objects[ObjectKind.MANIFEST].key, objects.at(site.bucket)
    stored = one.objects.get(ObjectKind.DATA)
    data = b""
    try:
        async with whole(lambda length: store.get(key, 0, length)) as (data,):
            data_bytes = stored.size_bytes if stored is not None else None
            described = await apart(partial(manifest_bytes.decode, key=key, data_bytes=data_bytes), data)
    except BucketMissing:
        raise
    except NotFound:
        return Problem(
            kind=Kind.ORPHAN,
            text=f"segment {one.segment_id} was deleted after it was listed",
            segments=(one.segment_id,),
            what_to_do="nothing, unless a topic has a gap: then run the same command again",
        )
    except CorruptData as error:
        return _unreadable(one, str(error), _suspected_topic(data))
    except Archived as error:
        return _archived(f"segment {one.segment_id}", error, segment_id=one.segment_id)
    topic = TopicName.from_managed_ledger(described.managed_ledger)
    if described.segment_id != one.segment_id:
        return _unreadable(one, f"{key} is the manifest of segment {described.segment_id}", topic)
    if described.cluster != site.cluster:
        text = f"segment {one.segment_id} is of cluster {described.cluster!r}"
        return Problem(kind=Kind.FOREIGN, text=text, segments=(one.segment_id,))
    return known_of(described, topic, bucket=site.bucket, prefix=site.prefix)


def complete(known: Known | Problem, one: StoredSegment) -> Known | Problem:
    """Return a segment whose objects have the sizes that its manifest says; a problem for any other, or as it was."""
    if isinstance(known, Problem):
        return known
    segment = known.segment
    wanted = {ObjectKind.DATA: segment.object_bytes, ObjectKind.INDEX: known.index_bytes}
    for kind, size_bytes in wanted.items():
        info = one.objects.get(kind)
        if info is None or info.size_bytes != size_bytes:
            lack = "missing" if info is None else f"{info.size_bytes} bytes long, not {size_bytes}"
            return Problem(
                kind=Kind.INCOMPLETE,
                text=f"segment {one.segment_id} ({segment.range}): its {kind.value} object is {lack}",
                topic=known.topic,
                segments=(one.segment_id,),
                what_to_do="restore the object, or leave the segment out with --without",
                entries=segment.range,
            )
    return known


def known_of(described: SegmentManifest, topic: TopicName, *, bucket: str, prefix: str) -> Known:
    """Return what a rebuild keeps of a manifest: the segment as a commit would have recorded it."""
    return Known(
        topic=topic,
        segment=CommittedSegment.described(described, bucket=bucket, prefix=prefix),
        epoch=described.epoch,
        losses=described.losses,
        ends=described.ends,
        closed={part.ledger_id: part.ledger_entries for part in described.ledgers if part.closed},
        replaces=frozenset(described.replaces),
        index_bytes=described.index_bytes,
        content=_content(described),
    )


def _content(described: SegmentManifest) -> bytes:
    """Return the digest of the blocks: their entries, lengths and checksums."""
    digest = hashlib.blake2b(digest_size=16)
    for block in described.blocks:
        digest.update(_BLOCK.pack(block.ledger_id, block.first_entry_id, block.entry_count, block.length, block.crc32c))
    return digest.digest()


def make_plan(
    found: Found,
    *,
    prefer: Collection[UUID] = (),
    without: Collection[UUID] = (),
    lost: Collection[Position] = (),
    topics: Collection[TopicName] = (),
) -> Plan:
    """Plan all topics, or those named, by an operator's decisions; behind a position of `lost` a gap is a loss.

    Raises InvalidInput for unknown segments, and for a position at which no segment ends, or behind which nothing is
    missing.
    """
    everything = {one.segment.segment_id for one in [*found.known, *found.brokers]}
    everything |= {segment_id for problem in found.problems for segment_id in problem.segments}
    unknown = sorted(str(segment_id) for segment_id in {*prefer, *without} - everything)
    if unknown:
        raise InvalidInput(f"no segment {unknown[0]} in the bucket", hint="segments are named by their whole uuid")
    ends = {one.segment.end for one in [*found.known, *found.brokers]}
    if nowhere := sorted(set(lost) - ends):
        raise InvalidInput(f"no segment ends at {nowhere[0]}", hint="--lost takes the last position before a gap")
    by_topic: dict[TopicName, list[Known]] = defaultdict(list)
    known, contradictions = with_copies(found.known)
    sound = {one.segment.segment_id for one in known}
    for one in known:
        if one.segment.segment_id not in without:
            by_topic[one.topic].append(one)
    noticed = [*found.problems, *contradictions]
    left = [one for one in noticed if not (one.blocks and one.segments and set(one.segments) <= set(without))]
    left = [_copied(one) if _is_elsewhere(one, sound) else one for one in left]
    own = defaultdict(list)
    for problem in left:
        own[problem.topic if problem.topic in by_topic else None].append(problem)
    missing = sorted(str(topic) for topic in set(topics) - by_topic.keys())
    if missing:
        raise InvalidInput(f"no segment of {missing[0]} in the bucket")
    plans = []
    for topic in sorted(topics or by_topic):
        brokers = [one for one in found.brokers if one.topic == topic and one.segment.segment_id not in without]
        plan = plan_topic(topic, by_topic[topic], prefer=prefer, brokers=brokers, lost=lost)
        problems = (*own[topic], *plan.problems)
        epoch = max(plan.epoch, found.epochs.get(topic, 0))
        left_out = tuple(sorted(found.at_heads.get(topic, set()).intersection(without)))
        plans.append(TopicPlan(map=plan.map, epoch=epoch, problems=problems, left_out=left_out))
    authors = found.deployments or found.marked
    author = "".join(authors) if len(authors) == 1 else ""
    return Plan(topics=tuple(plans), problems=tuple(own[None]), deployment_id=author)


async def check_target(metadata: MetadataStore, topics: Collection[TopicName]) -> None:
    """Raise Conflict if the metadata has one of the named topics; if none is named, has any topic or running daemons.

    Topics that an interrupted rebuild has written do not count. Running daemons would claim half written topics.
    """
    begun = await nodes.node(metadata, paths.REBUILD) is not None
    for topic in () if begun else topics:
        if await metadata.children(paths.topic(topic)):
            raise Conflict(
                f"the metadata knows {topic} already",
                hint=f"a rebuild writes into empty metadata only; move {paths.topic(topic)} away if it is damaged",
            )
    if topics:
        return
    there = (
        "nothing needs a rebuild as long as the metadata is there; for a single topic whose metadata is lost there is "
        "--topic; to have it all a second time, rebuild into another metadata.root"
    )
    checks = (
        (paths.TOPICS, "the metadata is not empty", there),
        (paths.DAEMONS, "daemons are running", "stop them, and start them again when the rebuild is done"),
    )
    for path, what, hint in checks[1:] if begun else checks:
        names = await metadata.children(path)
        if names:
            raise Conflict(f"{what}: {', '.join(names[:3])} below {path}", hint=hint)


async def write(
    metadata: MetadataStore,
    plan: Plan,
    *,
    topics: Collection[TopicName],
    enable: bool,
    now_ms: int,
    progress: Callable[[int], None],
) -> list[TopicName]:
    """Write every topic that is not blocked, and return them. Repeat it with the same arguments after an interruption.

    `topics` are those that were named. Raises Conflict when the target is not empty or has other values than planned; a
    problem that concerns no single topic blocks them all.
    """
    await check_target(metadata, topics)
    ready = [] if plan.blocked else [one for one in plan.topics if not one.blocked]
    if not ready:
        return []
    if await nodes.node(metadata, paths.REBUILD) is None:
        await _put(metadata, paths.REBUILD, str(now_ms).encode())
    done = 0

    async def write_one(one: TopicPlan) -> None:
        nonlocal done
        await _write_topic(metadata, one, enable=enable)
        done += 1
        progress(done)

    if plan.deployment_id:
        same = Deployment(deployment_id=UUID(plan.deployment_id), made_ms=now_ms, made_by=AUTHOR)
        await _continue_deployment(metadata, same, whole=not topics)
    await each(ready, write_one)
    await _announce(metadata)
    await _take_away(metadata, paths.REBUILD)
    return [one.topic for one in ready]


async def _continue_deployment(metadata: MetadataStore, same: Deployment, *, whole: bool) -> None:
    """Give the metadata the id of the deployment that wrote the bucket.

    A daemon that started over empty metadata, which is how the loss is noticed, has made another id. A rebuild of the
    `whole` cluster replaces that id, since no topic existed before.
    """
    found = await nodes.node(metadata, paths.IDENTITY)
    if found is None:
        await ensure_deployment(metadata, same)
    elif whole:
        known = identity_record.decode_deployment(found.value, path=paths.IDENTITY)
        if known.deployment_id != same.deployment_id:
            await metadata.replace(paths.IDENTITY, identity_record.encode_deployment(same), found.version)


async def _write_topic(metadata: MetadataStore, plan: TopicPlan, *, enable: bool) -> None:
    topic = plan.topic
    for folder in paths.folders(topic):
        await _put(metadata, folder, b"")
    wanted = [(plan.map.loss_path(loss), loss_record.encode(loss)) for loss in plan.map.losses]
    contexts = {paths.ledger(topic, ledger_id): stored for ledger_id, stored in plan.map.contexts.items()}
    wanted += [(path, stored.value) for path, stored in contexts.items()]
    last_ms = plan.map.segments[-1].offloaded_ms
    epoch = ownership.Epoch(epoch=plan.epoch, daemon_id=AUTHOR, claimed_ms=last_ms, format=ownership.format_of(topic))
    wanted.append((paths.epoch(topic), ownership.encode_epoch(epoch)))
    if plan.left_out:  # the operator has decided about them: the owner does not refuse what the heads say of them
        accepted = TopicIdentityRecord(accepted=tuple(_accepted(one, last_ms) for one in plan.left_out))
        wanted.append((paths.identity(topic), identity_record.encode(accepted)))
    await each(wanted, lambda node: _put(metadata, *node))
    below = [(f"{path}/{n}", piece.value) for path, stored in contexts.items() for n, piece in stored.pieces.items()]
    await each(below, lambda node: _put(metadata, *node))
    await _put(metadata, paths.policy(topic), encode_policy(TopicPolicy(enabled=enable)))


def _accepted(segment_id: UUID, at_ms: int) -> Acceptance:
    evidence = head_evidence(segment_id)
    return Acceptance(kind=RefusalKind.METADATA_WENT_BACK, evidence=evidence, by=AUTHOR, at_ms=at_ms)


async def _put(metadata: MetadataStore, path: str, value: bytes) -> None:
    """Create a node, or accept the same value from an earlier try. Raises Conflict for another value."""
    for _ in range(TRIES):
        try:
            await metadata.create(path, value)
        except OutcomeUnknown:
            continue
        except Conflict:
            found = (await metadata.get(path)).value
            if found != value:
                raise Conflict(
                    f"{path} holds something else than would be written",
                    hint="an earlier rebuild saw another bucket or had other arguments: empty the metadata first",
                ) from None
        return
    raise _unsettled(path)


async def _announce(metadata: MetadataStore) -> None:
    for _ in range(TRIES):
        node = await metadata.get(paths.TOPICS)
        with suppress(Conflict, OutcomeUnknown):
            await metadata.replace(paths.TOPICS, node.value, node.version)
            return


async def _take_away(metadata: MetadataStore, path: str) -> None:
    """Delete a node, or accept that an earlier try has."""
    for _ in range(TRIES):
        with suppress(OutcomeUnknown):
            with suppress(NotFound):
                await metadata.delete(path)
            return
    raise _unsettled(path)


def _unsettled(path: str) -> OffloaderError:
    return OffloaderError(f"the answers to writing {path} were lost {TRIES} times", hint="run the same command again")


def _is_elsewhere(problem: Problem, sound: Collection[UUID]) -> bool:
    """Whether a problem of one place does not matter, as the segment is among those that are sound in another."""
    return problem.kind in OF_ONE_PLACE and bool(problem.segments) and set(problem.segments) <= set(sound)


def _copied(problem: Problem) -> Problem:
    """Return a problem of a segment in one place that is sound in another, which does for a rebuild."""
    return replace(
        problem,
        kind=Kind.DAMAGED_COPY,
        text=f"{problem.text}; it is sound in another place",
        what_to_do="nothing: the rebuild takes it from the other place",
    )


def _orphan(one: StoredSegment) -> Problem:
    kinds = " and ".join(kind.value for kind in one.objects)
    return Problem(
        kind=Kind.ORPHAN,
        text=f"segment {one.segment_id} has {kinds} and no manifest: it was never finished, or its manifest is lost",
        segments=(one.segment_id,),
        what_to_do="offloadctl gc deletes it, unless a gap shows that it was part of a topic",
    )


def _unreadable(one: StoredSegment, why: str, topic: TopicName | None) -> Problem:
    return Problem(
        kind=Kind.UNREADABLE,
        text=f"segment {one.segment_id}: {why}",
        topic=topic,
        segments=(one.segment_id,),
        what_to_do="restore its manifest, or leave the segment out with --without",
    )


def _archived(what: str, error: Archived, topic: TopicName | None = None, segment_id: UUID | None = None) -> Problem:
    """Return the problem of an object that nobody can read before it is restored."""
    leave_out = "; or leave the segment out with --without" if segment_id is not None else ""
    return Problem(
        kind=Kind.UNREADABLE,
        text=f"{what}: {error.message}",
        topic=topic,
        segments=(segment_id,) if segment_id is not None else (),
        what_to_do=f"{error.hint}: then run the same command again{leave_out}",
    )


def _suspected_topic(data: bytes) -> TopicName | None:
    """Guess the topic of a damaged manifest; used only to block one topic instead of all."""
    try:
        return TopicName.from_managed_ledger(managed_ledger(memoryview(data)[manifest_bytes.HEADER.size :]))
    except (Broken, InvalidInput):
        return None
