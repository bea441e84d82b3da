"""offloadctl read and produce: bytes in, bytes out."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import grpc
import pytest

from offloaderd.cli.offloadctl.entries import encoder, message_encoder
from offloaderd.core.model import EntryBatch
from offloaderd.core.read_options import Tier
from offloaderd.objects.filesystem import FilesystemStore
from offloaderd.protocol.v1 import common_pb2, read_pb2
from offloaderd.read.plan import Run
from offloaderd.read.planned import plan_message
from tests.patience import PATIENCE_S
from tests.unit.cli.fake_daemon import TOPIC, Failure
from tests.unit.read.build import Piece, put_segment
from tests.virtual import virtually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.cli.conftest import Ctl
    from tests.unit.cli.fake_daemon import FakeDaemon


def batch(
    first: int, *payloads: bytes, tier: common_pb2.Tier.ValueType = common_pb2.TIER_OBJECTS
) -> read_pb2.ReadResponse:
    """An answer of ledger 7."""
    entries = common_pb2.EntryBatch(ledger_id=7, first_entry_id=first, payloads=payloads)
    return read_pb2.ReadResponse(batch=entries, tier=tier)


def test_read_gives_lines_as_they_are(ctl: Ctl, fake: FakeDaemon) -> None:
    """Away from a terminal, text is the bytes and a line feed."""
    fake.batches = [batch(0, b"one", b"\xff\x1b[2J"), batch(2, b"three")]
    answer = ctl("read", "orders")
    assert answer.code == 0
    assert answer.raw == b"one\n\xff\x1b[2J\nthree\n"


def test_read_sends_range_limits_and_priority(ctl: Ctl, fake: FakeDaemon) -> None:
    """Every option arrives; what is left out is unset, and there is no deadline."""
    ctl("read", "orders", "--from", "7:1", "--to", "8:2", "--follow", "--max", "5", "--priority", "bookkeeper-first")
    request = fake.requests[0]
    assert (request.topic, request.follow, request.entries_max) == (TOPIC, True, 5)
    assert (request.first.entry_id, request.last.ledger_id) == (1, 8)
    assert request.read_priority == "bookkeeper-first"
    ctl("read", "orders")
    assert not fake.requests[1].HasField("first")
    assert not fake.requests[1].HasField("last")
    assert fake.deadlines[1] is None or fake.deadlines[1] > 10_000


def test_read_as_json_lines(ctl: Ctl, fake: FakeDaemon) -> None:
    """One object an entry with position and tier; what is no UTF-8 is base64."""
    fake.batches = [batch(4, b"caf\xc3\xa9", b"\xff\x00", tier=common_pb2.TIER_BUFFER)]
    assert ctl("read", "orders", "--json").lines == [
        {"ledger_id": 7, "entry_id": 4, "tier": "buffer", "bytes": 5, "encoding": "utf-8", "payload": "café"},
        {"ledger_id": 7, "entry_id": 5, "tier": "buffer", "bytes": 2, "encoding": "base64", "payload": "/wA="},
    ]
    assert ctl("read", "orders", "--format", "json").out == ctl("read", "orders", "--json").out


def test_read_as_hex_and_raw(ctl: Ctl, fake: FakeDaemon) -> None:
    """Hex has the position; raw has nothing but the bytes."""
    fake.batches = [batch(4, b"ab", b"")]
    assert ctl("read", "orders", "--format", "hex").out == "7:4\t6162\n7:5\t\n"
    assert ctl("read", "orders", "--format", "raw").raw == b"ab"


@pytest.fixture
def settings_file(fake: FakeDaemon, tmp_path: Path) -> Path:
    """The settings of a directory with entries 7:0 to 7:3 of the topic; the daemon plans those, and sends one more."""
    objects = tmp_path / "objects"
    objects.mkdir()
    piece = Piece(7, 0, [b"a", b"b", b"c", b"d"])
    segment = virtually(put_segment(FilesystemStore(objects), [piece], segment_id=uuid.UUID(int=1)))
    fake.plan = plan_message([Run(Tier.OBJECTS, 7, 0, 3, segment)], complete=True)
    fake.batches = [batch(0, b"sent")]
    file = tmp_path / "offloaderd.toml"
    file.write_text(f'[objects]\nkind = "filesystem"\ndirectory = "{objects}"\n')
    return file


def test_a_direct_read_takes_the_bucket_of_the_settings(ctl: Ctl, fake: FakeDaemon, settings_file: Path) -> None:
    """The daemon is asked for its plan, and for no entry."""
    answer = ctl("read", "orders", "--direct", "--config", str(settings_file), "--max", "4")
    assert (answer.code, answer.raw, answer.err) == (0, b"a\nb\nc\nd\n", "")
    assert [type(one).__name__ for one in fake.requests] == ["LastPositionsRequest", "ReadRequest"]
    assert (fake.requests[1].topic, fake.requests[1].entries_max) == (TOPIC, 4)


def test_settings_without_a_direct_read_are_a_mistake(
    ctl: Ctl, fake: FakeDaemon, settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever names them wants the bucket read; in the environment they are those of other commands as well."""
    answer = ctl("read", "orders", "--config", str(settings_file))
    assert answer.code == 2
    assert "add --direct" in answer.err
    assert not fake.requests
    monkeypatch.setenv("OFFLOADERD_CONFIG", str(settings_file))
    assert ctl("read", "orders").raw == b"sent\n"


def test_a_direct_read_needs_the_settings_of_a_bucket(ctl: Ctl, fake: FakeDaemon) -> None:
    """Before the daemon is asked."""
    answer = ctl("read", "orders", "--direct")
    assert answer.code == 2
    assert "set objects.bucket" in answer.err
    assert not fake.requests


def test_a_direct_read_gives_no_messages(ctl: Ctl, settings_file: Path) -> None:
    """Only the daemon unpacks them."""
    answer = ctl("read", "orders", "--direct", "--messages", "--config", str(settings_file))
    assert answer.code == 2
    assert "leave --messages out" in answer.err


MESSAGES = [
    read_pb2.Message(
        position=common_pb2.Position(ledger_id=7, entry_id=4),
        batch_index=1,
        state=read_pb2.MESSAGE_STATE_PLAIN,
        data=b"caf\xc3\xa9",
        key=b"\xff",
        properties=[read_pb2.Property(key="a", value="1")],
        producer="p",
        sequence_id=3,
        publish_ms=17,
        tier=common_pb2.TIER_SOURCE,
    ),
    read_pb2.Message(
        position=common_pb2.Position(ledger_id=7, entry_id=5),
        batch_index=-1,
        state=read_pb2.MESSAGE_STATE_ENCRYPTED,
        data=b"\x01\x02",
        reason="encrypted for mine\x1b",
        tier=common_pb2.TIER_OBJECTS,
    ),
]


def test_messages_as_json_lines(ctl: Ctl, fake: FakeDaemon) -> None:
    """All that is known of each message; what is unknown is null."""
    fake.messages = MESSAGES
    one, two = ctl("read", "orders", "--messages", "--client-bytes", "--json").lines
    assert fake.requests[0].client_bytes
    assert one == {
        "ledger_id": 7, "entry_id": 4, "batch_index": 1, "tier": "source", "state": "plain", "key": "/w==",
        "properties": {"a": "1"}, "producer": "p", "sequence_id": 3, "publish_ms": 17, "event_ms": None,
        "broker_ms": None, "index": None, "tombstone": False, "transaction_id": None, "transaction_state": None,
        "reason": "", "bytes": 5, "encoding": "utf-8", "payload": "café",
    }  # fmt: skip
    assert (two["state"], two["key"], two["payload"]) == ("encrypted", None, "\x01\x02")


def test_messages_say_what_became_of_their_transactions(ctl: Ctl, fake: FakeDaemon) -> None:
    """All of them if asked, those that a consumer is not given marked; where that ends is told beside the messages."""
    transaction = read_pb2.Transaction(most_bits=1, least_bits=7, state=read_pb2.TRANSACTION_STATE_ABORTED)
    position = common_pb2.Position(ledger_id=7, entry_id=6)
    aborted = read_pb2.Message(
        position=position, batch_index=-1, state=read_pb2.MESSAGE_STATE_PLAIN, data=b"no", transaction=transaction
    )
    committed = read_pb2.Message()
    committed.CopyFrom(aborted)
    committed.transaction.state = read_pb2.TRANSACTION_STATE_COMMITTED
    fake.messages = [aborted, committed]
    arguments = ("read", "orders", "--messages", "--transactions", "all")
    assert ctl(*arguments).out == "<7:6 (1,7) aborted> no\nno\n"
    assert [request.transactions for request in fake.requests] == [read_pb2.TRANSACTIONS_ALL]
    assert ctl(*arguments, "--format", "hex").out == "7:6\t\t6e6f\t(1,7) aborted\n7:6\t\t6e6f\t(1,7) committed\n"
    line = ctl(*arguments, "--json").lines[0]
    assert (line["transaction_id"], line["transaction_state"]) == ("(1,7)", "aborted")
    fake.messages, fake.held_back = [], read_pb2.HeldBack(position=position, transaction=transaction)
    found = ctl("read", "orders", "--messages")
    assert (found.out, found.code) == ("", 0)
    assert "nothing from 7:6 on yet: transaction (1,7)" in found.err
    assert fake.requests[-1].transactions == read_pb2.TRANSACTIONS_COMMITTED
    assert "--transactions needs --messages" in ctl("read", "orders", "--transactions", "all").err


def test_messages_in_the_other_styles(ctl: Ctl, fake: FakeDaemon) -> None:
    """Text names what is no message to a consumer; hex has the id with the place in the batch."""
    fake.messages = MESSAGES
    marked = r"<7:5 encrypted, 2 bytes: encrypted for mine\x1b>"
    assert ctl("read", "orders", "--messages").raw.decode() == f"café\n{marked}\n"
    assert ctl("read", "orders", "--messages", "--format", "hex").out == "7:4:1\tff\t636166c3a9\n7:5\t\t0102\n"
    assert ctl("read", "orders", "--messages", "--format", "raw").raw == b"caf\xc3\xa9\x01\x02"
    assert (
        message_encoder("text", terminal=True)(read_pb2.Message(state=read_pb2.MESSAGE_STATE_PLAIN, data=b"\x1b[2J"))
        == b"\\x1b[2J\n"
    )


def test_text_on_a_terminal_cannot_take_it_over() -> None:
    """Control characters, and bytes that are no text, are shown as escapes; tabs and accents stay."""
    encode = encoder("text", terminal=True)
    shown = b"".join(encode(EntryBatch(7, 0, [b"a\x1b[2J\tcaf\xc3\xa9\xff\r\n"]), "objects"))
    assert shown.decode() == "a\\x1b[2J\tcafé\\xff\\r\\n\n"


def test_a_reversed_range_never_reaches_the_daemon(ctl: Ctl, fake: FakeDaemon) -> None:
    """The mistake is named with exit code 2."""
    answer = ctl("read", "orders", "--from", "7:2", "--to", "7:1")
    assert answer.code == 2
    assert "the range 7:2..7:1 is reversed" in answer.err
    assert not fake.requests


@pytest.mark.parametrize("position", ["7", "7:", ":1", "-1:0", "7:-1", "a:b", "9223372036854775808:0"])
def test_a_malformed_position_is_a_usage_error(ctl: Ctl, position: str) -> None:
    """What is no position is refused before any call."""
    answer = ctl("read", "orders", "--from", position)
    assert answer.code == 2
    assert "position" in answer.err


def test_corrupt_data_ends_a_read_with_code_5(ctl: Ctl, fake: FakeDaemon) -> None:
    """What was good is printed, then the error in one line; nothing after it."""
    fake.batches = [batch(0, b"good")]
    fake.failure = Failure(grpc.StatusCode.DATA_LOSS, "corrupt data in x at byte 4", "CORRUPT_DATA", "check it")
    answer = ctl("read", "orders")
    assert answer.code == 5
    assert answer.out == "good\n"
    assert answer.err == "error: corrupt data in x at byte 4\nhint: check it\n"


def test_a_reader_that_goes_away_is_no_error(fake: FakeDaemon) -> None:
    """A pipe that closes early ends the command quietly with code 141."""
    fake.batches = [batch(number * 100, *[b"x" * 1000] * 100) for number in range(50)]
    command = [sys.executable, "-m", "offloaderd.cli.offloadctl.__main__", "read", "orders", "--address", fake.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, b"")


def test_produce_appends_every_line(ctl: Ctl, fake: FakeDaemon, tmp_path: Path) -> None:
    """One entry a line, order kept, empty lines skipped and counted, a last line without line feed taken."""
    file = tmp_path / "lines"
    file.write_bytes(b"one\n\ntwo\r\n\nthree")
    answer = ctl("produce", "orders", str(file), "--json")
    assert answer.code == 0
    assert fake.appended == [b"one", b"two\r", b"three"]
    found = answer.json
    assert found.pop("seconds") >= 0
    assert found == {
        "topic": TOPIC,
        "entries": 3,
        "payload_bytes": 12,
        "skipped_empty_lines": 2,
        "last": "3:2",
    }


def test_produce_says_what_was_appended(ctl: Ctl, fake: FakeDaemon, tmp_path: Path) -> None:
    """The result for people: counts, size, last position; --roll closes the ledger afterwards."""
    file = tmp_path / "lines"
    file.write_bytes(b"x" * 100 + b"\n" * 2)
    answer = ctl("produce", "orders", str(file), "--roll")
    assert answer.out.startswith(f"appended 1 entry (100 B) to {TOPIC} in ")
    assert answer.out.endswith("last position 3:0; 1 empty line skipped\n")
    assert fake.rolled == 1


def test_produce_of_nothing_succeeds(ctl: Ctl, fake: FakeDaemon, tmp_path: Path) -> None:
    """An empty file appends nothing and says so."""
    file = tmp_path / "lines"
    file.touch()
    answer = ctl("produce", "orders", str(file))
    assert answer.code == 0
    assert "appended 0 entries" in answer.out
    assert not fake.appended


def test_produce_refuses_an_oversized_line_by_number(ctl: Ctl, fake: FakeDaemon, tmp_path: Path) -> None:
    """The line is named; the daemon never sees it."""
    file = tmp_path / "lines"
    file.write_bytes(b"ok\n" + b"x" * (5 * 1024 * 1024 + 1) + b"\nmore\n")
    answer = ctl("produce", "orders", str(file))
    assert answer.code == 2
    assert "line 2 has 5,242,881 bytes; an entry has at most 5,242,880" in answer.err
    assert b"more" not in fake.appended


def test_produce_of_a_missing_file_is_a_usage_error(ctl: Ctl) -> None:
    """A path that does not exist is refused at once."""
    assert ctl("produce", "orders", "nowhere").code == 2


@contextmanager
def producing_from_a_pipe(fake: FakeDaemon, written: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """Give a `produce` that has got these bytes on standard input, and has appended at least one line of them."""
    command = [
        *(sys.executable, "-m", "offloaderd.cli.offloadctl.__main__"),
        *("produce", "orders", "--address", fake.address),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(written)
        process.stdin.flush()
        while not fake.appended and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        yield process


def test_produce_from_a_pipe_appends_before_the_end(fake: FakeDaemon) -> None:
    """A line on standard input arrives while the pipe is still open: `tail -f` works."""
    with producing_from_a_pipe(fake, b"early\nla") as process:
        assert fake.appended == [b"early"]
        out, err = process.communicate(b"te\n")
    assert (process.returncode, err) == (0, b"")
    assert b"appended 2 entries" in out
    assert fake.appended == [b"early", b"late"]


def test_interrupting_a_produce_gives_130(fake: FakeDaemon) -> None:
    """Ctrl-C in the middle of a stream ends quietly with the conventional code."""
    with producing_from_a_pipe(fake, b"one\n") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == b""  # click ends the line that shows ^C


def test_produce_without_an_embedded_store_says_so(ctl: Ctl, fake: FakeDaemon, tmp_path: Path) -> None:
    """A daemon without a store does not know the call; the hint says what is needed."""
    file = tmp_path / "lines"
    file.write_bytes(b"one\n")
    fake.failure = Failure(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
    answer = ctl("produce", "orders", str(file))
    assert answer.code == 2
    assert "embedded ledger store" in answer.err
