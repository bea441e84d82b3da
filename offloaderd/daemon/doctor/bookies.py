"""The bookies: is each one registered, reached, and does it answer; does it know batch reads.

They are asked for the end, and for the first entry, of a ledger that cannot exist, by the daemon's own client with its
own TLS and credentials: nothing of anybody's is read. A bookie that once was there and is not registered is found by
its cookie.
"""

from collections.abc import AsyncGenerator, Sequence

from prometheus_client import CollectorRegistry

from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.bookkeeper.metadata.layout import registration_paths
from offloaderd.bookkeeper.metadata.registration import READONLY, BookieAddress, resolve
from offloaderd.bookkeeper.wire.status import NotHere, Unsupported
from offloaderd.core.aio.each import each
from offloaderd.core.errors import CorruptData, NotFound, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import LEDGER_ID_MAX
from offloaderd.daemon.doctor.finding import Case, CheckResult, Finding, fail, ok, skipped, warn
from offloaderd.metadata.zookeeper.store import ZooKeeperStore

NO_LEDGER = LEDGER_ID_MAX
UNREACHABLE = "start it, or let this machine reach it: bookies must be reachable at the addresses that they register"


async def bookie_checks(case: Case, store: ZooKeeperStore | None) -> AsyncGenerator[CheckResult, None]:
    """Ask every bookie; without a session all is skipped."""
    if store is None:
        yield skipped("bookies", "no session")
        return
    roster = Roster()
    yield await case.check("bookies", roster.read(case, store))
    if roster.pool is not None:
        for result in await _asked(case, store, roster.pool, roster.present):
            yield result
    for bookie_id in roster.absent:
        yield await case.check(f"bookie {bookie_id}", _missing(bookie_id))


class Roster:
    """Which bookies there are, which there were, and what they are asked by (None: the settings forbid it)."""

    def __init__(self) -> None:
        self.pool: BookiePool | None = None
        self.present: Sequence[str] = ()
        self.absent: Sequence[str] = ()

    async def read(self, case: Case, store: ZooKeeperStore) -> Finding:
        """Read who is registered, and whose cookies there are. Raises InvalidConfig for TLS files of no use."""
        root = case.settings.bookkeeper.ledgers_root
        metrics = Metrics(CollectorRegistry())  # the daemon's own do not count this
        self.pool = BookiePool(store, clock=case.clock, metrics=metrics, options=case.settings.bookkeeper)
        writable = set(await store.children(f"{root}/available")) - {READONLY}
        readonly = set(await store.children(f"{root}/available/{READONLY}")) - writable
        self.present = sorted(writable | readonly)
        self.absent = sorted(set(await store.children(f"{root}/cookies")) - writable - readonly)
        if not self.present:
            return fail(f"none is registered below {root}/available", "start the bookies, or correct the roots")
        told = f"{len(writable)} registered" + (f", {len(readonly)} read-only" if readonly else "")
        return ok(told + (f", {len(self.absent)} missing" if self.absent else ""))


async def _missing(bookie_id: str) -> Finding:
    return warn(
        f"{bookie_id} has a cookie, but is not registered",
        "start it; if it is gone for good, have its ledgers copied and its cookie deleted: bookkeeper shell "
        f"decommissionbookie -bookieid {bookie_id}",
    )


async def _asked(
    case: Case, store: ZooKeeperStore, pool: BookiePool, bookie_ids: Sequence[str]
) -> Sequence[CheckResult]:
    """Ask bookies side by side; the pool is closed before anything is told."""
    async with pool:

        async def ask(bookie_id: str) -> CheckResult:
            return await case.check(f"bookie {bookie_id}", _one(case, store, pool, bookie_id))

        return await each(bookie_ids, ask)


async def _one(case: Case, store: ZooKeeperStore, pool: BookiePool, bookie_id: str) -> Finding:
    address, readonly = await _address(case, store, bookie_id)
    started = case.clock.monotonic()
    try:
        await pool.last_known(bookie_id, NO_LEDGER)
        took_ms = round((case.clock.monotonic() - started) * 1000)
        batches = await _knows_batches(pool, bookie_id)
    except Transient as error:
        return fail(error.message, error.hint or UNREACHABLE)
    told = [f"{address} answered in {took_ms} ms", "batch reads" if batches else "no batch reads (before 4.17: slower)"]
    if case.settings.bookkeeper.tls:
        told.append("TLS")
    elif address.tls:
        told.append("offers TLS, bookkeeper.tls is off")
    if readonly:
        told.append("read-only")
    return ok(", ".join(told))


async def _address(case: Case, store: ZooKeeperStore, bookie_id: str) -> tuple[BookieAddress, bool]:
    """Return where a bookie says it is, and whether it is read-only. Raises NotFound, CorruptData."""
    writable, readonly = registration_paths(case.settings.bookkeeper.ledgers_root, bookie_id)
    for path in (writable, readonly):
        try:
            content = (await store.get(path)).value
        except NotFound:
            continue
        try:
            return resolve(bookie_id, content, path=path), path == readonly
        except CorruptData as error:
            raise NotFound(
                error.message, hint="look at what this bookie registers: advertisedAddress, bookieId"
            ) from None
    raise NotFound(f"{bookie_id} has just gone", hint="run the doctor again")


async def _knows_batches(pool: BookiePool, bookie_id: str) -> bool:
    try:
        await pool.read_batch(bookie_id, NO_LEDGER, 0, count_max=1, bytes_max=1)
    except NotHere:
        return True
    except Unsupported:
        return False
    return True
