"""The audit log is complete: each call of each service gives one event, of the form that the schema says."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc import aio
from structlog.testing import capture_logs

from offloaderd.access.audit import CALL, FIELDS, READ, RELOAD, AuditField, flaws
from offloaderd.access.roles import Role
from offloaderd.access.tokens import TokenKey
from offloaderd.api.gate import Limits
from offloaderd.api.roles_needed import NEEDS, READS
from tests.authority import Authority, token
from tests.patience import PATIENCE_S
from tests.unit.api.guarded import guarded

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

REAL_TIME = "gRPC"

SECRET = bytes(range(1, 33))
DOCS = Path(__file__).resolve().parents[3] / "docs"
CALLED = [path for path, need in NEEDS.items() if not need.open and not path.startswith("/grpc.")]
TOPIC = b"\n\x0eacme/eu/orders"
"""A request whose first field is a topic."""


async def called(channel: aio.Channel, path: str, headers: Sequence[tuple[str, str]]) -> None:
    """Make a call with one request, as bytes, and take what is answered, at most one answer."""
    method: Any = channel.stream_stream(path)
    call = method(iter([TOPIC]), metadata=headers, timeout=PATIENCE_S)
    try:
        await call.read()
        call.cancel()
    except (aio.AioRpcError, asyncio.CancelledError):
        pass


def audited(logs: Sequence[MutableMapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the events of the audit log, without what the log itself adds."""
    found = [dict(event) for event in logs if str(event["event"]).startswith("audit.")]
    for event in found:
        event.pop("log_level", None)
    return found


@pytest.mark.parametrize("who", ["alice", "mallory", ""])
async def test_each_call_of_each_service_is_one_event(tmp_path: Path, who: str) -> None:
    """Whether it is served, refused for its role, or comes from nobody: none is missing, none is there twice."""
    ca = Authority(tmp_path)
    limits, keys = Limits(audit_reads=True, audit_calls=True), [TokenKey(SECRET, ("HS256",))]
    headers = [("authorization", f"Bearer {token(SECRET, who)}")] if who else []
    trust = grpc.ssl_channel_credentials(ca.file.read_bytes())
    with capture_logs() as logs:
        async with (
            guarded(files=ca.server(), grants=["admin alice *"], limits=limits, token_keys=lambda: keys) as site,
            aio.secure_channel(site.address.replace("127.0.0.1", "localhost"), trust) as channel,
        ):
            for path in CALLED:
                await called(channel, path, headers)
    events = audited(logs)
    told = [f"/{event['service']}/{event['method']}" for event in events]
    assert sorted(told) == sorted(CALLED)
    for event in events:
        fields = {name: value for name, value in event.items() if name != "event"}
        assert flaws(str(event["event"]), fields) == []
        assert event["identity"] == who
        if who != "alice":
            assert event["event"] == CALL
            assert event["code"] == ("PermissionDenied" if who else "Unauthenticated")
    if who == "alice":
        assert {f"/{one['service']}/{one['method']}" for one in events if one["event"] == READ} <= READS


async def test_by_default_changes_alone_are_events(tmp_path: Path) -> None:
    """Calls that need admin, and those that were refused."""
    ca, keys = Authority(tmp_path), [TokenKey(SECRET, ("HS256",))]
    headers = [("authorization", f"Bearer {token(SECRET, 'alice')}")]
    trust = grpc.ssl_channel_credentials(ca.file.read_bytes())
    with capture_logs() as logs:
        async with (
            guarded(files=ca.server(), grants=["admin alice *"], token_keys=lambda: keys) as site,
            aio.secure_channel(site.address.replace("127.0.0.1", "localhost"), trust) as channel,
        ):
            for path in CALLED:
                await called(channel, path, headers)
    told = {f"/{event['service']}/{event['method']}" for event in audited(logs)}
    assert told == {path for path in CALLED if NEEDS[path].role is Role.ADMIN}


def test_the_page_has_the_schema() -> None:
    """Each field with the events that have it."""
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]*)\| ([^|]*)\| ([^|]*)\| (.*) \|$", (DOCS / "security.md").read_text(), re.MULTILINE
    )
    events = (CALL, READ, RELOAD)

    def cell(event: str, field: AuditField) -> str:
        return "yes" if event in field.always else "(yes)" if event in field.sometimes else ""

    said = {name: ([cell(one, field) for one in events], field.text) for name, field in FIELDS.items()}
    assert {name: ([one.strip() for one in cells], text) for name, *cells, text in rows if name in FIELDS} == said


def test_an_event_of_another_form_has_flaws() -> None:
    """A field too many, one too few, one of another type, one of another event."""
    fields = {name: "" for name, field in FIELDS.items() if READ in field.always} | {"schema": 1, "role": None, "x": 1}
    assert flaws(READ, fields) == [
        "audit.read has an unknown field x",
        "audit.read must not have role",
        "audit.read has a seconds of type str",
        "audit.read has a bytes of type str",
    ]
    assert "audit.read has no topic" in flaws(READ, {})
