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
        losses/<ledger id>
        trash/<segment uuid>
        grants/<ledger id>
        history/plan  attempt  ranges/<number>  driver  holder  attempts/<segment uuid>  writers/<segment uuid>
        rollback/order  attempt

Rules: a topic's names are percent-encoded as nearly all of its managed ledger's, so a topic is found under the name
an operator knows; what ZooKeeper would refuse as a name (`.`, `..`, characters beyond ASCII) is encoded as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from offloaderd.errors import InvalidInput
from offloaderd.model import TopicName

if TYPE_CHECKING:
    from uuid import UUID

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


def policy(name: TopicName) -> str:
    """Topic policy; its presence makes the topic known."""
    return f"{topic(name)}/policy"


def owner(name: TopicName) -> str:
    """Who works on the topic now (ephemeral)."""
    return f"{topic(name)}/owner"


def epoch(name: TopicName) -> str:
    """Number of the ownership; the node's version fences commits."""
    return f"{topic(name)}/epoch"


def attempt(name: TopicName) -> str:
    """The one open segment."""
    return f"{topic(name)}/attempt"


def ledgers(name: TopicName) -> str:
    """Folder of the ledgers' offload contexts."""
    return f"{topic(name)}/ledgers"


def ledger(name: TopicName, ledger_id: int) -> str:
    """Offload context of one ledger."""
    return f"{ledgers(name)}/{ledger_id}"


def losses(name: TopicName) -> str:
    """Folder of what was deleted from the source before it was offloaded."""
    return f"{topic(name)}/losses"


def loss(name: TopicName, before_ledger_id: int) -> str:
    """One lost range, named by the ledger that follows it."""
    return f"{losses(name)}/{before_ledger_id}"


def trash(name: TopicName) -> str:
    """Folder of the objects whose deletion has been decided."""
    return f"{topic(name)}/trash"


def trash_record(name: TopicName, segment_id: UUID) -> str:
    """One segment whose objects are to be deleted."""
    return f"{trash(name)}/{segment_id}"


def floor(name: TopicName) -> str:
    """End of the last segment that was deleted."""
    return f"{topic(name)}/floor"


def verified(name: TopicName) -> str:
    """When each segment was last looked at by the scrub."""
    return f"{topic(name)}/verified"


def identity(name: TopicName) -> str:
    """Refusals that stand because the topic's metadata, bucket or source may be of another history."""
    return f"{topic(name)}/identity"


def asked(name: TopicName) -> str:
    """What was last asked of the topic by hand."""
    return f"{topic(name)}/asked"


def grants(name: TopicName) -> str:
    """Folder of the permissions to delete ledgers from their source."""
    return f"{topic(name)}/grants"


def grant(name: TopicName, ledger_id: int) -> str:
    """Permission to delete one ledger from its source."""
    return f"{grants(name)}/{ledger_id}"


def grants_changed(name: TopicName) -> str:
    """Word to a topic's owner that somebody else changed one of its grants."""
    return f"{GRANTS_CHANGED}/{_encoded(str(name))}"


def topic_of_grants_changed(node: str) -> TopicName:
    """Return the topic that a node of `grants_changed` is named by. Raises InvalidInput."""
    return TopicName.parse(unquote(node))


def history(name: TopicName) -> str:
    """Folder of what is known of the entries from before the live edge; only topics that need it have one."""
    return f"{topic(name)}/history"


def history_plan(name: TopicName) -> str:
    """What is history, and where the live edge begins."""
    return f"{history(name)}/plan"


def history_attempt(name: TopicName) -> str:
    """The open segment of history that the owner writes."""
    return f"{history(name)}/attempt"


def history_ranges(name: TopicName) -> str:
    """Folder of the ranges that history is split into."""
    return f"{history(name)}/ranges"


def history_range_node(name: TopicName, number: int) -> str:
    """So many of these ranges as one node holds."""
    return f"{history_ranges(name)}/{number}"


def history_driver(name: TopicName) -> str:
    """Number of the claim of a backfill job's driver; the node's version fences it and its executors."""
    return f"{history(name)}/driver"


def history_holder(name: TopicName) -> str:
    """The driver that lives (ephemeral)."""
    return f"{history(name)}/holder"


def history_attempts(name: TopicName) -> str:
    """Folder of the segments that a job writes, or has written and not committed yet."""
    return f"{history(name)}/attempts"


def history_job_attempt(name: TopicName, segment_id: UUID) -> str:
    """One segment that a job writes."""
    return f"{history_attempts(name)}/{segment_id}"


def history_writers(name: TopicName) -> str:
    """Folder of the executors that write."""
    return f"{history(name)}/writers"


def history_writer(name: TopicName, segment_id: UUID) -> str:
    """The executor that writes one segment (ephemeral)."""
    return f"{history_writers(name)}/{segment_id}"


def rollback(name: TopicName) -> str:
    """Folder of the rewriting of segments as whole ledgers; only topics for which it was ordered have one."""
    return f"{topic(name)}/rollback"


def rollback_order(name: TopicName) -> str:
    """Up to where it was ordered, and what came of it."""
    return f"{rollback(name)}/order"


def rollback_attempt(name: TopicName) -> str:
    """The ledger that is being rewritten."""
    return f"{rollback(name)}/attempt"


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
