"""The Pulsar cluster: the nodes of BookKeeper and Pulsar in ZooKeeper, the bookies, and the admin API of the brokers.

Nothing here writes. The access lists tell whether this daemon could, which it never does but should not be able to.

Bookies are asked for the end and for the first entry of a ledger that cannot exist, by the client of the daemon with
its TLS and credentials: no entries are read. A bookie that is not registered any more is found by its cookie.

The admin API is asked about a topic that does not exist, as asking about an existing one would make a broker load it.
Its answers do not contain the time (Jetty sends no Date by default), so there is no clock to compare.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry

from offloaderd.bookkeeper.connections.bookies import BookiePool
from offloaderd.bookkeeper.metadata import (
    READONLY,
    BookieAddress,
    Layout,
    decode_layout,
    decode_ledger,
    layout_path,
    registration_paths,
    resolve_address,
)
from offloaderd.bookkeeper.wire.protocol import NotHere, Unsupported
from offloaderd.core.aio import each
from offloaderd.core.errors import CorruptData, Denied, InvalidInput, NotFound, Transient
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import DOMAINS_HINT, DOMAINS_NOT_COVERED, LEDGER_ID_MAX, TopicName, decode_local
from offloaderd.core.names import managed_ledgers as pulsar_names
from offloaderd.core.units import abridged
from offloaderd.daemon.doctor.finding import Case, CheckResult, Finding, fail, ok, skipped, warn
from offloaderd.ledgers.pulsar import managed_ledger as pulsar
from offloaderd.ledgers.pulsar.admin import PulsarAdmin
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.zookeeper.store import ZooKeeperStore

SAMPLES_MAX = 20
"""Namespaces that are searched for a topic."""
NAMESPACES_MAX = 10_000
"""Namespaces that are searched for topics that are not covered."""
TOLD_MAX = 5
"""Topics that a finding lists."""
WRONG_PLACE = (
    "point bookkeeper.servers to the brokers' metadata store; a path at the end of its metadataStoreUrl goes in front "
    "of bookkeeper.ledgers_root and bookkeeper.managed_ledgers_root"
)


async def cluster_checks(case: Case, store: ZooKeeperStore | None) -> AsyncGenerator[CheckResult, None]:
    """Check the nodes of the cluster; without a session all checks are skipped."""
    for name, check in (("ledgers", ledgers), ("topics", topics), ("domains", other_domains), ("rights", rights)):
        if store is None:
            yield skipped(f"cluster {name}", "no session")
        else:
            yield await case.check(f"cluster {name}", check(case, store))


async def ledgers(case: Case, store: ZooKeeperStore) -> Finding:
    """Find the root of BookKeeper and the layout of ledgers below it."""
    root = case.settings.bookkeeper.ledgers_root
    try:
        await store.get(root)
        layout = await _layout(store, root)
    except NotFound:
        return fail(f"there is no {root}", WRONG_PLACE)
    except Denied as error:
        return _unreadable(error, root)
    return ok(f"{root}, layout {layout}")


async def topics(case: Case, store: ZooKeeperStore) -> Finding:
    """Read the ledgers of any topic and the metadata of the last one, as a reader would."""
    root = case.settings.bookkeeper.managed_ledgers_root
    try:
        await store.get(root)
        path = await _some_topic(case, store, root)
        return ok(f"{root} is readable, no topic found") if path is None else await _sampled(case, store, path)
    except NotFound:
        return warn(
            f"there is no {root}: expected of a new cluster, which makes it with its first topic; else elsewhere",
            f"nothing, if nobody has made a topic yet; {WRONG_PLACE}",
        )
    except Denied as error:
        return _unreadable(error, root)


async def other_domains(case: Case, store: MetadataStore) -> Finding:
    """List topics of domains that are not covered: enabling their namespace has no effect on them."""
    root = case.settings.bookkeeper.managed_ledgers_root
    found: list[str] = []
    looked = 0
    try:
        for tenant in await store.children(root):
            for namespace in (await store.children(f"{root}/{tenant}"))[: NAMESPACES_MAX - looked]:
                looked += 1
                for domain in DOMAINS_NOT_COVERED:
                    folder = f"{tenant}/{namespace}/{domain}"
                    names = await store.children(f"{root}/{folder}")
                    found += [pulsar_names.full_name(f"{folder}/{name}") for name in names]
    except Denied as error:
        return warn(f"the topics cannot be listed: {error.message}", f"give the daemon's user READ on {root}")
    within = f" of the first {looked} namespaces" if looked == NAMESPACES_MAX else ""
    if not found:
        return ok(f"all topics{within} are persistent ones")
    named = ", ".join(abridged(sorted(found), TOLD_MAX))
    what = f"{len(found)} topics{within} are not covered, whether or not their namespace is enabled: {named}"
    return warn(what, DOMAINS_HINT)


async def rights(case: Case, store: ZooKeeperStore) -> Finding:
    """Check whether the daemon could write the nodes of the cluster, which it never does."""
    bookkeeper, writable = case.settings.bookkeeper, []
    for root in (bookkeeper.ledgers_root, bookkeeper.managed_ledgers_root):
        try:
            if (await store.about(root)).writable:
                writable.append(root)
        except NotFound:
            continue  # said above
        except Denied as error:
            return warn(f"the access list cannot be read: {error.message}", "give the daemon READ there")
    if writable:
        return warn(
            f"whoever reaches ZooKeeper may write {' and '.join(writable)}, this daemon included (it never does)",
            "nothing, or ZooKeeper access lists: READ is all that the daemon needs there",
        )
    return ok("the cluster's nodes are not writable for everybody")


async def _layout(store: ZooKeeperStore, root: str) -> Layout:
    path = layout_path(root)
    try:
        return decode_layout((await store.get(path)).value, path=path)
    except NotFound:
        return decode_layout(None, path=path)


async def _some_topic(case: Case, store: ZooKeeperStore, root: str) -> str | None:
    """Return the node of any topic, and record its name."""
    looked = 0
    for tenant in await store.children(root):
        for namespace in await store.children(f"{root}/{tenant}"):
            folder = f"{root}/{tenant}/{namespace}/persistent"
            for local in (await store.children(folder))[:1]:
                try:
                    case.topic = TopicName.parse(f"persistent://{tenant}/{namespace}/{decode_local(local)}")
                except InvalidInput:
                    continue  # a name of the first version, which is not read either
                return f"{folder}/{local}"
            looked += 1
            if looked == SAMPLES_MAX:
                return None
    return None


async def _sampled(case: Case, store: ZooKeeperStore, path: str) -> Finding:
    listed = pulsar.decode((await store.get(path)).value, key=path).ledgers
    if not listed:
        return ok(f"{case.topic} has no ledger")
    root, last = case.settings.bookkeeper.ledgers_root, listed[-1].ledger_id
    node = (await _layout(store, root)).path(root, last)
    try:
        metadata = decode_ledger((await store.get(node)).value, path=node)
    except NotFound:
        return warn(
            f"{case.topic} lists ledger {last}, but there is no {node}",
            "it may have been deleted this moment: run the doctor again; else bookkeeper.ledgers_root is of another "
            "cluster",
        )
    bookies = ", ".join(metadata.ensembles[-1].bookies)
    return ok(f"read {case.topic}: ledger {last} is {metadata.state.name} on {bookies}")


def _unreadable(error: Denied, root: str) -> Finding:
    return fail(error.message, f"give the daemon's user READ on {root} and everything below it")


NO_LEDGER = LEDGER_ID_MAX
BOOKIE_UNREACHABLE = "start it, or let this machine reach it: bookies must be reachable at the addresses they register"


async def bookie_checks(case: Case, store: ZooKeeperStore | None) -> AsyncGenerator[CheckResult, None]:
    """Check every bookie; without a session all checks are skipped."""
    if store is None:
        yield skipped("bookies", "no session")
        return
    roster = Roster()
    yield await case.check("bookies", roster.read(case, store))
    if roster.pool is not None:
        async with roster.pool as pool:  # closed before the results are yielded
            found = await each(
                roster.present, lambda one: case.check(f"bookie {one}", _ask_bookie(case, store, pool, one))
            )
        for result in found:
            yield result
    for bookie_id in roster.absent:
        yield await case.check(f"bookie {bookie_id}", _missing(bookie_id))


class Roster:
    """The registered and the missing bookies, and the pool of connections (None: invalid TLS settings)."""

    def __init__(self) -> None:
        self.pool: BookiePool | None = None
        self.present: Sequence[str] = ()
        self.absent: Sequence[str] = ()

    async def read(self, case: Case, store: ZooKeeperStore) -> Finding:
        """Read the registered bookies and the cookies. Raises InvalidConfig for unusable TLS files."""
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
        "start it; if it will not come back, have its ledgers copied and its cookie deleted: bookkeeper shell "
        f"decommissionbookie -bookieid {bookie_id}",
    )


async def _ask_bookie(case: Case, store: ZooKeeperStore, pool: BookiePool, bookie_id: str) -> Finding:
    address, readonly = await _address(case, store, bookie_id)
    started = case.clock.monotonic()
    try:
        await pool.last_known(bookie_id, NO_LEDGER)
        took_ms = round((case.clock.monotonic() - started) * 1000)
        batches = await _knows_batches(pool, bookie_id)
    except Transient as error:
        return fail(error.message, error.hint or BOOKIE_UNREACHABLE)
    told = [f"{address} answered in {took_ms} ms", "batch reads" if batches else "no batch reads (before 4.17: slower)"]
    if case.settings.bookkeeper.tls:
        told.append("TLS")
    elif address.tls:
        told.append("offers TLS, bookkeeper.tls is off")
    if readonly:
        told.append("read-only")
    return ok(", ".join(told))


async def _address(case: Case, store: ZooKeeperStore, bookie_id: str) -> tuple[BookieAddress, bool]:
    """Return the registered address of a bookie, and whether it is read-only. Raises NotFound."""
    writable, readonly = registration_paths(case.settings.bookkeeper.ledgers_root, bookie_id)
    for path in (writable, readonly):
        try:
            content = (await store.get(path)).value
        except NotFound:
            continue
        try:
            return resolve_address(bookie_id, content, path=path), path == readonly
        except CorruptData as error:
            hint = "look at what this bookie registers: advertisedAddress, bookieId"
            raise NotFound(error.message, hint=hint) from None
    raise NotFound(f"{bookie_id} has just gone", hint="run the doctor again")


async def _knows_batches(pool: BookiePool, bookie_id: str) -> bool:
    try:
        with suppress(NotHere):
            await pool.read_batch(bookie_id, NO_LEDGER, 0, count_max=1, bytes_max=1)
    except Unsupported:
        return False
    return True


NOT_SET = "pulsar.admin_url is not set: an idle open ledger hides its last entries until the next write or its close"
ADMIN_UNREACHABLE = (
    "let this machine reach pulsar.admin_url, and the brokers that it redirects to; it is a broker's or proxy's web "
    "service URL"
)


async def admin_checks(case: Case) -> AsyncGenerator[CheckResult, None]:
    """Check the admin API, if its URL is set."""
    url = case.settings.pulsar.admin_url
    if case.settings.ledgers.kind != "bookkeeper":
        return
    if url is None:
        yield skipped("admin api", NOT_SET)
    else:
        yield await case.check("admin api", _ask_admin(case, url))


async def _ask_admin(case: Case, url: str) -> Finding:
    options = case.settings.pulsar
    tenant, namespace = (case.topic.tenant, case.topic.namespace) if case.topic else ("public", "default")
    async with PulsarAdmin(url, options) as admin:
        try:
            await admin.last_confirmed(TopicName.parse(f"persistent://{tenant}/{namespace}/{case.probe_name()}"))
        except Transient as error:
            return fail(error.message, error.hint or ADMIN_UNREACHABLE)
    secret = "with our token" if options.admin_token or options.admin_token_file else "without a token"
    return ok(f"{url} answers {secret}")
