"""Transactions of a topic's owner: each checks the epoch's version, so a fenced owner changes nothing (P4).

After a lost answer the outcome is read back (architecture section 6, 6).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Conflict, Fenced, NotFound, OutcomeUnknown, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.core.retry import Backoff, until_answered
from offloaderd.metadata import paths
from offloaderd.metadata.port import Check, MetadataStore, Step

log = structlog.get_logger(__name__)

_HINT = (
    "it is tried again and read back; if it stays so while ZooKeeper answers others, jute.maxbuffer of its servers may "
    "be smaller than the transaction"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """Proof of ownership: the epoch, and the version of its node, by default that of the topic's owner."""

    topic: TopicName
    epoch: int
    epoch_version: int
    node: str = ""

    @property
    def path(self) -> str:
        """Path of the epoch's node."""
        return self.node or paths.epoch(self.topic)


class Fence:
    """Carries out an owner's transactions under one claim."""

    __slots__ = ("_clock", "_metrics", "claim", "store")

    def __init__(self, store: MetadataStore, claim: Claim, *, clock: Clock, metrics: Metrics) -> None:
        self.store = store
        self.claim = claim
        self._clock = clock
        self._metrics = metrics

    async def settle(self, steps: Sequence[Step], recorded: Callable[[], Awaitable[bool]]) -> None:
        """Carry out the steps under the epoch until the outcome is known. Raises Fenced, Conflict, NotFound.

        `recorded` reads back whether they were: after a lost answer, a conflict may come from an earlier try.
        """
        fence = Check(self.claim.path, self.claim.epoch_version)
        backoff = Backoff(self._clock)
        unknown = False
        while True:
            try:
                await self.store.transact([fence, *steps])
            except OutcomeUnknown as error:
                self._metrics.metadata_commits.labels(outcome="unknown").inc()
                unknown = True
                log.warning("metadata.commit_unknown", topic=str(self.claim.topic), error=str(error), hint=_HINT)
                await backoff.wait(error)
                continue
            except Transient as error:
                self._metrics.metadata_commits.labels(outcome="error").inc()
                await backoff.wait(error)
                continue
            except (Conflict, NotFound) as error:
                if unknown and await until_answered(self._clock, recorded):
                    self._metrics.metadata_commits.labels(outcome="ok").inc()
                    return
                self._metrics.metadata_commits.labels(outcome="conflict").inc()
                await self._settle_conflict(error)
            self._metrics.metadata_commits.labels(outcome="ok").inc()
            return

    async def _settle_conflict(self, error: Conflict | NotFound) -> None:
        """Raise Fenced if the epoch has changed, else the conflict itself."""

        async def ours() -> bool:
            try:
                node = await self.store.get(self.claim.path)
            except NotFound:
                return False
            return node.version == self.claim.epoch_version

        if await until_answered(self._clock, ours):
            raise error
        self._metrics.fenced_writes.inc()
        raise Fenced(
            f"another daemon or job has taken over {self.claim.topic} (epoch {self.claim.epoch} is over)",
            hint="nothing to do: this one stops working on the topic and changes nothing",
        ) from error
