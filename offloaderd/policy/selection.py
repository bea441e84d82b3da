"""The policy that a topic should have, by its own policy and those of patterns that match it. Pure.

The first existing one of these counts:
1. the policy of the topic by name, enabled or disabled;
2. for a partition, the policy of the partitioned topic by name;
3. the narrowest selection that matches: a namespace's, a tenant's, an expression; of several expressions the oldest.
   A policy of the namespace that names a method comes right behind a selection of the namespace.

So the result does not depend on the order in which daemons see changes, and another comparison completes what a crash
interrupted. A policy by rule 2 or 3 names it in `selected_by`, and ends with it. Damage ends none: topics that follow
from a damaged record, or from an expression that this release refuses, keep their policy.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from offloaderd.core.errors import Conflict, CorruptData, InvalidInput
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import Breadth, Scope, TopicPattern, fewest, of_topic, partitioned_topic
from offloaderd.policy.records import Selection, TopicPolicy, standing
from offloaderd.policy.resolver import PolicyResolver, spelled

Policies = Mapping[TopicName, TopicPolicy | CorruptData]
Selections = Mapping[str, Selection | CorruptData]
"""By the pattern's text."""


class Outcome(StrEnum):
    """What enabling or disabling a pattern does to one topic."""

    ENABLED = "enabled"
    DISABLED = "disabled"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    LEFT_ALONE = "left-alone"


class Change(NamedTuple):
    """The change of a topic, or the reason for none. `policy` None: nothing is written."""

    topic: TopicName
    outcome: Outcome
    reason: str = ""
    policy: TopicPolicy | None = None


class Rule(NamedTuple):
    """The rule for a topic without a policy by name."""

    pattern: str
    policy: TopicPolicy


class Rules:
    """All policies and selections, prepared for look-ups by topic."""

    def __init__(self, selections: Selections, policies: Policies, above: PolicyResolver | None = None) -> None:
        """Take the selections, the topics' policies, and those above them (None: there are none)."""
        self._named: dict[TopicName, TopicPolicy] = {}
        self._kept = set(unapplied(selections))
        for topic, policy in policies.items():
            if isinstance(policy, CorruptData):
                self._kept.add(of_topic(topic).text)
            elif not policy.selected_by:
                self._named[topic] = policy
        self._namespaces = {Scope(*name) for name in above.offloading} if above is not None else set()
        if above is not None:
            self._kept |= {spelled(name) for name in above.unread}
        sound = [found for found in selections.values() if isinstance(found, Selection) and not found.refused]
        self._places = {
            one.pattern.scope: Rule(one.pattern.text, one.policy)
            for one in sound
            if one.pattern.breadth is not Breadth.EXPRESSION
        }
        expressions = [one for one in sound if one.pattern.breadth is Breadth.EXPRESSION]
        self._expressions = sorted(expressions, key=lambda one: (one.created_ms, one.pattern.text))
        whole = (topic for topic, policy in self._named.items() if policy.enabled and not partitioned_topic(topic))
        scopes = [*(one.pattern.scope for one in expressions), *(Scope(one.tenant, one.namespace) for one in whole)]
        self.scopes = fewest([*self._places, *self._namespaces, *scopes])
        """The fewest scopes with all governed topics and all partitions of named ones."""

    def rule(self, topic: TopicName) -> Rule | None:
        """Return the rule for a topic without a policy by name; None without a rule."""
        whole = partitioned_topic(topic)
        if whole is not None and whole in self._named:
            return Rule(of_topic(whole).text, self._named[whole])
        for scope in (Scope(topic.tenant, topic.namespace), Scope(topic.tenant)):
            if scope in self._places:
                return self._places[scope]
            if scope in self._namespaces:
                return Rule(spelled((topic.tenant, topic.namespace)), TopicPolicy())
        for one in self._expressions:
            if one.pattern.matches(topic):
                return Rule(one.pattern.text, one.policy)
        return None

    def wanted(self, topic: TopicName, current: TopicPolicy | CorruptData | None) -> TopicPolicy | None:
        """Return the policy that a topic should get; None for no change."""
        if isinstance(current, CorruptData):
            return None
        if current is not None and (not current.selected_by or current.selected_by in self._kept):
            return None
        rule = self.rule(topic)
        if rule is None:
            return replace(current, enabled=False) if current is not None and current.enabled else None
        desired = standing(replace(rule.policy, selected_by=rule.pattern, partitioned=False), current)
        return None if desired == current or (current is None and not desired.enabled) else desired

    def by_name(self, topic: TopicName) -> bool:
        """Whether a topic without a policy would get one by name, reserved or not."""
        whole = partitioned_topic(topic)
        return topic in self._named or (whole is not None and whole in self._named)

    def change(self, topic: TopicName, current: TopicPolicy | CorruptData | None, asked: str = "") -> Change:
        """Return the change of a topic by the rules, for the answer to a request about the pattern `asked`."""
        wanted = self.wanted(topic, current)
        if wanted is not None:
            before = current if isinstance(current, TopicPolicy) else None
            return Change(topic, outcome(before, wanted), _by(wanted.selected_by, asked), wanted)
        if current is None:
            rule = self.rule(topic)
            return Change(topic, Outcome.LEFT_ALONE, f"{rule.pattern} is disabled" if rule else "nothing selects it")
        if isinstance(current, CorruptData):
            return Change(topic, Outcome.LEFT_ALONE, "its policy is damaged: enable it by name")
        if not current.selected_by:
            return Change(topic, Outcome.LEFT_ALONE, f"{'enabled' if current.enabled else 'disabled'} by name")
        if current.selected_by != asked:
            return Change(topic, Outcome.LEFT_ALONE, _by(current.selected_by, asked))
        return Change(topic, Outcome.UNCHANGED)


def unapplied(selections: Selections) -> dict[str, str]:
    """Return the selections whose records or expressions cannot be read, and so select nothing, with the reasons."""
    reasons = {
        text: str(found) if isinstance(found, CorruptData) else found.refused for text, found in selections.items()
    }
    return {text: reason for text, reason in reasons.items() if reason}


def expressions(patterns: Iterable[str]) -> Counter[Scope]:
    """Return the number of expressions among these patterns, by their scope."""
    found: Counter[Scope] = Counter()
    for text in patterns:
        with suppress(InvalidInput):
            pattern = TopicPattern.named(text)
            found[pattern.scope] += pattern.breadth is Breadth.EXPRESSION
    return found


def check_room(known: Iterable[str], pattern: TopicPattern, most: int) -> None:
    """Raise Conflict if a pattern that is not `known` would be one expression of its scope too many.

    Every daemon compares each with each topic. One without a namespace counts for its tenant, or for all.
    """
    texts = set(known)
    count = expressions(texts)[pattern.scope]
    if pattern.breadth is not Breadth.EXPRESSION or pattern.text in texts or count < most:
        return
    whose = "/".join(filter(None, pattern.scope)) or "the cluster as a whole"
    raise Conflict(
        f"{whose} has {count} expressions, and {most} are the most",
        hint="disable a pattern that is not needed (offloadctl topics list), or enable the namespace or tenant as a "
        "whole; access.namespace_expressions_max sets the limit",
    )


def outcome(before: TopicPolicy | None, after: TopicPolicy) -> Outcome:
    """Return the outcome of a change from one policy to another."""
    if before == after:
        return Outcome.UNCHANGED
    if before is not None and before.enabled == after.enabled:
        return Outcome.CHANGED
    return Outcome.ENABLED if after.enabled else Outcome.DISABLED


def _by(pattern: str, asked: str) -> str:
    return f"selected by {pattern}" if pattern not in {"", asked} else ""
