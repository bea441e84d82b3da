"""The check that a topic's source belongs to the history that was offloaded.

Ledger numbers mean something only within one history. A source is of another history if its id differs, if its list
ends before the offloaded position, or if its ledgers of known numbers have another creation time or fewer entries. It
is then refused (`segment/claim/refusals.py`) before anything is concluded from its list: no ledger of it is offloaded,
followed, granted or deleted until it fits again or an operator has accepted the finding.

Each refresh compares the list and, as far as the list describes them, its offloaded ledgers. The ledger at the
offloaded position is also compared as its store has it, once open and once closed.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from types import MappingProxyType

import structlog

from offloaderd.core.clock import Clock
from offloaderd.core.errors import IdentityRefused, NotFound
from offloaderd.core.model import START, LedgerInfo, Position, RefusalKind, TopicName
from offloaderd.core.units import abridged
from offloaderd.ledgers.known_source import Finding, KnownSource
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata import identity as stored_identity
from offloaderd.metadata.records.attempt import Attempt
from offloaderd.metadata.records.identity import SEPARATOR, hint
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.segment.claim.refusals import TopicIdentity
from offloaderd.segment.claim.topic_record import TopicRecord
from offloaderd.segment.context import OffloadContext

Listing = Callable[[], Awaitable[Sequence[LedgerInfo]]]
"""Returns a topic's ledgers as the source lists them. Raises what the source raises, and IdentityRefused."""
Stop = Callable[[RefusalKind, str, str], Awaitable[None]]
"""Raises IdentityRefused for a finding, unless an operator has accepted it."""

log = structlog.get_logger(__name__)

SETTLE_S = 60.0
"""Pause between inspections of a ledger that the list calls closed and its store does not yet."""
NAMED_MAX = 5
"""Most ledgers that a refusal names."""
_LEDGER = re.compile(r"ledger (\d+)")


def differing(
    topic_map: TopicMap, taken: Position, infos: Iterable[LedgerInfo], opened: Mapping[int, int] = MappingProxyType({})
) -> list[Finding]:
    """Return the findings on offloaded ledgers, up to `taken`, with another creation time or fewer entries.

    `opened` has the creation times of the ledgers in the open segment.
    """
    replaced, shorter = [], []
    for info in infos:
        created_ms = topic_map.created.get(info.ledger_id, opened.get(info.ledger_id))
        if None not in {created_ms, info.created_ms} and created_ms != info.created_ms:
            replaced.append(f"ledger {info.ledger_id} was created at {info.created_ms} ms instead of {created_ms}")
        beyond = Position(info.ledger_id, info.entries)
        held = beyond <= taken and beyond.ledger_id == taken.ledger_id
        if info.closed and (held or topic_map.find(beyond) is not None):
            shorter.append(f"ledger {info.ledger_id} is closed with {info.entries} entries, and more are offloaded")
    kinds = ((RefusalKind.LEDGER_REPLACED, replaced), (RefusalKind.LEDGER_SHORTER, shorter))
    texts = {kind: SEPARATOR.join(abridged(found, NAMED_MAX)) for kind, found in kinds if found}
    return [Finding(kind, text, text) for kind, text in texts.items()]


def sharing_nothing(
    known: KnownSource, topic_map: TopicMap, infos: Sequence[LedgerInfo], seen: Collection[int] = ()
) -> Finding | None:
    """Return a finding if an unrecorded source lists no ledger that is offloaded or was `seen`."""
    ours = {*topic_map.contexts, *seen}
    if known.trusted or not infos or not topic_map.contexts or any(info.ledger_id in ours for info in infos):
        return None
    found = f"the list has ledgers {infos[0].ledger_id} to {infos[-1].ledger_id} and none that is offloaded"
    return Finding(RefusalKind.UNKNOWN_SOURCE, found, f"no shared ledger, offloaded up to {topic_map.offloaded}")


async def list_behind(
    known: KnownSource | None, topic: TopicName, standing: Position, infos: Sequence[LedgerInfo]
) -> tuple[bool, Finding | None]:
    """Return whether a list reaches the offloaded position, and the finding if it ends before.

    A topic always lists its newest ledger. The readable ledgers may end before it, and an empty list proves nothing.
    """
    newest = max((info.ledger_id for info in infos), default=-1)
    if newest < standing.ledger_id and known is not None:
        listed = await known.newest(topic)
        newest = newest if listed is None else listed
    if newest >= standing.ledger_id or newest < 0:
        return newest >= 0, None
    found = f"the list ends with ledger {newest}, and entries up to {standing} were offloaded or read"
    return False, Finding(RefusalKind.LIST_BEHIND, found, f"list ends below ledger {standing.ledger_id}")


def listing(context: OffloadContext, identity: TopicIdentity, topic_map: TopicMap, attempt: Attempt | None) -> Listing:
    """Return the listing for an owner that has not taken the topic up yet; findings are recorded.

    They are cleared after that, when the topic is checked again. `attempt` is that of an earlier owner.
    """
    return partial(_listed, context, topic_map, identity.stop, opened=attempt.created if attempt is not None else {})


def listing_of_job(context: OffloadContext, topic_map: TopicMap) -> Listing:
    """Return the listing for a job, which records nothing: the job's own settings may be wrong."""

    async def stop(kind: RefusalKind, found: str, evidence: str) -> None:
        record = (await stored_identity.load(context.metadata, topic_map.topic)).record
        if not record.accepts(kind, evidence):
            raise IdentityRefused(f"{kind}: {found}", hint=hint(kind))

    return partial(_listed, context, topic_map, stop, opened={})


async def _listed(
    context: OffloadContext, topic_map: TopicMap, stop: Stop, *, opened: Mapping[int, int]
) -> Sequence[LedgerInfo]:
    source, known, topic = context.source, context.known_source, topic_map.topic
    assert source is not None  # noqa: S101 - only topics with a source are listed
    finding = await known.check(topic) if known is not None else None
    if finding is not None:
        await stop(*finding)
    infos, standing = await source.ledgers(topic), topic_map.offloaded
    if known is None:
        return infos
    unknown = behind = None
    if standing is not None:
        unknown = sharing_nothing(known, topic_map, infos)
        _, behind = await list_behind(known, topic, standing, infos)
    for finding in (unknown, behind, *differing(topic_map, standing or START, infos, opened)):
        if finding is not None:
            await stop(*finding)
    return infos


class SourceCheck:
    """The check of one topic under one claim. `known` is None for a source without an id.

    `taken` returns the newest entry that is committed or in the open segment, `attempt` the open segment's record.
    """

    def __init__(
        self,
        known: KnownSource | None,
        identity: TopicIdentity,
        record: TopicRecord,
        taken: Callable[[], Position],
        attempt: Callable[[], Attempt | None],
        *,
        clock: Clock,
    ) -> None:
        self._known = known
        self._identity = identity
        self._record = record
        self._taken = taken
        self._attempt = attempt
        self._accepted: dict[int, int] = {}
        """Creation times of replaced ledgers that an operator has accepted under this claim."""
        self._clock = clock
        self._proved = False
        """Whether the source listed an offloaded ledger under this claim."""
        self._inspected: dict[tuple[int, bool], float] = {}
        """Ledgers that were inspected, open or closed, and when they are inspected again (monotonic)."""

    @property
    def _topic(self) -> TopicName:
        return self._record.map.topic

    async def source(self) -> None:
        """Raise IdentityRefused if the source is another one, and Transient if that cannot be found out."""
        if self._known is None:
            return
        finding = await self._known.check(self._topic)
        if finding is None:
            await self._passed(RefusalKind.OTHER_SOURCE)
        else:
            await self._identity.stop(*finding)

    async def ledgers(self, source: LedgerSource) -> list[LedgerInfo]:
        """Return the topic's ledgers as the source lists them, after their check.

        Raises IdentityRefused for ledgers of another history, NotFound when there is no such topic, Transient,
        CorruptData and Fenced.
        """
        await self.source()
        infos = list(await source.ledgers(self._topic))
        await self._check(infos)
        return infos

    async def _check(self, infos: Sequence[LedgerInfo]) -> None:
        seen = self._record.chain.ledgers
        fresh = [info for info in infos if seen.get(info.ledger_id) is not info]
        if self._record.map.offloaded is None:
            await self._check_ledgers(fresh, START)
        else:
            await self._check_shared(infos)
            await self._check_newest(infos)
            await self._check_ledgers(fresh, self._taken())
            await self._inspect(infos)
            await self._adopt(fresh)
        listed = {info.ledger_id for info in infos}
        for one in self._identity.refusals:
            named = set(map(int, _LEDGER.findall(one.evidence)))
            if one.kind in {RefusalKind.LEDGER_REPLACED, RefusalKind.LEDGER_SHORTER} and named <= listed:
                await self._identity.clear(RefusalKind(one.kind))

    async def ledger(self, ledger_id: int) -> None:
        """Check one ledger as its store has it, before its deletion is granted. Raises as `ledgers` does."""
        if self._known is not None:
            await self._check_ledgers([await self._known.origin.inspected(self._topic, ledger_id)], self._taken())

    def believes(self, listed: Collection[int] | None) -> bool:
        """Return whether ledgers missing in a list were deleted; `listed` None: the topic does not exist.

        They were if the source is known to be theirs; else only if the list has a ledger that was offloaded, or seen
        under this claim. A missing topic counts likewise once a list of it was trusted.
        """
        if self._known is not None and self._known.trusted:
            return True
        if listed is None:
            return self._known is None or self._proved
        ours = self._record.map.contexts, self._record.chain.ledgers
        return any(ledger_id in known for ledger_id in listed for known in ours)

    async def _check_shared(self, infos: Sequence[LedgerInfo]) -> None:
        """Recognize an unknown source by its offloaded ledgers, and record its id.

        Raises IdentityRefused if its list has no offloaded ledger.
        """
        known, contexts = self._known, self._record.map.contexts
        if any(info.ledger_id in contexts for info in infos):
            self._proved = True
            if known is not None and not known.trusted:
                await known.confirm()
            await self._passed(RefusalKind.UNKNOWN_SOURCE)
            return
        if known is None or not infos or not contexts:
            return
        finding = sharing_nothing(known, self._record.map, infos, self._record.chain.ledgers)
        if finding is None:
            await self._passed(RefusalKind.UNKNOWN_SOURCE)
        else:
            await self._identity.stop(*finding)

    async def _check_newest(self, infos: Sequence[LedgerInfo]) -> None:
        """Raise IdentityRefused for a list that ends before the offloaded position."""
        goes_on, behind = await list_behind(self._known, self._topic, self._taken(), infos)
        if goes_on:
            await self._passed(RefusalKind.LIST_BEHIND)
        if behind is not None:
            await self._identity.stop(*behind)

    async def _check_ledgers(self, infos: Sequence[LedgerInfo], taken: Position) -> None:
        """Raise IdentityRefused for ledgers that differ from the offloaded ones, and from those of the open segment."""
        attempt = self._attempt()
        opened = {**(attempt.created if attempt is not None else {}), **self._accepted}
        for finding in differing(self._record.map, taken, infos, opened):
            await self._identity.stop(*finding)
            if finding.kind is RefusalKind.LEDGER_REPLACED:
                self._accepted.update(created_times(infos))
                await self._record.note_created(created_times(infos))

    async def _inspect(self, infos: Sequence[LedgerInfo]) -> None:
        """Inspect the ledger at the offloaded position as its store has it: once open, and once closed."""
        standing, known = self._taken().ledger_id, self._known
        waiting = {ledger_id for (ledger_id, _), due_s in self._inspected.items() if due_s < inf}
        present = [info for info in infos if info.ledger_id == standing or info.ledger_id in waiting]
        kept = {info.ledger_id for info in present}
        self._inspected = {key: due_s for key, due_s in self._inspected.items() if key[0] in kept}
        for info in present:
            key, now_s = (info.ledger_id, info.closed), self._clock.monotonic()
            enough = not info.closed and info.created_ms is not None
            if known is None or enough or now_s < self._inspected.get(key, 0.0):
                continue
            self._inspected[key] = inf
            try:
                stored = await known.origin.inspected(self._topic, info.ledger_id)
            except NotFound:
                continue
            await self._check_ledgers([stored], self._taken())
            await self._adopt([stored])
            if info.closed and not stored.closed:
                self._inspected[key] = now_s + SETTLE_S
            elif info.closed and stored.entries > info.entries:
                log.error(
                    "source.ledger_longer_than_listed",
                    topic=str(self._topic),
                    ledger_id=info.ledger_id,
                    listed=info.entries,
                    stored=stored.entries,
                    hint="whoever recovered it saved entries that were never confirmed; the topic's list leaves them "
                    "out, and so does what is offloaded: read them from BookKeeper if they are wanted",
                )

    async def _adopt(self, infos: Iterable[LedgerInfo]) -> None:
        """Record creation times of ledgers that were not known."""
        known = self._record.map
        missing = [one for one in infos if one.ledger_id in known.contexts and one.ledger_id not in known.created]
        await self._record.note_created(created_times(missing))

    async def _passed(self, kind: RefusalKind) -> None:
        if any(one.kind == kind for one in self._identity.refusals):
            await self._identity.clear(kind)


def created_times(infos: Iterable[LedgerInfo]) -> dict[int, int]:
    """Return the known creation times of ledgers, in milliseconds by id."""
    return {info.ledger_id: info.created_ms for info in infos if info.created_ms is not None}
