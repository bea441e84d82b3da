"""Setting policies of topics, namespaces and the broker, and pausing topics: stored, applied, or shown beforehand.

A namespace's policy that names a method offloads its topics, as in Pulsar; one of the broker does not. A change takes
effect on all daemons by the counter that it raises.

A pause is a part of the topic's own policy. It is in the metadata store, so it survives restarts and moves with the
topic; changes of patterns and policies leave it alone. The owner seals and commits its open segment, and begins no
other; reads, retention and grants continue. A topic that is only pushed commits all accepted entries and accepts no
more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from offloaderd.core.clock import Clock
from offloaderd.core.errors import CorruptData, NotFound
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import Scope, of_topic, partitioned_topic
from offloaderd.metadata.port import MetadataStore
from offloaderd.policy import store as stored
from offloaderd.policy.policies import OffloadPolicies, differences
from offloaderd.policy.records.topic import Paused, TopicPolicy, own
from offloaderd.policy.resolver import Namespace, PolicyResolver, node_of, spelled
from offloaderd.policy.selection import Change, Outcome, Policies, Rules, outcome
from offloaderd.policy.selector import Selector
from offloaderd.policy.store import topic_policies


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
        listed = await selector.listed([Scope(*where)]) if where is not None and where in after.offloading else set()
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
        """Replace the policies of a topic and its partitions, and enable it unless it is disabled by name.

        Raises Transient.
        """
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
    policies = await topic_policies(store)
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
