"""Enabling and disabling by pattern: the selection is stored, and at once applied to the known topics.

Discovery applies it to later topics. A topic by name gets a policy, several topics a selection. Both are stored before
the policies that follow from them, so that discovery completes what a crash interrupts. A dry run takes the same path
up to the first write.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import structlog

from offloaderd.core.aio.each import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import CorruptData, NotFound, OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import Breadth, Scope, TopicPattern, partitioned_topic
from offloaderd.ledgers.port import LedgerSource, OtherDomains
from offloaderd.metadata.port import MetadataStore
from offloaderd.policy import store as stored
from offloaderd.policy.records.selection import Selection
from offloaderd.policy.records.topic import TopicPolicy, disabled, standing
from offloaderd.policy.resolver import PolicyResolver
from offloaderd.policy.selection import (
    Change,
    Outcome,
    Policies,
    Rules,
    Selections,
    check_room,
    outcome,
    partitioned_among,
)
from offloaderd.policy.store import topic_policies

log = structlog.get_logger(__name__)

TURN_TOPICS = 1000
TURN_S = 0.02
"""Topics, or seconds, between two yields to the event loop: each of many expressions is compared with each topic."""
EXPRESSIONS_MAX = 20


@dataclass(frozen=True, slots=True)
class StoredPolicies:
    """All selections and policies at one time."""

    selections: Selections
    policies: Policies
    above: PolicyResolver

    @property
    def rules(self) -> Rules:
        """The rules that follow."""
        return Rules(self.selections, self.policies, self.above)


class Selector:
    """Gives topics the policies that follow from patterns. `source` None: only names that have a policy are known."""

    def __init__(
        self, metadata: MetadataStore, source: LedgerSource | None, clock: Clock, book: PolicyResolver | None = None
    ) -> None:
        self.metadata = metadata
        self._book = book or PolicyResolver(metadata)
        self.clock = clock
        self._source = source
        self.expressions_max = EXPRESSIONS_MAX

    async def enable(self, pattern: TopicPattern, policy: TopicPolicy, *, dry_run: bool = False) -> list[Change]:
        """Enable all topics of a pattern now and later, or change their policy; return the change of each topic.

        Selected topics that a broker reserves, or compacts, are left alone, as are those that were enabled or disabled
        by name, or by a narrower pattern. With `dry_run` nothing is written. Raises Conflict for an expression of a
        place that has `expressions_max`.
        """
        if pattern.topic is not None:
            return await self._enable_name(pattern.topic, policy, pattern, dry_run=dry_run)
        listed = await self.listed([pattern.scope])
        state = await self.stored()
        check_room(state.selections, pattern, self.expressions_max)
        before = state.selections.get(pattern.text)
        created_ms = before.created_ms if isinstance(before, Selection) else self.clock.wall_ms()
        selection = Selection(pattern=pattern, policy=policy, created_ms=created_ms)
        rules = Rules({**state.selections, pattern.text: selection}, state.policies, state.above)
        known = {*listed, *state.policies}
        matching = sorted([topic async for topic in self._in_turns(known) if pattern.matches(topic)])
        changes = await self.plan(rules, matching, state.policies, pattern.text)
        if not dry_run:
            await stored.put(self.metadata, self.clock, selection, expressions_max=self.expressions_max)
            await self.carry_out(rules, changes, state.policies)
        return changes

    async def disable(self, pattern: TopicPattern, *, dry_run: bool = False) -> list[Change]:
        """Remove the policy of a pattern; return the change of each topic.

        The topics of a selection are disabled, unless another one matches them. A topic that is disabled by its name
        stays disabled whatever matches it, and so do its partitions. Offloaded entries stay readable. Raises NotFound
        without such a policy.
        """
        state = await self.stored()
        if pattern.topic is not None:
            return await self._disable_name(pattern.topic, state, pattern, dry_run=dry_run)
        if pattern.text not in state.selections:
            hint = "`offloadctl topics list` shows the selections"
            if pattern.breadth is Breadth.NAMESPACE and pattern.scope in state.above.offloading:
                hint = "its topics are offloaded by its policy: offloadctl namespaces remove-offload-policies"
            raise NotFound(f"{pattern} selects nothing", hint=hint)
        rest = {text: one for text, one in state.selections.items() if text != pattern.text}
        rules = Rules(rest, state.policies, state.above)
        selected = sorted(topic for topic, policy in state.policies.items() if _follows(policy, pattern))
        changes = await self.plan(rules, selected, state.policies, pattern.text)
        if not dry_run:
            await stored.remove(self.metadata, self.clock, pattern)
            await self.carry_out(rules, changes, state.policies)
        return changes

    async def stored(self) -> StoredPolicies:
        """Read all selections and policies."""
        await self._book.load()
        return StoredPolicies(await stored.selections(self.metadata), await topic_policies(self.metadata), self._book)

    async def listed(self, scopes: Iterable[Scope]) -> set[TopicName]:
        """Return the topics that the source knows in these scopes. Raises what the source raises."""
        found: set[TopicName] = set()
        if self._source is not None:
            for scope in scopes:
                found |= set(await self._source.topics(tenant=scope.tenant, namespace=scope.namespace))
        return found

    async def not_covered(self, scopes: Iterable[Scope]) -> set[str]:
        """Return the source's topics of other domains in these scopes. Raises what the source raises."""
        found: set[str] = set()
        if isinstance(self._source, OtherDomains):
            for scope in scopes:
                found |= set(await self._source.not_covered(tenant=scope.tenant, namespace=scope.namespace))
        return found

    async def _in_turns(self, topics: Iterable[TopicName]) -> AsyncGenerator[TopicName, None]:
        """Yield topics, and to the event loop now and then."""
        begun_s = self.clock.monotonic()
        for number, topic in enumerate(topics, 1):
            yield topic
            if number % TURN_TOPICS == 0 or self.clock.monotonic() - begun_s >= TURN_S:
                await asyncio.sleep(0)  # noqa: TID251 - yields to the loop, measures no time
                begun_s = self.clock.monotonic()

    async def plan(
        self, rules: Rules, topics: Sequence[TopicName], policies: Policies, asked: str = ""
    ) -> list[Change]:
        """Return what the rules change in each topic; `asked` is the pattern of the request."""
        turns = self._in_turns(topics)
        changes = [rules.change(topic, policies.get(topic), asked) async for topic in turns]
        unsure = [
            number
            for number, change in enumerate(changes)
            if change.policy is not None and change.topic not in policies and not rules.by_name(change.topic)
        ]
        reasons = await each([changes[number].topic for number in unsure], self._reserved)
        for number, reason in zip(unsure, reasons, strict=True):
            if reason is not None:
                changes[number] = Change(changes[number].topic, Outcome.LEFT_ALONE, reason)
        return changes

    async def carry_out(
        self, rules: Rules, changes: Sequence[Change], policies: Policies
    ) -> dict[TopicName, TopicPolicy]:
        """Write and return the planned policies; a topic that changed meanwhile is decided again."""
        topics = [change.topic for change in changes if change.policy is not None]
        return await stored.write(self.metadata, self.clock, topics, rules.wanted, known=policies)

    async def mark_partitioned(self, listed: Collection[TopicName], policies: Policies) -> dict[TopicName, TopicPolicy]:
        """Mark topics that are enabled by name and partitioned; return the written policies."""
        whole = partitioned_among(listed)

        def marked(topic: TopicName, current: TopicPolicy | CorruptData | None) -> TopicPolicy | None:
            if not isinstance(current, TopicPolicy) or current.selected_by:
                return None
            return replace(current, partitioned=topic in whole)

        changed = [
            topic
            for topic, policy in policies.items()
            if (topic in whole or topic in listed) and marked(topic, policy) not in {None, policy}
        ]
        return await stored.write(self.metadata, self.clock, sorted(changed), marked, known=policies)

    async def _enable_name(
        self, topic: TopicName, policy: TopicPolicy, pattern: TopicPattern, *, dry_run: bool
    ) -> list[Change]:
        try:
            listed = await self.listed([pattern.scope])
        except OffloaderError as error:
            log.warning("topic.partitions_unknown", topic=str(topic), error=str(error))
            listed = set()
        partitions = sorted(one for one in listed if partitioned_topic(one) == topic)
        policies = await stored.read(self.metadata, [topic, *partitions])
        policy = replace(policy, partitioned=topic in partitioned_among(listed))
        return await self._set_by_name(topic, policy, partitions, policies, pattern, dry_run=dry_run)

    async def _disable_name(
        self, topic: TopicName, state: StoredPolicies, pattern: TopicPattern, *, dry_run: bool
    ) -> list[Change]:
        """Disable a topic by its name, with its partitions. Raises NotFound when neither has a policy."""
        partitions = sorted(one for one in state.policies if partitioned_topic(one) == topic)
        current = state.policies.get(topic)
        if current is None and not partitions:
            raise NotFound(f"{topic} is not enabled", hint="`offloadctl topics list` shows the topics")
        known = current if isinstance(current, TopicPolicy) else TopicPolicy(partitioned=current is None)
        return await self._set_by_name(topic, disabled(known), partitions, state.policies, pattern, dry_run=dry_run)

    async def _set_by_name(
        self,
        topic: TopicName,
        policy: TopicPolicy,
        partitions: Sequence[TopicName],
        policies: Policies,
        pattern: TopicPattern,
        *,
        dry_run: bool,
    ) -> list[Change]:
        before = policies.get(topic)
        policy = standing(policy, before)
        rules = Rules({}, {**policies, topic: policy})
        first = Change(topic, outcome(before if isinstance(before, TopicPolicy) else None, policy), "", policy)
        following = await self.plan(rules, partitions, policies, pattern.text)
        if not dry_run:
            await stored.write(self.metadata, self.clock, [topic], lambda _, now: standing(policy, now), known=[topic])
            await self.carry_out(rules, following, policies)
        return [first, *following]

    async def _reserved(self, topic: TopicName) -> str | None:
        if self._source is None:
            return None
        try:
            return await self._source.reserved(topic)
        except NotFound:
            return "it is gone"


def _follows(policy: object, pattern: TopicPattern) -> bool:
    return isinstance(policy, TopicPolicy) and policy.selected_by == pattern.text
