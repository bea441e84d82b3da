"""Discovery of new topics: lists the source every few seconds, and gives new topics the policies of the rules.

Every daemon does so, and they agree without messages: a topic's policy follows from what is stored, and is written by
compare-and-set. A pass without new topics costs one listing for each namespace of a rule: policies and selections are
read again only when their counters changed, and a topic that was left alone is checked again once in a while. An error
ends a pass, not the task: the next one does the rest. A topic that is missing from a listing keeps its policy.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing

import structlog

from offloaderd.core.aio import Group, race
from offloaderd.core.errors import CorruptData, OffloaderError
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import DOMAINS_HINT, DOMAINS_NOT_COVERED, TopicName
from offloaderd.core.names.patterns import Scope
from offloaderd.metadata import paths
from offloaderd.policy import selection
from offloaderd.policy.records import TopicPolicy
from offloaderd.policy.selection import Change, Rules
from offloaderd.policy.updates import Selector

log = structlog.get_logger(__name__)

DISCOVERY_S = 10.0
"""A new topic gets its policy at most this long, and a listing, after the source shows it."""
JITTER_S = 1.0
"""Longest wait of other daemons after a change of a selection, until the daemon that made it is done."""
COMPARED_S = 300.0
"""A topic that was left alone is checked again after this long: it may no longer be compacted."""
HINT_UNAPPLIED = "new topics are not enabled by it: enable another pattern for them, then disable this one"
FIRST_NAMED = 5
"""Topics that a log line names."""


class Discovery:
    """The discovery task of one daemon."""

    def __init__(self, selector: Selector, metrics: Metrics | None = None) -> None:
        self._selector = selector
        self._metrics = metrics
        self.unapplied: dict[str, str] = {}
        """Selections that select nothing, with the reasons."""
        self._store, self._clock = selector.metadata, selector.clock
        self._changed = asyncio.Event()
        self._stale = True
        self._rules = Rules({}, {})
        self._policies: dict[TopicName, TopicPolicy | CorruptData] = {}
        self._compared: set[TopicName] = set()
        self._compared_at_s = 0.0
        self._unlisted: set[Scope] = set()
        self._not_covered: set[str] = set()

    async def run(self) -> None:
        """Make passes until cancelled."""
        async with Group() as group:
            group.create_task(self._watch(paths.SELECTIONS, at_once=True), name="selections")
            group.create_task(self._watch(paths.POLICIES, at_once=True), name="policies of namespaces")
            group.create_task(self._watch(paths.TOPICS, at_once=False), name="policies")
            failing = False
            while True:
                await race(self._changed.wait(), self._clock.sleep(DISCOVERY_S))
                if self._changed.is_set():
                    self._changed.clear()
                    await self._clock.sleep(self._clock.jitter(JITTER_S))
                try:
                    await self.run_once()
                except OffloaderError as error:
                    self._stale = True
                    if not failing:
                        log.warning("discovery.failed", error=str(error), error_class=type(error).__name__)
                    failing = True
                else:
                    failing = False

    async def run_once(self) -> None:
        """Make one pass. Raises what the metadata store raises."""
        compare = self._stale
        if compare:
            await self._read()
        again = self._clock.monotonic() - self._compared_at_s >= COMPARED_S
        if again:
            self._compared.clear()
            self._compared_at_s = self._clock.monotonic()
        if compare or again:
            await self._count_other_domains()
        listed = await self._listed()
        fresh = sorted(listed.difference(self._policies).difference(self._compared))
        if not (fresh or compare):
            return
        before = list(self._policies) if compare else []
        changes = await self._selector.plan(self._rules, [*before, *fresh], self._policies)
        written = await self._selector.carry_out(self._rules, changes, self._policies)
        self._log([change for change in changes if change.topic in written])
        written |= await self._selector.mark_partitioned(listed, self._policies)
        self._policies |= written
        self._compared.update(topic for topic in fresh if topic not in written)

    async def _watch(self, path: str, *, at_once: bool) -> None:
        """Note changes of policies, which wait for the next pass, and of selections (`at_once`)."""
        async with aclosing(self._store.watch(path)) as changes:
            async for _ in changes:
                self._stale = True
                if at_once:
                    self._changed.set()

    async def _read(self) -> None:
        self._stale = False
        state = await self._selector.stored()
        self._policies, self._rules = dict(state.policies), state.rules
        self._compared.clear()
        unapplied = selection.unapplied(state.selections)
        for pattern in unapplied.keys() - self.unapplied.keys():
            log.error("selection.unapplied", pattern=pattern, reason=unapplied[pattern], hint=HINT_UNAPPLIED)
        self.unapplied = unapplied
        if self._metrics is not None:
            self._metrics.selections_unapplied.set(len(unapplied))
            counts = selection.expressions(state.selections)
            self._metrics.selection_expressions_highest.set(max(counts.values(), default=0))

    async def _listed(self) -> set[TopicName]:
        """Return the topics of the source; without the scopes that cannot be listed now."""
        found: set[TopicName] = set()
        for scope in self._rules.scopes:
            try:
                found |= await self._selector.listed(scope)
            except OffloaderError as error:
                if scope not in self._unlisted:
                    log.warning("discovery.unlisted", scope=str(scope), error=str(error))
                self._unlisted.add(scope)
            else:
                self._unlisted.discard(scope)
        return found

    async def _count_other_domains(self) -> None:
        """Count and log the topics of domains that are not offloaded; an error of the source changes nothing."""
        try:
            found = await self._selector.not_covered(self._rules.scopes)
        except OffloaderError as error:
            log.debug("discovery.domains_unlisted", error=str(error))
            return
        new = sorted(found - self._not_covered)
        self._not_covered = found
        counts = Counter(name.partition("://")[0] for name in found)
        if self._metrics is not None:
            for domain in DOMAINS_NOT_COVERED:
                self._metrics.topics_not_covered.labels(domain=domain).set(counts[domain])
        if new:
            log.warning("topics.not_covered", topics=len(new), first=new[:FIRST_NAMED], hint=DOMAINS_HINT)

    def _log(self, changes: Sequence[Change]) -> None:
        counts = Counter(change.outcome.value for change in changes)
        if counts:
            log.info("topics.discovered", **counts, first=[str(change.topic) for change in changes[:FIRST_NAMED]])
