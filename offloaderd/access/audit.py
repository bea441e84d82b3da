"""Schema of the audit log: the events, their fields, and which event has which.

Each call ends with one event at most: `audit.read` for entries that were read, else `audit.call`. `audit.reload` is a
change of the settings. Fields are only added; `schema` rises when one is removed or changes its meaning.
"""

from collections.abc import Mapping
from typing import NamedTuple

from offloaderd.access.roles import Role

LOGGER = "offloaderd.audit"
"""Logger of calls that change something or were refused; it is written at every level."""
SCHEMA = 1
CALL, READ, RELOAD = "audit.call", "audit.read", "audit.reload"
CALLS = (CALL, READ)


class AuditField(NamedTuple):
    """One field: its types, the events that always have it, those that may have it, and its meaning."""

    types: tuple[type, ...]
    always: tuple[str, ...]
    sometimes: tuple[str, ...]
    text: str


FIELDS: Mapping[str, AuditField] = {
    "schema": AuditField((int,), (CALL, READ, RELOAD), (), f"version of this table, {SCHEMA}"),
    "identity": AuditField((str,), CALLS, (), "name of the caller; empty without one"),
    "via": AuditField((str,), (READ,), (CALL,), "`certificate`, `token` or `none`"),
    "peer": AuditField((str,), CALLS, (), "address of the caller"),
    "service": AuditField((str,), CALLS, (), "full name of the service"),
    "method": AuditField((str,), CALLS, (), "method of the service"),
    "role": AuditField((Role, type(None)), (CALL,), (), "role that the call needs"),
    "topics": AuditField((list,), (), (CALL,), "topics and patterns that the call named, 20 at most"),
    "dry_run": AuditField((bool,), (RELOAD,), (CALL,), "whether nothing was to be changed"),
    "apply": AuditField((bool,), (), (CALL,), "whether garbage was to be deleted"),
    "undo": AuditField((bool,), (), (CALL,), "whether a pause or drain was to be ended"),
    "code": AuditField((str,), CALLS, (), "status: `OK`, `PermissionDenied` and the like"),
    "error": AuditField((str,), CALLS, (RELOAD,), "message of the status; empty for `OK`"),
    "seconds": AuditField((float,), CALLS, (), "duration of the call"),
    "topic": AuditField((str,), (READ,), (), "topic that was read"),
    "source": AuditField((str,), (), (READ,), "source topic, for a read by a shadow topic's name"),
    "first": AuditField((str,), (), (READ,), "first requested position; empty: the oldest"),
    "last": AuditField((str,), (), (READ,), "last requested position; empty: the newest"),
    "target": AuditField((str,), (), (READ,), "target of a seek, as `time_ms=1`"),
    "bytes": AuditField((int,), (READ,), (), "bytes that were sent"),
    "by": AuditField((str,), (RELOAD,), (), "address of the caller, or SIGHUP"),
    "outcome": AuditField((str,), (RELOAD,), (), "`done`, `planned` (a dry run) or `refused`"),
    "changed": AuditField((list,), (), (RELOAD,), "settings with old and new value, secrets masked"),
    "restart": AuditField((list,), (), (RELOAD,), "the same, of those that wait for a restart"),
}


def flaws(event: str, fields: Mapping[str, object]) -> list[str]:
    """Return what an event has against the schema; fields of the log itself are not given."""
    found = [f"{event} has an unknown field {name}" for name in fields if name not in FIELDS]
    for name, field in FIELDS.items():
        if name not in fields:
            found += [f"{event} has no {name}"] if event in field.always else []
        elif event not in (*field.always, *field.sometimes):
            found.append(f"{event} must not have {name}")
        elif type(fields[name]) not in field.types:
            found.append(f"{event} has a {name} of type {type(fields[name]).__name__}")
    return found
