"""The Azure adapter: uploads that a crash interrupts, refusals by name, and settings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from pydantic import SecretStr

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import (
    Archived,
    BucketMissing,
    Closed,
    Conflict,
    CorruptData,
    Denied,
    Expired,
    InvalidConfig,
    InvalidInput,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    Throttled,
    Transient,
)
from offloaderd.objects import opening
from offloaderd.objects.azure.access import account_of
from offloaderd.objects.azure.blocks import block_id, newest, record_key
from offloaderd.objects.azure.store import AzureStore
from offloaderd.objects.port import PartInfo
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.objects.stored_as import StoredAs
from tests.azure import service as azure_service
from tests.azure.service import ACCOUNT, KEY, Refusal, Service, options, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from offloaderd.objects.buckets import BucketStore

REAL_TIME = "the service in the process listens on a socket"

KEY_OF_OBJECT = "topics/0c1f4bd1-6e4f-4a0e-8c7d-2f8f2a1b3c4d"
FAILED = "Server failed to authenticate the request."


@pytest.fixture
def service() -> Service:
    """The service."""
    return Service(SystemClock())


@pytest.fixture
async def endpoint(service: Service) -> AsyncIterator[str]:
    """Where it is."""
    async with serving(service) as where:
        yield where


@pytest.fixture
async def store(endpoint: str) -> AsyncIterator[AzureStore]:
    """A store on an empty container."""
    async with AzureStore(options(endpoint, "segments")) as opened:
        await opened.create_bucket()
        yield opened


@pytest.fixture
async def successor(endpoint: str) -> AsyncIterator[AzureStore]:
    """The store of another process on the same container."""
    async with AzureStore(options(endpoint, "segments")) as opened:
        yield opened


async def test_the_next_owner_finds_the_parts_and_sends_none_again(store: AzureStore, successor: AzureStore) -> None:
    """Blocks, metadata and the upload itself are in the service alone; the listed parts are those that were sent."""
    upload = await store.create_upload(KEY_OF_OBJECT, metadata={"role": "segment"})
    sent = [await store.upload_part(KEY_OF_OBJECT, upload, number, [b"part %d" % number]) for number in (2, 1)]
    assert [found.upload_id async for found in successor.list_uploads("topics/")] == [upload]
    listed = await successor.list_parts(KEY_OF_OBJECT, upload)
    assert list(listed) == [successor.parts.described(1, [b"part ", b"1"]), successor.parts.described(2, [b"part 2"])]
    assert sorted(sent, key=lambda part: part.part_number) == list(listed)
    await successor.complete_upload(KEY_OF_OBJECT, upload, listed)
    assert await successor.get(KEY_OF_OBJECT) == b"part 1part 2"
    assert (await successor.head(KEY_OF_OBJECT)).metadata == {"role": "segment"}


async def test_a_lost_answer_to_the_completion(store: AzureStore, successor: AzureStore, service: Service) -> None:
    """The upload counts as completed although its record is still there; the service says what it was made of."""
    upload = await store.create_upload(KEY_OF_OBJECT)
    parts = [await store.upload_part(KEY_OF_OBJECT, upload, number, [b"x" * number]) for number in (1, 2)]
    service.refuse(Refusal(500, "OperationTimedOut"), after=3)  # record, blocks, completion; then the record's end
    with pytest.raises(OutcomeUnknown):
        await store.complete_upload(KEY_OF_OBJECT, upload, parts)
    with pytest.raises(NotFound, match="completed before"):
        await successor.list_parts(KEY_OF_OBJECT, upload)
    stored = await successor.head(KEY_OF_OBJECT)
    assert await successor.made_of(stored, parts) is True
    assert await successor.made_of(stored, parts[:1]) is False
    with pytest.raises(NotFound, match="completed before"):
        await successor.complete_upload(KEY_OF_OBJECT, upload, parts)
    assert [found async for found in successor.list_uploads()] == []
    assert (await successor.head(KEY_OF_OBJECT)).etag == stored.etag


COOL = StoredAs("Cool", {"team": "a b", "path": "x/y"})


async def test_tier_and_tags_are_those_of_the_upload_whoever_ends_it(
    store: AzureStore, successor: AzureStore, service: Service
) -> None:
    """They are recorded with it, so that the next owner stores the object alike; the record itself is plain."""
    await store.put("small", b"x", stored_as=COOL)
    upload_id = await store.create_upload(KEY_OF_OBJECT, stored_as=COOL)
    record = service.containers["segments"][record_key(KEY_OF_OBJECT, upload_id)]
    part = await store.upload_part(KEY_OF_OBJECT, upload_id, 1, [b"bytes"])
    await successor.complete_upload(KEY_OF_OBJECT, upload_id, [part])
    for key in ("small", KEY_OF_OBJECT):
        blob = service.containers["segments"][key]
        assert (blob.tier, blob.tags) == ("Cool", {"team": "a b", "path": "x/y"})
    assert (record.tier, record.tags) == ("", {})


async def test_a_class_that_azure_does_not_have_is_named(store: AzureStore) -> None:
    """As an error in the setting, before anything is stored."""
    with pytest.raises(InvalidInput, match="STANDARD_IA") as refused:
        await store.put("k", b"x", stored_as=StoredAs("STANDARD_IA"))
    assert "objects.storage_class" in refused.value.hint


async def test_where_tags_are_refused_objects_are_stored_without_them(store: AzureStore, service: Service) -> None:
    """The tier stays, the doctor is told, and tags are left out for a while."""
    service.refuse(Refusal(403, "AuthorizationPermissionMismatch"))
    await store.put("k", b"x", stored_as=COOL)
    assert "AuthorizationPermissionMismatch" in store.tags_refused
    await store.put("other", b"x", stored_as=COOL)
    for key in ("k", "other"):
        blob = service.containers["segments"][key]
        assert (blob.tier, blob.tags) == ("Cool", {})


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"storage_class": "Cool", "tags": []}', b"{}"])
async def test_a_record_that_cannot_be_read_is_damage(store: AzureStore, service: Service, content: bytes) -> None:
    """An upload does not end in another class than it was begun with."""
    upload_id = await store.create_upload(KEY_OF_OBJECT, stored_as=COOL)
    part = await store.upload_part(KEY_OF_OBJECT, upload_id, 1, [b"bytes"])
    service.containers["segments"][record_key(KEY_OF_OBJECT, upload_id)].content = content
    with pytest.raises(CorruptData, match="class and tags of an upload"):
        await store.complete_upload(KEY_OF_OBJECT, upload_id, [part])


async def test_an_object_of_one_request_does_not_say_what_it_was_made_of(store: AzureStore) -> None:
    """Then only a read can show it."""
    await store.put("whole", b"content")
    assert await store.made_of(await store.head("whole"), [store.parts.described(1, [b"content"])]) is None


async def test_parts_that_were_damaged_on_their_way_are_sent_again(store: AzureStore, service: Service) -> None:
    """The service compares each with the MD5 that came with it."""
    upload = await store.create_upload(KEY_OF_OBJECT)
    service.refuse(Refusal(400, "Md5Mismatch"), after=1)
    with pytest.raises(Transient, match="Md5Mismatch"):
        await store.upload_part(KEY_OF_OBJECT, upload, 1, [b"part"])


async def test_bodies_come_with_their_checksum(store: AzureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole objects and of parts, in one piece or several."""
    monkeypatch.setattr(azure_service, "_damaged", lambda request, _: "Content-MD5" not in request.headers)
    await store.put("whole", b"content")
    await store.put("pieces", [b"con", b"tent"])
    await store.upload_part(KEY_OF_OBJECT, await store.create_upload(KEY_OF_OBJECT), 1, [b"part"])


def test_the_later_of_two_blocks_with_one_number_counts() -> None:
    """Whatever the order of the list is; blocks of other uploads and of other programs are not ours."""
    upload, other = "0123456789abcdef", "fedcba9876543210"
    old, new = (PartInfo(part_number=1, etag=digit * 32, size_bytes=5) for digit in "ba")
    blocks = [
        (block_id(upload, new, 2), 5),
        (block_id(other, new, 3), 5),
        ("foreign", 1),
        (block_id(upload, old, 1), 5),
    ]
    assert [(number, block.part) for number, block in newest(upload, blocks).items()] == [(1, new)]
    assert {len(name) for name, _ in blocks if name != "foreign"} == {64}


@pytest.mark.parametrize(
    ("refusal", "kind", "remedy"),
    [
        (Refusal(503, "ServerBusy"), Throttled, ""),
        (Refusal(429, "TooManyRequests"), Throttled, ""),
        (Refusal(500, "InternalError"), Transient, ""),
        (Refusal(403, "AuthenticationFailed", FAILED, "The MAC signature is not the same"), Denied, "its key"),
        (Refusal(403, "AuthorizationFailure", FAILED), Denied, "its key"),
        (
            Refusal(403, "AuthenticationFailed", FAILED, "Signature not valid in the specified time frame: Start [a]"),
            Expired,
            "a SAS that is valid now",
        ),
        (
            Refusal(
                403, "AuthenticationFailed", FAILED, "Request date header too old: 'Mon, 23 Nov 2026 22:00:00 GMT'"
            ),
            Denied,
            "clock",
        ),
        (Refusal(403, "AuthorizationPermissionMismatch"), Denied, "containers/blobs/read (SAS: l)"),
        (Refusal(403, "AuthorizationFailure", "This request is not authorized"), Denied, "firewall"),
        (Refusal(403, "AuthorizationSourceIPMismatch"), Denied, "make a SAS"),
        (Refusal(403, "KeyBasedAuthenticationNotPermitted"), Denied, "use an identity"),
        (Refusal(404, "ContainerNotFound"), BucketMissing, "create the container"),
        (Refusal(409, "ContainerBeingDeleted"), BucketMissing, "create the container"),
        (Refusal(400, "InvalidResourceName"), BucketMissing, "create the container"),
        (Refusal(409, "BlobArchived"), Archived, "rehydrate"),
        (Refusal(418, "SomethingNew"), InvalidInput, ""),
    ],
)
async def test_each_refusal_has_a_kind_and_a_remedy(
    store: AzureStore, service: Service, refusal: Refusal, kind: type[OffloaderError], remedy: str
) -> None:
    """What to do depends on it, and who reads it learns which right or setting is meant."""
    service.refuse(refusal)
    with pytest.raises(OffloaderError) as caught:
        await store.check()
    assert type(caught.value) is kind
    assert remedy in (caught.value.hint or "")
    assert f"container segments at {account_of(store._options).url}" in caught.value.message


async def test_an_account_whose_host_is_not_there_is_told_by_the_setting() -> None:
    """A mistyped account has a host that no name server knows."""
    async with AzureStore(options("http://no-such-account.invalid", "segments")) as store:
        with pytest.raises(Transient, match="no connection") as caught:
            await store.check()
    assert "objects.azure_account" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("operation", "right"),
    [
        ("put", "blobs/write (SAS: w)"),
        ("get", "blobs/read (SAS: r)"),
        ("head", "blobs/read (SAS: r)"),
        ("delete", "blobs/delete (SAS: d)"),
        ("create_upload", "blobs/write (SAS: w)"),
    ],
)
async def test_the_missing_right_is_named(store: AzureStore, service: Service, operation: str, right: str) -> None:
    """For each request the one that it needs."""
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "put": lambda: store.put("key", b""),
        "get": lambda: store.get("key"),
        "head": lambda: store.head("key"),
        "delete": lambda: store.delete(["key"]),
        "create_upload": lambda: store.create_upload("key"),
    }
    service.refuse(Refusal(403, "AuthorizationPermissionMismatch"))
    with pytest.raises(Denied) as caught:
        await calls[operation]()
    assert right in caught.value.hint


@pytest.mark.parametrize("code", ["OperationTimedOut", "InternalError"])
async def test_a_write_without_a_certain_answer_is_no_failure_of_it(
    store: AzureStore, service: Service, code: str
) -> None:
    """It is read back; a read is simply made again."""
    service.refuse(Refusal(500, code), times=2)
    with pytest.raises(OutcomeUnknown):
        await store.put("key", b"content")
    with pytest.raises(Transient) as caught:
        await store.get("key")
    assert type(caught.value) is Transient


async def test_the_library_makes_no_retries_of_its_own(store: AzureStore, service: Service) -> None:
    """One call is one request, so pauses and limits are ours."""
    service.requests.clear()
    service.refuse(Refusal(503, "ServerBusy"), times=9)
    for call in (store.head("a"), store.put("a", b""), store.get("a"), store.check()):
        with pytest.raises(Throttled):
            await call
    assert len(service.requests) == 4


async def test_a_condition_that_fails_is_a_conflict(store: AzureStore, service: Service) -> None:
    """Also if the service says it with 409, or if the blob was deleted meanwhile."""
    for refusal in (Refusal(409, "BlobAlreadyExists"), Refusal(412, "ConditionNotMet"), Refusal(404, "BlobNotFound")):
        service.refuse(refusal)
        with pytest.raises(Conflict):
            await store.put("key", b"content", if_etag="0x1")


async def test_one_refused_delete_does_not_stop_the_others(store: AzureStore, service: Service) -> None:
    """The first refusal is raised once all have been asked for."""
    keys = [f"key-{number}" for number in range(40)]
    for key in keys:
        await store.put(key, b"")
    service.refuse(Refusal(403, "AuthorizationPermissionMismatch"), after=3)
    with pytest.raises(Denied):
        await store.delete(keys)
    assert len([info async for info in store.list()]) == 1


async def test_other_containers_are_reached_by_the_same_access(endpoint: str) -> None:
    """A place is a container; one that is not named is none."""
    home = options(endpoint, "segments").model_copy(update={"places": "far-away/topics/"})
    async with AzureStore(home) as store:
        there = store.at("far-away")
        assert isinstance(there, AzureStore)
        await there.create_bucket()
        await there.put("topics/a", b"there")
        assert await there.get("topics/a") == b"there"
        with pytest.raises(BucketMissing):
            await store.head("topics/a")
        with pytest.raises(BucketMissing, match="do not name container"):
            store.at("elsewhere")
    with pytest.raises(Closed):
        await store.head("topics/a")


class Silent(Service):
    """A service that takes requests and answers none before it may."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.may = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Wait."""
        await self.may.wait()
        return await super().handle(request)


async def test_a_service_that_stays_silent_is_given_up_after_the_time_of_the_settings() -> None:
    """Not after the library's five minutes; a write may have been carried out."""
    service = Silent()
    async with serving(service) as endpoint:
        impatient = options(endpoint, "segments").model_copy(update={"read_timeout_s": 0.1, "connect_timeout_s": 300.0})
        async with AzureStore(impatient) as store:
            with pytest.raises(OutcomeUnknown, match="no answer in time"):
                await store.put("key", b"")
            with pytest.raises(Transient, match="no answer in time"):
                await store.get("key")
        service.may.set()


class Breaking(Service):
    """A service whose bodies break off."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Send a part of the body."""
        self.requests.append(request.method)
        answer = web.StreamResponse(status=206, headers={"Content-Length": "4", "Content-Range": "bytes 0-3/9"})
        await answer.prepare(request)
        await answer.write(b"ab")
        assert request.transport is not None
        request.transport.close()
        return answer


async def test_a_body_that_breaks_is_not_asked_for_again() -> None:
    """It is an error at once, as with other stores: when to try again is decided elsewhere."""
    service = Breaking(SystemClock())
    async with serving(service) as endpoint, AzureStore(options(endpoint, "segments")) as store:
        with pytest.raises(Transient, match="the answer was lost"):
            await store.get("key", 0, 4)
    assert service.requests == ["GET"]


async def test_nobody_listens(endpoint: str) -> None:
    """Then a write has certainly not been carried out."""
    async with AzureStore(options("http://127.0.0.1:1", "segments")) as store:
        with pytest.raises(Transient, match="no connection") as caught:
            await store.put("key", b"")
    assert type(caught.value) is Transient
    assert "objects.endpoint" in caught.value.hint


TEXT = f"DefaultEndpointsProtocol=https;AccountName=acc;AccountKey={KEY};EndpointSuffix=core.chinacloudapi.cn"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"azure_account": "acc"}, "https://acc.blob.core.windows.net"),
        ({"azure_account": "acc", "endpoint": "https://acc.blob.example"}, "https://acc.blob.example"),
        ({"azure_account": "acc", "endpoint": "http://127.0.0.1:10000"}, "http://127.0.0.1:10000/acc"),
        ({"azure_connection_string": TEXT}, "https://acc.blob.core.chinacloudapi.cn"),
        ({"azure_connection_string": "BlobEndpoint=https://x.y/;SharedAccessSignature=sv=1"}, "https://x.y"),
    ],
)
def test_where_an_account_is(given: dict[str, str], url: str) -> None:
    """By its name, by an endpoint with it in the host or in the path, or as the connection string says."""
    settings = ObjectsSettings.model_validate({"kind": "azure", "bucket": "segments", **given})
    assert account_of(settings).url == url
    assert KEY not in str(settings)


def test_a_connection_string_has_the_credentials() -> None:
    """Key and SAS are taken from it."""
    both = [
        {"azure_connection_string": TEXT},
        {"azure_connection_string": "AccountName=a;SharedAccessSignature=sv=1&b=c"},
    ]
    found = [account_of(ObjectsSettings.model_validate({"kind": "azure", **one})) for one in both]
    assert [(one.name, one.key, one.sas) for one in found] == [("acc", KEY, ""), ("a", "", "sv=1&b=c")]


async def test_a_key_that_is_none_is_named(endpoint: str) -> None:
    """Before anything is sent."""
    wrong = options(endpoint, "segments").model_copy(update={"azure_key": SecretStr("no base64!")})
    with pytest.raises(InvalidConfig, match="cannot make a client"):
        async with AzureStore(wrong):
            pass


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the daemon, commands and jobs say it."""

    def absent(*_: object) -> BucketStore:
        raise ModuleNotFoundError("No module named 'azure'", name="azure")

    monkeypatch.setattr(opening, "_OPEN", {"azure": absent})
    with pytest.raises(InvalidConfig) as caught:
        opening.bucket_store(ObjectsSettings(kind="azure", bucket="abc", azure_account=ACCOUNT), SystemClock())
    assert "azure" in caught.value.message
    assert "offloaderd[azure]" in caught.value.hint
