"""The query of the status page, and the values for it, the same for the page and for its JSON; the templates have the
texts.

A visit costs the daemon little: statuses are refreshed at most every REFRESH_S, whatever the number of visitors, and
only the topics of the shown page are completed with the answers of their owners.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args
from urllib.parse import urlencode

from offloaderd.api.admin import AdminService
from offloaderd.api.calls import metadata_error
from offloaderd.core.aio import in_turns
from offloaderd.core.clock import Clock
from offloaderd.core.errors import InvalidInput
from offloaderd.core.metrics.families import TIERS
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.daemon.status_page.last_hour import Ring, Sampler, by_label, measured, totals
from offloaderd.protocol.conversion import picked
from offloaderd.protocol.status import Rate, daemon_json, rated_json, unnamed_text
from offloaderd.protocol.v1 import admin_pb2, inspect_pb2
from offloaderd.topic.status import TopicStatus

Sort = Literal["lag", "bytes", "rate", "segment", "topic", "state"]


Only = Literal["all", "troubled"]


SORTS: tuple[str, ...] = get_args(Sort)


ONLY: tuple[str, ...] = get_args(Only)


TOPICS_A_PAGE = 50


TOPICS_A_PAGE_MAX = 500


SEARCH_CHARS_MAX = 200


PAGE_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One page of the list of topics: those whose name holds `search`, `size` of them."""

    sort: str = "lag"
    search: str = ""
    only: str = "all"
    page: int = 1
    size: int = TOPICS_A_PAGE

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Wanted":
        """Parse a query; missing values are the defaults. Raises InvalidInput."""
        return cls(
            sort=_word("sort", query.get("sort", "lag"), SORTS),
            search=query.get("q", "").strip()[:SEARCH_CHARS_MAX],
            only=_word("only", query.get("only", "all"), ONLY),
            page=_number("page", query.get("page", "1"), PAGE_MAX),
            size=_number("size", query.get("size", str(TOPICS_A_PAGE)), TOPICS_A_PAGE_MAX),
        )

    def address(self, **others: object) -> str:
        """Return the address with some values replaced; defaults are left out."""
        other = replace(self, **others)  # type: ignore[arg-type]  # named by a template
        values = {"q": other.search, "sort": other.sort, "only": other.only, "page": other.page, "size": other.size}
        usual = {"q": "", "sort": "lag", "only": "all", "page": 1, "size": TOPICS_A_PAGE}
        said = {name: value for name, value in values.items() if value != usual[name]}
        return f"status?{urlencode(said)}" if said else "status"


def wanted_topic(query: Mapping[str, str]) -> TopicName | None:
    """Return the topic of the query, None for the list. Raises InvalidInput."""
    return TopicName.parse(query["topic"]) if query.get("topic") else None


def _word(name: str, given: str, words: tuple[str, ...]) -> str:
    if given not in words:
        raise InvalidInput(f"no such {name}: {given[:40]!r}", hint=f"{name} is one of {', '.join(words)}")
    return given


def _number(name: str, given: str, most: int) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) < 10 and 0 < int(given) <= most):
        raise InvalidInput(f"{name} is no number from 1 to {most:,}: {given[:40]!r}")
    return int(given)


REFRESH_S = 2.0
"""Greatest age of the shown statuses."""

FAILURES_MAX = 20
"""Number of failing topics that are named before the list; the list has them all."""

ZERO = Rate(0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Reads from a tier since the daemon started; `fell_back`: entries read there because another tier failed."""

    tier: str
    entries: int
    payload_bytes: int
    fell_back: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One page of topics, with the totals beside it."""

    now_ms: int
    daemon: admin_pb2.StatusResponse
    topics: tuple[tuple[admin_pb2.TopicStatus, Rate], ...]
    total: int
    matching: int
    page: int
    pages: int
    sums: Mapping[str, float]
    failures: tuple[tuple[str, str], ...]
    failing_count: int
    reads: tuple[Read, ...]
    ring: Ring

    def as_json(self) -> dict[str, object]:
        """Return the page as JSON shows it."""
        return {
            "now_ms": self.now_ms,
            "daemon": daemon_json(self.daemon),
            "sums": dict(self.sums),
            "troubled_topics": self.failing_count,
            "reads": [picked(one, "tier", "entries", "bytes=payload_bytes", "fell_back") for one in self.reads],
            "topics_total": self.total,
            "topics_matching": self.matching,
            "page": self.page,
            "pages": self.pages,
            "topics": [rated_json(one, rate) for one, rate in self.topics],
            "history": {
                "columns": ["wall_ms", *self.ring.columns],
                "samples": [[at, *map(number, values)] for at, values in self.ring.samples],
            },
        }


@dataclass(eq=False)
class Board:
    """Takes the statuses of the daemon for all visitors. `layouts` shows where the entries of a topic are.

    `measured` are the statuses for rates, which need not be as new as `statuses` in all fields.
    """

    admin: AdminService
    statuses: Callable[[], Iterable[TopicStatus]]
    measured: Callable[[], Iterable[TopicStatus]]
    layouts: Callable[[TopicName], Awaitable[inspect_pb2.LayoutResponse]]
    metrics: Metrics
    clock: Clock
    _refreshing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _refreshed_s: float | None = field(default=None, init=False)
    _seen: Sequence[TopicStatus] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.measured, self.metrics, self.clock)

    async def _refreshed(self) -> Sequence[TopicStatus]:
        """Return the statuses of this daemon's topics, not older than REFRESH_S."""
        async with self._refreshing:
            now_s = self.clock.monotonic()
            if self._refreshed_s is None or now_s - self._refreshed_s >= REFRESH_S:
                self._seen = [one async for turn in in_turns(self.statuses()) for one in turn]
                self._refreshed_s = now_s
            return self._seen

    async def show(self, wanted: Wanted) -> Shown:
        """Return a page of topics; beyond the last one it is the last one. Without ZooKeeper: what the daemon knows."""
        statuses = await self._refreshed()
        failing_topics = [one for one in statuses if failing(one)]
        found = self._sorted(failing_topics if wanted.only == "troubled" else statuses, wanted)
        pages = max(1, math.ceil(len(found) / wanted.size))
        page = min(wanted.page, pages)
        failure = await metadata_error(self.admin.metadata)
        here = found[(page - 1) * wanted.size : page * wanted.size]
        shown = [await self.admin.completed(one, failure) for one in here]
        return Shown(
            now_ms=self.clock.wall_ms(),
            daemon=self.admin.response(failure=failure),
            topics=tuple((one, self.sampler.rates.get(one.topic, ZERO)) for one in shown),
            total=len(statuses),
            matching=len(found),
            page=page,
            pages=pages,
            sums=measured(statuses),
            failures=tuple((str(one.topic), failure_of(one)) for one in failing_topics[:FAILURES_MAX]),
            failing_count=len(failing_topics),
            reads=self._reads(),
            ring=self.sampler.ring,
        )

    def _sorted(self, statuses: Sequence[TopicStatus], wanted: Wanted) -> list[TopicStatus]:
        """Return the topics whose name contains the searched text, in the chosen order, then by name."""
        needle, rates = wanted.search.casefold(), self.sampler.rates
        keys: dict[str, Callable[[TopicStatus], object]] = {
            "lag": lambda one: (one.lag_seconds is not None, -(one.lag_seconds or 0.0), -(one.lag_entries or 0)),
            "bytes": lambda one: -(one.lag_bytes or 0),
            "rate": lambda one: -rates.get(str(one.topic), ZERO).bytes_per_s,
            "segment": lambda one: -one.open_segment_bytes,
            "topic": lambda _: 0,
            "state": lambda one: (not one.stalled_reason, one.state),
        }
        key = keys[wanted.sort]
        found = [one for one in statuses if needle in str(one.topic).casefold()]
        return sorted(found, key=lambda one: (key(one), one.topic))

    async def topic(self, topic: TopicName) -> tuple[admin_pb2.TopicStatus, Rate]:
        """Return one topic, wherever it is. Raises NotFound, Transient."""
        found = await self.admin.topic_status(topic, await metadata_error(self.admin.metadata))
        return found, self.sampler.rates.get(found.topic, ZERO)

    def _reads(self) -> tuple[Read, ...]:
        entries, size = by_label(self.metrics.read_entries, "source"), by_label(self.metrics.read_bytes, "source")
        fell_back = dict.fromkeys(TIERS, 0)
        for labels, value in totals(self.metrics.read_choice_entries):
            if labels["why"].startswith("fell_back"):
                fell_back[labels["source"]] += int(value)
        return tuple(
            Read(tier=tier, entries=int(entries[tier]), payload_bytes=int(size[tier]), fell_back=fell_back[tier])
            for tier in TIERS
        )


def failing(one: TopicStatus) -> bool:
    """Whether a topic needs attention: it stalls, has lost entries, its new entries wait for history, or the settings
    do not name where segments of it lie.
    """
    waits = one.history is not None and one.history.live_waits
    return bool(one.stalled_reason or one.losses or waits or one.unnamed)


def failure_of(one: TopicStatus) -> str:
    """Return the reason in one line."""
    if one.stalled_reason:
        return f"stalled: {one.stalled_reason}"
    if any(loss.certain for loss in one.losses):
        return "entries were deleted at the source before they were offloaded"
    if one.losses:
        return "a ledger is not at the source any more, and it is unknown whether all of it was offloaded"
    if one.unnamed:
        return f"the settings do not name {one.unnamed[0]}, where there are {unnamed_text(one.unnamed[0])}"
    return "new entries wait until the history is done"


def number(value: float) -> float | None:
    """Return a number for JSON; null if it was not measured."""
    return None if math.isnan(value) else round(value, 3)
