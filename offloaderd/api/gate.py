"""The gate of all calls: each is counted, identified by certificate or token, and compared with the grants.

- A method without an entry in `needs` is refused to everybody.
- A token, if one is sent, counts alone: no certificate makes up for a bad one. Its expiry cuts the call.
- No request is parsed before its caller has the role for some topic. Every message of a stream is checked.
- Without authentication, which the settings allow on loopback, every call is allowed, and limits go by address.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache, partial
from typing import Any, Protocol

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from offloaderd.access.callers import CallRate, bearer_text, network_of, of_certificate
from offloaderd.access.roles import BARE, Identity, Kind, Rights, Role, Where, shown
from offloaderd.access.tokens import TokenKey, TokenRules, bearer, key_id_of
from offloaderd.api.roles_needed import NEEDS, READS, Need, range_of
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Denied, InvalidInput, Throttled, Unauthenticated
from offloaderd.core.limits import FLOW
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import of_topic
from offloaderd.core.quotas import Account, Accounts

NAMED_MAX = 20
"""Topics of one call in the audit log."""
CHANGE_FLAGS = ("dry_run", "apply", "undo")
"""Fields of requests that show whether anything was to be changed."""


@cache
def _flags_of(kind: Descriptor) -> tuple[str, ...]:
    """Return those of CHANGE_FLAGS that a type of requests has."""
    return tuple(name for name in CHANGE_FLAGS if name in kind.fields_by_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one caller, and of all together; 0 is no limit.

    `audit_reads`: reads are in the audit log, `audit_calls`: all other calls are.
    """

    calls_max: int = 0
    calls_per_s: int = 0
    identity_calls_max: int = 0
    identity_readers_max: int = 0
    call_s_max: float = 0.0
    send_s_max: float = 0.0
    audit_reads: bool = False
    audit_calls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """Identification of callers, and their grants. `token_keys`: newest first; without keys no tokens are accepted.

    `missed` is called for a token that names an unknown key of a provider; None without a provider.
    """

    rights: Rights
    certificates: bool = False
    token_keys: Callable[[], Sequence[TokenKey]] = tuple
    token_rules: TokenRules = field(default_factory=TokenRules)
    missed: Callable[[], None] | None = None


class Origin(Protocol):
    """Origin and credentials of a call: the context of a gRPC call, or an HTTP request."""

    def peer(self) -> str:
        """Return KIND:ADDRESS:PORT."""
        ...

    def invocation_metadata(self) -> Iterable[Any] | None:
        """Return pairs, among them `authorization`."""
        ...

    def auth_context(self) -> Mapping[str, Any]:
        """Return what the transport has verified of the peer."""
        ...


class Withdrawn(Enum):
    """Permission that was withdrawn during a call."""

    GRANT = auto()
    KEY = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class Caller:
    """Caller of one call, and the topics that it named. `via` is token, certificate or none; `identities` are all
    names.

    `key` signed the token. `limit` is the timeout that cuts the call; `withdrawn` is set if it was cut for a
    withdrawal.
    """

    need: Need | None
    path: str
    rights: Rights | None
    send_s_max: float
    audit_reads: bool = False
    audit_calls: bool = False
    name: str = ""
    via: str = "none"
    identities: tuple[Identity, ...] = ()
    key: TokenKey | None = None
    expires_s: float | None = None
    seconds_max: float | None = None
    named: list[str] = field(default_factory=list)
    wheres: list[Where] = field(default_factory=list)
    limit: asyncio.Timeout | None = None
    withdrawn: Withdrawn | None = None
    how: dict[str, bool] = field(default_factory=dict)
    read: dict[str, str] | None = None
    accounts: Accounts | None = None
    account: Account | None = None
    """The account of the namespace that it named first."""
    planned_bytes: int = 0
    """Bytes that it was told where to read; they count as read."""

    @property
    def share(self) -> str | None:
        """Name under which its limits are counted; None without authentication, because many callers may share an
        address.
        """
        return f"{self.via} {self.name}" if self.name else None

    def check_method(self) -> None:
        """Raise NotAllowed for a method without an entry."""
        if self.need is None and self.rights is not None:
            raise NotAllowed(f"nobody may call {self.path}", hint="it has no role in this version of the daemon")

    @property
    def role(self) -> Role | None:
        """The role that the call needs, None for none."""
        return self.need.role if self.need is not None else None

    @property
    def is_audited(self) -> bool:
        """Whether the call is in the audit log, if it is no read that is there."""
        return self.role is Role.ADMIN or (self.audit_calls and not (self.need is not None and self.need.open))

    def check_role(self) -> None:
        """Raise NotAllowed when the caller has the role for no topic at all; the request's topics are checked later."""
        if self.role and self.rights is not None and not self.rights.allow_some(self.identities, self.role):
            raise self._missing(self.role, "any topic", "WHERE")

    def check(self, request: Message) -> None:
        """Check a request. Raises Denied with the missing role, InvalidInput for malformed names."""
        if self.need is None or self.need.role is None:
            return
        self.how = {name: bool(getattr(request, name)) for name in _flags_of(request.DESCRIPTOR)}
        if self.rights is None:
            with suppress(InvalidInput):  # the service reports the mistake
                self._passed(request, list(self.need.named(request)))
            return
        wheres = list(self.need.named(request))
        for where in wheres:
            self.check_where(where)
        self._passed(request, wheres)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The quotas that the call counts for while it runs."""
        return ("calls", "readers") if self.path in READS else ("calls",)

    def _charge(self, wheres: Sequence[Where]) -> None:
        """Count the call for the namespace that it names first, and work in its flow. Raises Throttled."""
        where = wheres[0] if wheres else None
        if self.account is not None or self.accounts is None or where is None or where.scope.tenant is None:
            return
        account = self.accounts.known(where.scope)
        account.begin(*self.kinds)
        self.account = account
        FLOW.set(account)

    def _passed(self, request: object, wheres: Sequence[Where]) -> None:
        self._charge(wheres)
        if self.audit_reads:
            self.read = range_of(request)
        if self.is_audited:
            self._note(map(shown, wheres))

    def check_where(self, where: Where) -> None:
        """Check a topic or pattern of the call. Raises NotAllowed with the missing role."""
        if self.need is None or self.need.role is None or self.rights is None:
            return
        text = shown(where)
        self._note([text])
        if len(self.wheres) < NAMED_MAX and where not in self.wheres:
            self.wheres.append(where)
        if not self.rights.allow(self.identities, self.need.role, where):
            raise self._missing(self.need.role, "everything" if where is None else text, text)

    def _missing(self, role: Role, what: str, where: str) -> "NotAllowed":
        return NotAllowed(
            f"{self.name} may not call {self.path.rpartition('/')[2]}: the role {role} for {what} is missing",
            hint=f"access.grants of the daemon would need: {role} {self.identities[0]} {where}",
        )

    def follow(self, rules: Authentication | None) -> None:
        """Apply other rules; a call that they no longer allow is cut."""
        rights = self.rights = rules.rights if rules is not None else None
        if rules is None or rights is None:
            return
        if self.key is not None and self.key not in rules.token_keys():
            self.withdrawn = Withdrawn.KEY
        elif self.role and not all(rights.allow(self.identities, self.role, where) for where in self.wheres):
            self.withdrawn = Withdrawn.GRANT
        if self.withdrawn is not None and self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time())

    def _note(self, named: Iterable[str]) -> None:
        for text in named:
            if text not in self.named and len(self.named) < NAMED_MAX:
                self.named.append(text)


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Caller of the call that is being served."""


def share_of_caller() -> str | None:
    """Return the name under which the limits of the present caller are counted, None without one."""
    caller = CALLER.get()
    return caller.share if caller is not None else None


def name_of_caller(origin: Origin) -> str:
    """Return the name of the present caller, for records of what was changed; without one the address."""
    caller = CALLER.get()
    return (caller.name if caller is not None else "") or origin.peer()


def account_of_caller() -> Account | None:
    """Return the account of the namespace that the present call named, None without one."""
    caller = CALLER.get()
    return caller.account if caller is not None else None


def count_planned(size_bytes: int) -> None:
    """Count bytes that the present caller is told where to read, as if they were sent."""
    caller = CALLER.get()
    if caller is None:
        return
    if caller.account is not None:
        caller.account.sent(size_bytes)
    caller.planned_bytes += size_bytes


def check_source(topic: TopicName) -> None:
    """Allow the present call to read another topic than it names, if its caller may. Raises NotAllowed."""
    caller = CALLER.get()
    if caller is not None:
        if caller.read is not None:
            caller.read["source"] = str(topic)
        caller.check_where(of_topic(topic))


class NotAllowed(Denied):
    """The caller is known, and lacks the role that the call needs."""


class Gate:
    """The gate of the daemon; without `authentication` everybody is admitted."""

    def __init__(
        self, metrics: Metrics, clock: Clock, limits: Limits | None = None, authentication: Authentication | None = None
    ) -> None:
        self.accounts: Accounts | None = None
        """The accounts of namespaces, once there are some."""
        self._metrics = metrics
        self._clock = clock
        self._limits = limits or Limits()
        self._authentication = authentication
        self._rate = CallRate(self._limits.calls_per_s, clock)
        self._running: set[Caller] = set()
        self._shares: Counter[tuple[str, str]] = Counter()
        for of in ("calls", "readers"):
            metrics.grpc_identity_highest.labels(of=of).set_function(partial(self._largest_share, of))

    @property
    def audits_calls(self) -> bool:
        """Whether every call is in the audit log, also one that was refused before its caller was known."""
        return self._limits.audit_calls

    def follow(self, limits: Limits, authentication: Authentication | None) -> None:
        """Apply other rules from now on; running calls that they forbid are cut."""
        if limits.calls_per_s != self._limits.calls_per_s:
            self._rate = CallRate(limits.calls_per_s, self._clock)
        self._limits, self._authentication = limits, authentication
        self.check_running()

    def check_running(self) -> None:
        """Cut calls whose grant was withdrawn, or whose token's key was removed, which may be in a file."""
        for caller in list(self._running):
            caller.follow(self._authentication)

    @contextmanager
    def admitted(self, path: str, context: Origin, *, stream: bool) -> Iterator[Caller]:
        """Count a call while it runs, and identify its caller. Raises Unauthenticated, Denied, Throttled."""
        need, limits = NEEDS.get(path), self._limits
        rights = self._authentication.rights if self._authentication is not None else None
        caller = Caller(need=need, path=path, rights=rights, send_s_max=limits.send_s_max)
        caller.audit_calls = limits.audit_calls
        caller.audit_reads, caller.accounts = limits.audit_reads and path in READS, self.accounts
        if need is not None and need.open:
            yield caller
            return
        if limits.calls_max and len(self._running) >= limits.calls_max:
            raise self._refused("calls", f"this daemon serves {limits.calls_max} calls already", "grpc.calls_max")
        self._running.add(caller)
        self._metrics.grpc_calls.set(len(self._running))
        try:
            self._identify(caller, context)
            caller.check_method()
            caller.seconds_max = self._seconds_max(caller, stream=stream)
            with self._shared(caller, limits):
                yield caller
        except NotAllowed:
            self._metrics.grpc_refused.labels(reason="denied").inc()
            raise
        finally:
            if caller.account is not None:
                caller.account.end(*caller.kinds)
            self._running.discard(caller)
            self._metrics.grpc_calls.set(len(self._running))

    @contextmanager
    def _shared(self, caller: Caller, limits: Limits) -> Iterator[None]:
        """Count a call in its identity's share of the limits. Raises Throttled."""
        whose = caller.share
        wanted = [("calls", limits.identity_calls_max)] if whose is not None else []
        if wanted and caller.path in READS:
            wanted.append(("readers", limits.identity_readers_max))
        shares = [(of, whose or "") for of, _ in wanted]
        for share, (of, most) in zip(shares, wanted, strict=True):
            if most and self._shares[share] >= most:
                said = f"{caller.name} has {most} {'calls' if of == 'calls' else 'reads'} open already"
                raise self._refused(f"identity_{of}", said, f"access.identity_{of}_max")
        self._shares.update(shares)
        try:
            yield
        finally:
            self._shares.subtract(shares)
            for share in shares:
                if not self._shares[share]:
                    del self._shares[share]

    def _largest_share(self, of: str) -> int:
        """Return the number of calls, or readers, of the identity with the most."""
        return max((count for (kind, _), count in self._shares.items() if kind == of), default=0)

    def _identify(self, caller: Caller, context: Origin) -> None:
        host = network_of(str(context.peer()))
        if self._authentication is None:
            self._take("address", host)
            return
        try:
            self._authenticate(caller, context, self._authentication)
        except Unauthenticated:
            caller.name = ""
            self._metrics.grpc_refused.labels(reason="unauthenticated").inc()
            self._take("stranger", host)
            raise
        self._take(caller.via, caller.name)

    def _authenticate(self, caller: Caller, context: Origin, rules: Authentication) -> None:
        token = bearer_text(context.invocation_metadata() or ())
        if token is not None:
            keys = rules.token_keys()
            if not keys and rules.missed is not None:
                raise Unauthenticated(
                    "the provider's keys for tokens have not been read yet",
                    hint="try again in a moment; the daemon's log says why (keys.not_reloaded)",
                )
            if not keys:
                raise Unauthenticated("this daemon takes no tokens", hint="set access.token_secret_key, or use another")
            if rules.missed is not None and key_id_of(token) not in {"", *(key.key_id for key in keys)}:
                rules.missed()
            found = bearer(token, keys, rules.token_rules, self._clock)
            own = "previous" if found.key else "present"
            self._metrics.grpc_tokens.labels(signed_by=own if keys[found.key].key_id is None else "provider").inc()
            groups = (Identity(Kind.GROUP, one) for one in found.groups)
            caller.identities = (Identity(Kind.TOKEN, found.name), *groups)
            caller.via, caller.expires_s, caller.key = "token", found.expires_s, keys[found.key]
        elif rules.certificates:
            caller.identities, caller.via = of_certificate(context.auth_context()), "certificate"
        else:
            raise Unauthenticated("no token was sent", hint="offloadctl takes --token-file, or OFFLOADCTL_TOKEN")
        first = caller.identities[0]
        caller.name = first.name if first.kind in BARE else str(first)

    def _take(self, kind: str, name: str) -> None:
        if not self._rate.take(kind, name):
            per_s = self._limits.calls_per_s
            raise self._refused("rate", f"{name} makes more than {per_s} calls a second", "access.calls_per_s")

    def _refused(self, reason: str, message: str, setting: str) -> Throttled:
        self._metrics.grpc_refused.labels(reason=reason).inc()
        return Throttled(message, hint=f"try again in a moment; {setting} sets the limit")

    def _seconds_max(self, caller: Caller, *, stream: bool) -> float | None:
        """Return how long a call may run: a call with one answer has a limit, and any call ends with its token."""
        limits = [] if stream or not self._limits.call_s_max else [self._limits.call_s_max]
        if caller.expires_s is not None:
            limits.append(max(0.0, caller.expires_s - self._clock.wall_ms() / 1000))
        return min(limits, default=None)
