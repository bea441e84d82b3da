"""Names for what a daemon asks of its stores: the steps at which a test may end its process.

A label says what a request is for, not how it is sent: `commit` is the transaction that makes a segment part of the
map, whatever nodes it touches. Requests of a kind that no line here knows get the name of their operation, so a new
one is never taken for another.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from offloaderd.metadata.port import Check, Create, Delete, Replace
from offloaderd.metadata.records import attempt as attempt_record
from offloaderd.metadata.records import context
from offloaderd.objects import keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offloaderd.metadata.port import Step

_TOPIC_NODE = re.compile(r"/topics/[^/]+/[^/]+/[^/]+/[^/]+/([^/]+)(/[^/]+)?$")
_FOLDERS = {"grants", "ledgers", "losses", "trash"}


def of_object(operation: str, key: str, prefix: str = "") -> str:
    """Name a request to the object store: `put index`, `head data`, and for all of an upload its operation."""
    if operation not in {"put", "get", "head"}:
        return operation
    name = keys.parse(prefix, key)
    return f"{operation} {name.kind.value if name else 'other'}"


def node(path: str) -> str:
    """Name the kind of a node: policy, owner, epoch, attempt, ledgers, losses, trash, daemons, ..."""
    found = _TOPIC_NODE.match(path)
    if found is None:
        return path.split("/")[1]
    return "folder" if found.group(1) in _FOLDERS and not found.group(2) else found.group(1)


def of_steps(steps: Sequence[Step]) -> str:
    """Name a transaction by what it does."""
    does = {(type(step), node(step.path)): step for step in steps if not isinstance(step, Check)}
    for (kind, what), label in _TRANSACTIONS:
        if (kind, what) in does:
            return label
    if (Delete, "attempt") in does:
        return "give up" if (Create, "trash") in does else "commit"
    replaced = does.get((Replace, "attempt"))
    if isinstance(replaced, Replace):
        return _of_attempt(replaced)
    if (Create, "trash") in does:
        return "remove"
    changed = does.get((Replace, "ledgers"))
    if isinstance(changed, Replace) and len(does) == 1:
        marked = context.decode(changed.value, path=changed.path).deleted_ms is not None
        return "mark" if marked else "note ledger"
    return "+".join(sorted({f"{kind.__name__.lower()} {what}" for kind, what in does}))


_TRANSACTIONS = (
    ((Create, "owner"), "claim"),
    ((Delete, "owner"), "release"),
    ((Create, "attempt"), "begin"),
    ((Create, "losses"), "note loss"),
    ((Create, "grants"), "grant"),
    ((Replace, "grants"), "decide"),
    ((Delete, "grants"), "forget grant"),
    ((Create, "policy"), "enable"),
)


def _of_attempt(step: Replace) -> str:
    """Name a change of the attempt by the furthest that it tells of."""
    attempt = attempt_record.decode(step.value, path=step.path)
    if attempt.seal is not None:
        return "seal"
    return "note progress" if attempt.parts else "note upload"


def of_change(operation: str, path: str) -> str:
    """Name a change of a single node: `register`, `delete trash`, `create policy`."""
    what = node(path)
    return "register" if (operation, what) == ("create", "daemons") else f"{operation} {what}"
