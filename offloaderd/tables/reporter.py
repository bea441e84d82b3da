"""How far declared tables are behind, in the metrics of a daemon: their application's own end with it.

One daemon of the cluster looks twice a minute at what the applications have said last; any daemon does when asked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

import structlog
from prometheus_client import CollectorRegistry

from offloaderd.core.aio import each
from offloaderd.core.clock import Clock
from offloaderd.core.errors import CorruptData, OffloaderError, Transient
from offloaderd.core.metrics.tables import DeclaredTableMetrics
from offloaderd.metadata.port import MetadataStore
from offloaderd.tables import store
from offloaderd.tables.declaration import Declaration
from offloaderd.tables.store import States

log = structlog.get_logger(__name__)

LOOK_S = 30.0
"""Longest pause between two looks."""
SHOWN_MAX = 1000
"""Declarations, and tables, that have series: the first declarations by name, and of these the tables that lag most."""
ASKED_MAX = 200
"""Declarations that a status has, the first by name: each may have a megabyte of states to read."""
Values = Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A declaration, with the largest lags of its tables by now, in seconds and entries.

    `writer` holds it now, empty for nobody; `said_ms` is when one has said something last, before the first when it was
    declared; `failure` why something of this is unknown.
    """

    name: str
    topics: str = ""
    tables: int = 0
    failing: int = 0
    lag_seconds: float = 0.0
    lag_entries: int = 0
    writer: str = ""
    said_ms: int = 0
    failure: str = ""


class TablesReporter:
    """Shows the lag of declared tables, and since when nobody writes them."""

    def __init__(self, metadata: MetadataStore, *, clock: Clock, registry: CollectorRegistry) -> None:
        self._metadata = metadata
        self._clock = clock
        metrics = DeclaredTableMetrics(registry)
        self._families = (
            metrics.declared_table_lag_seconds,
            metrics.declared_table_lag_entries,
            metrics.declared_table_failing,
            metrics.declared_table_rows_apart,
            metrics.declaration_unwritten_seconds,
            metrics.declaration_interval_seconds,
        )
        self._shown: tuple[Values, ...] = ({},) * len(self._families)

    async def keep(self, leads: Callable[[], bool]) -> None:
        """Look again and again while this daemon leads the job, and show nothing meanwhile else, until cancelled.

        What two daemons show that both think that they lead is the same.
        """
        while True:
            await self._clock.sleep(self._clock.jitter(LOOK_S))
            if not leads():
                self._show()
                continue
            try:
                await self.look()
            except OffloaderError as error:
                if not isinstance(error, Transient):
                    self._show()  # what was seen last would stand for ever
                log.warning("tables.states_unread", error=str(error), error_class=type(error).__name__)

    async def summaries(self) -> tuple[list[Summary], int]:
        """Return the declarations of the cluster as they are now, and how many more there are than ASKED_MAX.

        Raises Transient, Denied.
        """
        found = list((await store.load(self._metadata)).items())
        return await each(found[:ASKED_MAX], self._summary), max(0, len(found) - ASKED_MAX)

    async def _summary(self, found: tuple[str, Declaration | CorruptData]) -> Summary:
        name, declared = found
        if not isinstance(declared, Declaration):
            return Summary(name=name, failure=str(declared))
        writer = await store.writer(self._metadata, name)
        try:
            states, failure = await store.states(self._metadata, name), ""
        except CorruptData as error:
            states, failure = States(), str(error)
        return Summary(
            name=name,
            topics=declared.topics,
            tables=len(states.tables),
            failing=states.failing,
            lag_seconds=states.lag_s(self._clock.wall_ms()),
            lag_entries=max((one.lag_entries for one in states.tables), default=0),
            writer=writer,
            said_ms=states.at_ms or declared.created_ms,
            failure=failure,
        )

    async def look(self) -> None:
        """Read what was said last of all tables, and show it. Raises Transient, Denied."""
        readable = (one for one in (await store.load(self._metadata)).values() if isinstance(one, Declaration))
        declared = list(islice(readable, SHOWN_MAX))
        said = dict(zip(declared, await each(declared, self._said), strict=True))
        now_ms = self._clock.wall_ms()
        tables = [(one.name, table) for one, (states, _) in said.items() for table in states.by(now_ms)]
        most = sorted(tables, key=lambda one: (bool(one[1].error), one[1].lag_s), reverse=True)[:SHOWN_MAX]
        # A topic whose table another one has is told by the same name: what the table itself says comes last.
        by_label = {(name, f"{name}/{table.table}"): table for name, table in sorted(most, key=lambda one: one[1].rows)}
        failing = {(name, f"{name}/{table.table}") for name, table in most if table.error}
        self._show(
            {label: table.lag_s for label, table in by_label.items()},
            {label: table.lag_entries for label, table in by_label.items()},
            {label: float(label in failing) for label in by_label},
            {label: table.apart for label, table in by_label.items()},
            {
                (one.name,): 0.0 if writer and not states.tables else _since_s(now_ms, states.at_ms or one.created_ms)
                for one, (states, writer) in said.items()
            },
            {(one.name,): one.interval_s for one in declared},
        )

    async def _said(self, declared: Declaration) -> tuple[States, str]:
        """Return what was said last of the tables of a declaration, and who writes them now; empty for nobody."""
        writer = await store.writer(self._metadata, declared.name)
        try:
            return await store.states(self._metadata, declared.name), writer
        except CorruptData:
            return States(), writer

    def _show(self, *found: Values) -> None:
        """Show the values of each family, and none of those that were shown before; without any: nothing."""
        values = found or ({},) * len(self._families)
        for family, now, before in zip(self._families, values, self._shown, strict=True):
            for labels, value in now.items():
                family.labels(*labels).set(value)
            for gone in before.keys() - now.keys():
                family.remove(*gone)
        self._shown = values


def _since_s(now_ms: int, at_ms: int) -> float:
    return max(0, now_ms - at_ms) / 1000
