"""Who may come in: every call is counted, told apart by certificate or token, and compared with the grants.

Rules: a method that has no entry in `needs` is refused to everybody; a token, if one is sent, counts alone, and a bad
one is not made up for by a certificate; a call is cut when its token expires; no request is parsed before its caller is
known to have the role for some topic; each message of a stream is checked, not the first one only. Without
authentication, which the settings allow on loopback, everybody may do everything, and limits go by the address.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol

from offloaderd.access.callers import CallRate, bearer_text, network_of, of_certificate
from offloaderd.access.roles import BARE, Identity, Kind, Rights, Role, Where, shown
from offloaderd.access.tokens import TokenKey, TokenRules, bearer
from offloaderd.api.roles_needed import NEEDS, READS, Need, range_of
from offloaderd.core.clock import Clock
from offloaderd.core.errors import Denied, InvalidInput, Throttled, Unauthenticated
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import of_topic

NAMED_MAX = 20
"""So many topics of one call are kept for the audit log."""
HOW = ("dry_run", "apply", "undo")
"""Fields of requests that tell whether anything was to be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one caller, and all together, may take; 0 is no limit. `audit_reads`: what was read is written down."""

    calls_max: int = 0
    calls_per_s: int = 0
    identity_calls_max: int = 0
    identity_readers_max: int = 0
    call_s_max: float = 0.0
    send_s_max: float = 0.0
    audit_reads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """How callers are told apart, and what they may do. `token_keys`: newest first; none: no tokens."""

    rights: Rights
    certificates: bool = False
    token_keys: Callable[[], Sequence[TokenKey]] = tuple
    token_rules: TokenRules = field(default_factory=TokenRules)


class Origin(Protocol):
    """Where a call comes from, and what was shown to prove by whom; a call's context, or a request over HTTP."""

    def peer(self) -> str:
        """Return KIND:ADDRESS:PORT."""
        ...

    def invocation_metadata(self) -> Iterable[Any] | None:
        """Return pairs, among them `authorization`."""
        ...

    def auth_context(self) -> Mapping[str, Any]:
        """Return what the transport has verified of the other side."""
        ...


class Withdrawn(Enum):
    """What a call was let in by, and is no more."""

    GRANT = auto()
    KEY = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class Caller:
    """Who makes a call, and what it was found to name. `via` is token, certificate or none; `identities` are all names.

    `key` is the one that signed the token. `limit` is what cuts the call in the end, `withdrawn` says what was taken
    back if it was cut for that.
    """

    need: Need | None
    path: str
    rights: Rights | None
    send_s_max: float
    audit_reads: bool = False
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

    @property
    def share(self) -> str | None:
        """Under which name its limits are counted; None without authentication: addresses may be those of many."""
        return f"{self.via} {self.name}" if self.name else None

    def check_known(self) -> None:
        """Raise NotAllowed for a method that nobody has thought of."""
        if self.need is None and self.rights is not None:
            raise NotAllowed(f"nobody may call {self.path}", hint="it has no role in this version of the daemon")

    def check_role(self) -> None:
        """Raise NotAllowed when the caller has the role for no topic at all; for which it is needed, a request says."""
        role = self.need.role if self.need is not None else None
        if role is not None and self.rights is not None and not self.rights.allow_some(self.identities, role):
            raise self._missing(role, "any topic", "WHERE")

    def check(self, request: object) -> None:
        """Let a request pass. Raises Denied with the role that is missing, InvalidInput for malformed names."""
        if self.need is None or self.need.role is None:
            return
        self.how = {name: bool(getattr(request, name)) for name in HOW if hasattr(request, name)}
        if self.rights is None:
            with suppress(InvalidInput):  # the service says what is wrong, everybody may ask
                self._passed(request, list(self.need.named(request)))
            return
        wheres = list(self.need.named(request))
        for where in wheres:
            self.check_where(where)
        self._passed(request, wheres)

    def _passed(self, request: object, wheres: Iterable[Where]) -> None:
        """Keep what the audit log tells of a call whose names are names."""
        if self.audit_reads:
            self.read = range_of(request)
        if self.need is not None and self.need.role is Role.ADMIN:
            self._note(map(shown, wheres))

    def check_where(self, where: Where) -> None:
        """Let the call go on with topics that it is about. Raises NotAllowed with the role that is missing."""
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
        """Go on under other rules; a call that they do not allow any more is cut."""
        rights = self.rights = rules.rights if rules is not None else None
        role = self.need.role if self.need is not None else None
        if rules is None or rights is None:
            return
        if self.key is not None and self.key not in rules.token_keys():
            self.withdrawn = Withdrawn.KEY
        elif role is not None and not all(rights.allow(self.identities, role, where) for where in self.wheres):
            self.withdrawn = Withdrawn.GRANT
        if self.withdrawn is not None and self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time())

    def _note(self, named: Iterable[str]) -> None:
        """Keep what was named for the audit log."""
        for text in named:
            if text not in self.named and len(self.named) < NAMED_MAX:
                self.named.append(text)


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Who makes the call that is being served."""


def share_of_caller() -> str | None:
    """Return under which name the limits of the present call's caller are counted; None: it has none of its own."""
    caller = CALLER.get()
    return caller.share if caller is not None else None


def check_source(topic: TopicName) -> None:
    """Let the present call read another topic than it names, if its caller may by naming it. Raises NotAllowed."""
    caller = CALLER.get()
    if caller is not None:
        if caller.read is not None:
            caller.read["source"] = str(topic)
        caller.check_where(of_topic(topic))


class NotAllowed(Denied):
    """The caller is known, and has not the role that the call needs."""


class Gate:
    """The daemon's one gate; `authentication` None lets everybody in."""

    def __init__(
        self, metrics: Metrics, clock: Clock, limits: Limits | None = None, authentication: Authentication | None = None
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._limits = limits or Limits()
        self._authentication = authentication
        self._rate = CallRate(self._limits.calls_per_s, clock)
        self._running: set[Caller] = set()
        self._shares: Counter[tuple[str, str]] = Counter()
        for of in ("calls", "readers"):
            metrics.grpc_identity_highest.labels(of=of).set_function(partial(self._most, of))

    def follow(self, limits: Limits, authentication: Authentication | None) -> None:
        """Let callers in by other rules from now on; running calls that these forbid are cut."""
        if limits.calls_per_s != self._limits.calls_per_s:
            self._rate = CallRate(limits.calls_per_s, self._clock)
        self._limits, self._authentication = limits, authentication
        self.check_running()

    def check_running(self) -> None:
        """Cut the calls that were let in by what is no more: a grant, or the key of a token, which may be in a file."""
        for caller in list(self._running):
            caller.follow(self._authentication)

    @contextmanager
    def admitted(self, path: str, context: Origin, *, stream: bool) -> Iterator[Caller]:
        """Count a call for as long as it runs, and fill in who makes it. Raises Unauthenticated, Denied, Throttled."""
        need, limits = NEEDS.get(path), self._limits
        rights = self._authentication.rights if self._authentication is not None else None
        caller = Caller(need=need, path=path, rights=rights, send_s_max=limits.send_s_max)
        caller.audit_reads = limits.audit_reads and path in READS
        if need is not None and need.open:
            yield caller
            return
        if limits.calls_max and len(self._running) >= limits.calls_max:
            raise self._refused("calls", f"this daemon serves {limits.calls_max} calls already", "grpc.calls_max")
        self._running.add(caller)
        self._metrics.grpc_calls.set(len(self._running))
        try:
            self._identify(caller, context)
            caller.check_known()
            caller.seconds_max = self._seconds_max(caller, stream=stream)
            with self._shared(caller, limits):
                yield caller
        except NotAllowed:
            self._metrics.grpc_refused.labels(reason="denied").inc()
            raise
        finally:
            self._running.discard(caller)
            self._metrics.grpc_calls.set(len(self._running))

    @contextmanager
    def _shared(self, caller: Caller, limits: Limits) -> Iterator[None]:
        """Count a call as its identity's, which may hold so many and leaves the rest to others. Raises Throttled."""
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

    def _most(self, of: str) -> int:
        """Return how many calls, or readers, the one who has most of them holds."""
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
            if not keys:
                raise Unauthenticated("this daemon takes no tokens", hint="set access.token_secret_key, or use another")
            found = bearer(token, keys, rules.token_rules, self._clock)
            self._metrics.grpc_tokens.labels(signed_by="previous" if found.key else "present").inc()
            caller.identities = (Identity(Kind.TOKEN, found.name),)
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
        """Return for how long a call may run: one answer has a limit, anything ends with its token."""
        limits = [] if stream or not self._limits.call_s_max else [self._limits.call_s_max]
        if caller.expires_s is not None:
            limits.append(max(0.0, caller.expires_s - self._clock.wall_ms() / 1000))
        return min(limits, default=None)
