"""The S3 adapter against a server that breaks off, lies, refuses and stays silent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import (
    BucketMissing,
    Closed,
    Conflict,
    Denied,
    Expired,
    InvalidConfig,
    InvalidInput,
    NoSpace,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    Throttled,
    Transient,
)
from offloaderd.objects.port import PartInfo
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.objects.stored_as import StoredAs
from tests.patience import PATIENCE_S
from tests.unit.objects.faulty import Connection, FaultyServer, error_body, store_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Use = Callable[[S3Store], Awaitable[object]]

REAL_TIME = "HTTP"


async def drained(store: S3Store) -> list[str]:
    """Every key."""
    return [info.key async for info in store.list()]


async def drained_uploads(store: S3Store) -> list[str]:
    """The key of every upload."""
    return [upload.key async for upload in store.list_uploads()]


PART = PartInfo(part_number=1, etag="0" * 32, size_bytes=3)
WRITES: dict[str, Use] = {
    "put": lambda store: store.put("k", b"abc"),
    "create_upload": lambda store: store.create_upload("k"),
    "upload_part": lambda store: store.upload_part("k", "u", 1, [b"abc"]),
    "complete_upload": lambda store: store.complete_upload("k", "u", [PART]),
    "abort_upload": lambda store: store.abort_upload("k", "u"),
    "delete": lambda store: store.delete(["k"]),
}
READS: dict[str, Use] = {
    "get": lambda store: store.get("k"),
    "range": lambda store: store.get("k", 0, 100),
    "head": lambda store: store.head("k"),
    "list": drained,
    "list_parts": lambda store: store.list_parts("k", "u"),
    "list_uploads": drained_uploads,
}


class Requests:
    """A metrics hook that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int, int]] = []
        self.under_way = 0

    def request_begun(self) -> None:
        """Count it as under way."""
        self.under_way += 1

    def request(self, operation: str, code: str, seconds: float, bytes_in: int, bytes_out: int) -> None:
        """Remember one request."""
        assert seconds >= 0
        self.under_way -= 1
        self.seen.append((operation, code, bytes_in, bytes_out))


async def outcome(server: FaultyServer, use: Use, **options: object) -> OffloaderError:
    """The error that a use of the store ends with, after exactly one request of that kind.

    It is used again where no request has arrived: short time-outs may be over before a slow machine has connected.
    """
    while True:
        async with store_at(server, **options) as store:
            with pytest.raises(OffloaderError) as caught:
                await use(store)
        if server.heads:
            return caught.value


async def hang_up(connection: Connection) -> None:
    """Take the whole request and close without an answer."""
    await connection.read_body()


async def reset(connection: Connection) -> None:
    """Break the connection as soon as the head is there."""
    connection.reset()


async def silent(connection: Connection) -> None:
    """Take the request and say nothing until the other side gives up."""
    await connection.read_body()
    await connection.reader.read()


async def babble(connection: Connection) -> None:
    """Answer in no known language."""
    await connection.read_body()
    connection.writer.write(b"\x00\xffnonsense\r\n\r\n")


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("behaviour", [hang_up, reset, silent, babble])
async def test_lost_write(name: str, behaviour: Callable[[Connection], Awaitable[None]]) -> None:
    """A write whose answer is lost has an unknown outcome, whatever lost it, and is not sent again."""
    server = FaultyServer(behaviour)
    error = await outcome(server, WRITES[name], read_timeout_s=0.1 if behaviour is silent else PATIENCE_S)
    assert type(error) is OutcomeUnknown
    assert "bucket bucket at http://127.0.0.1" in str(error)
    assert len(server.heads) <= sendings(server, behaviour)


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("behaviour", [hang_up, reset, silent, babble])
async def test_lost_read(name: str, behaviour: Callable[[Connection], Awaitable[None]]) -> None:
    """A read whose answer is lost may be tried again, which is not the adapter's business."""
    server = FaultyServer(behaviour)
    error = await outcome(server, READS[name], read_timeout_s=0.1 if behaviour is silent else PATIENCE_S)
    assert type(error) is Transient
    assert len(server.heads) <= sendings(server, behaviour)


def sendings(server: FaultyServer, behaviour: object) -> int:
    """How often a request may arrive: once, but aiohttp repeats an idempotent one when its connection breaks."""
    return 1 if behaviour in {silent, babble} or server.heads[0].startswith(b"POST") else 2


async def test_short_body() -> None:
    """A body that ends before its announced length is never handed out."""

    async def short(connection: Connection) -> None:
        connection.answer("200 OK", b"x" * 50, Content_Length="100")

    assert type(await outcome(FaultyServer(short), READS["get"])) is Transient


async def test_reset_in_the_body() -> None:
    """A connection that breaks in the middle of a body gives an error and no bytes."""

    async def broken(connection: Connection) -> None:
        connection.answer("200 OK", b"x" * 50_000, Content_Length="100000")
        await connection.writer.drain()
        connection.reset()

    assert type(await outcome(FaultyServer(broken), READS["get"])) is Transient


async def test_body_that_stops() -> None:
    """A body that stops coming is given up after the read time-out."""

    async def stuck(connection: Connection) -> None:
        connection.answer("200 OK", b"x" * 50, Content_Length="100")
        await connection.reader.read()

    assert type(await outcome(FaultyServer(stuck), READS["get"], read_timeout_s=0.5)) is Transient


async def test_body_that_drips() -> None:
    """A body that comes byte by byte, always just in time, meets the deadline of the whole request."""

    async def drip(connection: Connection) -> None:
        connection.answer("200 OK", b"", Content_Length="1000")
        while not connection.writer.is_closing():
            connection.writer.write(b"x")
            await connection.writer.drain()
            try:
                async with asyncio.timeout(0.05):
                    await connection.reader.read()
                    return
            except TimeoutError:
                continue

    error = await outcome(FaultyServer(drip), READS["get"], connect_timeout_s=0.1, read_timeout_s=0.2)
    assert type(error) is Transient
    assert "no answer in time" in str(error)


async def test_server_that_stops_reading() -> None:
    """An upload that the server no longer takes meets the deadline, its outcome unknown."""

    over = asyncio.Event()

    async def deaf(connection: Connection) -> None:
        await connection.reader.readexactly(1000)
        await over.wait()

    async def upload(store: S3Store) -> None:
        try:
            await store.upload_part("k", "u", 1, [bytes(64 << 20)])
        finally:
            over.set()

    error = await outcome(FaultyServer(deaf), upload, connect_timeout_s=0.5, read_timeout_s=0.2)
    assert type(error) is OutcomeUnknown


@pytest.mark.parametrize(
    "content_range",
    ["bytes 1-3/10", "bytes 0-2/10", "bytes 0-4/10", "bytes */10", "nonsense", ""],
)
async def test_wrong_range(content_range: str) -> None:
    """Other bytes than those asked for are not taken for them."""

    async def other(connection: Connection) -> None:
        named = {"Content_Range": content_range} if content_range else {}
        connection.answer("206 Partial Content", b"abcd", **named)

    error = await outcome(FaultyServer(other), lambda store: store.get("k", 0, 4))
    assert type(error) is Transient


async def test_right_range() -> None:
    """The check of the range lets the right answer through."""

    async def right(connection: Connection) -> None:
        assert b"range: bytes=6-9\r\n" in connection.head.lower()
        connection.answer("206 Partial Content", b"abcd", Content_Range="bytes 6-9/10")

    async with store_at(FaultyServer(right)) as store:
        assert await store.get("k", 6, 4) == b"abcd"


@pytest.mark.parametrize(
    ("status", "code", "read", "write"),
    [
        ("503 Slow Down", "SlowDown", Throttled, Throttled),
        ("503 Service Unavailable", "", Throttled, Throttled),
        ("429 Too Many Requests", "", Throttled, Throttled),
        ("500 Oops", "InternalError", Transient, OutcomeUnknown),
        ("502 Bad Gateway", "", Transient, OutcomeUnknown),
        ("504 Gateway Timeout", "", Transient, OutcomeUnknown),
        ("501 Not Implemented", "NotImplemented", Transient, Transient),
        ("507 Insufficient Storage", "", NoSpace, NoSpace),
        ("403 Forbidden", "QuotaExceeded", NoSpace, NoSpace),
        ("403 Forbidden", "AccessDenied", Denied, Denied),
        ("403 Forbidden", "InvalidAccessKeyId", Denied, Denied),
        ("403 Forbidden", "SignatureDoesNotMatch", Denied, Denied),
        ("403 Forbidden", "RequestTimeTooSkewed", Denied, Denied),
        ("400 Bad Request", "ExpiredToken", Expired, Expired),
        ("403 Forbidden", "ExpiredTokenException", Expired, Expired),
        ("400 Bad Request", "AuthorizationHeaderMalformed", Denied, Denied),
        ("400 Bad Request", "EntityTooSmall", InvalidInput, InvalidInput),
        ("400 Bad Request", "RequestTimeout", Transient, Transient),
        ("400 Bad Request", "NeverHeardOf", InvalidInput, InvalidInput),
        ("404 Not Found", "NoSuchBucket", BucketMissing, BucketMissing),
        ("404 Not Found", "NoSuchKey", NotFound, NotFound),
        ("409 Conflict", "OperationAborted", Transient, Transient),
        ("409 Conflict", "BucketAlreadyExists", Conflict, Conflict),
        ("416 Range Not Satisfiable", "InvalidRange", InvalidInput, InvalidInput),
    ],
)
async def test_refusals(status: str, code: str, read: type, write: type) -> None:
    """Every refusal has its class, the same for reads and writes unless the outcome is in doubt; none is retried."""

    async def refuse(connection: Connection) -> None:
        await connection.read_body()
        connection.answer(status, error_body(code) if code else b"")

    for use, kind in ((READS["get"], read), (WRITES["put"], write)):
        server = FaultyServer(refuse)
        error = await outcome(server, use)
        assert type(error) is kind
        assert (code or status[:3]) in error.message
        assert "hush" not in str(error)
        if kind in {Denied, Expired, NoSpace, BucketMissing}:
            assert error.hint
        if code != "AuthorizationHeaderMalformed":  # botocore asks for the bucket's region first
            assert len(server.heads) == 1


async def test_a_condition_of_an_object_that_is_gone_fails() -> None:
    """S3 answers 404 to If-Match where there is none; a missing bucket is another matter."""

    async def refuse(connection: Connection) -> None:
        assert b'\r\nif-match: "e"\r\n' in connection.head.lower()
        await connection.read_body()
        connection.answer("404 Not Found", error_body(codes.pop()))

    codes = ["NoSuchBucket", "NoSuchKey"]
    for kind in (Conflict, BucketMissing):
        assert type(await outcome(FaultyServer(refuse), lambda store: store.put("k", b"abc", if_etag="e"))) is kind


async def test_a_service_without_conditions_is_asked_for_none_again() -> None:
    """It says 501 once; from then on objects are stored without."""
    conditions: list[bool] = []

    async def refuse(connection: Connection) -> None:
        await connection.read_body()
        conditions.append(b"\r\nif-none-match: *\r\n" in connection.head.lower())
        if conditions[-1]:
            connection.answer("501 Not Implemented", error_body("NotImplemented"))
        else:
            connection.answer("200 OK", ETag='"e"')

    async with store_at(FaultyServer(refuse)) as store:
        for _ in range(2):
            assert (await store.put("k", b"abc", if_etag="")).etag == "e"
    assert conditions == [True, False, False]


@pytest.mark.parametrize("unknown", [{"tags"}, {"tags", "condition"}], ids=["tags", "both"])
async def test_a_service_without_tags_is_asked_for_conditions(unknown: set[str]) -> None:
    """A 501 does not say what it is for: only what is not in the request that is carried out was the reason."""
    seen: list[set[str]] = []

    async def refuse(connection: Connection) -> None:
        body, head = await connection.read_body(), connection.head.lower()
        named = {"tags": b"\r\nx-amz-tagging: ", "condition": b"\r\nif-none-match: *\r\n"}
        seen.append({name for name, header in named.items() if header in head})
        if body != b"abc" or seen[-1] & unknown:
            connection.answer("501 Not Implemented", error_body("NotImplemented"))
        else:
            connection.answer("200 OK", ETag='"e"')

    async with store_at(FaultyServer(refuse)) as store:
        for _ in range(2):
            stored = await store.put("k", [b"a", b"bc"], if_etag="", stored_as=StoredAs("", {"tenant": "acme"}))
            assert stored.etag == "e"
    assert seen[-1] == {"condition"} - unknown
    assert store.tags_refused


async def test_head_without_reason() -> None:
    """HEAD's 400 has no body to say why: all that can be bad in it are the credentials."""

    async def refuse(connection: Connection) -> None:
        connection.answer("400 Bad Request")

    refused = await outcome(FaultyServer(refuse), READS["head"])
    assert type(refused) is Expired
    assert "400" in refused.message
    assert "ExpiredToken" not in refused.message


async def test_head_in_a_missing_bucket() -> None:
    """HEAD's 404 does not say what is missing: the bucket is asked for before the object is called missing."""

    async def refuse(connection: Connection) -> None:
        head = connection.head.startswith(b"HEAD")
        connection.answer("404 Not Found", b"" if head else error_body("NoSuchBucket"))

    assert type(await outcome(FaultyServer(refuse), READS["head"])) is BucketMissing


async def test_failure_inside_a_success() -> None:
    """A completion that fails after its 200 has gone out is a failure, and nobody knows how far it came."""

    async def late(connection: Connection) -> None:
        await connection.read_body()
        connection.answer("200 OK", error_body("InternalError"))

    assert type(await outcome(FaultyServer(late), WRITES["complete_upload"])) is OutcomeUnknown


async def test_delete_refused_for_one_key() -> None:
    """A key that may not be deleted is an error although the others were; one that is missing is none."""

    async def partly(connection: Connection) -> None:
        await connection.read_body()
        errors = "".join(
            f"<Error><Key>{key}</Key><Code>{code}</Code><Message>m</Message></Error>"
            for key, code in (("a", "NoSuchKey"), ("b", "AccessDenied"), ("c", "InternalError"))
        )
        connection.answer("200 OK", f"<DeleteResult>{errors}</DeleteResult>".encode())

    error = await outcome(FaultyServer(partly), lambda store: store.delete(["a", "b", "c"]))
    assert type(error) is Denied
    assert "delete b" in error.message


async def test_server_down(unused_tcp_port: int) -> None:
    """Nobody listening is plainly Transient, for writes too: nothing was sent."""
    options = ObjectsSettings(
        bucket="bucket", endpoint=f"http://127.0.0.1:{unused_tcp_port}", access_key="key", secret_key="hush"
    )
    requests = Requests()
    async with S3Store(options, requests) as store:
        for use in (*WRITES.values(), *READS.values(), S3Store.check, S3Store.create_bucket):
            with pytest.raises(Transient) as caught:
                await use(store)
            assert type(caught.value) is Transient
            assert "objects.endpoint" in caught.value.hint
    assert {code for _, code, _, _ in requests.seen} == {"unreachable"}


async def test_metrics() -> None:
    """Every request is counted once with its status or error code, and the bytes of its body."""

    async def answer(connection: Connection) -> None:
        body = await connection.read_body()
        assert requests.under_way == 1
        if connection.head.startswith(b"GET"):
            connection.answer("206 Partial Content", b"abcd", Content_Range="bytes 0-3/4")
        elif body == b"no":
            connection.answer("503 Slow Down", error_body("SlowDown"))
        else:
            connection.answer("200 OK", ETag='"e"')

    requests = Requests()
    async with store_at(FaultyServer(answer)) as store:
        store._metrics = requests
        await store.get("k", 0, 4)
        await store.put("k", b"yes")
        await store.upload_part("k", "u", 1, [b"yes!"])
        with pytest.raises(Throttled):
            await store.put("k", b"no")
    assert requests.seen == [
        ("GetObject", "206", 4, 0),
        ("PutObject", "200", 0, 3),
        ("UploadPart", "200", 0, 4),
        ("PutObject", "SlowDown", 0, 0),
    ]
    assert requests.under_way == 0


async def test_body_on_the_wire() -> None:
    """A part arrives as it was given: whole, not in chunks, not hashed, and without asking for leave first."""

    bodies = []

    async def keep(connection: Connection) -> None:
        bodies.append(await connection.read_body())
        connection.answer("200 OK", ETag='"e"')

    server = FaultyServer(keep)
    data = bytes(range(256)) * 20_000
    async with store_at(server) as store:
        part = await store.upload_part("k", "u", 1, [memoryview(data)[100:]])
        assert part == PartInfo(part_number=1, etag="e", size_bytes=len(data) - 100)
    assert bodies == [data[100:]]
    head = server.heads[0].lower()
    assert b"content-length: 5119900\r\n" in head
    assert b"unsigned-payload" in head
    for absent in (b"expect:", b"transfer-encoding", b"x-amz-checksum", b"content-md5"):
        assert absent not in head


async def test_cancelled_upload() -> None:
    """A cancelled upload ends as cancelled, and the store goes on working."""

    arrived = asyncio.Event()

    async def first_silent(connection: Connection) -> None:
        await connection.read_body()
        if len(server.heads) == 1:
            arrived.set()
            await connection.reader.read()
        else:
            connection.answer("200 OK", ETag='"e"')

    server = FaultyServer(first_silent)
    async with store_at(server) as store:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(store.put("k", b"abc"))
            await arrived.wait()
            first.cancel()
        assert first.cancelled()
        await store.put("k", b"abc")


async def test_closed() -> None:
    """Outside its context the store refuses everything."""
    store = S3Store(ObjectsSettings(bucket="bucket", endpoint="http://127.0.0.1:1", access_key="k", secret_key="s"))
    for use in (WRITES["put"], READS["get"]):
        with pytest.raises(Closed):
            await use(store)
    async with store:
        pass
    with pytest.raises(Closed):
        await store.check()


@pytest.mark.parametrize("endpoint", ["no url", "http://", "ftp//x"])
async def test_bad_endpoint(endpoint: str) -> None:
    """An endpoint that is no URL is a configuration error with the setting's name."""
    with pytest.raises(InvalidConfig, match="endpoint"):
        async with S3Store(ObjectsSettings.model_construct(bucket="bucket", endpoint=endpoint)):
            pass


async def test_no_credentials(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    """With keys neither in the settings nor to be found, requests are Denied with what to set."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    async with S3Store(ObjectsSettings(bucket="bucket", endpoint=f"http://127.0.0.1:{unused_tcp_port}")) as store:
        for use in (WRITES["put"], READS["get"]):
            with pytest.raises(Denied, match=r"objects\.access_key"):
                await use(store)


async def test_other_buckets_are_opened_and_closed_together() -> None:
    """Each by its name, the home by its own; one that was not named is refused with what to do."""
    server = FaultyServer(hang_up)
    async with store_at(server, places="other") as store:
        assert list(store.stores) == ["bucket", "other"]
        assert store.at("bucket") is store
        other = store.at("other")
        assert list(other.stores) == ["other"]
        with pytest.raises(BucketMissing, match=r"'third', only 'bucket', 'other'") as caught:
            store.at("third")
        assert "objects.places" in caught.value.hint
    for closed in (store, other):
        with pytest.raises(Closed):
            await closed.check()


def test_options_hide_secrets() -> None:
    """Options can be printed."""
    options = ObjectsSettings(bucket="bucket", access_key="key", secret_key="hush")
    assert "bucket" in repr(options)
    assert "hush" not in repr(options)
