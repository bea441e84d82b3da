"""The client for programs without a loop: calls, streams, errors, and nothing left behind."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import grpc
import pytest

from offloaderd.client import BlockingClient, Goal, Position, SeekKind, Unreachable
from offloaderd.core.errors import Closed, CorruptData, InvalidInput, NotFound
from offloaderd.core.read_options import Tier
from offloaderd.direct import bucket_reads
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.protocol.v1 import admin_pb2, common_pb2, read_pb2
from offloaderd.read.plan import Run
from offloaderd.read.planned import plan_message
from tests.unit.cli.fake_daemon import Failure, FakeDaemon, at, running_fake
from tests.unit.read.build import Piece, put_segment
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REAL_TIME = "gRPC"


@pytest.fixture
def fake() -> Iterator[FakeDaemon]:
    """A daemon of canned answers."""
    with running_fake() as daemon:
        yield daemon


def batch(entry_id: int, *payloads: bytes) -> read_pb2.ReadResponse:
    """Return one answer of a read."""
    return read_pb2.ReadResponse(
        batch=common_pb2.EntryBatch(ledger_id=1, first_entry_id=entry_id, payloads=payloads),
        tier=common_pb2.TIER_OBJECTS,
    )


def test_calls_and_streams_by_name_and_by_run(fake: FakeDaemon) -> None:
    """Each named call gives its answer; `run` and `iterate` reach the others."""
    fake.topics = [admin_pb2.TopicSummary(topic="t")]
    fake.segments = [admin_pb2.Segment(segment_id="a")]
    fake.progress = fake.waited = [admin_pb2.OffloadProgress(done=True)]
    fake.batches = [batch(0, b"a", b"b"), batch(2, b"c")]
    fake.sought = read_pb2.SeekResponse(position=at(1, 2))
    with BlockingClient(fake.address, connect_s=60) as client:
        assert [one.topic for one in client.topics()] == ["t"]
        assert [one.segment_id for one in client.segments("orders")] == ["a"]
        assert client.seek("orders", Goal(SeekKind.TIME, 5)).position == at(1, 2)
        assert not client.last_positions("orders").HasField("confirmed")
        assert [bytes(p) for answer in client.read("orders") for p in answer.batch.payloads] == [b"a", b"b", b"c"]
        assert [answer.entry_count for answer in client.append("orders", [[b"x"], [b"y", b"z"]])] == [1, 2]
        assert list(client.read("orders", first="1:2", last=Position(3, 4), resume_s=0))
        asked = fake.requests[-1]
        assert (asked.first, asked.last) == (at(1, 2), at(3, 4))
        with pytest.raises(InvalidInput, match="position"):
            list(client.read("orders", first="one"))
        report = client.offload("orders")
        assert report is not None
        assert report.done
        assert client.run(lambda daemon: daemon.status()) == fake.status
        assert [one.done for one in client.iterate(lambda daemon: daemon.offload("orders", wait=True))] == [True]
    assert fake.appended == [b"x", b"y", b"z"]


def test_a_read_that_is_left_ends(fake: FakeDaemon) -> None:
    """The first batch is enough; the client goes on to be used."""
    fake.batches = [batch(number, b"x" * 1000) for number in range(50)]
    with BlockingClient(fake.address, connect_s=60) as client:
        for answer in client.read("orders"):
            assert answer.batch.first_entry_id == 0
            break
        assert client.topics() == []


def test_a_direct_read_opens_the_bucket_for_itself(fake: FakeDaemon, tmp_path: Path) -> None:
    """In the client's thread, and once more for the next read, also after one that was left."""
    segment = virtually(
        put_segment(FilesystemStore(tmp_path), [Piece(7, 0, [b"a", b"b", b"c"])], segment_id=uuid.UUID(int=1))
    )
    fake.plan = plan_message([Run(Tier.OBJECTS, 7, 0, 2, segment)], complete=True)
    objects = ObjectsSettings(kind="filesystem", directory=str(tmp_path))
    with BlockingClient(fake.address, connect_s=60) as client:
        for _ in client.read("orders", direct=bucket_reads(objects), batch_bytes=1):
            break
        found = list(client.read("orders", direct=bucket_reads(objects)))
    assert [bytes(one) for answer in found for one in answer.batch.payloads] == [b"a", b"b", b"c"]


def test_errors_are_raised_in_the_callers_thread(fake: FakeDaemon) -> None:
    """Of a call and of a stream."""
    with BlockingClient(fake.address, connect_s=60) as client:
        fake.failure = Failure(grpc.StatusCode.NOT_FOUND, "no such topic", "NOT_FOUND", "look")
        with pytest.raises(NotFound) as caught:
            client.segments("orders")
        assert caught.value.hint == "look"
        fake.failure = Failure(grpc.StatusCode.DATA_LOSS, "bad bytes", "CORRUPT_DATA", "look")
        with pytest.raises(CorruptData):
            list(client.read("orders"))


def test_nobody_there_is_told_on_entering() -> None:
    """As the client of asyncio does, and the thread is gone."""
    with pytest.raises(Unreachable), BlockingClient("127.0.0.1:1"):
        pytest.fail("nobody is there")
    assert "offloaderd-client" not in [thread.name for thread in threading.enumerate()]


def test_a_client_is_used_inside_its_context(fake: FakeDaemon) -> None:
    """Before and after it there is an error that says so."""
    client = BlockingClient(fake.address, connect_s=60)
    with pytest.raises(Closed):
        client.topics()
    with client:
        client.topics()
    with pytest.raises(Closed):
        client.topics()
