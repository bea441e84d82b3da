"""Whether the daemon's ledger source is the one whose ledgers the deployment has offloaded.

The deployment's record has the source's own id. It is noted when the deployment is new, or once the source's list of a
topic shares a ledger with what is offloaded of that topic: the id alone does not prove that older releases offloaded
from this source. From then on a source with another id is refused, for all topics.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, Transient
from offloaderd.core.model import RefusalKind, TopicName
from offloaderd.ledgers.port import LedgerOrigin, LedgerRegister
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records import identity as identity_record
from offloaderd.metadata.records.identity import Deployment, SourceIdentity

log = structlog.get_logger(__name__)


class Finding(NamedTuple):
    """A difference between source and record, for TopicIdentity."""

    kind: RefusalKind
    found: str
    evidence: str


@dataclass(slots=True, eq=False)
class KnownSource:
    """The source of one daemon. `register` is the authority on its lists of ledgers; None where these are exact.

    `kind` and `cluster` go into the record beside the source's id, for people.
    """

    metadata: MetadataStore
    origin: LedgerOrigin
    register: LedgerRegister | None
    kind: str = field(kw_only=True)
    cluster: str = field(kw_only=True)
    daemon_id: str = field(kw_only=True)
    clock: Clock = field(kw_only=True)
    trusted: bool = field(default=False, init=False)
    """Whether the source was the recorded one at the last check: then its lists need no proof."""
    _deployment: Deployment | None = field(default=None, init=False)
    _version: int = field(default=0, init=False)

    async def begin(self) -> None:
        """Note the source of a new deployment: one that knows no topics. Raises Transient, CorruptData."""
        if not await self.metadata.children(paths.TOPICS):
            await self.confirm()

    async def check(self, topic: TopicName) -> Finding | None:
        """Return a finding if the source is not the recorded one.

        Raises Transient when that is unknown now, and while the source's cluster moves its metadata; CorruptData.
        """
        moved = await self.origin.moved(topic)
        if moved is not None:
            raise Transient(
                moved,
                hint="nothing is offloaded, granted or deleted meanwhile; afterwards point bookkeeper.servers to where "
                "the cluster's metadata is",
            )
        found = await self.origin.identity()
        recorded = await self._recorded(found)
        self.trusted = found is not None and recorded == found
        if found is not None and recorded not in {None, found}:
            text = f"the ledger source is {found}, and what is offloaded came from {recorded}"
            return Finding(RefusalKind.OTHER_SOURCE, text, f"source {found} instead of {recorded}")
        return None

    async def confirm(self) -> None:
        """Record the source's id, unless one is recorded: its ledgers are the offloaded ones. Raises Transient."""
        found = await self.origin.identity()
        while found is not None and await self._recorded(found) is None:
            path, known = paths.IDENTITY, self._deployment
            source = SourceIdentity(kind=self.kind, instance_id=found, cluster=self.cluster)
            try:
                if known is None:
                    made = Deployment(
                        deployment_id=self.clock.uuid(),
                        made_ms=self.clock.wall_ms(),
                        made_by=self.daemon_id,
                        source=source,
                    )
                    await self.metadata.create(path, identity_record.encode_deployment(made))
                else:
                    value = identity_record.encode_deployment(replace(known, source=source))
                    await self.metadata.replace(path, value, self._version)
            except Conflict:
                continue
            log.info("identity.source_noted", source=found, kind=self.kind)

    async def newest(self, topic: TopicName) -> int | None:
        """Return the newest ledger of a topic's up-to-date list, -1 for an empty one; None without a register.

        Raises NotFound when there is no such topic, Transient.
        """
        return max(await self.register.listed(topic), default=-1) if self.register is not None else None

    async def _recorded(self, found: str | None) -> str | None:
        """Return the recorded source, read again where it differs from `found`: the record may have changed."""
        known = self._deployment
        if known is None or known.source is None or known.source.instance_id != found:
            node = await nodes.node(self.metadata, paths.IDENTITY)
            known = None
            if node is not None:
                known, self._version = identity_record.decode_deployment(node.value, path=paths.IDENTITY), node.version
            self._deployment = known
        return (known.source.instance_id or None) if known is not None and known.source is not None else None
