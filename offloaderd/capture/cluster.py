"""What Pulsar's metadata has of topics besides their ledgers. It only reads, and loads no broker.

Rules: what cannot be read is a problem of the capture, and what was read beside it stays. Secrets are left out. A
node that vanishes meanwhile was deleted. Where policies are in a ZooKeeper of their own
(configurationMetadataStoreUrl), the namespaces are a problem.
"""

import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar

from offloaderd.bookkeeper.ports import Znodes
from offloaderd.capture.records import Key, Kind, cursor_value, schema_value
from offloaderd.core.aio import each
from offloaderd.core.errors import Conflict, CorruptData, Denied, InvalidConfig, InvalidInput, NotFound, Transient
from offloaderd.core.model import TopicName, decode_local
from offloaderd.core.names.managed_ledgers import ROOT
from offloaderd.core.names.patterns import partitioned_topic
from offloaderd.ledgers.pulsar import managed_ledger, schemas
from offloaderd.ledgers.pulsar.cursors import Cursor
from offloaderd.ledgers.pulsar.internal_ledgers import InternalLedgers
from offloaderd.metadata import nodes

T = TypeVar("T")
PROBLEMS_MAX = 100
"""Problems of a capture that are told one by one."""
SECRET = ("secret", "password", "token", "privatekey")
"""Parts of names of fields that are left out, such as s3ManagedLedgerOffloadCredentialSecret."""


@dataclass(slots=True)
class Taken:
    """Records, and what could not be read."""

    records: dict[Key, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def told(self) -> tuple[str, ...]:
        """Return the problems, of very many the first ones and how many there are."""
        if len(self.problems) <= PROBLEMS_MAX:
            return tuple(self.problems)
        return (*self.problems[:PROBLEMS_MAX], f"and {len(self.problems) - PROBLEMS_MAX} more")


class PulsarMetadata:
    """Reads the metadata of a Pulsar cluster, from the root of its ZooKeeper."""

    def __init__(self, znodes: Znodes, ledgers: InternalLedgers, *, lists_root: str) -> None:
        self._znodes = znodes
        self._ledgers = ledgers
        self._lists_root = lists_root.rstrip("/")
        self._root = self._lists_root.removesuffix(ROOT)

    async def take(self, topics: Collection[TopicName]) -> Taken:
        """Read what these topics have, and their namespaces and tenants.

        Raises Conflict if the cluster keeps its metadata elsewhere, Transient and Denied of ZooKeeper.
        """
        path = managed_ledger.flag_path(self._lists_root)
        flag = await self._node(path)
        if flag is not None and (moved := managed_ledger.moved_reason(flag, path=path)) is not None:
            raise Conflict(
                moved, hint="the captures before stay as they are; capture.enabled = false ends the attempts"
            )
        taken = Taken()
        wholes = {partitioned_topic(topic) or topic for topic in topics}
        namespaces = sorted({f"{topic.tenant}/{topic.namespace}" for topic in topics})
        tenants = sorted({topic.tenant for topic in topics})
        await self._unless_denied(taken, self._policies(taken, tenants, namespaces))
        partitioned = {str(one): f"{self._root}/admin/partitioned-topics/{one.managed_ledger}" for one in wholes}
        await self._unless_denied(taken, self._documents(taken, Kind.PARTITIONS, partitioned))
        await each(sorted(topics), lambda topic: self._topic(taken, topic))
        await self._unless_denied(taken, each(sorted(wholes), lambda topic: self._schemas(taken, topic)))
        return taken

    async def _unless_denied(self, taken: Taken, reading: Awaitable[object]) -> None:
        """Read nodes that only captures need, which this user may have no right to read."""
        try:
            await reading
        except Denied as error:
            taken.problems.append(
                f"{error.message}: captures need the rights to read {self._root}/admin and {self._root}{schemas.ROOT} "
                "in the cluster's ZooKeeper, and entries of bookies"
            )

    async def _policies(self, taken: Taken, tenants: list[str], namespaces: list[str]) -> None:
        admin = f"{self._root}/admin"
        if tenants and not await self._znodes.children(f"{admin}/policies"):
            taken.problems.append(
                f"no tenants below {admin}/policies: policies may be in a configuration store of their own, which is "
                "not read"
            )
        await self._documents(taken, Kind.TENANT, {name: f"{admin}/policies/{name}" for name in tenants})
        await self._documents(taken, Kind.NAMESPACE, {name: f"{admin}/policies/{name}" for name in namespaces})

    async def _documents(self, taken: Taken, kind: Kind, wanted: dict[str, str]) -> None:
        """Read nodes with JSON, by the name of each record."""

        async def read(name: str) -> None:
            found = await self._node(wanted[name])
            value = await _or_problem(taken, self._document(found, wanted[name])) if found is not None else None
            if value is not None:
                taken.records[kind, name, ""] = value

        await each(list(wanted), read)

    async def _document(self, node: bytes, path: str) -> Any:  # noqa: ANN401 - JSON
        try:
            return without_secrets(json.loads(node))
        except (ValueError, RecursionError) as error:
            raise CorruptData(key=path, offset=0, expected="JSON", found=error) from None

    async def _topic(self, taken: Taken, topic: TopicName) -> None:
        path = f"{self._lists_root}/{topic.managed_ledger}"
        node = await self._node(path)
        if node is None:
            return
        listed = await _or_problem(taken, _decoded(lambda: managed_ledger.decode(node, key=path)))
        if listed is not None and listed.properties:
            taken.records[Kind.PROPERTIES, str(topic), ""] = dict(listed.properties)
        for name in await self._znodes.children(path):
            cursor = await _or_problem(taken, self._cursor(taken, f"{path}/{name}"))
            if cursor is not None:
                decoded = await _or_problem(taken, _decoded(lambda: decode_local(name)))  # noqa: B023 - awaited here
                taken.records[Kind.SUBSCRIPTION, str(topic), decoded or name] = cursor_value(cursor)

    async def _cursor(self, taken: Taken, path: str) -> Cursor | None:
        """Return a cursor's newest position, else that at the begin of its ledger; None for one that is gone.

        Raises CorruptData, InvalidConfig, and Transient and Denied of ZooKeeper.
        """
        found = await self._ledgers.cursor(lambda: self._node(path), path=path)
        if found is None:
            return None
        cursor, failure = found
        if failure is not None:
            taken.problems.append(f"{path} is captured as it was when its ledger began: {failure}")
        return cursor

    async def schema_versions(self, topic: TopicName) -> dict[int, schemas.Schema]:
        """Return all versions of a topic's schema by their numbers, none for a topic without.

        Raises CorruptData, NotFound for a version that no bookie has, Transient and Denied.
        """
        path = self._schemas_path(topic)
        node = await self._node(path)
        versions = schemas.decode_versions(node, path=path) if node is not None else {}
        return {version: await self._schema(*where) for version, where in versions.items()}

    def _schemas_path(self, topic: TopicName) -> str:
        return f"{self._root}{schemas.ROOT}/{topic.managed_ledger.replace('/persistent/', '/')}"

    async def _schemas(self, taken: Taken, topic: TopicName) -> None:
        path = self._schemas_path(topic)
        node = await self._node(path)
        if node is None:
            return
        versions = await _or_problem(taken, _decoded(lambda: schemas.decode_versions(node, path=path)))
        for version, where in (versions or {}).items():
            try:
                found = await _or_problem(taken, self._schema(*where))
            except Transient as error:
                taken.problems.append(f"version {version} of the schema of {topic}: {error}")
                continue
            if found is not None:
                taken.records[Kind.SCHEMA, str(topic), str(version)] = schema_value(found)

    async def _schema(self, ledger_id: int, entry_id: int) -> schemas.Schema:
        return schemas.decode_entry(await self._ledgers.entry(ledger_id, entry_id), key=f"{ledger_id}:{entry_id}")

    async def _node(self, path: str) -> bytes | None:
        found = await nodes.node(self._znodes, path)
        return found.value if found is not None else None


async def _decoded(decode: Callable[[], T]) -> T:
    return decode()


async def _or_problem(taken: Taken, reading: Awaitable[T]) -> T | None:
    """Return what was read, or None and note why it cannot be read."""
    try:
        return await reading
    except (CorruptData, InvalidInput, InvalidConfig, NotFound) as error:
        taken.problems.append(str(error))
        return None


def without_secrets(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a JSON value without fields whose names say that they are secret."""
    if isinstance(value, dict):
        return {
            name: without_secrets(one)
            for name, one in value.items()
            if not any(part in name.replace("_", "").lower() for part in SECRET) or one is None
        }
    return [without_secrets(one) for one in value] if isinstance(value, list) else value
