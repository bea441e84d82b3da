"""Topics that come later: looks every few seconds what the source has, and gives new topics what was said of them.

Every daemon does so, and they agree without talking: what a topic should have follows from what is stored, and is
written by compare-and-set. A pass that finds nothing new costs one listing for each namespace that matters: policies
and selections are read again only when their counters moved, and a topic is looked at once in a while, not in every
pass. An error ends a pass, not the task: the next one does what is left. That a topic is missing from a listing means
nothing, so a source that answers in part or not at all takes nothing away.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing

import structlog

from offloaderd.core import domains
from offloaderd.core.aio.groups import Group
from offloaderd.core.aio.signal import race
from offloaderd.core.errors import CorruptData, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import Scope
from offloaderd.metadata import paths
from offloaderd.policy import selection
from offloaderd.policy.records.topic import TopicPolicy
from offloaderd.policy.selection import Change, Rules
from offloaderd.policy.selector import Selector

log = structlog.get_logger(__name__)

DISCOVERY_S = 10.0
"""A new topic is offloaded at most this long, and a listing, after the source shows it."""
JITTER_S = 1.0
"""Most that daemons wait after a selection changed, so that the one that was asked is done before others look."""
COMPARED_S = 300.0
"""A topic that was left alone is looked at again after this long: it may no longer be compacted."""
HINT_UNAPPLIED = "new topics are not enabled by it: enable another pattern for them, then disable this one"
FIRST_TOLD = 5
"""How many topics a log line names."""


class Discovery:
    """The task of one daemon."""

    def __init__(self, selector: Selector, metrics: Metrics | None = None) -> None:
        self._selector = selector
        self._metrics = metrics
        self.unapplied: dict[str, str] = {}
        """Selections that select nothing, with the reasons."""
        self._store, self._clock = selector.metadata, selector.clock
        self._told = asyncio.Event()
        self._stale = True
        self._rules = Rules({}, {})
        self._policies: dict[TopicName, TopicPolicy | CorruptData] = {}
        self._compared: set[TopicName] = set()
        self._compared_at_s = 0.0
        self._silent: set[Scope] = set()
        self._not_covered: set[str] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        async with Group() as group:
            group.create_task(self._watch(paths.SELECTIONS, at_once=True), name="selections")
            group.create_task(self._watch(paths.POLICIES, at_once=True), name="policies of namespaces")
            group.create_task(self._watch(paths.TOPICS, at_once=False), name="policies")
            failing = False
            while True:
                await race(self._told.wait(), self._clock.sleep(DISCOVERY_S))
                if self._told.is_set():
                    self._told.clear()
                    await self._clock.sleep(self._clock.jitter(JITTER_S))
                try:
                    await self.look()
                except OffloaderError as error:
                    self._stale = True
                    if not failing:
                        log.warning("discovery.failed", error=str(error), error_class=type(error).__name__)
                    failing = True
                else:
                    failing = False

    async def look(self) -> None:
        """Make one pass. Raises what the metadata store raises."""
        compare = self._stale
        if compare:
            await self._read()
        again = self._clock.monotonic() - self._compared_at_s >= COMPARED_S
        if again:
            self._compared.clear()
            self._compared_at_s = self._clock.monotonic()
        if compare or again:
            await self._look_at_domains()
        listed = await self._listed()
        fresh = sorted(listed.difference(self._policies).difference(self._compared))
        if not (fresh or compare):
            return
        before = list(self._policies) if compare else []
        changes = await self._selector.plan(self._rules, [*before, *fresh], self._policies)
        written = await self._selector.carry_out(self._rules, changes, self._policies)
        self._tell([change for change in changes if change.topic in written])
        written |= await self._selector.mark_partitioned(listed, self._policies)
        self._policies |= written
        self._compared.update(topic for topic in fresh if topic not in written)

    async def _watch(self, path: str, *, at_once: bool) -> None:
        """Note when what was said may have changed; policies can wait for the next pass, selections cannot."""
        async with aclosing(self._store.watch(path)) as changes:
            async for _ in changes:
                self._stale = True
                if at_once:
                    self._told.set()

    async def _read(self) -> None:
        """Read what was said again."""
        self._stale = False
        said = await self._selector.said()
        self._policies, self._rules = dict(said.policies), said.rules
        self._compared.clear()
        unapplied = selection.unapplied(said.selections)
        for pattern in unapplied.keys() - self.unapplied.keys():
            log.error("selection.unapplied", pattern=pattern, reason=unapplied[pattern], hint=HINT_UNAPPLIED)
        self.unapplied = unapplied
        if self._metrics is not None:
            self._metrics.selections_unapplied.set(len(unapplied))
            counts = selection.expressions(said.selections)
            self._metrics.selection_expressions_highest.set(max(counts.values(), default=0))

    async def _listed(self) -> set[TopicName]:
        """Return what the source shows; a part of it that does not answer is left out until it does."""
        found: set[TopicName] = set()
        for scope in self._rules.scopes:
            try:
                found |= await self._selector.listed([scope])
            except OffloaderError as error:
                if scope not in self._silent:
                    log.warning("discovery.unlisted", scope=str(scope), error=str(error))
                self._silent.add(scope)
            else:
                self._silent.discard(scope)
        return found

    async def _look_at_domains(self) -> None:
        """Count and name the topics that no rule can take; a source that does not say changes nothing."""
        try:
            found = await self._selector.not_covered(self._rules.scopes)
        except OffloaderError as error:
            log.debug("discovery.domains_unlisted", error=str(error))
            return
        new = sorted(found - self._not_covered)
        self._not_covered = found
        counts = Counter(name.partition("://")[0] for name in found)
        if self._metrics is not None:
            for domain in domains.NOT_COVERED:
                self._metrics.topics_not_covered.labels(domain=domain).set(counts[domain])
        if new:
            log.warning("topics.not_covered", topics=len(new), first=new[:FIRST_TOLD], hint=domains.HINT_NOT_COVERED)

    def _tell(self, changes: Sequence[Change]) -> None:
        counts = Counter(change.outcome.value for change in changes)
        if counts:
            log.info("topics.discovered", **counts, first=[str(change.topic) for change in changes[:FIRST_TOLD]])
