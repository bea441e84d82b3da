"""Whether the daemon's ledger source is the one whose ledgers the deployment has offloaded.

The deployment's record has the source's own id. It is noted when the deployment is new, or once the source's list of a
topic shares a ledger with what is offloaded of that topic: by its id alone nobody can tell that a source is the one
that older releases offloaded from. From then on a source with another id is refused, for all topics.
"""

from dataclasses import replace
from typing import NamedTuple

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, Transient
from offloaderd.core.model import LedgerInfo, TopicName
from offloaderd.core.refusals import RefusalKind
from offloaderd.ledgers.port import LedgerOrigin, LedgerRegister
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.identity import Deployment, SourceIdentity

log = structlog.get_logger(__name__)


class Finding(NamedTuple):
    """What does not fit, as TopicIdentity takes it."""

    kind: RefusalKind
    found: str
    evidence: str


class KnownSource:
    """The source of one daemon. `register` is the word of whoever keeps its lists; None where these are exact.

    `kind` and `cluster` are what the record says of it beside its id, for people.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        origin: LedgerOrigin,
        register: LedgerRegister | None,
        *,
        kind: str,
        cluster: str,
        daemon_id: str,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._origin = origin
        self._register = register
        self._kind = kind
        self._cluster = cluster
        self._daemon_id = daemon_id
        self._clock = clock
        self._deployment: Deployment | None = None
        self._version = 0
        self.trusted = False
        """Whether the source was the recorded one at the last look: then its lists need not prove themselves."""

    async def begin(self) -> None:
        """Note the source of a new deployment: one that knows no topics. Raises Transient, CorruptData."""
        if not await self._metadata.children(paths.TOPICS):
            await self.confirm()

    async def check(self, topic: TopicName) -> Finding | None:
        """Say that the source is another one than the recorded one, if it is.

        Raises Transient when that cannot be said now, and while the source's cluster moves its metadata; CorruptData.
        """
        moved = await self._origin.moved(topic)
        if moved is not None:
            raise Transient(
                moved,
                hint="nothing is offloaded, granted or deleted meanwhile; afterwards point bookkeeper.servers to where "
                "the cluster's metadata is",
            )
        found = await self._origin.identity()
        recorded = await self._recorded(found)
        self.trusted = found is not None and recorded == found
        if found is not None and recorded not in {None, found}:
            text = f"the ledger source is {found}, and what is offloaded came from {recorded}"
            return Finding(RefusalKind.OTHER_SOURCE, text, f"source {found} instead of {recorded}")
        return None

    async def found(self) -> str | None:
        """Return what the source says of itself. Raises Transient."""
        return await self._origin.identity()

    async def confirm(self) -> None:
        """Note the source's id, unless one is noted: its ledgers are those that are offloaded. Raises Transient."""
        found = await self._origin.identity()
        while found is not None and await self._recorded(found) is None:
            path, known = paths.IDENTITY, self._deployment
            source = SourceIdentity(kind=self._kind, instance_id=found, cluster=self._cluster)
            try:
                if known is None:
                    made = Deployment(
                        deployment_id=self._clock.uuid(),
                        made_ms=self._clock.wall_ms(),
                        made_by=self._daemon_id,
                        source=source,
                    )
                    await self._metadata.create(path, identity_record.encode_deployment(made))
                else:
                    value = identity_record.encode_deployment(replace(known, source=source))
                    await self._metadata.replace(path, value, self._version)
            except Conflict:
                continue
            log.info("identity.source_noted", source=found, kind=self._kind)

    async def newest(self, topic: TopicName) -> int | None:
        """Return the newest ledger of a topic's list, -1 for an empty one; None where what can be read is the list.

        It is read after it has caught up with whoever keeps it. Raises NotFound when there is no such topic, Transient.
        """
        return max(await self._register.listed(topic), default=-1) if self._register is not None else None

    async def inspected(self, topic: TopicName, ledger_id: int) -> LedgerInfo:
        """Return a ledger as whoever stores it knows it; see LedgerOrigin."""
        return await self._origin.inspected(topic, ledger_id)

    async def _recorded(self, found: str | None) -> str | None:
        """Return the recorded source, read again where that differs from what was `found`: it may be another by now."""
        known = self._deployment
        if known is None or known.source is None or known.source.instance_id != found:
            node = await nodes.node(self._metadata, paths.IDENTITY)
            known = None
            if node is not None:
                known, self._version = identity_record.decode_deployment(node.value, path=paths.IDENTITY), node.version
            self._deployment = known
        return (known.source.instance_id or None) if known is not None and known.source is not None else None
