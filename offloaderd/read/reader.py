"""Reading a topic from any tier: the reader that the daemon owns, and its view of topics.

The order of the tiers in a view (buffer, source, map) matters: entries move from the first to the last, so an entry
that has just left one tier is in the next. `stream.py` has one read, `plan.py` its decisions.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar, Unpack, cast

from offloaderd.core.clock import Clock
from offloaderd.core.entries import Entries
from offloaderd.core.errors import IdentityRefused, InvalidInput, NotFound, TopicNotFound, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import START, LedgerInfo, Position, TopicName
from offloaderd.core.quotas import Accounts
from offloaderd.core.read_options import ReadPriority, Tier
from offloaderd.core.retry import retried
from offloaderd.ledgers.port import LedgerSource
from offloaderd.metadata.topic_map.map import TopicMap
from offloaderd.objects.port import ObjectReader
from offloaderd.policy.policies import Effective
from offloaderd.read.plan import Run, SourceLedger, TopicView, Why
from offloaderd.read.segments import SegmentOptions, SegmentReader
from offloaderd.read.stream import ChangeSignal, ChangeSignals, HotTier, ReadContext, Stream, Wanted


class Maps(Protocol):
    """Access to topic maps."""

    async def topic_map(self, topic: TopicName) -> TopicMap:
        """Return the present map; an unknown topic has an empty one. Raises Transient."""
        ...


class Policies(Protocol):
    """Access to effective policies."""

    async def of(self, topic: TopicName) -> Effective:
        """Return the effective policy of a topic. Raises Transient, CorruptData."""
        ...


BATCH_BYTES = 1024 * 1024
PLANNED_MAX = 1000
"""Runs of one plan."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of reading; `batch_bytes` is the default of a read, and its limit."""

    batch_bytes: int = BATCH_BYTES
    segments: SegmentOptions = field(default_factory=SegmentOptions)

    def answer_bytes(self, asked: int) -> int:
        """Return the bytes of an answer for a request of `asked` (0: the default).

        An answer that its client does not take is in no budget, so the client does not set its size.
        """
        return min(asked or self.batch_bytes, self.batch_bytes)


class LastPositions(NamedTuple):
    """The ends of a topic, in all and by tier; None without entries. `ends_in_gap` is that of TopicView."""

    first: Position | None
    confirmed: Position | None
    offloaded: Position | None
    buffered_first: Position | None
    buffered_last: Position | None
    ends_in_gap: bool = False


class TopicReader:
    """Reads any known topic; outlives all its reads. Without a `source` it has only what was pushed and offloaded."""

    def __init__(
        self,
        *,
        maps: Maps,
        policies: Policies,
        objects: ObjectReader,
        source: LedgerSource | None,
        hot: HotTier,
        clock: Clock,
        metrics: Metrics,
        options: ReadOptions | None = None,
    ) -> None:
        self.options = options or ReadOptions()
        self.source = source
        self.source_refused: Callable[[TopicName], Awaitable[IdentityRefused | None]] | None = None
        """Returns why a topic's source must not be read, as it may be another's; else None. Raises Transient."""
        self.accounts: Accounts | None = None
        """Where the namespaces of topics that are read get an account."""
        self.hot = hot
        self.clock = clock
        self.metrics = metrics
        self.segments = SegmentReader(objects, clock=clock, metrics=metrics, options=self.options.segments)
        self._maps = maps
        self._policies = policies
        self._context = ReadContext(
            hot=hot,
            source=source,
            segments=self.segments,
            retry=self.options.segments.retry,
            clock=clock,
            metrics=metrics,
            view=self.view,
            priority=self.priority,
        )
        self._change_signals = ChangeSignals(hot=hot, source=source, clock=clock, loader=self.segments.loader)

    async def __aenter__(self) -> Self:
        await self.segments.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel reads ahead; reads under way raise Closed."""
        await self.segments.__aexit__(kind, error, trace)

    async def read(
        self,
        topic: TopicName,
        *,
        batch_bytes: int = 0,
        framed: bool = False,
        **wanted: Unpack[Wanted],
    ) -> AsyncGenerator[tuple[Entries, Tier], None]:
        """Yield the entries of [first, last] in order, each once, in batches of one ledger and one tier.

        A batch has at most `batch_bytes` of payload, and what the options say (0: that alone), or one entry.
        `framed`: what comes from the bucket is FramedEntries, as it lies there, and `batch_bytes` counts heads as well.
        Following, the read waits for new entries until `last`. Raises TopicNotFound, InvalidInput (OutOfRange beyond
        the newest entry), NotFound before the oldest; EntriesMissing, CorruptData, Transient and Denied when no tier
        can give an entry, IdentityRefused once only a source that is refused may have more. What was yielded is right
        whatever comes after. Close the iterator when done with it.
        """
        started = self.clock.monotonic()
        waiting, follow, entries_max = True, wanted.get("follow", False), wanted.get("entries_max", 0)
        with self._change_signals.following(topic) if follow else nullcontext() as change_signal:
            stream = await self._begun(topic, wanted, change_signal, batch_bytes, framed=framed)
            async with aclosing(stream.batches()) as batches:
                async for batch, tier, why in batches:
                    kept = batch
                    if entries_max:
                        kept = batch.between(batch.first_entry_id, batch.first_entry_id + entries_max - 1)
                    if waiting:
                        self.metrics.read_first_byte_seconds.observe(self.clock.monotonic() - started)
                        waiting = False
                    self.count(kept.count, kept.payload_bytes(), tier, why)
                    yield kept, tier
                    if entries_max:
                        entries_max -= kept.count
                        if not entries_max:
                            break
        if not follow:
            self.metrics.read_duration_seconds.observe(self.clock.monotonic() - started)

    async def plan(self, topic: TopicName, *, runs_max: int = 0, **wanted: Unpack[Wanted]) -> tuple[list[Run], bool]:
        """Return where the first entries of a range are, and whether that is all of it, for a reader of the bucket.

        The runs follow each other without a gap, and end with one of the bucket; there are none without one. At most
        `runs_max`, or PLANNED_MAX. Raises as `read`.
        """
        change_signal = ChangeSignal() if wanted.get("follow") else None
        stream = await self._begun(topic, wanted, change_signal, 0, framed=True)
        return await stream.planned(runs_max or PLANNED_MAX)

    async def _begun(
        self, topic: TopicName, wanted: Wanted, change_signal: ChangeSignal | None, batch_bytes: int, *, framed: bool
    ) -> Stream:
        """Return a read at its first entry. Raises as `read` before that."""
        entries_max = wanted.get("entries_max", 0)
        if batch_bytes < 0 or entries_max < 0:
            raise InvalidInput("batch_bytes and entries_max must be 0 or greater")
        limit = self.options.answer_bytes(batch_bytes)
        stream = Stream(self._context, topic, change_signal, limit, entries_max=entries_max, framed=framed)
        await stream.begin(wanted)
        if self.accounts is not None:
            self.accounts.of(topic)
        return stream

    def count(self, entries: int, size: int, tier: Tier, why: Why) -> None:
        """Count entries that were read, and the bytes of their payloads."""
        self.metrics.read_entries.labels(source=tier).inc(entries)
        self.metrics.read_bytes.labels(source=tier).inc(size)
        self.metrics.read_choice_entries.labels(source=tier, why=why).inc(entries)
        self.metrics.read_choice_bytes.labels(source=tier, why=why).inc(size)

    async def last_positions(self, topic: TopicName) -> LastPositions:
        """Return the ends of the topic. Raises TopicNotFound, Transient."""
        view = await self.view(topic)
        if view.is_empty():
            await self.priority(topic)
        return LastPositions(
            first=view.oldest(),
            confirmed=view.newest(),
            offloaded=view.segments[-1].range.end if view.segments else view.floor,
            buffered_first=view.hot[0] if view.hot else None,
            buffered_last=view.hot[1] if view.hot else None,
            ends_in_gap=view.ends_in_gap,
        )

    async def priority(self, topic: TopicName) -> ReadPriority:
        """Return the topic's read priority. Raises TopicNotFound when there is no trace of the topic."""
        effective = await self.patiently(lambda: self._policies.of(topic))
        stored = None if effective.known else await self.patiently(lambda: self._maps.topic_map(topic))
        if stored is not None and not stored.offloaded and not stored.gaps:
            known = None if self.source is None else await self._source_ledgers(self.source, topic)
            if known is None and self.hot.range(topic) is None:
                raise TopicNotFound(f"unknown topic {topic}", hint="`offloadctl topics list` shows what there is")
        return cast("ReadPriority", effective.values.read_priority)

    async def view(
        self,
        topic: TopicName,
        last: Position | None = None,
        *,
        source_s: float | None = None,
        topic_map_of: Callable[[TopicName], Awaitable[TopicMap]] | None = None,
    ) -> TopicView:
        """Return the view of all tiers. A source that fails matters only if it may have entries up to `last`.

        One that takes longer than `source_s` fails. `topic_map_of` is another way to the map than that of reads, which
        wakes a suspended topic. Raises Transient.
        """
        load = topic_map_of or self._maps.topic_map
        hot = self.hot.range(topic)
        source: Sequence[SourceLedger] | None = None
        failure: Transient | None = None
        refused: IdentityRefused | None = None
        if self.source is not None:
            try:
                async with asyncio.timeout(source_s):
                    if (refusal := self.source_refused) is not None:
                        refused = await self.patiently(lambda: refusal(topic))
                    source = await self._source_ledgers(self.source, topic) if refused is None else None
            except TimeoutError:
                failure = Transient(f"the ledger source did not answer within {source_s:g} s")
            except Transient as error:
                failure = error
        topic_map: TopicMap = await self.patiently(lambda: load(topic))
        stored = topic_map.offloaded if topic_map.unfinished is None else topic_map.history_end
        if failure is not None and not (last and stored and last <= stored):
            raise failure
        plan = topic_map.unfinished
        return TopicView(
            segments=topic_map.segments,
            source=source or (),
            hot=hot,
            complete=topic_map.ends,
            losses=topic_map.losses,
            gaps=topic_map.gaps,
            floor=topic_map.floor,
            unfinished=(topic_map.history_end or START, plan.live_begin) if plan is not None else None,
            source_away=failure.message if failure is not None else "",
            refused=refused,
        )

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call with retries after Transient."""
        return await retried(call, clock=self.clock, policy=self.options.segments.retry)

    async def _source_ledgers(self, source: LedgerSource, topic: TopicName) -> Sequence[SourceLedger] | None:
        """Return the source's ledgers of a topic; None for an unknown topic."""
        try:
            infos = await self.patiently(lambda: source.ledgers(topic))
            ledgers = [_source_ledger(info, info.entries - 1, closed=True) for info in infos if info.closed]
            if infos and not infos[-1].closed:
                newest = infos[-1]
                confirmed = await self.patiently(lambda: source.confirmed(topic, newest.ledger_id))
                ledgers.append(_source_ledger(newest, confirmed.last_entry_id, closed=confirmed.closed))
        except NotFound:
            return None
        return ledgers


def _source_ledger(info: LedgerInfo, last_entry_id: int, *, closed: bool) -> SourceLedger:
    """Return a listed ledger; one that replaces those before it follows each of them."""
    return SourceLedger(info.ledger_id, last_entry_id, closed, None if info.replaces else info.previous)
