"""Requests that cost more than they are: nothing is parsed for strangers, and no push has more entries than it may."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from grpc import aio
from hypothesis import given
from hypothesis import strategies as st

from offloaderd.access.tokens import TokenKey
from offloaderd.core.errors import InvalidInput
from offloaderd.core.model import ENTRY_BYTES_MAX
from offloaderd.protocol import conversion as convert
from offloaderd.protocol.conversion import BATCH_ENTRIES_MAX, UNCOUNTED_BYTES, check_append, check_push
from offloaderd.protocol.v1 import common_pb2, ledgers_pb2, offload_pb2
from tests.authority import token
from tests.patience import PATIENCE_S
from tests.unit.api.guarded import guarded
from tests.unit.api.test_needs import methods

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

REAL_TIME = "gRPC"

SECRET = bytes(range(1, 33))
GRANTS = ("admin alice *", "offload broker public/default/mine")
PUSH = "/offloaderd.v1.OffloadService/StreamingOffload"
APPEND = "/offloaderd.v1.LedgerService/Append"
NO_MESSAGE = b"\xff\xff"
ENTRY, BATCH, TEXT = b"\x1a\x00", b"\x12", b"\x12\x00"
GROUP, END = b"\x23", b"\x24"


def keys() -> list[TokenKey]:
    """The key of the daemon."""
    return [TokenKey(SECRET, ("HS256",))]


def within(tag: bytes, content: bytes) -> bytes:
    """Return a field with a content of any length."""
    length, head = len(content), bytearray(tag)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*head, length]) + content


@asynccontextmanager
async def channel() -> AsyncIterator[aio.Channel]:
    """A way to a daemon that knows alice, who may everything, and a broker with one topic."""
    async with (
        guarded(grants=GRANTS, token_keys=keys) as site,
        aio.insecure_channel(site.address, options=[("grpc.max_send_message_length", -1)]) as open_channel,
    ):
        yield open_channel


async def outcome(way: aio.Channel, path: str, data: bytes, name: str | None) -> tuple[grpc.StatusCode, str]:
    """Send bytes as the one request of a call, under a name or none, and return how the call ended.

    gRPC's client loses the answer where it comes while the request is still being sent; then it is sent again.
    """
    metadata = () if name is None else (("authorization", f"Bearer {token(SECRET, name)}"),)
    stub: Any = way.stream_stream(path)
    while True:
        call = stub(iter([data]), metadata=metadata, timeout=PATIENCE_S)
        code, said = await call.code(), await call.details()
        if "Internal error from Core" not in said:
            return code, said


async def test_nothing_is_parsed_for_a_caller_without_a_role() -> None:
    """Of all calls: what is no message at all is refused for the role that is missing, or for the name."""
    async with channel() as way:
        for path, _ in methods():
            if not path.startswith("/offloaderd."):
                continue
            code, said = await outcome(way, path, NO_MESSAGE, "eve")
            assert code is grpc.StatusCode.PERMISSION_DENIED, path
            assert f"eve may not call {path.rpartition('/')[2]}: the role " in said
            assert said.endswith(" for any topic is missing")
            code, said = await outcome(way, path, NO_MESSAGE, None)
            assert (code, said) == (grpc.StatusCode.UNAUTHENTICATED, "no token was sent"), path
            code, said = await outcome(way, path, NO_MESSAGE, "alice")
            assert (code, said) == (grpc.StatusCode.INVALID_ARGUMENT, f"a request of 2 bytes is no message of {path}")


@pytest.mark.parametrize("path", [PUSH, APPEND])
async def test_millions_of_empty_entries_are_refused_before_they_take_memory(path: str) -> None:
    """Before they are parsed: what stands behind them is no message, and nobody has come to it."""
    entries = within(BATCH, ENTRY * (2 << 20)) if path == PUSH else TEXT * (2 << 20)
    async with channel() as way:
        code, said = await outcome(way, path, entries + NO_MESSAGE, "eve")
        assert (code, "the role offload for any topic is missing" in said) == (grpc.StatusCode.PERMISSION_DENIED, True)
        code, said = await outcome(way, path, entries + NO_MESSAGE, "broker")
        assert (code, said) == (grpc.StatusCode.INVALID_ARGUMENT, f"a batch of more than {BATCH_ENTRIES_MAX} entries")


def test_what_may_be_pushed_is_let_through() -> None:
    """As many entries as are allowed, and messages as long as are allowed."""
    for payloads in ([b"12345678" * 2] * BATCH_ENTRIES_MAX, [bytes(ENTRY_BYTES_MAX)] * 3):
        batch = common_pb2.EntryBatch(ledger_id=1 << 62, first_entry_id=1 << 62, payloads=payloads)
        data = offload_pb2.StreamingOffloadRequest(batch=batch).SerializeToString()
        assert len(data) > UNCOUNTED_BYTES
        check_push(data)
        check_append(ledgers_pb2.AppendRequest(topic="a/b/c", payloads=payloads).SerializeToString())


PIECES = st.sampled_from(
    [ENTRY, b"\x9a\x00\x00", b"\x1a\x01x", b"\x08\x01", b"\x0d1234", b"\x80\x80", b"\x12", b"\x05"]
)
CONTENTS = st.lists(PIECES | st.just(ENTRY * 4) | st.binary(max_size=3), max_size=12).map(b"".join)
BATCHES = CONTENTS.map(lambda content: within(BATCH, content))


@given(parts=st.lists(BATCHES | CONTENTS | BATCHES.map(lambda one: GROUP + one + END), max_size=5))
def test_no_entry_hides_from_the_count(parts: Sequence[bytes]) -> None:
    """However the bytes are written that protobuf takes for entries: overlong, in pieces, behind groups or nonsense."""
    data = b"".join(parts)
    try:
        found = len(offload_pb2.StreamingOffloadRequest.FromString(data).batch.payloads)
    except DecodeError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert, "UNCOUNTED_BYTES", 0)
        patch.setattr(convert, "FIELDS_MAX", 7)
        if found > 7:
            with pytest.raises(InvalidInput):
                check_push(data)


@pytest.mark.parametrize(
    "hiding",
    [
        GROUP + within(BATCH, b"\x1a\xff\xff\xff\x07") + END,
        within(b"\x92\x80\x80\x80\x80\x01", ENTRY),
        b"\x08" + b"\x80" * 64 + b"\x01",
        b"\x12\x02\x1a\xff\x7f",
    ],
    ids=["a group", "a tag that is too long", "a number without end", "an entry that leaves its batch"],
)
def test_what_could_be_read_in_two_ways_is_malformed(hiding: bytes) -> None:
    """No client writes such a thing."""
    with pytest.raises(InvalidInput, match="malformed request"):
        check_push(hiding + bytes(UNCOUNTED_BYTES))
