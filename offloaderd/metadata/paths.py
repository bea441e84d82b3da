"""Paths of all nodes, relative to the store's root (`<metadata.root>/<cluster>`); no other module builds them.

    /daemons/<id>                                          ephemeral
    /selections/<pattern>
    /policies/
        broker
        namespaces/<tenant>/<namespace>
    /quotas/<level>
    /tables/<name>/
        writer                                             ephemeral
        state
    /usage/<daemon id>[/<piece>]
    /identity                                              id of this deployment, and of its ledger source
    /rebuild                                               present during a rebuild from the bucket
    /grants-changed/<topic>                                notice to the topic's owner: read its grants now
    /topics/<tenant>/<namespace>/<domain>/<local>/
        policy  owner  epoch  attempt  floor  verified  asked  identity
        ledgers/<ledger id>
        losses/<ledger id>[-<entry id>...]
        trash/<segment uuid>
        trash/<segment uuid>.<place>
        grants/<ledger id>
        history/plan  attempt  ranges/<number>  driver  holder  attempts/<segment uuid>  writers/<segment uuid>
        rollback/order  attempt

The names of a topic are percent-encoded nearly as in its managed ledger's name, so operators recognise the path. Names
that ZooKeeper would refuse (`.`, `..`, characters beyond ASCII) are encoded as well.
"""

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote, unquote
from uuid import UUID

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import TopicName

DAEMONS = "/daemons"
SELECTIONS = "/selections"
POLICIES = "/policies"
BROKER_POLICY = f"{POLICIES}/broker"
NAMESPACE_POLICIES = f"{POLICIES}/namespaces"
QUOTAS = "/quotas"
TABLES = "/tables"
USAGE = "/usage"
TOPICS = "/topics"
REBUILD = "/rebuild"
IDENTITY = "/identity"
GRANTS_CHANGED = "/grants-changed"
_SAFE = "-_.*=:"
_TOPIC_DEPTH = 6  # "", topics, tenant, namespace, domain, local


def daemon(daemon_id: str) -> str:
    """Registration of a daemon (ephemeral)."""
    return f"{DAEMONS}/{_encoded(daemon_id)}"


def selection(pattern: str) -> str:
    """Policy for all topics that match a pattern."""
    return f"{SELECTIONS}/{_encoded(pattern)}"


def quota(level: str) -> str:
    """Quotas of a level: `*`, a tenant, or TENANT/NAMESPACE."""
    return f"{QUOTAS}/{_encoded(level)}"


def table(name: str) -> str:
    """Declaration of tables that follow topics."""
    return f"{TABLES}/{_encoded(name)}"


def table_writer(name: str) -> str:
    """Claim of the application that writes the tables of a declaration (ephemeral)."""
    return f"{table(name)}/writer"


def table_state(name: str) -> str:
    """What that application last said of the tables."""
    return f"{table(name)}/state"


def usage(daemon_id: str, piece: int = 0) -> str:
    """What a daemon has counted for each namespace; the pieces from 1 on have what does not fit into the node."""
    return f"{USAGE}/{_encoded(daemon_id)}" + (f"/{piece}" if piece else "")


def selected_pattern(name: str) -> str:
    """Return the pattern from the name of its `selection` node."""
    return unquote(name)


def namespace_policy(tenant: str, namespace: str) -> str:
    """Policy of the topics of a namespace."""
    return f"{NAMESPACE_POLICIES}/{_encoded(tenant)}/{_encoded(namespace)}"


def name_of(node: str) -> str:
    """Return the tenant or namespace from the name of its node."""
    return unquote(node)


def namespace(name: TopicName) -> str:
    """Folder of the topics of a namespace."""
    return topic(name).rpartition("/")[0]


def topic(name: TopicName) -> str:
    """Folder of a topic."""
    tenant, namespace, domain, local = map(_encoded, (name.tenant, name.namespace, name.domain, name.local))
    return f"{TOPICS}/{tenant}/{namespace}/{domain}/{local}"


def _node(below: str) -> Callable[[TopicName], str]:
    return lambda name: f"{topic(name)}/{below}"


def _numbered(folder: str) -> Callable[[TopicName, int], str]:
    return lambda name, number: f"{topic(name)}/{folder}/{number}"


def _by_segment(folder: str) -> Callable[[TopicName, UUID], str]:
    return lambda name, segment_id: f"{topic(name)}/{folder}/{segment_id}"


policy = _node("policy")
"""Topic policy. Its presence registers the topic."""
owner = _node("owner")
"""The topic's present owner (ephemeral)."""
epoch = _node("epoch")
"""Number of the present ownership; the node's version fences commits."""
attempt = _node("attempt")
"""The one open segment."""
ledgers = _node("ledgers")
"""Folder of the ledgers' offload contexts."""
ledger = _numbered("ledgers")
"""Offload context of one ledger."""
losses = _node("losses")
"""Folder of the ranges that the source deleted before they were offloaded."""
trash = _node("trash")
"""Folder of the segments whose objects are to be deleted."""
trash_record = _by_segment("trash")
"""One segment whose objects are to be deleted."""


def trash_copy(name: TopicName, segment_id: UUID, place: tuple[str, str]) -> str:
    """Return the node of one copy whose objects are to be deleted, of a segment that stays in the map."""
    return f"{trash_record(name, segment_id)}.{sha256('/'.join(place).encode()).hexdigest()[:12]}"


mirror = _node("mirror")
"""The one copy of a segment that is being made in another place."""
floor = _node("floor")
"""End of the last segment that was deleted from the front."""
verified = _node("verified")
"""Time of the scrub's last check of each segment."""
identity = _node("identity")
"""Standing refusals: the topic's metadata, bucket or source may belong to another history."""
asked = _node("asked")
"""The last manual request for the topic."""
grants = _node("grants")
"""Folder of the permissions to delete ledgers from their source."""
grant = _numbered("grants")
"""Permission to delete one ledger from its source."""
history = _node("history")
"""Folder of the entries before the live edge; only topics with such entries have one."""
history_plan = _node("history/plan")
"""The range that is history, and where the live edge begins."""
history_attempt = _node("history/attempt")
"""The owner's open segment of history."""
history_ranges = _node("history/ranges")
"""Folder of the ranges into which history is split."""
history_range_node = _numbered("history/ranges")
"""One node with as many of these ranges as fit."""
history_driver = _node("history/driver")
"""Number of the claim of a backfill job's driver; the node's version fences the driver and its executors."""
history_holder = _node("history/holder")
"""The running driver (ephemeral)."""
history_attempts = _node("history/attempts")
"""Folder of a job's segments that are being written, or are written and not committed yet."""
history_job_attempt = _by_segment("history/attempts")
"""One uncommitted segment of a job."""
history_writers = _node("history/writers")
"""Folder of the running executors."""
history_writer = _by_segment("history/writers")
"""The executor that writes one segment (ephemeral)."""
rollback = _node("rollback")
"""Folder of a rewrite of segments as whole ledgers; only topics with an order for it have one."""
rollback_order = _node("rollback/order")
"""The order: its last ledger, and its result."""
rollback_attempt = _node("rollback/attempt")
"""The ledger that is being rewritten."""


def loss(name: TopicName, node: str) -> str:
    """Record of one lost range; `records/loss.py` chooses its name."""
    return f"{losses(name)}/{node}"


def grants_changed(name: TopicName) -> str:
    """Notice to a topic's owner that another process changed one of its grants."""
    return f"{GRANTS_CHANGED}/{_encoded(str(name))}"


def topic_of_grants_changed(node: str) -> TopicName:
    """Return the topic from the name of its `grants_changed` node. Raises InvalidInput."""
    return TopicName.parse(unquote(node))


def folders(name: TopicName) -> tuple[str, ...]:
    """Return the folders that must exist before a transaction creates nodes in them, parents first."""
    return (topic(name), ledgers(name), losses(name), trash(name), grants(name))


def parse_topic(path: str) -> TopicName:
    """Return the topic of its folder's path, or of a path inside the folder. Raises InvalidInput."""
    parts = path.split("/")
    if len(parts) < _TOPIC_DEPTH or parts[0] or f"/{parts[1]}" != TOPICS:
        raise InvalidInput(f"{path!r} is not the path of a topic")
    tenant, namespace, domain, local = map(unquote, parts[2:_TOPIC_DEPTH])
    name = TopicName(tenant, namespace, local, domain)
    if topic(name) != "/".join(parts[:_TOPIC_DEPTH]) or name != TopicName.parse(str(name)):
        raise InvalidInput(f"{path!r} is not the path of a topic")
    return name


@lru_cache(maxsize=1000)
def _encoded(part: str) -> str:
    """Encode a name as one path element that every metadata store accepts."""
    text = quote(part, safe=_SAFE)
    return text.replace(".", "%2E") if text in {".", ".."} else text
