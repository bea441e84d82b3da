"""Who read what: one event a stream at its end, where that is asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from offloaderd.access.roles import Identity, Kind, Rights
from offloaderd.access.tokens import TokenKey
from offloaderd.api.gate import Caller, Limits, NotAllowed
from offloaderd.api.interceptor import shortened
from offloaderd.api.roles_needed import NEEDS, READS, range_of
from offloaderd.core.errors import Denied, InvalidInput
from offloaderd.core.model import Position, TopicName
from offloaderd.protocol.v1 import broker_pb2, read_pb2
from tests.authority import Authority, token
from tests.patience import PATIENCE_S
from tests.unit.api.guarded import guarded

if TYPE_CHECKING:
    from pathlib import Path

REAL_TIME = "gRPC"

SECRET = bytes(range(1, 33))
MINE = TopicName.parse("public/default/mine")


@pytest.mark.parametrize("audited", [True, False])
async def test_who_read_what_is_written_down_at_the_end_of_the_stream(tmp_path: Path, *, audited: bool) -> None:
    """Also of a reader that leaves in the middle; who may not read is told of as a refused call; by default nothing."""
    ca = Authority(tmp_path)
    limits, keys = Limits(audit_reads=audited), [TokenKey(SECRET, ("HS256",))]
    grants = ("read bob public/default/*",)
    with capture_logs() as logs:
        async with guarded(files=ca.server(), grants=grants, limits=limits, token_keys=lambda: keys) as site:
            async with site.client(ca_file=ca.file, token=token(SECRET, "bob")) as client:
                async for _ in client.read_messages(MINE, first=Position(3, 4), last=Position(5, 6)):
                    break
                with pytest.raises(Denied):
                    async for _ in client.read_messages(TopicName.parse("public/other/theirs")):
                        pass
            async with asyncio.timeout(PATIENCE_S):
                while site.reads.open:
                    await asyncio.sleep(0.01)  # noqa: TID251 - a test waits for a real server
    events = [event for event in logs if event["event"] == "audit.read"]
    assert len(events) == audited
    for event in events:
        told = {name: event[name] for name in ("identity", "via", "method", "topic", "first", "last")}
        assert told == {
            "identity": "bob", "via": "token", "method": "ReadMessages",
            "topic": str(MINE), "first": "3:4", "last": "5:6",
        }  # fmt: skip
        assert event["bytes"] >= 1 << 20
    assert [event["code"] for event in logs if event["event"] == "audit.call"] == ["PermissionDenied"]


def test_what_is_no_name_of_a_topic_is_in_no_log() -> None:
    """Whoever has a certificate may send one as long as a message, a thousand times a second."""
    path, long = "/offloaderd.v1.ReadService/Read", "t" * (1 << 20)
    caller = Caller(need=NEEDS[path], path=path, rights=Rights([]), send_s_max=0.0, audit_reads=True)
    caller.identities = (Identity(Kind.CERTIFICATE, "mallory"),)
    for topic, error in ((long, InvalidInput), ("theirs", NotAllowed)):
        with pytest.raises(error):
            caller.check(read_pb2.ReadRequest(topic=topic))
        assert caller.read is None
    assert len(shortened(long)) < 1 << 12
    assert shortened("no such topic") == "no such topic"
    assert shortened("a name that is no UTF-8: \udcff") == "a name that is no UTF-8: ?"


def test_what_is_asked_for_is_told_of_each_kind_of_read() -> None:
    """Open ends are empty; a ledger's range is one of positions; a seek names its target."""
    ledger = broker_pb2.OffloadedLedger(topic="t", ledger_id=7)
    request = broker_pb2.ReadLedgerRequest(ledger=ledger, first_entry_id=0, last_entry_id=9)
    assert range_of(request) == {"topic": "t", "first": "7:0", "last": "7:9"}
    assert range_of(read_pb2.ReadRequest(topic="t")) == {"topic": "t", "first": "", "last": ""}
    assert range_of(read_pb2.SeekRequest(topic="t")) == {"topic": "t", "target": ""}
    from_then = read_pb2.ReadRequest(topic="t", seek=read_pb2.SeekTarget(time_ms=5))
    assert range_of(from_then) == {"topic": "t", "first": "", "last": "", "target": "time_ms=5"}
    for target in ({"time_ms": 0}, {"index": 7}, {"sequence": 9}):
        ((name, value),) = target.items()
        sought = range_of(read_pb2.SeekRequest(topic="t", target=read_pb2.SeekTarget(**target)))
        assert sought == {"topic": "t", "target": f"{name}={value}"}
    assert len(READS) == 6
