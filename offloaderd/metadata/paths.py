"""Names of the nodes, relative to the store's root (`<metadata.root>/<cluster>`); the only place that builds them.

    /daemons/<id>                                          ephemeral
    /selections/<pattern>
    /policies/
        broker
        namespaces/<tenant>/<namespace>
    /identity                                              which deployment this is, and whose ledgers it offloads
    /rebuild                                               while the rest is being rebuilt from the bucket
    /grants-changed/<topic>                                its owner is to look at its grants now
    /topics/<tenant>/<namespace>/<domain>/<local>/
        policy  owner  epoch  attempt  floor  verified  asked  identity
        ledgers/<ledger id>
        losses/<ledger id>[-<entry id>...]
        trash/<segment uuid>
        grants/<ledger id>
        history/plan  attempt  ranges/<number>  driver  holder  attempts/<segment uuid>  writers/<segment uuid>
        rollback/order  attempt

Rules: a topic's names are percent-encoded as nearly all of its managed ledger's, so a topic is found under the name
an operator knows; what ZooKeeper would refuse as a name (`.`, `..`, characters beyond ASCII) is encoded as well.
"""

from collections.abc import Callable
from urllib.parse import quote, unquote
from uuid import UUID

from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import TopicName

DAEMONS = "/daemons"
SELECTIONS = "/selections"
POLICIES = "/policies"
BROKER_POLICY = f"{POLICIES}/broker"
NAMESPACE_POLICIES = f"{POLICIES}/namespaces"
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
    """Standing order for the topics that match a pattern."""
    return f"{SELECTIONS}/{_encoded(pattern)}"


def selected_pattern(name: str) -> str:
    """Return the pattern that `selection` was given, from the name of its node."""
    return unquote(name)


def namespace_policy(tenant: str, namespace: str) -> str:
    """What holds for the topics of a namespace."""
    return f"{NAMESPACE_POLICIES}/{_encoded(tenant)}/{_encoded(namespace)}"


def name_of(node: str) -> str:
    """Return the tenant or namespace that a node is named by."""
    return unquote(node)


def namespace(name: TopicName) -> str:
    """Folder of the topics of a namespace."""
    return topic(name).rpartition("/")[0]


def topic(name: TopicName) -> str:
    """Folder of everything that belongs to a topic."""
    tenant, namespace, domain, local = map(_encoded, (name.tenant, name.namespace, name.domain, name.local))
    return f"{TOPICS}/{tenant}/{namespace}/{domain}/{local}"


def _node(below: str) -> Callable[[TopicName], str]:
    return lambda name: f"{topic(name)}/{below}"


def _numbered(folder: str) -> Callable[[TopicName, int], str]:
    return lambda name, number: f"{topic(name)}/{folder}/{number}"


def _by_segment(folder: str) -> Callable[[TopicName, UUID], str]:
    return lambda name, segment_id: f"{topic(name)}/{folder}/{segment_id}"


policy = _node("policy")
"""Topic policy; its presence makes the topic known."""
owner = _node("owner")
"""Who works on the topic now (ephemeral)."""
epoch = _node("epoch")
"""Number of the ownership; the node's version fences commits."""
attempt = _node("attempt")
"""The one open segment."""
ledgers = _node("ledgers")
"""Folder of the ledgers' offload contexts."""
ledger = _numbered("ledgers")
"""Offload context of one ledger."""
losses = _node("losses")
"""Folder of what was deleted from the source before it was offloaded."""
trash = _node("trash")
"""Folder of the objects whose deletion has been decided."""
trash_record = _by_segment("trash")
"""One segment whose objects are to be deleted."""
floor = _node("floor")
"""End of the last segment that was deleted."""
verified = _node("verified")
"""When each segment was last looked at by the scrub."""
identity = _node("identity")
"""Refusals that stand because the topic's metadata, bucket or source may be of another history."""
asked = _node("asked")
"""What was last asked of the topic by hand."""
grants = _node("grants")
"""Folder of the permissions to delete ledgers from their source."""
grant = _numbered("grants")
"""Permission to delete one ledger from its source."""
history = _node("history")
"""Folder of what is known of the entries from before the live edge; only topics that need it have one."""
history_plan = _node("history/plan")
"""What is history, and where the live edge begins."""
history_attempt = _node("history/attempt")
"""The open segment of history that the owner writes."""
history_ranges = _node("history/ranges")
"""Folder of the ranges that history is split into."""
history_range_node = _numbered("history/ranges")
"""So many of these ranges as one node holds."""
history_driver = _node("history/driver")
"""Number of the claim of a backfill job's driver; the node's version fences it and its executors."""
history_holder = _node("history/holder")
"""The driver that lives (ephemeral)."""
history_attempts = _node("history/attempts")
"""Folder of the segments that a job writes, or has written and not committed yet."""
history_job_attempt = _by_segment("history/attempts")
"""One segment that a job writes."""
history_writers = _node("history/writers")
"""Folder of the executors that write."""
history_writer = _by_segment("history/writers")
"""The executor that writes one segment (ephemeral)."""
rollback = _node("rollback")
"""Folder of the rewriting of segments as whole ledgers; only topics for which it was ordered have one."""
rollback_order = _node("rollback/order")
"""Up to where it was ordered, and what came of it."""
rollback_attempt = _node("rollback/attempt")
"""The ledger that is being rewritten."""


def loss(name: TopicName, node: str) -> str:
    """One lost range; `loss_nodes.py` says under which name."""
    return f"{losses(name)}/{node}"


def grants_changed(name: TopicName) -> str:
    """Word to a topic's owner that somebody else changed one of its grants."""
    return f"{GRANTS_CHANGED}/{_encoded(str(name))}"


def topic_of_grants_changed(node: str) -> TopicName:
    """Return the topic that a node of `grants_changed` is named by. Raises InvalidInput."""
    return TopicName.parse(unquote(node))


def folders(name: TopicName) -> tuple[str, ...]:
    """Return the folders that must exist before a transaction may create nodes below them, parents first."""
    return (topic(name), ledgers(name), losses(name), trash(name), grants(name))


def parse_topic(path: str) -> TopicName:
    """Return the topic whose folder `path` is, or in whose folder it lies. Raises InvalidInput."""
    parts = path.split("/")
    if len(parts) < _TOPIC_DEPTH or parts[0] or f"/{parts[1]}" != TOPICS:
        raise InvalidInput(f"{path!r} is not the path of a topic")
    tenant, namespace, domain, local = map(unquote, parts[2:_TOPIC_DEPTH])
    name = TopicName(tenant, namespace, local, domain)
    if topic(name) != "/".join(parts[:_TOPIC_DEPTH]) or name != TopicName.parse(str(name)):
        raise InvalidInput(f"{path!r} is not the path of a topic")
    return name


def _encoded(part: str) -> str:
    """Return a name as one path element that every metadata store accepts."""
    text = quote(part, safe=_SAFE)
    return text.replace(".", "%2E") if text in {".", ".."} else text
