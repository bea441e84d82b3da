"""The adapter for Google Cloud Storage: what it makes of parts, of refusals, and of answers that are lost."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offloaderd.core.aio import Event
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import (
    BucketMissing,
    Closed,
    Conflict,
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
from offloaderd.objects import life_cycle
from offloaderd.objects.gcs import uploads
from offloaderd.objects.gcs.errors import RIGHTS
from offloaderd.objects.gcs.store import GcsStore
from offloaderd.objects.request import Body
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.standalone.ports import free_ports
from tests.gcs_server import GcsServer, Refusal, gcs_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from offloaderd.objects.port import PartInfo

REAL_TIME = "HTTP"
KEY = "tenant/segment"
BUCKET = "segments"


@asynccontextmanager
async def store_at(server: GcsServer, **options: object) -> AsyncIterator[GcsStore]:
    """The adapter over a server of the test."""
    settings = {"kind": "gcs", "bucket": BUCKET, "endpoint": server.endpoint, **options}
    async with GcsStore(ObjectsSettings.model_validate(settings)) as store:
        yield store


@pytest.fixture
async def server() -> AsyncIterator[GcsServer]:
    """A server with an empty bucket."""
    async with gcs_server(BUCKET) as server:
        yield server


@pytest.fixture
async def store(server: GcsServer) -> AsyncIterator[GcsStore]:
    """The adapter over it."""
    async with store_at(server) as store:
        yield store


async def uploaded(store: GcsStore, count: int) -> tuple[str, list[PartInfo]]:
    """An upload with parts of a few bytes."""
    upload = await store.create_upload(KEY, metadata={"role": "data"})
    return upload, [await store.upload_part(KEY, upload, number, [b"%05d;" % number]) for number in range(1, count + 1)]


def once(operation: str, refusal: Refusal) -> Callable[[str, str], Refusal | None]:
    """Refuse the first request of an operation."""
    left = [refusal]
    return lambda asked, _: left.pop() if left and asked == operation else None


def lost_once(operation: str, key: str = "") -> Callable[[str, str], bool]:
    """Lose the answer of the first request of an operation for such a key."""
    left = [True]
    return lambda asked, of: bool(left) and asked == operation and key in of and left.pop()


@pytest.mark.parametrize(("count", "at_once"), [(1, 32), (32, 32), (33, 32), (9, 2)])
async def test_any_number_of_parts_is_composed(
    server: GcsServer, store: GcsStore, monkeypatch: pytest.MonkeyPatch, count: int, at_once: int
) -> None:
    """Some at a time, those again where there are more; nothing but the object is left of them."""
    monkeypatch.setattr(uploads, "SOURCES_MAX", at_once)
    upload, parts = await uploaded(store, count)
    info = await store.complete_upload(KEY, upload, parts)
    assert server.buckets[BUCKET].keys() == {KEY}
    assert await store.get(KEY) == b"".join(b"%05d;" % number for number in range(1, count + 1))
    assert await store.made_of(await store.head(KEY), parts)
    assert (await store.head(KEY)).metadata == {"role": "data"}
    assert info.etag == (await store.head(KEY)).etag


async def test_what_belongs_to_uploads_is_in_no_listing_of_objects(store: GcsStore) -> None:
    """Neither under its key's prefix nor in the whole bucket."""
    await uploaded(store, 2)
    await store.put("other", b"x")
    assert [info.key async for info in store.list()] == ["other"]
    assert [info.key async for info in store.list("tenant/")] == []
    assert [info.key async for info in store.list(uploads.ROOT)] == []


@pytest.mark.parametrize("late", ["same bytes", "others", "deleted"])
async def test_a_part_that_is_replaced_while_parts_are_composed_is_compared_again(
    server: GcsServer, store: GcsStore, late: str
) -> None:
    """A late request or a fenced owner may still send: the object is made of what was compared, or not at all."""
    upload, parts = await uploaded(store, 3)
    part = uploads.part_of(KEY, upload, 2)

    def replaced(operation: str, _: str) -> None:
        if operation == "ComposeObjects":
            server.before = None
            stored = server.buckets[BUCKET].pop(part)
            if late != "deleted":
                data = b"other;" if late == "others" else stored.data
                server.buckets[BUCKET][part] = replace(stored, generation=stored.generation + 1, data=data)

    server.before = replaced
    with pytest.raises(Transient, match="replaced or deleted while"):
        await store.complete_upload(KEY, upload, parts)
    assert KEY not in server.buckets[BUCKET]
    if late == "same bytes":
        await store.complete_upload(KEY, upload, parts)
        assert server.buckets[BUCKET].keys() == {KEY}
    else:
        with pytest.raises(InvalidInput, match="part 2"):
            await store.complete_upload(KEY, upload, parts)


async def test_a_bucket_with_objects_is_there(server: GcsServer, store: GcsStore) -> None:
    """Google's listing has only the fields that were asked for."""
    await store.put("k", b"x")
    await store.check()
    assert server.requests["ListObjects"] == 1


async def test_parts_under_a_key_of_the_customer_are_compared_one_by_one(server: GcsServer, store: GcsStore) -> None:
    """Their listing has no checksums, the description of each has."""
    server.own_key = True
    upload, parts = await uploaded(store, 3)
    assert list(await store.list_parts(KEY, upload)) == parts
    await store.complete_upload(KEY, upload, parts)
    assert server.buckets[BUCKET].keys() == {KEY}
    assert await store.made_of(await store.head(KEY), parts)


async def test_no_upload_begins_under_a_key_that_is_too_long_to_end_it(server: GcsServer, store: GcsStore) -> None:
    """Parts that are composed have the longest names."""
    longest = 1024 - len(uploads.join_of("", "0" * 32, 1, 0))
    await store.create_upload("k" * longest)
    with pytest.raises(InvalidInput, match="1024 bytes"):
        await store.create_upload("k" * (longest + 1))
    assert server.requests["InsertObject"] == 1


async def test_a_lost_answer_of_composing_is_asked_again(server: GcsServer, store: GcsStore) -> None:
    """The object is there, and so is the upload: the same request again ends it."""
    upload, parts = await uploaded(store, 40)
    server.after = lost_once("ComposeObjects", KEY)
    with pytest.raises(OutcomeUnknown):
        await store.complete_upload(KEY, upload, parts)
    assert list(await store.list_parts(KEY, upload)) == parts
    await store.complete_upload(KEY, upload, parts)
    assert server.buckets[BUCKET].keys() == {KEY}


async def test_an_upload_ends_before_its_parts_are_deleted(server: GcsServer, store: GcsStore) -> None:
    """What a crash in between leaves is no upload to send to or to complete, and is listed for whoever clears it up."""
    upload, parts = await uploaded(store, 3)
    deleted: list[str] = []

    def crashed(operation: str, key: str) -> Refusal | None:
        if operation == "DeleteObject":
            deleted.append(key)
        return Refusal(503, "backendError", "crash") if len(deleted) > 1 else None

    server.before = crashed
    with pytest.raises(Throttled):
        await store.complete_upload(KEY, upload, parts)
    server.before = None
    assert deleted[0] == uploads.first_of(KEY, upload)
    assert await store.get(KEY) == b"00001;00002;00003;"
    for attempt in (
        store.list_parts(KEY, upload),
        store.complete_upload(KEY, upload, parts),
        store.upload_part(KEY, upload, 4, [b"late"]),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert [(one.key, one.upload_id) async for one in store.list_uploads(KEY)] == [(KEY, upload)]
    await store.abort_upload(KEY, upload)
    assert server.buckets[BUCKET].keys() == {KEY}
    assert [one async for one in store.list_uploads()] == []


async def test_a_part_that_was_on_its_way_when_its_upload_ended_is_found(server: GcsServer, store: GcsStore) -> None:
    """Its sender saw the upload, and the service stores the part after the end: it is rubbish with a name."""
    upload, _ = await uploaded(store, 1)
    other = uploads.part_of(KEY, upload, 2)
    server.before = lambda operation, key: (
        server.buckets[BUCKET].clear() if (operation, key) == ("InsertObject", other) else None
    )
    await store.upload_part(KEY, upload, 2, [b"late"])
    found = [one async for one in store.list_uploads()]
    assert [(one.key, one.upload_id) for one in found] == [(KEY, upload)]
    assert abs(found[0].initiated_ms - SystemClock().wall_ms()) < 60_000


async def test_a_lost_answer_of_creating_leaves_an_upload_that_is_listed(server: GcsServer, store: GcsStore) -> None:
    """Its sender does not know the id, and finds it."""
    server.after = lost_once("InsertObject")
    with pytest.raises(OutcomeUnknown):
        await store.create_upload(KEY)
    found = [one async for one in store.list_uploads(KEY)]
    part = await store.upload_part(KEY, found[0].upload_id, 1, [b"x"])
    await store.complete_upload(KEY, found[0].upload_id, [part])
    assert await store.get(KEY) == b"x"


async def test_content_may_look_like_the_end_of_an_upload(server: GcsServer, store: GcsStore) -> None:
    """Whoever knows the code writes what would end the body: no two requests have the same boundary."""
    seen: set[bytes] = set()
    for _ in range(2):
        await store.put("k", b"\r\n--offloaderd--\r\n--")
        assert await store.get("k") == b"\r\n--offloaderd--\r\n--"
        seen.add(server.boundary)
    assert len(seen) == 2


async def test_bytes_that_are_damaged_on_the_way_are_not_stored(server: GcsServer, store: GcsStore) -> None:
    """The service compares the CRC-32C that came with them; the same request may well succeed."""
    server.damaged = True
    with pytest.raises(Transient, match="CRC32C"):
        await store.put("k", b"bytes")
    assert server.buckets[BUCKET] == {}
    server.damaged = False
    await store.put("k", b"bytes")


@pytest.mark.parametrize("trusting", [False, True])
async def test_a_part_that_was_damaged_on_the_way_counts_for_nobody(
    server: GcsServer, store: GcsStore, *, trusting: bool
) -> None:
    """The service refuses it, or its answer shows it: then it is no part that its sender means, and is replaced."""
    upload, parts = await uploaded(store, 2)
    server.damaged, server.trusting = True, trusting
    with pytest.raises(Transient, match="CRC32C"):
        await store.upload_part(KEY, upload, 3, [b"by", b"tes"])
    meant = store.parts.described(3, [b"bytes"])
    damaged = [one for one in await store.list_parts(KEY, upload) if one.part_number == 3]
    assert len(damaged) == trusting
    assert meant not in damaged
    if trusting:
        with pytest.raises(InvalidInput, match="part 3"):
            await store.complete_upload(KEY, upload, [*parts, meant])
    server.damaged = False
    assert await store.upload_part(KEY, upload, 3, [b"by", b"tes"]) == meant
    await store.complete_upload(KEY, upload, [*parts, meant])
    assert await store.get(KEY) == b"00001;00002;bytes"


async def test_parts_and_their_object_have_a_content_type(server: GcsServer, store: GcsStore) -> None:
    """That of bytes, for the object and for each part."""
    upload, parts = await uploaded(store, 2)
    objects = server.buckets[BUCKET]
    assert {one.content_type for one in objects.values()} == {"application/octet-stream"}
    await store.complete_upload(KEY, upload, parts)
    assert objects[KEY].content_type == "application/octet-stream"


async def test_a_part_that_was_stored_without_its_upload_is_deleted(
    server: GcsServer, store: GcsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part was faster than the question for its upload: it is gone before its sender hears that the upload is."""
    described, inserted = store._described, Event()

    def stored(operation: str, _: str) -> bool:
        inserted.set() if operation == "InsertObject" else None
        return False

    async def asked_later(key: str) -> Mapping[str, Any]:
        await inserted.wait()
        return await described(key)

    server.after = stored
    monkeypatch.setattr(store, "_described", asked_later)
    with pytest.raises(NotFound):
        await store.upload_part(KEY, "0" * 32, 1, [b"late"])
    assert server.inserted == {uploads.part_of(KEY, "0" * 32, 1): 1}
    assert server.buckets[BUCKET] == {}


async def test_a_part_is_not_sent_to_its_end_without_its_upload(
    server: GcsServer, store: GcsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was heard meanwhile ends the request."""
    begun = Event()

    async def endless(self: Body, _: object) -> None:
        begun.set()
        await Event().wait()

    monkeypatch.setattr(Body, "write", endless)
    with pytest.raises(NotFound):
        await store.upload_part(KEY, "0" * 32, 1, [b"late"])
    assert begun.is_set()
    assert server.inserted == {}


ATTEMPTS: dict[str, Callable[[GcsStore], Awaitable[object]]] = {
    "ListObjects": lambda store: store.check(),
    "GetObject": lambda store: store.get("k"),
    "HeadObject": lambda store: store.head("k"),
    "InsertObject": lambda store: store.put("new", b"x"),
    "DeleteObject": lambda store: store.delete(["k"]),
    "CreateBucket": lambda store: store.create_bucket(),
}


@pytest.mark.parametrize("operation", ATTEMPTS)
async def test_a_refusal_names_the_right_that_is_missing(server: GcsServer, store: GcsStore, operation: str) -> None:
    """In its remedy, with the place of the role that has it."""
    await store.put("k", b"x")
    right = RIGHTS[operation]
    server.before = once(operation, Refusal(403, "forbidden", "Access denied."))
    with pytest.raises(Denied) as denied:
        await ATTEMPTS[operation](store)
    assert denied.value.hint == f"allow {right} to these credentials; the role that is needed is in deploy/gcs"
    assert BUCKET in denied.value.message


async def test_the_right_that_google_names_counts(server: GcsServer, store: GcsStore) -> None:
    """To replace an object takes the right to delete as well: the request alone does not say which was missing."""
    words = "a@b does not have storage.objects.delete access to the Google Cloud Storage object."
    server.before = once("InsertObject", Refusal(403, "forbidden", words))
    with pytest.raises(Denied, match=r"allow storage\.objects\.delete to these"):
        await store.put("k", b"x")


REFUSALS = [
    (400, "invalid", "Invalid argument.", InvalidInput, ""),
    (401, "authError", "Invalid Credentials", Expired, "read again"),
    (401, "required", "Anonymous caller does not have storage.objects.create access", Denied, "credentials_file"),
    (403, "insufficientPermissions", "Insufficient Permission", Denied, "devstorage.read_write"),
    (403, "accountDisabled", "The account is disabled in state absent", Denied, "billing"),
    (403, "retentionPolicyNotMet", "Object is subject to bucket's retention policy", Denied, "retention policy"),
    (403, "forbidden", "Permission denied on Cloud KMS key", Denied, "service agent"),
    (403, "rateLimitExceeded", "Too many", Throttled, ""),
    (404, "notFound", "The specified bucket does not exist.", BucketMissing, "objects.bucket"),
    (409, "conflict", 'The metadata for object "k" was edited during the operation.', Transient, ""),
    (412, "conditionNotMet", "Precondition", Conflict, ""),
    (429, "rateLimitExceeded", "The object exceeded the rate limit for object mutation operations", Throttled, ""),
    (500, "internalError", "Backend error", OutcomeUnknown, ""),
    (503, "backendError", "Try again", Throttled, ""),
    (307, "", "Moved", Transient, "objects.endpoint"),
    (418, "", "teapot", InvalidInput, ""),
    (599, "", "odd", Transient, ""),
]


@pytest.mark.parametrize(("status", "reason", "words", "kind", "hint"), REFUSALS)
async def test_each_refusal_has_its_error(
    server: GcsServer, store: GcsStore, status: int, reason: str, words: str, kind: type[OffloaderError], hint: str
) -> None:
    """A write's, with Google's own words and a remedy where there is one."""
    server.before = once("InsertObject", Refusal(status, reason, words))
    with pytest.raises(kind, match=re.escape(words)) as refused:
        await store.put("k", b"x")
    assert type(refused.value) is kind
    assert hint in refused.value.hint


async def test_a_bucket_that_is_not_there_is_told_from_an_object(server: GcsServer) -> None:
    """By every request; an object that is missing costs no second one."""
    async with store_at(server) as store:
        with pytest.raises(NotFound):
            await store.head("absent")
        assert server.requests == {"HeadObject": 1}
    async with store_at(server, bucket="no-such-bucket") as store:
        for attempt in (
            store.head("k"),
            store.get("k"),
            store.put("k", b"x"),
            store.delete(["k"]),
            store.create_upload("k"),
            store.check(),
            store.put("k", b"x", if_etag="0" * 32),
        ):
            with pytest.raises(BucketMissing):
                await attempt


async def test_nobody_at_the_address(server: GcsServer) -> None:
    """Was it not sent, it may be sent again: even a write has no unknown outcome."""
    endpoint = f"http://127.0.0.1:{free_ports(1, SystemClock())[0]}"
    async with store_at(server, endpoint=endpoint) as store:
        with pytest.raises(Transient, match="no connection") as refused:
            await store.put("k", b"x")
    assert type(refused.value) is Transient
    assert "objects.endpoint" in refused.value.hint


async def test_an_unreadable_answer_of_a_write_leaves_its_outcome_unknown(server: GcsServer, store: GcsStore) -> None:
    """What is no description of an object says nothing of what was done."""
    server.garbled = True
    with pytest.raises(OutcomeUnknown):
        await store.put("k", b"x")
    server.garbled = False
    server.empty = True
    for attempt in (store.put("k", b"x"), store.create_upload("k")):
        with pytest.raises(OutcomeUnknown):
            await attempt
    server.empty = False
    server.garbled = True
    with pytest.raises(Transient):
        await store.check()


async def test_a_page_for_people_is_one_line_of_an_error(server: GcsServer, store: GcsStore) -> None:
    """Balancers before the service answer with HTML of several lines."""
    server.page = "<html>\n <title>502</title>\n</html>\n"
    with pytest.raises(OutcomeUnknown, match=re.escape("<html> <title>502</title> </html>")) as refused:
        await store.put("k", b"x")
    assert "\n" not in str(refused.value)


async def test_a_closed_store_says_so(server: GcsServer) -> None:
    """Instead of an error of the library."""
    async with store_at(server) as store:
        pass
    with pytest.raises(Closed):
        await store.head("k")


async def test_no_token_goes_where_others_can_read_it(server: GcsServer) -> None:
    """Without TLS only to this machine itself."""
    with pytest.raises(InvalidConfig, match="use https"):
        async with store_at(server, endpoint="http://storage.example.com"):
            pass


async def test_other_places_are_opened_with_it(server: GcsServer) -> None:
    """Each bucket of the settings, and no other."""
    server.buckets["archive"] = {}
    async with store_at(server, places="archive/old/") as store:
        await store.at("archive").put("k", b"x")
        assert server.buckets["archive"].keys() == {"k"}
        with pytest.raises(BucketMissing, match=r"objects\.places"):
            store.at("elsewhere")


async def test_the_first_refusal_of_many_deletions_is_raised_after_all(server: GcsServer, store: GcsStore) -> None:
    """One object that may not be deleted does not keep the others."""
    for number in range(40):
        await store.put(f"k{number}", b"x")
    held = Refusal(403, "retentionPolicyNotMet", "Object 'k7' is subject to bucket's retention policy")
    server.before = lambda operation, key: held if (operation, key) == ("DeleteObject", "k7") else None
    with pytest.raises(Denied, match="k7"):
        await store.delete([f"k{number}" for number in range(40)])
    assert server.buckets[BUCKET].keys() == {"k7"}


async def test_an_object_that_others_composed_has_no_checksum_for_an_etag(server: GcsServer, store: GcsStore) -> None:
    """Pulsar's own driver composes as well: its objects say what they are, and nothing is derived from it."""
    await store.put("a", b"x")
    server.buckets[BUCKET]["a"].composed = True
    assert (await store.head("a")).etag_opaque
    assert await store.made_of(await store.head("a"), []) is None


async def test_rules_of_the_bucket_that_harm_segments_are_found(server: GcsServer, store: GcsStore) -> None:
    """What deletes current objects, and what ends uploads as it deletes their parts; not what ends old versions."""
    server.bucket = {
        "versioning": {"enabled": True},
        "lifecycle": {
            "rule": [
                {"action": {"type": "Delete"}, "condition": {"age": 30, "matchesPrefix": ["logs/", "team-a/"]}},
                {"action": {"type": "Delete"}, "condition": {"age": 3, "isLive": False}},
                {"action": {"type": "Delete"}, "condition": {"age": 1, "matchesPrefix": [uploads.ROOT]}},
                {"action": {"type": "SetStorageClass", "storageClass": "ARCHIVE"}, "condition": {"age": 9}},
                {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 1}},
            ]
        },
    }
    rules = await store.life_cycle_rules()
    found = life_cycle.harms(rules, prefix="team-a/", service="gcs", tags={}, open_s_max=2 * 86_400)
    assert [(one.rule, one.does, one.certain) for one in found] == [
        ("number 1", "deletes objects after 30 days", True),
        ("number 3", "ends uploads after 1 days, and a segment may be open for 2", True),
    ]
    assert (await store.versioning()).enabled
    assert not life_cycle.keeps_versions(rules, "team-a/")
    server.bucket = {}
    assert not await store.life_cycle_rules()
    assert not (await store.versioning()).enabled


async def test_rules_that_reach_the_folder_of_uploads_by_a_shorter_prefix_end_them(
    server: GcsServer, store: GcsStore
) -> None:
    """A rule for the whole bucket, or for what begins with a dot, deletes parts as well; one for certain endings of
    names concerns what ends so alone."""
    short, other = {"matchesPrefix": [".off"]}, {"matchesPrefix": [".offloaderd-uploads/team-b/"]}
    conditions = [short, other, {"matchesSuffix": [".tmp", ".h5"]}, {"matchesSuffix": ["-index"]}, {}]
    rules = [{"action": {"type": "Delete"}, "condition": {"age": 1, **one}} for one in conditions]
    server.bucket = {"lifecycle": {"rule": rules}}
    found = life_cycle.harms(
        await store.life_cycle_rules(), prefix="team-a/", service="gcs", tags={}, open_s_max=2 * 86_400
    )
    ends, deletes = "ends uploads after 1 days, and a segment may be open for 2", "deletes objects after 1 days"
    assert [(one.rule, one.does) for one in found] == [
        ("number 1", ends),
        ("number 4", ends),
        ("number 4", deletes),
        ("number 5", ends),
        ("number 5", deletes),
    ]


@pytest.mark.parametrize(
    ("bucket", "locked"),
    [
        ({"retentionPolicy": {"retentionPeriod": "604800"}}, "a retention policy of 7 days"),
        ({"defaultEventBasedHold": True}, "a hold on every new object"),
        ({"defaultEventBasedHold": False}, ""),
    ],
)
async def test_what_keeps_objects_from_being_deleted_is_found(
    server: GcsServer, store: GcsStore, bucket: dict[str, Any], locked: str
) -> None:
    """A retention policy or a hold of the bucket."""
    server.bucket = bucket
    assert (await store.versioning()).locked == locked


ROLE = Path("deploy/gcs/role.yaml")


async def test_the_role_is_what_the_adapter_needs(server: GcsServer) -> None:
    """With the rights of its file all but making a bucket works; without any one of them something is refused."""
    rights = frozenset(re.findall(r"storage\.\w+\.\w+", ROLE.read_text()))
    assert rights == frozenset(RIGHTS.values()) - {"storage.buckets.create"}
    for missing in (None, *sorted(rights)):
        server.buckets[BUCKET].clear()
        server.tokens = {"": rights - {missing}}
        server.anonymous = True
        refused: set[str] = set()
        async with store_at(server) as store:
            try:
                await store.check()
                await store.put(KEY, b"x")
                await store.put(KEY, b"y")
                upload, parts = await uploaded(store, 2)
                await store.complete_upload(KEY, upload, parts)
                await store.get(KEY)
                await store.delete([KEY])
                await store.life_cycle_rules()
            except Denied as denied:
                refused = set(re.findall(r"allow (\S+)", denied.hint))
        assert refused == ({missing} if missing else set())
