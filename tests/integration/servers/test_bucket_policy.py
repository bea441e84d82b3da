"""The policies of deploy/s3 on an S3 server that keeps them: they are enough, and each right that is missing is named.

On SeaweedFS who may put objects may also give up uploads and list parts, unless it is refused in so many words.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import Denied, OffloaderError
from offloaderd.objects import keys
from offloaderd.objects.s3.errors import RIGHTS
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.spark.source import SegmentSource
from offloaderd.standalone.seaweed import SeaweedUser
from tests.integration.appending import append_to
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.integration.servers.test_upkeep import TOPICS, command, entries, gc, marked, offload, read_all
from tests.patience import PATIENCE_S
from tests.servers import bucket_at, s3_server_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tests.servers import S3Server

POLICIES = Path(__file__).resolve().parents[3] / "deploy/s3"
BUCKET, PREFIX = "least-rights", "pulsar/"
TAKEN = sorted({right for operation, right in RIGHTS.items() if operation != "CreateBucket"})
TOPIC = TOPICS[0]
IMPLIED = {"s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"}
"""What SeaweedFS takes to be part of s3:PutObject."""
SECRET = SystemClock().uuid().hex


def policy(name: str, taken: str = "", *, deny: bool = True) -> str:
    """Fill in a policy as deploy/s3/README.md says, for a prefix, without tags and KMS; take one right away.

    `deny` says to refuse it in so many words where that is needed.
    """
    text = (POLICIES / name).read_text().replace("BUCKET/*", f"{BUCKET}/{PREFIX}*").replace("BUCKET", BUCKET)
    document: dict[str, Any] = json.loads(text)
    document["Statement"] = [one for one in document["Statement"] if "OnlyWith" not in one["Sid"]]
    for statement in document["Statement"]:
        statement["Action"] = [action for action in statement["Action"] if action != taken]
    if deny and taken in IMPLIED:
        document["Statement"].append({"Effect": "Deny", "Action": [taken], "Resource": "*"})
    return json.dumps(document)


def user_without(right: str) -> str:
    """Name the user who lacks one right."""
    return right.replace(":", "-")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with the daemon's user, the reader's, and one who lacks each right."""
    documents = {"daemon": policy("bucket-policy.json"), "reader": policy("reader-policy.json")}
    documents |= {user_without(right): policy("bucket-policy.json", right) for right in TAKEN}
    users = tuple(SeaweedUser(access_key=name, secret_key=SECRET, policy=text) for name, text in documents.items())
    with s3_server_in(tmp_path_factory.mktemp("guarded"), users) as server, bucket_at(server, BUCKET):
        yield server


@asynccontextmanager
async def store_of(server: S3Server, user: str) -> AsyncIterator[S3Store]:
    """Open the bucket as a user; as the owner with no name."""
    access_key, secret_key = (user, SECRET) if user else (server.access_key, server.secret_key)
    options = ObjectsSettings(bucket=BUCKET, endpoint=server.endpoint, access_key=access_key, secret_key=secret_key)
    async with S3Store(options) as store:
        yield store


async def refusals(server: S3Server, user: str, key: str) -> dict[str, str]:
    """Try every request that we make, as a user, on objects of the owner's; returns the hints of those refused."""
    async with store_of(server, "") as owner, store_of(server, user) as store:
        await owner.put(key, b"held")
        done, given_up = [await owner.create_upload(f"{key}-{name}") for name in ("done", "given-up")]
        part = await owner.upload_part(f"{key}-done", done, 1, [b"part"])

        async def uploads() -> list[object]:
            return [one async for one in store.list_uploads(PREFIX)]

        requests: dict[str, Callable[[], Awaitable[object]]] = {
            "ListObjectsV2": store.check,
            "GetObject": lambda: store.get(key),
            "HeadObject": lambda: store.head(key),
            "PutObject": lambda: store.put(f"{key}-put", b"x"),
            "CreateMultipartUpload": lambda: store.create_upload(f"{key}-begun"),
            "UploadPart": lambda: store.upload_part(f"{key}-given-up", given_up, 1, [b"x"]),
            "ListParts": lambda: store.list_parts(f"{key}-done", done),
            "ListMultipartUploads": uploads,
            "CompleteMultipartUpload": lambda: store.complete_upload(f"{key}-done", done, [part]),
            "AbortMultipartUpload": lambda: store.abort_upload(f"{key}-given-up", given_up),
            "DeleteObjects": lambda: store.delete([key]),
            "GetBucketLifecycleConfiguration": store.life_cycle_rules,
            "GetBucketVersioning": store.versioning,
            "CreateBucket": store.create_bucket,
        }
        assert requests.keys() == RIGHTS.keys()
        found = {}
        for operation, ask in requests.items():
            try:
                await ask()
            except Denied as error:
                found[operation] = error.hint
    return found


@pytest.mark.parametrize("taken", ["", *TAKEN])
async def test_each_right_is_kept_and_the_missing_one_is_named(guarded: S3Server, taken: str) -> None:
    """What the policy has works, on keys below the prefix; what one right gave is refused without it, by its name."""
    found = await refusals(guarded, user_without(taken) if taken else "daemon", f"{PREFIX}{taken or 'all'}")
    missing = {operation for operation, right in RIGHTS.items() if right in {taken, "s3:CreateBucket"}}
    assert found.keys() == missing
    assert all(f"allow {RIGHTS[operation]} to" in hint for operation, hint in found.items())


async def test_nothing_is_allowed_elsewhere(guarded: S3Server) -> None:
    """Keys outside the prefix are closed, what is about the bucket apart; a reader changes nothing below it."""
    about_the_bucket = {"GetBucketLifecycleConfiguration", "GetBucketVersioning"}
    elsewhere = await refusals(guarded, "daemon", "elsewhere")
    assert RIGHTS.keys() - elsewhere.keys() == {"ListObjectsV2", "ListMultipartUploads", *about_the_bucket}
    reads = await refusals(guarded, "reader", f"{PREFIX}reader")
    assert RIGHTS.keys() - reads.keys() == {"ListObjectsV2", "GetObject", "HeadObject"}


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, guarded: S3Server) -> Site:
    """A site whose daemon has the policy's rights."""
    found = Site.at(tmp_path, zookeeper, guarded, BUCKET)
    found.access_key, found.secret_key = "daemon", SECRET
    found.settings["objects"] = {"prefix": f"{PREFIX}{found.cluster}/"}
    found.settings["offload"] = {"segment_bytes_max": 60_000, "block_bytes": 8192}
    return found


async def test_daemon_collector_and_readers_live_by_their_policies(site: Site, guarded: S3Server) -> None:
    """Offload, read, collect garbage and examine with the daemon's; verify and query with the reader's."""
    sent = entries(1200, TOPIC)
    ours = keys.segment_metadata(site.cluster)
    async with DaemonProcess(site) as daemon, daemon.client() as client, store_of(guarded, "") as owner:
        await client.enable(TOPIC)
        await append_to(client, TOPIC, sent)
        await offload(client, TOPIC)
        assert await read_all(client, TOPIC) == sent
        prefix = f"{PREFIX}{site.cluster}/"
        await marked(site, owner, prefix)
        orphan = [keys.SegmentKeys(prefix, UUID(int=number)).data for number in (1, 2)]
        await owner.put(orphan[0], b"x", metadata=ours)
        await owner.create_upload(orphan[1], metadata=ours)
        finds = await gc(client, apply=True)
        assert [finds[key] for key in orphan] == [("leftover", "deleted"), ("upload", "deleted")]
        examined = [result async for result in client.examine(timeout_s=PATIENCE_S) if result.name.startswith("bucket")]
        assert [(result.name, result.found) for result in examined if result.verdict != "ok"] == []
    reader = replace(site, access_key="reader")
    code, said = await command(reader, "verify", "--against-map")
    assert (code, said["summary"]["problems"]) == (0, 0)
    assert await asyncio.to_thread(queried, reader) == sent


def queried(site: Site) -> list[bytes]:
    """Read the topic as Spark's tasks do, from the bucket alone."""
    objects = {"endpoint": site.endpoint, "bucket": BUCKET, "prefix": f"{PREFIX}{site.cluster}/"}
    secrets = {"access_key": site.access_key, "secret_key": site.secret_key}
    options = {f"objects.{name}": value for name, value in (objects | secrets).items()}
    source = SegmentSource({"path": str(TOPIC), "metadata": "bucket", "daemon.cluster": site.cluster, **options})
    reader = source.reader(source.schema())
    rows = [row for share in reader.partitions() for found in reader.read(share) for row in found.to_pylist()]  # type: ignore[union-attr]
    return [row["payload"] for row in rows]


async def test_a_daemon_reports_which_right_it_lacks(site: Site) -> None:
    """Without the right to put, its topic stalls with the right's name; without that to delete, only gc fails."""
    reads = replace(site, access_key=user_without("s3:PutObject"))
    async with DaemonProcess(reads) as daemon, daemon.client() as client:
        await client.enable(TOPIC)
        await append_to(client, TOPIC, entries(1000, TOPIC))
        while not (reason := (await client.status(TOPIC)).topics[0].stalled_reason):
            await CLOCK.sleep(0.05)
        assert "allow s3:PutObject to" in reason
    keeps = replace(site, access_key=user_without("s3:DeleteObject"), cluster=f"{site.cluster}-keeps")
    keeps.directory = site.directory / "keeps"
    keeps.directory.mkdir()
    async with DaemonProcess(keeps) as daemon, daemon.client() as client:
        await client.enable(TOPIC)
        await append_to(client, TOPIC, entries(10, TOPIC))
        await offload(client, TOPIC)
        assert await read_all(client, TOPIC) == entries(10, TOPIC)
        with pytest.raises(OffloaderError) as caught:
            await gc(client, apply=True)
        assert "allow s3:DeleteObject to" in caught.value.hint
