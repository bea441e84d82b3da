"""Policies and selections in the metadata store: read, decide, write.

Rules: each decision is written by compare-and-set; what another daemon changed meanwhile is read and decided again.
Each transaction raises the counter on the folder's root, by which all daemons see the change, so that a crash hides
none. Policies of many topics are written in transactions of bounded size.
"""

from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import structlog

from offloaderd.core.aio import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, CorruptData, InvalidInput, NewerRecord, NotFound, Transient
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.core.retry import Backoff
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import Create, Delete, MetadataStore, Replace, Step
from offloaderd.metadata.records import codec
from offloaderd.policy import records
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.records import LevelPolicy, Selection, TopicPolicy
from offloaderd.policy.resolver import Namespace, node_of, spelled
from offloaderd.policy.selection import check_room

Decide = Callable[[TopicName, TopicPolicy | CorruptData | None], TopicPolicy | None]
"""Returns a topic's new policy, given the present one (None: without); None: no change."""

T = TypeVar("T")
log = structlog.get_logger(__name__)

BATCH_TOPICS = 100
"""Topics in one transaction: with their folders some 100 kB, a tenth of ZooKeeper's limit."""
TRIES = 20


class _Written(NamedTuple):
    """The stored policy of a topic, the decided one, and the steps between them."""

    current: TopicPolicy | CorruptData | None
    wanted: TopicPolicy | None
    steps: Sequence[Step]


async def write(
    store: MetadataStore, clock: Clock, topics: Sequence[TopicName], decide: Decide, *, known: Container[TopicName]
) -> dict[TopicName, TopicPolicy]:
    """Give topics the policies of `decide`; return those that are stored now, by this call or another daemon's.

    Topics that are not `known` are assumed to have none, and read only when that proves wrong. Raises Transient when
    the store does not accept them for long; written policies stay, and the same call again does the rest.
    """
    written: dict[TopicName, TopicPolicy] = {}
    for first in range(0, len(topics), BATCH_TOPICS):
        batch = topics[first : first + BATCH_TOPICS]
        written |= await _write_batch(store, clock, batch, decide, {topic for topic in batch if topic not in known})
    return written


async def read(store: MetadataStore, topics: Sequence[TopicName]) -> dict[TopicName, TopicPolicy | CorruptData]:
    """Return the policies of some topics, of those that have one; one that cannot be read is its error."""

    same: dict[bytes, TopicPolicy] = {}  # topics of one pattern have one policy, and there are thousands of them

    async def ask(topic: TopicName) -> TopicPolicy | CorruptData | None:
        path = paths.policy(topic)
        found = await nodes.node(store, path)
        if found is None:
            return None
        if found.value not in same:
            try:
                same[found.value] = records.decode_policy(found.value, path=path)
            except CorruptData as error:
                return error
        return same[found.value]

    found = await each(topics, ask)
    return {topic: one for topic, one in zip(topics, found, strict=True) if one is not None}


async def topics_with_nodes(store: MetadataStore) -> list[TopicName]:
    """Return every topic that has nodes; most have a policy."""
    topics = []
    for folder in await nodes.topic_folders(store):
        try:
            topics.append(paths.parse_topic(folder))
        except InvalidInput:
            log.warning("metadata.foreign_node", path=folder, hint="no topic has this name; delete the node")
    return topics


async def topic_policies(store: MetadataStore) -> dict[TopicName, TopicPolicy | CorruptData]:
    """Return every topic with a policy, enabled or not; one that cannot be read is its error."""
    return await read(store, await topics_with_nodes(store))


async def enabled_topics(store: MetadataStore) -> list[TopicName]:
    """Return the topics whose policy is active, in order; damaged policies are left out."""
    policies = await topic_policies(store)
    return sorted(topic for topic, found in policies.items() if isinstance(found, TopicPolicy) and found.active)


async def selections(store: MetadataStore) -> dict[str, Selection | CorruptData]:
    """Return all selections by their pattern; one that cannot be read is its error."""
    names = await store.children(paths.SELECTIONS)

    async def read(name: str) -> Selection | CorruptData | None:
        path = f"{paths.SELECTIONS}/{name}"
        try:
            return await nodes.record(store, path, records.decode_selection)
        except CorruptData as error:
            log.error("selection.corrupt", path=path, error=str(error), hint="enable the pattern again")  # noqa: TRY400
            return error

    found = await each(names, read)
    return {paths.selected_pattern(name): one for name, one in zip(names, found, strict=True) if one is not None}


async def put(store: MetadataStore, clock: Clock, selection: Selection, *, expressions_max: int | None = None) -> None:
    """Store a selection, in place of one with the same pattern. Raises Conflict as `check_room` does, Transient."""
    path = paths.selection(selection.pattern.text)
    value = records.encode_selection(selection)

    async def attempt() -> Conflict | None:
        await ensure(store, paths.SELECTIONS)
        counter = await store.get(paths.SELECTIONS)
        if expressions_max is not None:
            names = await store.children(paths.SELECTIONS)
            try:
                check_room(map(paths.selected_pattern, names), selection.pattern, expressions_max)
            except Conflict as error:
                return error  # no reason to try again
        step = await _put(store, path, value, records.decode_selection)
        await store.transact([step, Replace(paths.SELECTIONS, b"", counter.version)])
        return None

    if refused := await _until_written(clock, f"the selection {selection.pattern}", attempt):
        raise refused


async def _put(store: MetadataStore, path: str, value: bytes, decode: Callable[..., object]) -> Step:
    """Return the step that creates or replaces a record. Raises NewerRecord for one of a later release."""
    try:
        found = await store.get(path)
    except NotFound:
        return Create(path, value)
    codec.unless_newer(decode, found.value, path)
    return Replace(path, value, found.version)


async def remove(store: MetadataStore, clock: Clock, pattern: TopicPattern) -> None:
    """Remove a selection; a missing one is no error. Raises Transient."""
    path = paths.selection(pattern.text)

    async def attempt() -> None:
        with suppress(NotFound):
            await store.delete(path)

    await _until_written(clock, f"the selection {pattern}", attempt)


async def put_level(store: MetadataStore, clock: Clock, where: Namespace | None, policies: OffloadPolicies) -> None:
    """Replace the policies of a namespace, or of the broker (None). Raises Transient."""
    value, what = records.encode_level(LevelPolicy(policies, clock.wall_ms())), f"the policy of {_level_name(where)}"
    await put_counted(store, clock, paths.POLICIES, node_of(where), value, records.decode_level, what)


async def remove_level(store: MetadataStore, clock: Clock, where: Namespace | None) -> None:
    """Remove the policies of a namespace, or of the broker (None). Raises NotFound without any, Transient."""
    what = f"the removal of the policy of {_level_name(where)}"
    await remove_counted(store, clock, paths.POLICIES, node_of(where), what)


async def put_counted(
    store: MetadataStore,
    clock: Clock,
    counter: str,
    path: str,
    value: bytes,
    decode: Callable[..., object],
    what: str,
) -> None:
    """Create or replace a node below `counter`, and move that one's version. Raises NewerRecord, Transient."""

    async def attempt() -> None:
        await ensure(store, path.rpartition("/")[0])
        seen = await store.get(counter)
        await store.transact([await _put(store, path, value, decode), Replace(counter, b"", seen.version)])

    await _until_written(clock, what, attempt)


async def remove_counted(store: MetadataStore, clock: Clock, counter: str, path: str, what: str) -> None:
    """Delete a node below `counter`, and move that one's version. Raises NotFound without a node, Transient."""
    await store.get(path)

    async def attempt() -> None:
        seen = await store.get(counter)
        try:
            version = (await store.get(path)).version
        except NotFound:
            return  # an earlier try, or another daemon, has removed it
        await store.transact([Delete(path, version), Replace(counter, b"", seen.version)])

    await _until_written(clock, what, attempt)


def _level_name(where: Namespace | None) -> str:
    return "the broker" if where is None else f"namespace {spelled(where)}"


async def ensure(store: MetadataStore, path: str) -> None:
    """Create an empty node, with those above it, unless it exists."""
    with suppress(Conflict):
        await store.create(path, b"")


async def _until_written(clock: Clock, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try again while others write the same, or the store does not answer. Raises Transient after TRIES."""
    backoff = Backoff(clock)
    failure: Exception | None = None
    for _ in range(TRIES):
        try:
            return await attempt()
        except (Conflict, NotFound, Transient) as error:
            failure = error
            await backoff.wait(error)
    raise Transient(f"{what} could not be written: {failure}", hint="try again; ZooKeeper is busy or away")


async def _write_batch(
    store: MetadataStore, clock: Clock, topics: Sequence[TopicName], decide: Decide, new: set[TopicName]
) -> dict[TopicName, TopicPolicy]:
    asked: dict[TopicName, TopicPolicy] = {}
    """The content of transactions with an unknown outcome, or a conflict."""

    async def attempt() -> dict[TopicName, TopicPolicy]:
        await ensure(store, paths.TOPICS)
        await each(sorted(set(map(paths.namespace, topics))), lambda folder: ensure(store, folder))
        counter = await store.get(paths.TOPICS)
        assumed = frozenset(new)
        new.clear()  # next time they are read
        current = await each(topics, lambda topic: _decided(store, topic, decide, new=topic in assumed))
        found = dict(zip(topics, current, strict=True))
        done = {topic: policy for topic, policy in asked.items() if found[topic].current == policy}
        wanted = {topic: one.wanted for topic, one in found.items() if one.wanted is not None}
        if wanted:
            asked.update(wanted)
            steps = [step for one in found.values() for step in one.steps]
            await store.transact([*steps, Replace(paths.TOPICS, b"", counter.version)])
        return done | wanted

    if new:
        with suppress(Conflict, NotFound, Transient):  # a try on an assumption: its failure is no reason to wait
            return await attempt()
    return await _until_written(clock, f"the policies of {len(topics)} topics", attempt)


async def _decided(store: MetadataStore, topic: TopicName, decide: Decide, *, new: bool) -> _Written:
    """Return the steps from a topic's policy to the decided one; one that is `new` is assumed to have none."""
    path = paths.policy(topic)
    try:
        node = None if new else await store.get(path)
    except NotFound:
        node = None
    if node is None:
        wanted = decide(topic, None)
        if wanted is None:
            return _Written(None, None, [])
        folders = paths.folders(topic) if new else await _missing_folders(store, topic)
        return _Written(
            None, wanted, [*(Create(one, b"") for one in folders), Create(path, records.encode_policy(wanted))]
        )
    current: TopicPolicy | CorruptData
    try:
        current = records.decode_policy(node.value, path=path)
    except CorruptData as error:
        current = error
    wanted = decide(topic, current)
    if wanted is not None and isinstance(current, NewerRecord):
        raise current
    if wanted is None or wanted == current:
        return _Written(current, None, [])
    return _Written(current, wanted, [Replace(path, records.encode_policy(wanted), node.version)])


async def _missing_folders(store: MetadataStore, topic: TopicName) -> Sequence[str]:
    home, *below = paths.folders(topic)
    try:
        await store.get(home)
    except NotFound:
        return home, *below
    present = {f"{home}/{name}" for name in await store.children(home)}
    return [folder for folder in below if folder not in present]
