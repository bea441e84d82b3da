"""Grants in the metadata store: anybody may read, revoke and allow them, only the topic's owner writes them.

Every change compares the node's version, so a revocation and the decision to delete cannot both succeed.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import structlog

from offloaderd.core.aio import each
from offloaderd.core.errors import Conflict, NotFound, OffloaderError, Transient
from offloaderd.core.model import TopicName
from offloaderd.metadata import paths
from offloaderd.metadata.nodes import node
from offloaderd.metadata.port import Delete, MetadataStore, Replace, Step
from offloaderd.metadata.records import grant as grant_record
from offloaderd.metadata.records.grant import Grant

log = structlog.get_logger(__name__)

TRIES = 5
"""How often a grant may change between reading and writing it before the caller has to try again."""


class Stored(NamedTuple):
    """A grant with its node's version."""

    grant: Grant
    version: int


async def load(store: MetadataStore, topic: TopicName, ledger_id: int) -> Stored | None:
    """Return a ledger's grant, None without one. Raises CorruptData, Transient."""
    path = paths.grant(topic, ledger_id)
    found = await node(store, path)
    return Stored(grant_record.decode(found.value, path=path), found.version) if found is not None else None


async def load_all(
    store: MetadataStore,
    topic: TopicName,
    known: Mapping[int, Grant] = MappingProxyType({}),
    *,
    only: Collection[int] | None = None,
) -> dict[int, Grant]:
    """Return the grants of a topic by ledger, of `only` these ledgers or of all. Raises CorruptData, Transient.

    Those in `known` are not read again.
    """
    names = await store.children(paths.grants(topic))
    ledger_ids = {int(name) for name in names if name.isascii() and name.isdecimal()}
    if only is not None:
        ledger_ids.intersection_update(only)
    unread = sorted(ledger_ids - known.keys())
    found = await each(unread, lambda ledger_id: load(store, topic, ledger_id))
    read = {ledger_id: one.grant for ledger_id, one in zip(unread, found, strict=True) if one is not None}
    return {**{ledger_id: grant for ledger_id, grant in known.items() if ledger_id in ledger_ids}, **read}


async def damaged(store: MetadataStore, topic: TopicName) -> tuple[int, ...]:
    """Return the ledgers of a topic whose copies are recorded as damaged, in order. Raises CorruptData, Transient."""
    return damaged_of(await load_all(store, topic))


def damaged_of(grants: Mapping[int, Grant]) -> tuple[int, ...]:
    """Return the ledgers whose grants are revoked for damage, in order."""
    return tuple(sorted(ledger_id for ledger_id, grant in grants.items() if grant.damaged))


async def ensure_folder(store: MetadataStore, topic: TopicName) -> None:
    """Create the folder of grants, which topics of the first version do not have."""
    try:
        await store.create(paths.grants(topic), b"")
    except Conflict:
        log.debug("grants.folder_exists", topic=str(topic))


async def _notify_owner(store: MetadataStore, topic: TopicName) -> None:
    """Make the topic's owner read its grants now; an owner that is not notified reads them later.

    A notification from a time without an owner may still exist, and have no watch. Then the folder's version moves.
    """
    try:
        try:
            await store.create(paths.grants_changed(topic), b"")
        except Conflict:
            folder = await store.get(paths.GRANTS_CHANGED)
            await store.replace(paths.GRANTS_CHANGED, folder.value, folder.version)
    except Conflict:
        log.debug("grants.already_notified", topic=str(topic))
    except OffloaderError as error:
        log.warning("grants.owner_not_notified", topic=str(topic), error=str(error))


async def deleted_by_us(store: MetadataStore, topic: TopicName, ledger_id: int) -> bool:
    """Whether offloaderd deleted the ledger from its source itself, which is no reason to delete its copy."""
    found = await load(store, topic, ledger_id)
    return found is not None and bool(found.grant.source_deleted_ms)


async def revoke(
    store: MetadataStore, topic: TopicName, ledger_id: int, *, reason: str, now_ms: int, damaged: bool = False
) -> Grant:
    """Revoke a grant, or forbid it beforehand; return the record. `damaged`: because of damage of the copy.

    The folder's version moves and the owner is notified, so that it reads the grant again. Raises Conflict when the
    ledger is being deleted already, OutcomeUnknown (repeating is safe), Transient.
    """
    for _ in range(TRIES):
        found = await load(store, topic, ledger_id)
        if found is not None and found.grant.source_deleted_ms:
            raise Conflict(
                f"ledger {ledger_id} of {topic} is being deleted from its source, or is deleted already",
                hint="its verified copy is in the bucket; offloadctl ledgers list shows since when",
            )
        known = found.grant if found is not None else Grant(ledger_id=ledger_id)
        if known.revoked_ms and (known.damaged or not damaged):
            return known
        reasons = "; ".join(filter(None, (known.revoked_reason, reason)))
        revoked = replace(known, revoked_ms=known.revoked_ms or max(1, now_ms), revoked_reason=reasons, damaged=damaged)
        path, value = paths.grant(topic, ledger_id), grant_record.encode(revoked)
        try:
            if found is None:
                await store.create(path, value)
            else:
                folder = paths.grants(topic)
                above = (await store.get(folder)).version
                await store.transact([Replace(path, value, found.version), Replace(folder, b"", above)])
        except (Conflict, NotFound):
            continue
        await _notify_owner(store, topic)
        return revoked
    raise Transient(f"the grant of ledger {ledger_id} of {topic} keeps changing", hint="try again")


async def allow(store: MetadataStore, topic: TopicName, ledger_id: int) -> None:
    """Lift a revocation: the ledger is verified again and then granted.

    The folder's version is compared and moves, because a node that was deleted and created again has an old version; a
    new revocation stays. Raises NotFound when it is not revoked, Conflict when the topic's grants changed meanwhile,
    OutcomeUnknown (repeating is safe), Transient.
    """
    folder = await node(store, paths.grants(topic))
    found = await load(store, topic, ledger_id)
    if folder is None or found is None or not found.grant.revoked_ms:
        raise NotFound(f"no grant of ledger {ledger_id} of {topic} is revoked", hint="offloadctl ledgers list")
    steps: list[Step] = [
        Delete(paths.grant(topic, ledger_id), found.version),
        Replace(paths.grants(topic), b"", folder.version),
    ]
    try:
        await store.transact(steps)
    except (Conflict, NotFound) as error:
        raise Conflict(
            f"the grants of {topic} changed meanwhile: the grant of ledger {ledger_id} stays revoked",
            hint="look at offloadctl ledgers list once more, and allow it again",
        ) from error
    await _notify_owner(store, topic)
