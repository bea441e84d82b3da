"""Requests that are sent to S3 by parts of botocore: what they have in common with its own."""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import TYPE_CHECKING, Any

import pytest
from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from aiobotocore.session import AioSession  # type: ignore[import-untyped]
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.handlers import add_expect_header

from offloaderd.core.errors import Denied, OutcomeUnknown, Transient
from offloaderd.drill.tcp_proxy import Listener
from offloaderd.objects.port import PartInfo
from offloaderd.objects.request import calling
from offloaderd.objects.s3 import store as s3_store
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.objects.stored_as import StoredAs
from tests.authority import Authority
from tests.unit.objects.faulty import Connection, FaultyServer, error_body, store_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from offloaderd.objects.failures import Request

REAL_TIME = "HTTP"

ONE_REQUEST = {"amz-sdk-invocation-id", "amz-sdk-request", "user-agent"}
"""Headers that are about botocore's own retries, or name what of it is in use."""


async def four(connection: Connection) -> None:
    """Answer a range with four bytes of ten."""
    connection.answer("206 Partial Content", b"abcd", Content_Range="bytes 6-9/10")


def headers_of(head: bytes) -> dict[str, str]:
    """Headers of a request, with what every moment changes cut off."""
    lines = head.decode().strip().split("\r\n")[1:]
    found = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    found["x-amz-date"] = found["x-amz-date"][:8]
    found["authorization"] = found["authorization"].partition("Signature=")[0]
    return {name: value for name, value in found.items() if name not in ONE_REQUEST}


async def whole(connection: Connection) -> None:
    """Answer a GET as `four`, and anything else with the headers of an object."""
    bodies.append(await connection.read_body())
    if connection.head.startswith(b"GET"):
        await four(connection)
    else:
        said = (
            b"<Of><UploadId>u</UploadId><ETag>&#34;e&quot;</ETag></Of>" if connection.head.startswith(b"POST") else b""
        )
        connection.answer("200 OK", said, ETag='"e"', Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT")


STORED = StoredAs(storage_class="STANDARD_IA", tags={"team": "a b", "cost": "x/y"})
PUT: dict[str, object] = {
    "Metadata": {"cluster": "c-1"},
    "ContentType": "application/octet-stream",
    "ServerSideEncryption": "aws:kms",
    "SSEKMSKeyId": "key-1",
    "StorageClass": "STANDARD_IA",
    "Tagging": "team=a%20b&cost=x%2Fy",
    "Body": b"abc",
}
PARTS = [PartInfo(part_number=number, etag=etag, size_bytes=8 << 20) for number, etag in ((1, "ab-1"), (3, "<&>"))]
SENT: dict[str, tuple[str, dict[str, object], Callable[[S3Store, str], Awaitable[object]]]] = {
    "a range": ("get_object", {"Range": "bytes=6-9"}, lambda store, key: store.get(key, 6, 4)),
    "its size": ("head_object", {}, lambda store, key: store.head(key)),
    "a put": (
        "put_object",
        PUT,
        lambda store, key: store.put(key, b"abc", metadata={"cluster": "c-1"}, stored_as=STORED),
    ),
    "a new object": (
        "put_object",
        PUT | {"IfNoneMatch": "*"},
        lambda store, key: store.put(key, b"abc", metadata={"cluster": "c-1"}, stored_as=STORED, if_etag=""),
    ),
    "a part": (
        "upload_part",
        {"PartNumber": 7, "UploadId": "a/b+c=~.", "Body": b"abc"},
        lambda store, key: store.upload_part(key, "a/b+c=~.", 7, [b"a", b"bc"]),
    ),
    "an upload": (
        "create_multipart_upload",
        {name: value for name, value in PUT.items() if name != "Body"},
        lambda store, key: store.create_upload(key, metadata={"cluster": "c-1"}, stored_as=STORED),
    ),
    "its end": (
        "complete_multipart_upload",
        {
            "UploadId": "a/b+c=~.",
            "MultipartUpload": {"Parts": [{"ETag": f'"{one.etag}"', "PartNumber": one.part_number} for one in PARTS]},
        },
        lambda store, key: store.complete_upload(key, "a/b+c=~.", PARTS),
    ),
}
"""By what is sent: botocore's call and its parameters, and ours."""
KEYS = ["p/k", "a b", "a%2Fb", "a+b", "ä/ö", "a&b=c?d#e", "~.-_!*'()", "a//b", "/a", "a/"]
bodies: list[bytes] = []


@pytest.mark.parametrize(
    ("key", "name", "signed"),
    [(key, name, False) for key in KEYS for name in ("a range", "a part")]
    + [("ä/a b", name, signed) for name in SENT for signed in (False, True)],
)
async def test_a_request_is_the_one_that_botocore_would_send(
    key: str, name: str, monkeypatch: pytest.MonkeyPatch, *, signed: bool
) -> None:
    """The same line, the same headers and the same body, whatever the key is."""
    monkeypatch.setattr(ObjectsSettings, "sign_payloads", signed)
    bodies.clear()
    call, parameters, ours = SENT[name]
    server = FaultyServer(whole)
    async with Listener(server.serve) as listener:
        session = AioSession().create_client(
            "s3",
            region_name="eu-west-1",
            endpoint_url=listener.endpoint,
            aws_access_key_id="key",
            aws_secret_access_key="hush",
            config=AioConfig(
                s3={"addressing_style": "path", "payload_signing_enabled": signed},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        async with session as client:
            client.meta.events.unregister("before-call.s3", add_expect_header)
            await getattr(client, call)(Bucket="bucket", Key=key, **parameters)
        options = ObjectsSettings(
            bucket="bucket",
            endpoint=listener.endpoint,
            region="eu-west-1",
            access_key="key",
            secret_key="hush",
            encryption="sse-kms",
            kms_key_id="key-1",
        )
        async with S3Store(options) as store:
            await ours(store, key)
    theirs, sent = server.heads
    assert sent.split(b"\r\n")[0] == theirs.split(b"\r\n")[0]
    assert headers_of(sent) == headers_of(theirs)
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize(("encryption", "opaque"), [("", False), ("AES256", False), ("aws:kms", True)])
async def test_an_object_is_described_by_the_headers_of_its_head(encryption: str, *, opaque: bool) -> None:
    """Size, ETag, time and metadata, in whatever case they come; a key that is not the bucket's own hides its bytes."""

    async def answer(connection: Connection) -> None:
        named = {"ETag": '"e"', "last_modified": "Thu, 01 Jan 2026 00:00:01 GMT", "X_Amz_Meta_Cluster": "c"}
        encrypted = {"x_amz_server_side_encryption": encryption} if encryption else {}
        connection.answer("200 OK", b"", Content_Length="12", **named, **encrypted)

    async with store_at(FaultyServer(answer)) as store:
        found = await store.head("k")
    assert (found.key, found.size_bytes, found.etag, found.modified_ms) == ("k", 12, "e", 1_767_225_601_000)
    assert found.metadata == {"cluster": "c"}
    assert found.etag_opaque is opaque


async def test_an_error_behind_a_200_is_none_that_was_stored() -> None:
    """Nobody knows how far it came."""

    async def late(connection: Connection) -> None:
        await connection.read_body()
        connection.answer("200 OK", error_body("InternalError"), ETag='"e"')

    async with store_at(FaultyServer(late)) as store:
        for use in (store.put("k", b"abc"), store.upload_part("k", "u", 1, [b"abc"]), store.create_upload("k")):
            with pytest.raises(OutcomeUnknown):
                await use


TWICE = b"<Of><UploadId>a</UploadId><UploadId>b</UploadId><ETag>a</ETag><ETag>b</ETag></Of>"


@pytest.mark.parametrize("etag", [{}, {"ETag": ""}, {"ETag": '""'}])
@pytest.mark.parametrize(
    "said", [b"", b" ", b"<Of><Uplo", b"<Of><Other>u</Other></Of>", b"<Of><UploadId/><ETag/></Of>", b"<html>", TWICE]
)
async def test_an_answer_that_does_not_name_what_was_made_has_an_unknown_outcome(
    said: bytes, etag: dict[str, str]
) -> None:
    """Whether it ended too early, or says something else, as that of a proxy."""

    async def cut(connection: Connection) -> None:
        await connection.read_body()
        connection.answer("200 OK", said, **etag)

    async with store_at(FaultyServer(cut)) as store:
        for use in (
            store.create_upload("k"),
            store.upload_part("k", "u", 1, [b"abc"]),
            store.complete_upload("k", "u", PARTS),
            store.put("k", b"abc"),
        ):
            with pytest.raises(OutcomeUnknown):
                await use


async def test_headers_that_are_not_wanted_may_say_anything() -> None:
    """The upload is there, whatever the service says of its end."""

    async def odd(connection: Connection) -> None:
        connection.answer("200 OK", b"<Of><UploadId>u</UploadId></Of>", x_amz_abort_date="never")

    async with store_at(FaultyServer(odd)) as store:
        assert await store.create_upload("k") == "u"


FOUND = {"ETag": '"e"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "Content-Length": "4"}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, "") for name in FOUND]
    + [("ETag", '""'), ("Last-Modified", "never"), ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 +9999999999999999")],
)
async def test_an_object_without_size_or_etag_or_time_is_not_described(name: str, value: str) -> None:
    """One without a time would seem older than all others, and be deleted."""

    async def part(connection: Connection) -> None:
        said = FOUND | {name: value}
        lines = "".join(f"{name}: {value}\r\n" for name, value in said.items() if value)
        connection.writer.write(f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode())

    async with store_at(FaultyServer(part)) as store:
        with pytest.raises(Transient, match=name):
            await store.head("k")


async def test_a_request_has_time_for_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part takes longer than what has no body, by the least rate of a transfer."""
    deadlines: dict[str, float] = {}

    def noted(request: Request, deadline_s: float, *others: Any) -> Any:  # noqa: ANN401 - as `calling`
        deadlines[request.operation] = deadline_s
        return calling(request, deadline_s, *others)

    monkeypatch.setattr(s3_store, "calling", noted)
    async with Listener(FaultyServer(whole).serve) as listener:
        options = ObjectsSettings(bucket="bucket", endpoint=listener.endpoint, access_key="key", secret_key="hush")
        async with S3Store(options, bytes_per_s_min=2) as store:
            await store.head("k")
            await store.put("k", b"abcd")
            await store.upload_part("k", "u", 1, [b"abcd", b"ef"])
    least_s = options.connect_timeout_s + options.read_timeout_s
    assert deadlines == {"HeadObject": least_s, "PutObject": least_s + 2, "UploadPart": least_s + 3}


async def test_gets_at_a_time_have_a_signature_each() -> None:
    """None has the key, the range or the signature of another."""
    arrived = asyncio.Event()

    async def together(connection: Connection) -> None:
        if len(server.heads) == 8:
            arrived.set()
        await arrived.wait()
        found = re.search(rb"bytes=(\d+)-(\d+)", connection.head)
        assert found is not None
        begin, last = int(found[1]), int(found[2])
        connection.answer("206 Partial Content", b"x" * (last + 1 - begin), Content_Range=f"bytes {begin}-{last}/99")

    server = FaultyServer(together)
    async with store_at(server) as store, asyncio.TaskGroup() as group:
        tasks = [group.create_task(store.get(f"k{number}", number, number + 1)) for number in range(8)]
    assert [len(task.result()) for task in tasks] == list(range(1, 9))
    signed = {(head.split(b" ")[1], *re.findall(rb"Signature=(\w+)", head)) for head in server.heads}
    assert {path for path, _ in signed} == {b"/bucket/k%d" % number for number in range(8)}
    assert len({signature for _, signature in signed}) == 8


@pytest.mark.parametrize("use", ["get", "head", "put"])
@pytest.mark.parametrize(
    ("status", "refusal"),
    [("400 Bad Request", "AuthorizationHeaderMalformed"), ("301 Moved Permanently", "PermanentRedirect")],
)
async def test_a_bucket_of_another_region_is_found(status: str, refusal: str, use: str) -> None:
    """botocore asks for the region by a request of its own; from then on requests are signed for it."""

    async def used(store: S3Store) -> None:
        match use:
            case "get":
                assert await store.get("k", 6, 4) == b"abcd"
            case "head":
                assert (await store.head("k")).etag == "e"
            case _:
                assert (await store.put("k", b"abc")).etag == "e"

    async def elsewhere(connection: Connection) -> None:
        if b"/eu-west-1/s3/" not in connection.head:
            body = error_body(refusal).replace(b"<Message>", b"<Region>eu-west-1</Region><Message>")
            head = connection.head.startswith(b"HEAD")
            connection.answer(status, b"" if head else body, x_amz_bucket_region="eu-west-1")
        elif b"list-type=2" in connection.head:
            connection.answer("200 OK", b"<ListBucketResult></ListBucketResult>")
        else:
            await whole(connection)

    server = FaultyServer(elsewhere)
    async with store_at(server) as store:
        await used(store)
        before = len(server.heads)
        await used(store)
        assert len(server.heads) == before + 1


async def test_a_region_that_cannot_be_found_is_an_error_that_names_the_setting() -> None:
    """The request is not repeated for ever."""

    async def nowhere(connection: Connection) -> None:
        connection.answer("400 Bad Request", error_body("AuthorizationHeaderMalformed"))

    server = FaultyServer(nowhere)
    async with store_at(server) as store:
        with pytest.raises(Denied) as caught:
            await store.get("k", 6, 4)
    assert "objects.region" in caught.value.hint
    assert len(server.heads) <= 5


@pytest.mark.parametrize(
    ("path_style", "url"), [(True, "http://store.example/bucket/k"), (False, "http://bucket.store.example/k")]
)
async def test_a_get_takes_the_proxy_and_the_addressing_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, url: str, *, path_style: bool
) -> None:
    """The environment's proxy is asked for a host that only it can reach, with the bucket where it belongs."""
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = FaultyServer(four)
    async with Listener(server.serve) as proxy:
        monkeypatch.setenv("http_proxy", proxy.endpoint)
        options = ObjectsSettings(
            bucket="bucket",
            endpoint="http://store.example",
            access_key="key",
            secret_key="hush",
            path_style=path_style,
        )
        async with S3Store(options) as store:
            assert await store.get("k", 6, 4) == b"abcd"
    assert server.heads[0].startswith(f"GET {url} ".encode())


def checked_signature(head: bytes) -> str:
    """The signature that a service finds for a request as it arrived."""
    first, *lines = head.decode().strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    signed = re.findall(r"SignedHeaders=([^,]+)", headers["Authorization"])[0].split(";")
    of = {name: value for name, value in headers.items() if name.lower() in signed}
    method, path, _ = first.split(" ")
    request = AWSRequest(method, f"http://{headers['Host']}{path}", headers=of)
    request.context["timestamp"] = headers["X-Amz-Date"]
    signer = S3SigV4Auth(Credentials("key", "hush"), "s3", "us-east-1")
    found: str = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    return found


@pytest.mark.parametrize("host", [None, "s3.eu-west-1.amazonaws.com"])
async def test_a_request_names_and_signs_the_host_of_the_settings(host: str | None) -> None:
    """A tunnel leads to a service that checks the signature of its own name, and of no other."""
    server = FaultyServer(whole)
    async with store_at(server, signed_host=host) as store:
        assert await store.get("ä/a b", 6, 4) == b"abcd"
        await store.upload_part("ä/a b", "u/1", 2, [b"abc"])
        await store.abort_upload("ä/a b", "u/1")
    for head in server.heads:
        assert host is None or f"\r\nHost: {host}\r\n".encode() in head
        assert f"Signature={checked_signature(head)}\r\n".encode() in head


async def test_a_get_trusts_the_authorities_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service with a certificate of its own authority is read if AWS_CA_BUNDLE names it, and not read otherwise."""
    authority = Authority(tmp_path)
    pair = authority.issue("store", "localhost", "127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.cert, pair.key)
    async with Listener(FaultyServer(four).serve, tls=tls) as listener:
        options = ObjectsSettings(
            bucket="bucket", endpoint=f"https://{listener.address}", access_key="key", secret_key="hush"
        )
        monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
        async with S3Store(options) as store:
            with pytest.raises(Transient, match="no connection"):
                await store.get("k", 6, 4)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.file))
        async with S3Store(options) as store:
            assert await store.get("k", 6, 4) == b"abcd"


async def test_a_get_that_is_cancelled_in_its_body_gives_its_connection_back() -> None:
    """With one connection in all, the next request has it."""
    begun = asyncio.Event()

    async def slow(connection: Connection) -> None:
        if len(server.heads) > 1:
            await four(connection)
            return
        connection.answer("206 Partial Content", b"a", Content_Length="4", Content_Range="bytes 6-9/10")
        await connection.writer.drain()
        begun.set()
        await connection.reader.read()

    server = FaultyServer(slow)
    async with store_at(server, connections_max=1) as store:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(store.get("k", 6, 4))
            await begun.wait()
            first.cancel()
        assert first.cancelled()
        assert await store.get("k", 6, 4) == b"abcd"


@pytest.mark.parametrize("refusals", [1, 40])
async def test_a_get_that_is_refused_gives_its_connection_back(refusals: int) -> None:
    """With one connection in all, as many refusals as there are leave it free."""

    async def refuse(connection: Connection) -> None:
        if len(server.heads) > refusals:
            await four(connection)
        else:
            connection.answer("503 Slow Down", error_body("SlowDown"))

    server = FaultyServer(refuse)
    async with store_at(server, connections_max=1) as store:
        for _ in range(refusals):
            with pytest.raises(Transient):
                await store.get("k", 6, 4)
        assert await store.get("k", 6, 4) == b"abcd"


async def test_a_url_is_signed_for_the_host_that_is_connected_to() -> None:
    """In version 4, without a request; there is none where another host is signed, which its users would not name."""
    server = FaultyServer(four)
    async with store_at(server) as store:
        url = await store.signed_url("a/b c", 60)
    assert re.match(r"http://127\.0\.0\.1:\d+/bucket/a/b%20c\?X-Amz-Algorithm=AWS4-HMAC-SHA256&", url)
    assert server.heads == []
    async with store_at(server, signed_host="s3.eu-west-1.amazonaws.com") as store:
        assert await store.signed_url("k", 60) == ""
