"""Updates of policies: of the topics of a pattern, of a level, of a topic; and pauses.

A topic by name gets a policy, several topics a selection, which is at once applied to the known topics, and by
discovery to later ones. Both are stored before the policies that follow from them, so that discovery completes what a
crash interrupts. A dry run takes the same path up to the first write. A change takes effect on all daemons by the
counter that it raises. A namespace's policy that names a method offloads its topics, as in Pulsar; one of the broker
does not.

A pause is a part of the topic's own policy. It is in the metadata store, so it survives restarts and moves with the
topic; changes of patterns and policies leave it alone. The owner seals and commits its open segment, and begins no
other; reads, retention and grants continue. A topic that is only pushed commits all accepted entries and accepts no
more.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog

from offloaderd.core.aio import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, CorruptData, NotFound, OffloaderError
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import Breadth, Scope, TopicPattern, of_topic, partitioned_topic
from offloaderd.core.quotas import Accounts
from offloaderd.ledgers.port import LedgerSource, OtherDomains
from offloaderd.metadata.port import MetadataStore
from offloaderd.policy import store as stored
from offloaderd.policy.policies import OffloadPolicies, differences
from offloaderd.policy.records import Paused, Selection, TopicPolicy, disabled, own, standing
from offloaderd.policy.resolver import Namespace, PolicyResolver, node_of, spelled
from offloaderd.policy.selection import Change, Outcome, Policies, Rules, Selections, check_room, outcome

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
        self.accounts: Accounts | None = None
        """The quotas; None: there are none."""
        self.counts: Callable[[], Counter[Scope]] = Counter
        """Returns the number of enabled topics of each namespace."""

    async def enable(self, pattern: TopicPattern, policy: TopicPolicy, *, dry_run: bool = False) -> list[Change]:
        """Enable all topics of a pattern now and later, or change their policy; return the change of each topic.

        Selected topics that a broker reserves, or compacts, are left alone, as are those that were enabled or disabled
        by name, or by a narrower pattern. With `dry_run` nothing is written. Raises Conflict for an expression of a
        place that has `expressions_max`.
        """
        if pattern.topic is not None:
            return await self._enable_name(pattern.topic, policy, dry_run=dry_run)
        listed = await self.listed(pattern.scope)
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
            return await self._disable_name(pattern.topic, state, dry_run=dry_run)
        if pattern.text not in state.selections:
            hint = "`offloadctl topics list` shows the selections"
            if pattern.breadth is Breadth.NAMESPACE and pattern.scope in state.above.offloading:
                hint = "its topics are offloaded by its policy: offloadctl namespaces remove-offload-policies"
            raise NotFound(f"{pattern} selects nothing", hint=hint)
        rest = {text: one for text, one in state.selections.items() if text != pattern.text}
        rules = Rules(rest, state.policies, state.above)
        sound = ((topic, policy) for topic, policy in state.policies.items() if isinstance(policy, TopicPolicy))
        selected = sorted(topic for topic, policy in sound if policy.selected_by == pattern.text)
        changes = await self.plan(rules, selected, state.policies, pattern.text)
        if not dry_run:
            await stored.remove(self.metadata, self.clock, pattern)
            await self.carry_out(rules, changes, state.policies)
        return changes

    async def stored(self) -> StoredPolicies:
        """Read all selections and policies."""
        await self._book.load()
        return StoredPolicies(
            await stored.selections(self.metadata), await stored.topic_policies(self.metadata), self._book
        )

    async def listed(self, scope: Scope) -> set[TopicName]:
        """Return the topics that the source knows in a scope. Raises what the source raises."""
        source = self._source
        return set(await source.topics(tenant=scope.tenant, namespace=scope.namespace)) if source is not None else set()

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
        return self._within_quotas(changes, policies)

    def _within_quotas(self, changes: Sequence[Change], policies: Policies) -> list[Change]:
        """Return the changes without the topics that would be one too many for their namespace or tenant."""
        counts: Counter[Scope] | None = None
        found = []
        for change in changes:
            before, scope = policies.get(change.topic), Scope(change.topic.tenant, change.topic.namespace)
            active = isinstance(before, TopicPolicy) and before.active
            begins = change.policy is not None and change.policy.active and not active
            if begins and self.accounts is not None and self.accounts.limits_topics(scope):
                counts = self.counts() if counts is None else counts
                if reason := self.accounts.no_room(scope, counts):
                    found.append(Change(change.topic, Outcome.LEFT_ALONE, reason))
                    continue
                counts[scope] += 1
            found.append(change)
        return found

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

    async def _enable_name(self, topic: TopicName, policy: TopicPolicy, *, dry_run: bool) -> list[Change]:
        try:
            listed = await self.listed(of_topic(topic).scope)
        except OffloaderError as error:
            log.warning("topic.partitions_unknown", topic=str(topic), error=str(error))
            listed = set()
        partitions = sorted(one for one in listed if partitioned_topic(one) == topic)
        policies = await stored.read(self.metadata, [topic, *partitions])
        policy = replace(policy, partitioned=topic in partitioned_among(listed))
        return await self._set_by_name(topic, policy, partitions, policies, dry_run=dry_run)

    async def _disable_name(self, topic: TopicName, state: StoredPolicies, *, dry_run: bool) -> list[Change]:
        """Disable a topic by its name, with its partitions. Raises NotFound when neither has a policy."""
        partitions = sorted(one for one in state.policies if partitioned_topic(one) == topic)
        current = state.policies.get(topic)
        if current is None and not partitions:
            raise NotFound(f"{topic} is not enabled", hint="`offloadctl topics list` shows the topics")
        known = current if isinstance(current, TopicPolicy) else TopicPolicy(partitioned=current is None)
        return await self._set_by_name(topic, disabled(known), partitions, state.policies, dry_run=dry_run)

    async def _set_by_name(
        self,
        topic: TopicName,
        policy: TopicPolicy,
        partitions: Sequence[TopicName],
        policies: Policies,
        *,
        dry_run: bool,
    ) -> list[Change]:
        before = policies.get(topic)
        policy = standing(policy, before)
        rules = Rules({}, {**policies, topic: policy})
        first = Change(topic, outcome(before if isinstance(before, TopicPolicy) else None, policy), "", policy)
        (allowed,) = self._within_quotas([first], policies)
        if allowed is not first:
            raise Conflict(allowed.reason, hint="nothing was changed")
        following = await self.plan(rules, partitions, policies, of_topic(topic).text)
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
            return "it was deleted"


def partitioned_among(topics: Collection[TopicName]) -> set[TopicName]:
    """Return the partitioned topics with listed partitions that are not listed themselves."""
    listed = set(topics)
    found = {whole for topic in topics if (whole := partitioned_topic(topic)) is not None}
    return found - listed


class Effect(NamedTuple):
    """The effect of a change on one topic: on whether it is offloaded, and on its effective values."""

    topic: TopicName
    outcome: Outcome
    differences: Sequence[str] = ()
    reason: str = ""


class Levels:
    """Sets and removes policies at every level."""

    def __init__(self, selector: Selector, book: PolicyResolver) -> None:
        self._selector = selector
        self.book = book

    async def set_policies(
        self, where: Namespace | None, policies: OffloadPolicies | None, *, dry_run: bool = False
    ) -> list[Effect]:
        """Replace the policies of a namespace, or of the broker (None); with None remove them.

        Returns the topics with a change. Raises NotFound when there is nothing to remove, Transient.
        """
        selector, store = self._selector, self._selector.metadata
        state = await selector.stored()
        before = state.above.copied()
        if policies is None and node_of(where) not in before.damaged and not before.policies_of(where).set_values():
            what = "the broker level" if where is None else f"namespace {spelled(where)}"
            raise NotFound(f"{what} has no offload policies", hint="what holds there comes from other levels")
        after = before.with_policies(where, policies)
        listed = await selector.listed(Scope(*where)) if where is not None and where in after.offloading else set()
        topics = sorted(one for one in {*listed, *state.policies} if where in {None, (one.tenant, one.namespace)})
        rules = Rules(state.selections, state.policies, after)
        changes = await selector.plan(rules, topics, state.policies)
        if not dry_run:
            if policies is None:
                await stored.remove_level(store, selector.clock, where)
            else:
                await stored.put_level(store, selector.clock, where, policies)
            await selector.carry_out(rules, changes, state.policies)
            await self.book.load()
        effects = [_effect(change, state.policies.get(change.topic), before, after) for change in changes]
        return [one for one in effects if one.outcome in _MOVES or one.differences]

    async def set_topic_policies(
        self, topic: TopicName, policies: OffloadPolicies, *, dry_run: bool = False
    ) -> list[Effect]:
        """Replace the policies of a topic and its partitions; enable it unless disabled by name. Raises Transient."""
        before = (await self._selector.stored()).policies
        current = before.get(topic)
        enabled = not (isinstance(current, TopicPolicy) and not current.enabled and not current.selected_by)
        policy = replace(TopicPolicy(enabled=enabled), **policies.set_values())
        return self._effects(await self._selector.enable(of_topic(topic), policy, dry_run=dry_run), before)

    async def remove_topic_policies(self, topic: TopicName, *, dry_run: bool = False) -> list[Effect]:
        """Remove a topic's policies by name; it then follows from a pattern or its namespace, if any matches.

        Otherwise it stays enabled or disabled, without values of its own. Raises NotFound without policies by name.
        """
        state = await self._selector.stored()
        current = state.policies.get(topic)
        if current is None or (
            isinstance(current, TopicPolicy) and (current.selected_by or not own(current).set_values())
        ):
            raise NotFound(
                f"{topic} has no offload policies of its own", hint="what holds there comes from other levels"
            )
        enabled = current.enabled if isinstance(current, TopicPolicy) else True
        rest = {one: policy for one, policy in state.policies.items() if one != topic}
        rule = Rules(state.selections, rest, state.above).rule(topic) if enabled else None
        policy = TopicPolicy(enabled=enabled)
        if rule is not None and rule.policy.enabled:
            policy = replace(rule.policy, selected_by=rule.pattern, partitioned=False)
        return self._effects(await self._selector.enable(of_topic(topic), policy, dry_run=dry_run), state.policies)

    def _effects(self, changes: Sequence[Change], before: Policies) -> list[Effect]:
        return [_effect(change, before.get(change.topic), self.book, self.book) for change in changes]


_MOVES = {Outcome.ENABLED, Outcome.DISABLED}


def _effect(
    change: Change, current: TopicPolicy | CorruptData | None, before: PolicyResolver, after: PolicyResolver
) -> Effect:
    """Return the effect on a topic with this policy of its own, when the levels above it change as well."""
    known = current if isinstance(current, TopicPolicy) else None
    coming = change.policy or known
    if coming is None:
        return Effect(change.topic, change.outcome, (), change.reason)
    old, new = before.effective(change.topic, known), after.effective(change.topic, coming)
    different = tuple(differences(old.values, new.values))
    moved = outcome(known, coming)
    if moved is Outcome.UNCHANGED and different:
        moved = Outcome.CHANGED
    elif moved is Outcome.CHANGED and not different:
        moved = Outcome.UNCHANGED
    return Effect(change.topic, moved, different, change.reason if moved is Outcome.UNCHANGED else "")


@dataclass(frozen=True, slots=True)
class PauseChange:
    """The pause of one topic, and whether this call changed it."""

    topic: TopicName
    paused: Paused | None
    changed: bool


async def set_paused(
    store: MetadataStore, clock: Clock, topic: TopicName, paused: Paused | None, *, dry_run: bool = False
) -> list[PauseChange]:
    """Pause a topic with its partitions, or (None) resume them; a paused one keeps its time and operator.

    Raises NotFound when neither is enabled, Transient.
    """
    policies = await stored.topic_policies(store)
    named = sorted(one for one in policies if topic in {one, partitioned_topic(one)})
    before = {one: policy for one in named if isinstance(policy := policies[one], TopicPolicy) and policy.enabled}
    if not before:
        raise NotFound(f"{topic} is not enabled", hint=f"offloadctl topics enable {topic}")
    moving = [one for one, policy in before.items() if (policy.paused is None) is not (paused is None)]

    def decide(_topic: TopicName, now: TopicPolicy | CorruptData | None) -> TopicPolicy | None:
        if not isinstance(now, TopicPolicy) or (now.paused is None) is (paused is None):
            return None
        return replace(now, paused=paused)

    if not dry_run:
        await stored.write(store, clock, moving, decide, known=before)
    return [
        PauseChange(one, paused if one in moving else policy.paused, one in moving) for one, policy in before.items()
    ]
