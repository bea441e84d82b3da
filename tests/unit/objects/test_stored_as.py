"""Storage classes and tags: what is sent to S3, and what happens where tags are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import pytest

from offloaderd.core.errors import Archived, Denied, Expired, InvalidInput, Transient
from offloaderd.objects.retrying import RetryingReader
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.objects.stored_as import StoredAs, filled_tags
from offloaderd.objects.tagging import TRY_AGAIN_S, Tagging
from offloaderd.testing.clock import FakeClock
from offloaderd.testing.faults import Faults, FaultyStore
from offloaderd.testing.memory.objects import MemoryStore
from tests.unit.objects.faulty import Connection, FaultyServer, error_body, store_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from offloaderd.objects.s3.store import S3Store

REAL_TIME = "HTTP"
TOPIC = {"tenant": "acme", "namespace": "eu/ä b", "cluster": "c"}
WHOLE = StoredAs("STANDARD_IA", {"tenant": "acme corp", "a/b": "x+y"})
USES: list[Callable[[S3Store], Awaitable[object]]] = [
    lambda store: store.put("k", b"abc", stored_as=WHOLE),
    lambda store: store.create_upload("k", stored_as=WHOLE),
]
CREATED = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"


def test_tags_are_filled_with_the_topic() -> None:
    """Names in braces are replaced; what a tag cannot have becomes _; a value is cut; one may be empty or have `=`."""
    assert filled_tags("tenant={tenant}, who={cluster}-{namespace} ,k=a=b,e=", **TOPIC) == {
        "tenant": "acme",
        "who": "c-eu/_ b",
        "k": "a=b",
        "e": "",
    }
    assert filled_tags("", **TOPIC) == {}
    assert len(filled_tags("t={tenant}{tenant}", **{**TOPIC, "tenant": "x" * 200})["t"]) == 256


@pytest.mark.parametrize(
    ("endpoint", "service"),
    [
        (None, "aws"),
        ("https://s3.eu-west-1.amazonaws.com", "aws"),
        ("http://127.0.0.1:9000", "s3"),
        ("https://amazonaws.com.example.org", "s3"),
    ],
)
def test_the_service_is_known_by_its_endpoint(endpoint: str | None, service: str) -> None:
    """S3 itself has a closed list of classes, other services have words of their own."""
    assert ObjectsSettings(bucket="bucket", endpoint=endpoint).service == service
    assert ObjectsSettings(kind="filesystem").service == "filesystem"


def sent(head: bytes) -> tuple[str, dict[str, str]]:
    """Return class and tags of a request."""
    lines = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line]
    named = {name.lower(): value for name, value in lines}
    return named.get("x-amz-storage-class", ""), dict(parse_qsl(named.get("x-amz-tagging", "")))


@pytest.mark.parametrize("use", USES)
async def test_class_and_tags_are_headers_of_the_request(use: Callable[[S3Store], Awaitable[object]]) -> None:
    """As S3 has them, tags as a query string; nothing is sent for an object without either."""

    async def answer(connection: Connection) -> None:
        await connection.read_body()
        connection.answer("200 OK", CREATED, ETag='"0"', Connection="close")

    server = FaultyServer(answer)
    async with store_at(server) as store:
        await use(store)
        await store.put("k", b"abc")
        assert store.tags_refused == ""
    assert [sent(head) for head in server.heads] == [("STANDARD_IA", dict(WHOLE.tags)), ("", {})]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("code", ["403 AccessDenied", "400 InvalidTag", "501 NotImplemented"])
async def test_an_object_whose_tags_are_refused_is_stored_without(
    use: Callable[[S3Store], Awaitable[object]], code: str
) -> None:
    """The bill is no reason to offload nothing; the next objects are stored without tags at once."""
    status, _, name = code.partition(" ")

    async def answer(connection: Connection) -> None:
        await connection.read_body()
        if b"x-amz-tagging" in connection.head.lower():
            connection.answer(f"{status} No", error_body(name), Connection="close")
        else:
            connection.answer("200 OK", CREATED, ETag='"0"', Connection="close")

    server = FaultyServer(answer)
    async with store_at(server) as store:
        await use(store)
        await use(store)
        assert name in store.tags_refused
    assert [sent(head) for head in server.heads] == [
        ("STANDARD_IA", dict(WHOLE.tags)),
        ("STANDARD_IA", {}),
        ("STANDARD_IA", {}),
    ]


async def test_a_class_that_the_service_does_not_have_is_named() -> None:
    """The error says what to change."""

    async def answer(connection: Connection) -> None:
        await connection.read_body()
        connection.answer("400 Bad Request", error_body("InvalidStorageClass"))

    async with store_at(FaultyServer(answer)) as store:
        with pytest.raises(InvalidInput, match=r"objects\.storage_class"):
            await store.create_upload("k", stored_as=StoredAs("HOT"))


async def test_tags_are_tried_again_after_some_time() -> None:
    """A right that was given meanwhile is used without a restart; what is refused without tags too is raised."""
    clock, asked, right = FakeClock(), list[bool](), [False]

    async def send(chosen: StoredAs) -> str:
        asked.append(bool(chosen.tags))
        assert chosen.storage_class == WHOLE.storage_class
        if chosen.tags and not right[0]:
            raise Denied("PutObject: AccessDenied")
        return "stored"

    tagging = Tagging("bucket", clock)
    assert await tagging.send(WHOLE, send) == "stored"
    assert tagging.refused
    right[0] = True
    await clock.advance(TRY_AGAIN_S - 1)
    await tagging.send(WHOLE, send)
    await clock.advance(1)
    await tagging.send(WHOLE, send)
    assert asked == [True, False, False, True]
    assert not tagging.refused

    for error in (Denied("no"), Expired("old"), Transient("lost"), InvalidInput("bad")):

        async def refuse(chosen: StoredAs, error: Exception = error) -> str:
            raise error

        with pytest.raises(type(error)):
            await tagging.send(WHOLE, refuse)
        assert not tagging.refused


ARCHIVED = b"<Error><Code>InvalidObjectState</Code><Message>not valid for the object's storage class</Message></Error>"


async def test_an_archived_object_is_an_error_that_names_the_restore() -> None:
    """S3 refuses to send its bytes with 403, and that is no matter of rights: the message has the key."""

    async def answer(connection: Connection) -> None:
        connection.answer("403 Forbidden", ARCHIVED, Connection="close")

    async with store_at(FaultyServer(answer)) as store:
        for read in (store.get("k"), store.get("k", 5, 10)):
            with pytest.raises(Archived, match="InvalidObjectState") as caught:
                await read
            assert "k in bucket" in caught.value.message
            assert "restore-object" in caught.value.hint


async def test_what_is_archived_is_asked_for_once() -> None:
    """No retry brings it back; readers of verification, rebuild and Spark get the error with its remedy at once."""
    clock, faults = FakeClock(), Faults()
    store = FaultyStore(MemoryStore(clock), faults)
    faults.fail("get", Archived("GetObject k: InvalidObjectState", hint="restore it"), times=-1)
    reader = RetryingReader(store, clock=clock)
    for read in (reader.exactly("k", 0, 5), reader.table(bytes, "k")):
        with pytest.raises(Archived, match="restore it"):
            await read
    assert faults.asked == ["get k", "get k"]
