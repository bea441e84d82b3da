"""Checks of ZooKeeper: its servers, a session, and the rights below the root of the daemon.

The probe is one ephemeral node `<metadata.root>/<cluster>/doctor-<id>`, which goes with the session at the latest;
nodes above it that were made for it are deleted again.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import cast

from offloaderd.core.aio import Group, each
from offloaderd.core.errors import Conflict, CorruptData, Denied, NotFound
from offloaderd.core.model import TopicName
from offloaderd.core.units import abridged
from offloaderd.daemon.doctor.cluster import bookie_checks, cluster_checks
from offloaderd.daemon.doctor.finding import Case, CheckResult, Finding, Reading, fail, ok, skipped, warn
from offloaderd.daemon.settings import Settings
from offloaderd.metadata import identity, paths
from offloaderd.metadata.port import Check, MetadataStore, Replace, Versioned
from offloaderd.metadata.records.identity import hint
from offloaderd.metadata.topic_map import map as catalog
from offloaderd.metadata.topic_map.unnamed import WHAT_TO_DO, UnnamedPlace, described, unnamed_places
from offloaderd.metadata.zookeeper.store import ZooKeeperStore
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.policy.selection import Policies
from offloaderd.policy.store import topic_policies, topics_with_nodes

ANSWER_S = 5.0
CONNECT_S = 10.0
FOUR_LETTERS = b"srvr"
ANSWER_BYTES_MAX = 4096


async def zookeeper_checks(case: Case) -> AsyncGenerator[CheckResult, None]:
    """Try the metadata store, and look at the cluster's own nodes where its ledgers are to be read."""
    metadata, cluster = case.settings.metadata, case.settings.cluster_servers
    follows = case.settings.ledgers.kind == "bookkeeper"
    async with AsyncExitStack() as stack:
        opened = _Opened(case, stack, metadata.servers)
        async for result in opened.checks("zookeeper"):
            yield result
        for name, check in (("zookeeper rights", rights), ("zookeeper topics", own_topics)):
            if opened.store is None:
                yield skipped(name, "no session")
            else:
                yield await case.check(name, check(case, opened.store))
        if opened.store is not None and case.knows_topics:
            yield await case.check("zookeeper identity", refusals(case, opened.store))
            yield await case.check("places of segments", places_of_segments(case, opened.store))
        if follows and cluster != metadata.servers:
            opened = _Opened(case, stack, cluster)
            async for result in opened.checks("cluster zookeeper"):
                yield result
        if follows:
            for group in (cluster_checks, bookie_checks):
                async for result in group(case, opened.store):
                    yield result


FIRST_NAMED = 3
MAPS_S = 8.0
"""How long maps of topics are read: less than a check may take."""


@dataclass(frozen=True, slots=True)
class _Below:
    """The reads of a store below a path; opening that path as the root would create it."""

    store: MetadataStore
    home: str

    async def get(self, path: str) -> Versioned:
        return await self.store.get(self.home + path)

    async def children(self, path: str) -> Sequence[str]:
        return await self.store.children(self.home + path)


async def refusals(case: Case, store: MetadataStore) -> Finding:
    """Find the deployment, and check that no topic of it has a refusal."""
    below = cast("MetadataStore", _Below(store, case.home))
    found = await identity.deployment(below)
    case.deployment_id = str(found.deployment_id) if found is not None else ""
    policies = await topic_policies(below)
    topics = sorted(policies)
    case.open_s_max = await _longest(below, policies)

    async def refused(topic: TopicName) -> list[str]:
        try:
            return [one.kind for one in (await identity.load(below, topic)).record.refusals]
        except CorruptData:
            return ["unreadable"]

    kinds = dict(zip(topics, await each(topics, refused), strict=True))
    told = [f"{topic}: {', '.join(what)}" for topic, what in kinds.items() if what]
    if told:
        kind = next(what[0] for what in kinds.values() if what)
        return fail(f"nothing of these is deleted or granted: {'; '.join(abridged(told, FIRST_NAMED))}", hint(kind))
    return ok(f"deployment {case.deployment_id or 'without an id'}; nothing is refused of {len(topics)} topics")


async def places_of_segments(case: Case, store: MetadataStore) -> Finding:
    """Check that the settings name the places of all segments: of the daemon's topics, as it has counted them; without
    a daemon of all topics whose maps are read within MAPS_S.
    """
    found, of = case.unnamed, "of this daemon's topics"
    if found is None:
        found, read, topics = await _read_places(case, cast("MetadataStore", _Below(store, case.home)))
        of = "of all topics" if read == topics else f"of the first {read:,} of {topics:,} topics"
    if not found:
        return ok(f"the settings name the places of all segments {of}")
    told = f"{of}: {'; '.join(described(found))}"
    lost = any(row.only_segments for rows in found.values() for row in rows)
    return (fail if lost else warn)(told, WHAT_TO_DO)


async def _read_places(case: Case, store: MetadataStore) -> tuple[Mapping[TopicName, Sequence[UnnamedPlace]], int, int]:
    """Read maps of topics for MAPS_S; return the unnamed places by topic, and the number of topics read and in all."""
    buckets = case.settings.objects.all_places.buckets
    topics = sorted(await topics_with_nodes(store))
    found, until_s, read = {}, case.clock.monotonic() + MAPS_S, 0
    while read < len(topics) and (not read or case.clock.monotonic() < until_s):
        topic, read = topics[read], read + 1
        try:
            rows = unnamed_places((await catalog.load(store, topic)).segments, buckets)
        except CorruptData:
            continue  # a daemon that claims it says so
        if rows:
            found[topic] = rows
    return found, read, len(topics)


async def _longest(store: MetadataStore, policies: Policies) -> float:
    """Return how long any policy lets a segment be open, in seconds; 0 if none says it."""
    book = PolicyResolver(store)
    await book.load()
    topics = [one for one in policies.values() if isinstance(one, TopicPolicy)]
    levels = [book.broker, *book.namespaces.values(), *topics]
    return max((max(one.segment_age_max_s or 0.0, one.segment_age_min_s or 0.0) for one in levels), default=0.0)


async def own_topics(case: Case, store: MetadataStore) -> Finding:
    """See whether the daemon's own nodes know any topic; what the bucket says to that is asked there."""
    home = f"{case.home}{paths.TOPICS}"
    try:
        tenants = await store.children(home)
    except Denied as error:
        return warn(f"{home} cannot be listed: {error.message}", "see zookeeper rights")
    case.knows_topics = bool(tenants)
    return ok(f"{home} has topics of {len(tenants)} tenants" if tenants else f"no topic below {home}")


@dataclass(slots=True)
class _Opened:
    """A session with one ensemble, if there can be one."""

    case: Case
    stack: AsyncExitStack
    servers: str
    store: ZooKeeperStore | None = None

    async def checks(self, name: str) -> AsyncGenerator[CheckResult, None]:
        """Look for the servers, and open a session if there is one."""
        answering = await self.case.check(f"{name} servers", servers_answer(self.servers))
        yield answering
        if answering.failed:
            yield skipped(f"{name} session", "no server answers")
        else:
            yield await self.case.check(f"{name} session", self._session())

    async def _session(self) -> Finding:
        self.store = await self.stack.enter_async_context(open_store(self.case.settings, self.servers))
        return ok(f"session {(await self.store.session()).session_id}")


def open_store(settings: Settings, servers: str) -> ZooKeeperStore:
    """Return a store with the root "/"; the root of the daemon would be created."""
    options = settings.metadata
    quick = options.model_copy(update={"connect_timeout_s": min(CONNECT_S, options.connect_timeout_s)})
    return ZooKeeperStore(servers, "/", quick)


async def servers_answer(servers: str) -> Finding:
    """Connect to each server of a list and read its mode and version."""
    addresses = servers.split(",")
    answers: dict[str, str] = {}
    failure: dict[str, str] = {}

    async def ask(address: str) -> None:
        try:
            answers[address] = await _mode(address)
        except TimeoutError:
            failure[address] = f"no answer within {ANSWER_S:g} s"
        except OSError as error:
            failure[address] = os.strerror(error.errno) if error.errno else str(error)

    async with Group() as group:
        for address in addresses:
            group.create_task(ask(address), name=f"asking {address}")
    up = ", ".join(f"{address}{answers[address]}" for address in addresses if address in answers)
    down = ", ".join(f"{address}: {failure[address]}" for address in addresses if address in failure)
    if not up:
        return fail(down, "start ZooKeeper, open the network to it, or correct the list of servers")
    if down:
        return warn(f"{up} answer; {down}", "bring it back: while one is missing, one more may stop everything")
    return ok(f"{up} {'answers' if len(answers) == 1 else 'answer'}")


async def _mode(address: str) -> str:
    """Return ` (leader, 3.9.3)`, or nothing if the server does not answer. Raises OSError and TimeoutError."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(FOUR_LETTERS)
            with suppress(TimeoutError):  # a port that only speaks TLS waits for more
                async with asyncio.timeout(ANSWER_S / 2):
                    answer = await reader.read(ANSWER_BYTES_MAX)
                    facts = dict(line.split(": ", 1) for line in answer.decode("latin-1").splitlines() if ": " in line)
                    if "Mode" in facts:
                        return f" ({facts['Mode']}, {facts.get('Zookeeper version', '?').partition('-')[0]})"
            return ""
        finally:
            writer.close()


async def rights(case: Case, store: ZooKeeperStore) -> Finding:
    """Create, read, replace and delete a node below metadata.root, as the daemon does."""
    home = case.home
    probe = f"{home}/{case.probe_name()}"
    made = await _missing(store, home)
    try:
        try:
            return await _use(case, store, probe)
        finally:
            with suppress(NotFound):
                await store.delete(probe)
            for path in made:
                with suppress(NotFound, Conflict):  # somebody else needs it by now
                    await store.delete(path)
    except Denied as error:
        return fail(error.message, f"give the daemon's user all rights on {home} and above as far as it must be made")


async def _use(case: Case, store: ZooKeeperStore, probe: str) -> Finding:
    await store.create(probe, b"1", ephemeral=True)
    before_ms = case.clock.wall_ms()
    version = await store.replace(probe, b"2", (await store.get(probe)).version)
    facts = await store.about(probe)
    case.readings["ZooKeeper"] = Reading(facts.modified_ms, before_ms, case.clock.wall_ms())
    await store.transact([Check(probe, version), Replace(probe, b"3", version)])
    if (await store.get(probe)).value != b"3":
        return fail(f"{probe} does not hold what was written a moment ago", "do not use this ZooKeeper: it is broken")
    await store.children(probe.rpartition("/")[0])
    return ok(f"create, read, write and delete below {probe.rpartition('/')[0]}")


async def _missing(store: ZooKeeperStore, path: str) -> Sequence[str]:
    """Return a path and those above it that do not exist, the deepest first."""
    missing = []
    while path:
        try:
            await store.get(path)
        except NotFound:
            missing.append(path)
        except Denied:
            break  # it is there
        path = path.rpartition("/")[0]
    return missing
