"""Quotas and usage in the metadata store.

A level is `*` (the broker level), a tenant, or TENANT/NAMESPACE. Quotas are no values of policies: who administers a
namespace sets its policies, and nobody sets quotas of his own.
"""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

import structlog

from offloaderd.core.aio import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import CorruptData, InvalidInput
from offloaderd.core.names.patterns import Breadth, Scope, TopicPattern
from offloaderd.core.quotas import NONE, Quotas, Usage, named
from offloaderd.format.parsing import filled, value_of
from offloaderd.format.pb.storage import records_pb2
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import codec
from offloaderd.policy import store as stored
from offloaderd.policy.quota_fields import FIELDS

log = structlog.get_logger(__name__)

USAGES_A_NODE = 5000
"""Namespaces in one node of a daemon's usage, some 70 bytes each; further ones are in pieces below it."""


def level_of(text: str) -> Scope:
    """Parse a level: `*`, TENANT or TENANT/NAMESPACE. Raises InvalidInput."""
    if text == "*":
        return Scope()
    parts = text.split("/")
    try:
        pattern = TopicPattern.named(f"{text}/*")
    except InvalidInput:
        pattern = None
    if pattern is None or pattern.breadth is Breadth.EXPRESSION or len(parts) > 2 or pattern.scope != Scope(*parts):
        raise InvalidInput(
            f"malformed level {text!r}", hint="write TENANT/NAMESPACE, TENANT, or * for the broker level"
        )
    return pattern.scope


def checked(given: Mapping[str, object]) -> Quotas:
    """Return valid quotas. Raises InvalidInput with all mistakes."""
    if flaws := [flaw for name, value in given.items() if (flaw := FIELDS[name].flaw(value)) is not None]:
        raise InvalidInput("\n".join(flaws), hint="nothing was changed")
    return Quotas(**{name: FIELDS[name].settled(value) for name, value in given.items()})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelQuotas:
    """The quotas of a level, and who set them last."""

    quotas: Quotas
    changed_ms: int = 0
    changed_by: str = ""


def encode(value: LevelQuotas) -> bytes:
    """Return the node's content."""
    who = {"changed_ms": value.changed_ms, "changed_by": value.changed_by}
    return codec.content(records_pb2.QuotaRecord, value.quotas, **who)


def decode(data: bytes, *, path: str) -> LevelQuotas:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.QuotaRecord, data, path)
    given = {field.name: value for field, value in record.ListFields() if field.name in FIELDS}
    try:
        quotas = checked(given)
    except InvalidInput as error:
        codec.corrupt(path, "quotas", error.message)
    return LevelQuotas(quotas=quotas, changed_ms=record.changed_ms, changed_by=record.changed_by)


async def load(store: MetadataStore, known: Mapping[Scope, LevelQuotas] | None = None) -> dict[Scope, LevelQuotas]:
    """Read the quotas of all levels; a damaged level keeps its `known` ones. Raises Transient."""

    async def read(name: str) -> tuple[Scope, LevelQuotas] | None:
        path = f"{paths.QUOTAS}/{name}"
        try:
            scope = level_of(paths.name_of(name))
        except InvalidInput:
            log.warning("metadata.foreign_node", path=path, hint="no level has this name; delete the node")
            return None
        try:
            found = await nodes.record(store, path, decode)
        except CorruptData as error:
            log.error("quota.corrupt", path=path, error=str(error), hint="set it again")  # noqa: TRY400
            found = (known or {}).get(scope)
        return (scope, found) if found is not None else None

    found = await each(await store.children(paths.QUOTAS), read)
    return dict(one for one in found if one is not None)


async def put(store: MetadataStore, clock: Clock, scope: Scope, quotas: Quotas, *, by: str) -> None:
    """Replace the quotas of a level, or remove them if there are none. Raises NewerRecord, Transient."""
    path, what = paths.quota(named(scope)), f"the quotas of {named(scope)}"
    if quotas == NONE:
        if await nodes.node(store, path) is not None:
            await stored.remove_counted(store, clock, paths.QUOTAS, path, what)
        return
    value = encode(LevelQuotas(quotas=quotas, changed_ms=clock.wall_ms(), changed_by=by))
    await stored.put_counted(store, clock, paths.QUOTAS, path, value, decode, what)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonUsage:
    """What one daemon has counted since `since_ms`."""

    since_ms: int
    at_ms: int
    namespaces: Mapping[Scope, Usage]


def encode_usage(value: DaemonUsage) -> bytes:
    """Return the content of one node."""
    record = records_pb2.UsageRecord(since_ms=value.since_ms, at_ms=value.at_ms, format=codec.FORMAT)
    for scope, usage in value.namespaces.items():
        record.namespaces.append(filled(records_pb2.NamespaceUsage, usage, namespace=named(scope)))
    return record.SerializeToString(deterministic=True)


def decode_usage(data: bytes, *, path: str) -> DaemonUsage:
    """Read a node's content; raises CorruptData."""
    record = codec.parse(records_pb2.UsageRecord, data, path)
    found: dict[Scope, Usage] = {}
    for one in record.namespaces:
        tenant, _, namespace = one.namespace.partition("/")
        if not tenant or not namespace:
            codec.corrupt(path, "TENANT/NAMESPACE", repr(one.namespace))
        found[Scope(tenant, namespace)] = value_of(Usage, one)
    return DaemonUsage(since_ms=record.since_ms, at_ms=record.at_ms, namespaces=found)


async def put_usage(store: MetadataStore, daemon_id: str, value: DaemonUsage) -> None:
    """Write what a daemon has counted: its node, and pieces below it for more than USAGES_A_NODE namespaces.

    A namespace that keeps its place in the order is always in the same piece, so a reader that sees some of them newer
    than others finds each namespace once. Raises Transient, Conflict.
    """
    spaces = list(value.namespaces.items())
    needed = max(1, -(-len(spaces) // USAGES_A_NODE))
    for number in range(max(needed, 1 + max(await _pieces(store, daemon_id), default=0))):
        at = paths.usage(daemon_id, number)
        held = dict(spaces[number * USAGES_A_NODE : (number + 1) * USAGES_A_NODE])
        content, found = encode_usage(replace(value, namespaces=held)), await nodes.node(store, at)
        if found is None:
            await store.create(at, content)
        else:
            await store.replace(at, content, found.version)


async def usage_of(store: MetadataStore, daemon_id: str) -> DaemonUsage | None:
    """Return what a daemon has written, in its order; None without a record. Raises CorruptData, Transient."""

    async def read(number: int) -> DaemonUsage | None:
        return await nodes.record(store, paths.usage(daemon_id, number), decode_usage)

    found, total = await read(0), dict[Scope, Usage]()
    for one in (found, *await each(await _pieces(store, daemon_id), read)):
        for scope, usage in one.namespaces.items() if one is not None else ():
            usage.add(total.get(scope, Usage()))  # a release without pieces has begun its sum anew
            total[scope] = usage
    return replace(found, namespaces=total) if found is not None else None


async def _pieces(store: MetadataStore, daemon_id: str) -> list[int]:
    return sorted(int(name) for name in await store.children(paths.usage(daemon_id)) if name.isdecimal())


async def usages(store: MetadataStore) -> dict[str, DaemonUsage]:
    """Return the usage that each daemon has written, by its id; damaged ones are left out. Raises Transient."""

    async def read(daemon_id: str) -> DaemonUsage | None:
        try:
            return await usage_of(store, daemon_id)
        except CorruptData as error:
            log.error("usage.corrupt", path=paths.usage(daemon_id), error=str(error))  # noqa: TRY400
            return None

    ids = [paths.name_of(name) for name in await store.children(paths.USAGE)]
    found = await each(ids, read)
    return {daemon_id: one for daemon_id, one in zip(ids, found, strict=True) if one is not None}


def stored_of(found: Mapping[str, DaemonUsage], living: Container[str]) -> Counter[Scope]:
    """Return the stored bytes of each namespace, as the living daemons have counted them."""
    total: Counter[Scope] = Counter()
    for daemon_id, one in found.items():
        if daemon_id in living:
            for scope, usage in one.namespaces.items():
                total[scope] += usage.stored_bytes
    return total
