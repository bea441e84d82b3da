"""Quotas and usage in the metadata store.

A level is `*` (the broker level), a tenant, or TENANT/NAMESPACE. Quotas are no values of policies: who administers a
namespace sets its policies, and nobody sets quotas of his own.
"""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass

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

USAGES_MAX = 5000
"""Namespaces in a record of usage, some 70 bytes each; those with the most are kept."""


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
    """Return the node's content; of too many namespaces those that have stored or moved most."""
    most = sorted(
        value.namespaces.items(), key=lambda item: item[1].stored_byte_s + item[1].written_bytes + item[1].read_bytes
    )
    record = records_pb2.UsageRecord(since_ms=value.since_ms, at_ms=value.at_ms, format=codec.FORMAT)
    for scope, usage in most[-USAGES_MAX:]:
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


async def usages(store: MetadataStore) -> dict[str, DaemonUsage]:
    """Return the usage that each daemon has written, by its id; damaged ones are left out. Raises Transient."""

    async def read(name: str) -> DaemonUsage | None:
        try:
            return await nodes.record(store, f"{paths.USAGE}/{name}", decode_usage)
        except CorruptData as error:
            log.error("usage.corrupt", path=f"{paths.USAGE}/{name}", error=str(error))  # noqa: TRY400
            return None

    names = await store.children(paths.USAGE)
    found = await each(names, read)
    return {paths.name_of(name): one for name, one in zip(names, found, strict=True) if one is not None}


def stored_of(found: Mapping[str, DaemonUsage], living: Container[str]) -> Counter[Scope]:
    """Return the stored bytes of each namespace, as the living daemons have counted them."""
    total: Counter[Scope] = Counter()
    for daemon_id, one in found.items():
        if daemon_id in living:
            for scope, usage in one.namespaces.items():
                total[scope] += usage.stored_bytes
    return total
