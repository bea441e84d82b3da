"""Open segments of disabled topics: an upload that nobody goes on with, and its attempt, which refers to it for good.

An owner seals its segment before it lets a disabled topic go; one that died before leaves the attempt, and nobody
claims the topic again. Such an attempt becomes a trash record, under a new epoch and in one transaction that compares
what was read: an owner that comes meanwhile wins, one that is late is fenced. The objects go by the trash list, a
grace age later. What only the attempt has is left: entries that the source has no more, and all that is in doubt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from offloaderd.core.errors import BucketMissing, Conflict, CorruptData, NotFound, OffloaderError
from offloaderd.metadata import nodes, paths
from offloaderd.metadata.identity import deletion_refused
from offloaderd.metadata.port import Check, Create, Delete, Replace
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import epoch as epoch_record
from offloaderd.metadata.records import trash as trash_record
from offloaderd.objects import lookup as look
from offloaderd.policy.records import topic as policy_record
from offloaderd.upkeep.gc.findings import Find, Kind, Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from offloaderd.core.model import TopicName
    from offloaderd.ledgers.port import LedgerSource
    from offloaderd.metadata.port import MetadataStore, Step, Versioned
    from offloaderd.metadata.records.attempt import Attempt
    from offloaderd.objects.port import SegmentStore
    from offloaderd.upkeep.gc.findings import Summary
    from offloaderd.upkeep.gc.references import References
    from offloaderd.upkeep.gc.rules import Rules

log = structlog.get_logger(__name__)

DISABLED = "the topic is disabled, and nobody goes on with its open segment"


class DisabledAttempts:
    """Finds them and, unless it is a dry run, decides their deletion."""

    def __init__(self, objects: SegmentStore, metadata: MetadataStore, rules: Rules) -> None:
        self._objects = objects
        self._metadata = metadata
        self._rules = rules

    async def finds(self, found: References, summary: Summary) -> AsyncGenerator[Find, None]:
        """Yield a find for the open segment of each topic that is not offloaded, if it is older than the grace age."""
        for topic in sorted({*found.attempts.values()}, key=str):
            find = await self._dealt_with(topic, summary)
            if find is not None:
                yield find

    async def _dealt_with(self, topic: TopicName, summary: Summary) -> Find | None:
        """Return what becomes of a topic's open segment; None for one of a topic that is offloaded, or no old one."""
        policy = await nodes.node(self._metadata, paths.policy(topic))
        doubt = "nobody has said whether the topic is offloaded: enable or disable it"
        if policy is not None:
            try:
                if policy_record.decode(policy.value, path=paths.policy(topic)).enabled:
                    return None
                doubt = ""
            except CorruptData as error:
                doubt = f"its policy cannot be read ({error}): set it again"
        epoch = await nodes.node(self._metadata, paths.epoch(topic))  # before all else: a claim raises it
        node = await nodes.node(self._metadata, paths.attempt(topic))
        if node is None:
            return None
        attempt = attempt_record.decode(node.value, path=paths.attempt(topic))
        if self._rules.age_s(attempt.assigned_ms) < self._rules.grace_s:
            return None
        if (attempt.bucket, attempt.keys.prefix) not in {(one.bucket, one.prefix) for one in self._rules.sites}:
            summary.elsewhere += 1
            return None
        verdict, reason = Verdict.DELETE, DISABLED
        if epoch is None or policy is None:
            doubt = doubt or "no daemon ever owned the topic"
        doubt = doubt or await self._doubt(topic, attempt)
        if doubt:
            verdict, reason = Verdict.KEEP, f"an open segment of a topic that is not offloaded; it stays: {doubt}"
        elif self._rules.apply and epoch is not None and policy is not None:
            steps: list[Step] = [
                _raised(topic, epoch),
                Check(paths.policy(topic), policy.version),
                Delete(paths.attempt(topic), node.version),
                Create(paths.trash_record(topic, attempt.segment_id), trash_record.encode(self._trash(attempt))),
            ]
            verdict, reason = await self._given_up(topic, steps)
        return Find(
            key=attempt.keys.data,
            kind=Kind.UPLOAD,
            verdict=verdict,
            reason=reason,
            age_s=self._rules.age_s(attempt.assigned_ms),
            upload_id=attempt.upload_id,
            topic=topic,
        )

    async def _given_up(self, topic: TopicName, steps: list[Step]) -> tuple[Verdict, str]:
        """Carry it out; says what became of it. An answer that is lost is found by the next collection."""
        try:
            await self._metadata.transact(steps)
        except (Conflict, NotFound):
            return Verdict.KEEP, "the topic was changed while it was looked at"
        except OffloaderError as error:
            return Verdict.FAILED, f"{DISABLED}; giving it up failed: {error}"
        log.info("gc.attempt_given_up", topic=str(topic))
        return Verdict.DELETED, f"{DISABLED}: it is on the trash list now, from which a later collection deletes it"

    async def _doubt(self, topic: TopicName, attempt: Attempt) -> str:
        """Say why the open segment of a topic that is disabled stays; empty: it may go."""
        if await nodes.node(self._metadata, paths.owner(topic)) is not None:
            return "a daemon works on the topic"
        if refused := await deletion_refused(self._metadata, topic):
            return refused
        try:
            finished = await look.head(self._objects.at(attempt.bucket), attempt.keys.manifest)
        except BucketMissing:
            raise
        except OffloaderError as error:
            return f"nobody knows whether it is finished: {error}"
        if finished is not None:
            return "it has a manifest, so it was finished: enable the topic, and it is committed"
        if attempt.segment_id in self._rules.also:
            return ""
        if self._rules.source is None:
            return "there is no ledger source that has its entries"
        return await only_here(self._rules.source, topic, attempt)

    def _trash(self, attempt: Attempt) -> trash_record.Trash:
        return trash_record.Trash(
            segment_id=attempt.segment_id,
            upload_id=attempt.upload_id,
            reason="its topic is disabled",
            decided_ms=self._rules.now_ms,
            bucket=attempt.bucket,
            prefix=attempt.keys.prefix,
            ledger_id=attempt.ledger_id,
            readable=False,
        )


async def only_here(source: LedgerSource, topic: TopicName, attempt: Attempt) -> str:
    """Say which of an attempt's entries the source does not have; empty: it has all of them."""
    last = {attempt.begin.ledger_id: attempt.begin.entry_id}
    last |= {block.ledger_id: block.last_entry_id for part in attempt.parts for block in part.blocks}
    last |= {part.ledger_id: part.last_entry_id for part in (attempt.seal.ledgers if attempt.seal else ())}
    for ledger_id, entry_id in last.items():
        try:
            there = await source.confirmed(topic, ledger_id)
        except NotFound:
            return f"it may hold entries of ledger {ledger_id} that the source has no more"
        except OffloaderError as error:
            return f"the source does not say whether it has ledger {ledger_id}: {error}"
        if there.closed and there.last_entry_id < entry_id:
            return f"it may hold entries of ledger {ledger_id} that the source has no more"
    return ""


def _raised(topic: TopicName, epoch: Versioned) -> Step:
    """Return the step that begins another epoch of a topic, as a claim does."""
    path = paths.epoch(topic)
    before = epoch_record.decode(epoch.value, path=path)
    return Replace(path, epoch_record.encode(replace(before, epoch=before.epoch + 1)), epoch.version)
