"""Roles of callers for topics, given to identities by the configuration.

A grant is written `ROLE IDENTITY WHERE`. The role is read, offload or admin. The identity is `cert:NAME` (the common
name of a certificate), `uri:NAME` or `dns:NAME` (its alternative names; a SPIFFE id is a URI, and `uri:NAME/*` all ids
below it), `token:NAME`, `group:NAME` (a group that a token names), or the bare name without a colon, which means common
names and tokens. WHERE is a topic, TENANT/NAMESPACE/*, TENANT/*,
re:EXPRESSION, or * for everything; only * includes the daemon itself. admin includes the other roles. read and offload
do not include each other, so that a broker which pushes entries cannot read any. Pure.
"""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from offloaderd.core.errors import InvalidInput
from offloaderd.core.names.patterns import Breadth, TopicPattern

IDENTITY_CHARS_MAX = 256
EVERYTHING = "*"


class Role(StrEnum):
    """Role that a call needs: to read; to push entries and have them offloaded; or to change anything."""

    READ = "read"
    OFFLOAD = "offload"
    ADMIN = "admin"


class Kind(StrEnum):
    """Kinds of identities, written before the name in a grant."""

    CERTIFICATE = "cert"
    URI = "uri"
    DNS = "dns"
    TOKEN = "token"  # noqa: S105 - a kind of name
    GROUP = "group"


BARE = frozenset({Kind.CERTIFICATE, Kind.TOKEN})
"""Kinds of a name without one."""


class Identity(NamedTuple):
    """One name of a caller."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        """Return it as a grant has it."""
        return f"{self.kind}:{self.name}"


Where = TopicPattern | None
"""Topics of a call or a grant; None is everything, the daemon itself included."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One role for one identity of these `kinds`."""

    role: Role
    identity: str
    where: Where
    kinds: frozenset[Kind] = BARE

    @classmethod
    def parse(cls, text: str) -> "Grant":
        """Parse `ROLE IDENTITY WHERE`; an identity with blanks is put into quotes. Raises InvalidInput."""
        hint = "write ROLE IDENTITY WHERE, for instance: read spark public/default/*"
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise InvalidInput(f"malformed grant {text!r}: {error}", hint=hint) from None
        if len(words) != 3:
            raise InvalidInput(f"malformed grant {text!r}: {len(words)} words instead of 3", hint=hint)
        if words[0] not in {*Role}:
            raise InvalidInput(f"no such role {words[0]!r} in grant {text!r}: {', '.join(Role)}", hint=hint)
        where = None if words[2] == EVERYTHING else TopicPattern.parse(words[2])
        kind, colon, name = words[1].partition(":")
        if not colon:
            return cls(Role(words[0]), checked_identity(words[1]), where)
        if kind not in {*Kind}:
            hint = f"the kinds are {', '.join(Kind)}; before a name that has a colon write its kind: token:{words[1]}"
            raise InvalidInput(f"no such kind of identity {kind!r} in grant {text!r}", hint=hint)
        return cls(Role(words[0]), checked_identity(name), where, frozenset({Kind(kind)}))

    def gives(self, role: Role, where: Where) -> bool:
        """Whether the grant suffices for a call that needs `role` for all of `where`."""
        return self.role in {role, Role.ADMIN} and covers(self.where, where)


class Rights:
    """All grants."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._grants: defaultdict[Identity, list[Grant]] = defaultdict(list)
        for grant in grants:
            for kind in grant.kinds:
                self._grants[Identity(kind, grant.identity)].append(grant)

    def allow(self, identities: Iterable[Identity], role: Role, where: Where) -> bool:
        """Whether one of these identities has `role` for all of `where`."""
        return any(grant.gives(role, where) for grant in self._of(identities))

    def allow_some(self, identities: Iterable[Identity], role: Role) -> bool:
        """Whether one of these identities has `role` for anything at all."""
        return any(grant.gives(role, grant.where) for grant in self._of(identities))

    def _of(self, identities: Iterable[Identity]) -> Iterator[Grant]:
        return (grant for one in identities for name in _also(one) for grant in self._grants.get(name, ()))


def _also(identity: Identity) -> Iterator[Identity]:
    """Yield an identity, and for a URI what grants all below a path have: `spiffe://domain/*` and so on."""
    yield identity
    if identity.kind is Kind.URI:
        scheme, mark, path = identity.name.partition("://")
        parts = path.split("/")
        if mark and not {"", ".", ".."} & set(parts) and "*" not in path:
            for count in range(1, len(parts)):
                yield Identity(Kind.URI, f"{scheme}://{'/'.join(parts[:count])}/*")


def covers(given: Where, asked: Where) -> bool:
    """Whether all topics of `asked` are in `given`; False in doubt (two expressions)."""
    if given is None or given == asked:
        return True
    if asked is None:
        return False
    if asked.topic is not None:
        return given.matches(asked.topic)
    return given.breadth in {Breadth.NAMESPACE, Breadth.TENANT} and given.scope.covers(asked.scope)


def checked_identity(text: str) -> str:
    """Return a printable name of a valid length; raises InvalidInput."""
    if not text or len(text) > IDENTITY_CHARS_MAX or not text.isprintable():
        raise InvalidInput(f"not a name of somebody: {text[:80]!r}", hint=f"1 to {IDENTITY_CHARS_MAX} characters")
    return text


def shown(where: Where) -> str:
    """Return topics of a call as a grant has them."""
    return EVERYTHING if where is None else str(where)
