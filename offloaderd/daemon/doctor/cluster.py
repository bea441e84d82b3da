"""The cluster's own nodes in ZooKeeper: can BookKeeper's and Pulsar's metadata be read, and only read.

Nothing here writes. The access lists tell whether this daemon could, which it never does but should not be able to.
"""

from collections.abc import AsyncGenerator

from offloaderd.bookkeeper.metadata import ledger as ledger_metadata
from offloaderd.bookkeeper.metadata.layout import Layout, decode_layout, layout_path
from offloaderd.core import domains
from offloaderd.core.errors import Denied, InvalidInput, NotFound
from offloaderd.core.model import TopicName, decode_local
from offloaderd.core.names import managed_ledgers as pulsar_names
from offloaderd.daemon.doctor.finding import Case, CheckResult, Finding, fail, ok, skipped, warn
from offloaderd.ledgers.pulsar import managed_ledger as pulsar
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.zookeeper.store import ZooKeeperStore

SAMPLES_MAX = 20
"""Namespaces to look into for a topic."""
NAMESPACES_MAX = 10_000
"""Namespaces to look into for topics that are not covered."""
TOLD_MAX = 5
"""Topics that a finding names."""
NAMES = ("cluster ledgers", "cluster topics", "cluster domains", "cluster rights")
WRONG_PLACE = (
    "point bookkeeper.servers to the brokers' metadata store; a path at the end of its metadataStoreUrl goes in front "
    "of bookkeeper.ledgers_root and bookkeeper.managed_ledgers_root"
)


async def cluster_checks(case: Case, store: ZooKeeperStore | None) -> AsyncGenerator[CheckResult, None]:
    """Look at the cluster; without a session all is skipped."""
    if store is None:
        for name in NAMES:
            yield skipped(name, "no session")
        return
    works = (ledgers(case, store), topics(case, store), other_domains(case, store), rights(case, store))
    for name, work in zip(NAMES, works, strict=True):
        yield await case.check(name, work)


async def ledgers(case: Case, store: ZooKeeperStore) -> Finding:
    """Find BookKeeper's root and how ledgers are laid out below it."""
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
    """Read some topic's list of ledgers and what BookKeeper says of the last one, as a reader would."""
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
    """Name the topics of domains that are not taken: enabling their namespace does nothing for them."""
    root = case.settings.bookkeeper.managed_ledgers_root
    found: list[str] = []
    looked = 0
    try:
        for tenant in await store.children(root):
            for namespace in (await store.children(f"{root}/{tenant}"))[: NAMESPACES_MAX - looked]:
                looked += 1
                for domain in domains.NOT_COVERED:
                    folder = f"{tenant}/{namespace}/{domain}"
                    names = await store.children(f"{root}/{folder}")
                    found += [pulsar_names.full_name(f"{folder}/{name}") for name in names]
    except Denied as error:
        return warn(f"the topics cannot be listed: {error.message}", f"give the daemon's user READ on {root}")
    within = f" of the first {looked} namespaces" if looked == NAMESPACES_MAX else ""
    if not found:
        return ok(f"all topics{within} are persistent ones")
    first = ", ".join(sorted(found)[:TOLD_MAX])
    more = f" and {len(found) - TOLD_MAX} more" if len(found) > TOLD_MAX else ""
    return warn(
        f"{len(found)} topics{within} are not covered, whether or not their namespace is enabled: {first}{more}",
        domains.HINT_NOT_COVERED,
    )


async def rights(case: Case, store: ZooKeeperStore) -> Finding:
    """Tell whether the daemon could write where it never does."""
    roots = (case.settings.bookkeeper.ledgers_root, case.settings.bookkeeper.managed_ledgers_root)
    writable = []
    for root in roots:
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
    """Return the node of a topic, and remember its name."""
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
        metadata = ledger_metadata.decode((await store.get(node)).value, path=node)
    except NotFound:
        return warn(
            f"{case.topic} lists ledger {last}, but there is no {node}",
            "it may have been deleted this moment: run the doctor again; else bookkeeper.ledgers_root is of another "
            "cluster",
        )
    return ok(
        f"read {case.topic}: ledger {last} is {metadata.state.name} on {', '.join(metadata.ensembles[-1].bookies)}"
    )


def _unreadable(error: Denied, root: str) -> Finding:
    return fail(error.message, f"give the daemon's user READ on {root} and everything below it")
