"""Patterns of topics: one topic by its name, those of a namespace or tenant, or those that an expression matches.

    public/default/orders       the topic and, if it is partitioned, its partitions
    public/default/*            every topic of the namespace
    public/*                    every topic of the tenant
    re:public/default/eu-.*     every topic whose TENANT/NAMESPACE/TOPIC the expression matches from end to end

An expression that matches a partitioned topic matches its partitions. Pure: no I/O.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import TopicName
from offloaderd.core.names.managed_ledgers import partition_of

if TYPE_CHECKING:
    from offloaderd.core.names.expressions import Expression

PATTERN_CHARS_MAX = 1000
REGEX = "re:"
DOMAIN = "persistent://"
HINT = "write TENANT/NAMESPACE/TOPIC, TENANT/NAMESPACE/*, TENANT/* or re:EXPRESSION"

_LITERAL = re.compile(r"[\w/-]*", re.ASCII)
_REPEATED_AT_WILL = ("?", "*", "{")


class Breadth(IntEnum):
    """Breadth of a pattern; of several that match a topic the narrowest is used."""

    TOPIC = 0
    NAMESPACE = 1
    TENANT = 2
    EXPRESSION = 3


class Scope(NamedTuple):
    """The possible place of a pattern's topics: a namespace, a tenant, or (both None) anywhere."""

    tenant: str | None = None
    namespace: str | None = None

    def covers(self, other: "Scope") -> bool:
        """Whether a listing of this scope includes the other one."""
        return self.tenant is None or (self.tenant == other.tenant and self.namespace in {None, other.namespace})


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A pattern in its canonical spelling, `text`, which alone decides equality."""

    text: str
    breadth: Breadth = field(compare=False)
    scope: Scope = field(compare=False)
    topic: TopicName | None = field(default=None, compare=False)
    expression: "Expression | None" = field(default=None, compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> "TopicPattern":
        """Read a pattern; all but expressions may begin with `persistent://`. Raises InvalidInput."""
        found = cls.named(text)
        if found.breadth is not Breadth.EXPRESSION:
            return found
        from offloaderd.core.names import expressions  # noqa: PLC0415 - without expressions no engine is loaded

        return replace(found, expression=expressions.compiled(text.removeprefix(REGEX)))

    @classmethod
    def named(cls, text: str) -> "TopicPattern":
        """Read a pattern without compiling it, for checks of rights: expressions match nothing. Raises InvalidInput."""
        if len(text) > PATTERN_CHARS_MAX:
            raise InvalidInput(f"a pattern of {len(text)} characters is too long: {PATTERN_CHARS_MAX} is the most")
        if any(ord(char) < 32 or ord(char) == 127 or "\ud800" <= char <= "\udfff" for char in text):
            raise InvalidInput(f"control character in pattern {text!r}", hint=HINT)
        if text.startswith(REGEX):
            return _expression(text)
        return _wildcard(text) if "*" in text else of_topic(TopicName.parse(text))

    def matches(self, topic: TopicName) -> bool:
        """Whether the pattern matches the topic."""
        if self.breadth is Breadth.EXPRESSION:
            if self.expression is None or not self.scope.covers(Scope(topic.tenant, topic.namespace)):
                return False  # an expression costs no time for topics of other namespaces
            whole = partitioned_topic(topic)
            return any(self.expression.fullmatch(path_of(one)) for one in (topic, whole) if one is not None)
        if self.topic is not None:
            return self.topic in {topic, partitioned_topic(topic)}
        return self.scope.covers(Scope(topic.tenant, topic.namespace))

    def __str__(self) -> str:
        return self.text


def of_topic(topic: TopicName) -> TopicPattern:
    """Return the pattern of one topic and its partitions."""
    return TopicPattern(_spelled(path_of(topic)), Breadth.TOPIC, Scope(topic.tenant, topic.namespace), topic)


def path_of(topic: TopicName) -> str:
    """Return `tenant/namespace/topic`, the text that expressions are matched with."""
    return f"{topic.tenant}/{topic.namespace}/{topic.local}"


def partitioned_topic(topic: TopicName) -> TopicName | None:
    """Return the partitioned topic of a partition, by its name; None for any other topic."""
    partition = partition_of(topic)
    return replace(topic, local=partition.name) if partition is not None else None


def fewest(scopes: Iterable[Scope]) -> tuple[Scope, ...]:
    """Return the scopes that no other one covers, in order: a listing of these includes all."""
    tenants: set[str | None] = set()
    kept = []
    for scope in sorted(set(scopes), key=_broadest_first):
        if not tenants & {None, scope.tenant}:
            kept.append(scope)
            if scope.namespace is None:
                tenants.add(scope.tenant)
    return tuple(kept)


def _broadest_first(scope: Scope) -> tuple[bool, bool, str, str]:
    return scope.tenant is not None, scope.namespace is not None, scope.tenant or "", scope.namespace or ""


def _wildcard(text: str) -> TopicPattern:
    path = text.removeprefix(DOMAIN)
    match path.split("/"):
        case [tenant, "*"] if "*" not in tenant:
            TopicName.parse(f"{DOMAIN}{tenant}/any/any")
            return TopicPattern(_spelled(path), Breadth.TENANT, Scope(tenant))
        case [tenant, namespace, "*"] if "*" not in tenant + namespace:
            TopicName.parse(f"{DOMAIN}{tenant}/{namespace}/any")
            return TopicPattern(_spelled(path), Breadth.NAMESPACE, Scope(tenant, namespace))
    hint = "a * stands for all topics of a namespace or tenant, TENANT/NAMESPACE/* or TENANT/*; for parts of names "
    raise InvalidInput(f"malformed pattern {text!r}", hint=f"{hint}write an expression: re:TENANT/NAMESPACE/eu-.*")


def _expression(text: str) -> TopicPattern:
    source = text.removeprefix(REGEX)
    if not source:
        raise InvalidInput("an empty expression matches no topic", hint=HINT)
    return TopicPattern(text, Breadth.EXPRESSION, _scope_of(source))


def _scope_of(source: str) -> Scope:
    """Return the literal tenant and namespace of an expression, so that only these need listing."""
    found = _LITERAL.match(source)
    literal = found[0] if found is not None and "|" not in source else ""
    if source[len(literal) :].startswith(_REPEATED_AT_WILL):
        literal = literal[:-1]
    whole = literal.split("/")[:-1]
    if not all(whole[:2]):
        return Scope()  # it matches no topic, and such a scope cannot be listed
    return Scope(*whole[:2])


def _spelled(path: str) -> str:
    """Return a path in its canonical spelling: a tenant's name may begin with the mark of expressions."""
    return f"{DOMAIN}{path}" if path.startswith(REGEX) else path
