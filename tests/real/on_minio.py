"""What MinIO keeps and other servers of the tests do not: keys of a KMS, and credentials that end.

`make test-stores` runs it, beside the tests of `make test` that need an S3 server and no bookies. MinIO's own key is
one that it is started with, so nothing else is needed; the credentials come from its token service (STS), with a policy
of deploy/s3 as the policy of the session.
"""

from __future__ import annotations

import base64
import signal
from typing import TYPE_CHECKING, Any

import pytest
from botocore.session import get_session

from offloaderd.core.errors import Denied
from offloaderd.objects.port import PART_BYTES_MIN
from offloaderd.objects.s3.store import S3Store
from offloaderd.objects.settings import ObjectsSettings
from tests.integration.appending import append_to
from tests.integration.kills.test_kill_points import ENTRY_BYTES, TOPIC, TWO_PARTS
from tests.integration.processes import CLOCK, DaemonProcess, Site
from tests.integration.servers.test_bucket_policy import BUCKET, PREFIX, policy
from tests.integration.servers.test_upkeep import entries, gc, offload, read_all
from tests.real.audit import parts_stored
from tests.real.proof import ends_well
from tests.real.stores import store
from tests.real.workload import Workload
from tests.servers import S3Server, bucket_at, running, s3_client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = "pulsar-key"


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A MinIO with a key of its own."""
    key = f"{KEY}:{base64.b64encode(CLOCK.uuid().bytes + CLOCK.uuid().bytes).decode()}"
    with running(store("minio", tmp_path_factory.mktemp("minio"), CLOCK, {"MINIO_KMS_SECRET_KEY": key})) as server:
        yield S3Server(server.endpoint, server.access_key, server.secret_key)


@pytest.fixture
def bucket(minio: S3Server) -> Iterator[str]:
    """A new bucket."""
    with bucket_at(minio) as name:
        yield name


@pytest.fixture
def site(tmp_path: Path, zookeeper: str, minio: S3Server, bucket: str) -> Site:
    """A site whose objects are encrypted by the KMS's key."""
    found = Site.at(tmp_path, zookeeper, minio, bucket)
    found.settings["objects"] = {"encryption": "sse-kms", "kms_key_id": KEY}
    found.settings["offload"] = {"segment_bytes_max": 12 << 20, "block_bytes": 256 << 10, "part_bytes": PART_BYTES_MIN}
    return found


def options(server: S3Server, bucket: str, encryption: str = "default", key: str | None = None) -> ObjectsSettings:
    """Describe a bucket whose objects are to be encrypted."""
    return ObjectsSettings(
        bucket=bucket,
        endpoint=server.endpoint,
        access_key=server.access_key,
        secret_key=server.secret_key,
        encryption=encryption,
        kms_key_id=key,
    )


def said_of(server: S3Server, bucket: str, key: str) -> dict[str, Any]:
    """Return what the server says of an object."""
    with s3_client(server) as client:
        found: dict[str, Any] = client.head_object(Bucket=bucket, Key=key)
    return found


@pytest.mark.parametrize(("encryption", "key"), [("sse-s3", None), ("sse-kms", KEY), ("sse-kms", None)])
async def test_objects_are_encrypted_as_asked(minio: S3Server, bucket: str, encryption: str, key: str | None) -> None:
    """By a put and by an upload of parts; they come back bit for bit."""
    async with S3Store(options(minio, bucket, encryption, key)) as objects:
        await objects.put("put", b"content")
        upload = await objects.create_upload("parts")
        part = await objects.upload_part("parts", upload, 1, [b"content of a part"])
        assert await objects.list_parts("parts", upload) == [part]
        await objects.complete_upload("parts", upload, [part])
        assert (await objects.get("put"), await objects.get("parts", 13, 4)) == (b"content", b"part")
    for name in ("put", "parts"):
        said = said_of(minio, bucket, name)
        assert said["ServerSideEncryption"] == {"sse-s3": "AES256", "sse-kms": "aws:kms"}[encryption]
        assert ("SSEKMSKeyId" in said) == (encryption == "sse-kms")
        if key is not None:
            assert said["SSEKMSKeyId"].endswith(KEY)


async def test_a_key_that_is_not_there_is_named(minio: S3Server, bucket: str) -> None:
    """An object is refused, and an upload; nothing is stored without its encryption."""
    async with S3Store(options(minio, bucket, "sse-kms", "no-such-key")) as objects:
        for asked in (objects.put("put", b"content"), objects.create_upload("parts")):
            with pytest.raises(Denied) as caught:
                await asked
            assert "objects.kms_key_id" in caught.value.hint
        assert [one async for one in objects.list()] == []


async def test_a_killed_daemon_goes_on_with_an_encrypted_upload(site: Site) -> None:
    """What the next run finds in the bucket is its own, although ETags are no checksums there; nothing is lost."""
    workload = Workload(TOPIC, entry_bytes=ENTRY_BYTES)
    async with DaemonProcess(site) as daemon:
        async with daemon.client() as client:
            await client.enable(TOPIC)
            await workload.append(client, TWO_PARTS)
            upload, _ = await parts_stored(site, 2)
        daemon.signal(signal.SIGKILL)
        await daemon.ended()
    found = await ends_well(site, workload, entries=20)
    assert found.segments == 1
    said = said_of(S3Server(site.endpoint, site.access_key, site.secret_key), site.bucket, upload.key)
    assert said["SSEKMSKeyId"].endswith(KEY)


def session(server: S3Server, document: str) -> dict[str, str]:
    """Take credentials that end within the hour and may do what a policy says; as the environment names them."""
    client = get_session().create_client(
        "sts",
        region_name="us-east-1",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    try:
        given = client.assume_role(
            RoleArn="arn:aws:iam::123456789012:role/daemon",
            RoleSessionName="daemon",
            DurationSeconds=900,
            Policy=document,
        )["Credentials"]
    finally:
        client.close()
    return {
        "AWS_ACCESS_KEY_ID": given["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": given["SecretAccessKey"],
        "AWS_SESSION_TOKEN": given["SessionToken"],
    }


@pytest.fixture
def guarded(minio: S3Server) -> Iterator[str]:
    """The bucket of the policies."""
    with bucket_at(minio, BUCKET) as name:
        yield name


async def test_a_daemon_lives_by_its_policy_with_credentials_of_a_session(
    tmp_path: Path, zookeeper: str, minio: S3Server, guarded: str
) -> None:
    """It offloads, reads and collects garbage with what deploy/s3 allows, by keys and a token from its environment."""
    site = Site.at(tmp_path, zookeeper, minio, guarded)
    site.settings["objects"] = {"prefix": f"{PREFIX}{site.cluster}/", "access_key": "", "secret_key": ""}
    sent = entries(1200, TOPIC)
    given = session(minio, policy("bucket-policy.json"))
    async with DaemonProcess(site, environment=given) as daemon, daemon.client() as client:
        await client.enable(TOPIC)
        await append_to(client, TOPIC, sent)
        await offload(client, TOPIC)
        assert await read_all(client, TOPIC) == sent
        assert await gc(client, apply=True) == {}


@pytest.mark.parametrize("taken", ["s3:AbortMultipartUpload", "s3:ListMultipartUploadParts", "s3:PutObject"])
async def test_rights_that_other_servers_give_together_are_apart(
    minio: S3Server, guarded: str, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    """What one right allows is refused without it, by its name, and the others go on working."""
    for name, value in session(minio, policy("bucket-policy.json", taken, deny=False)).items():
        monkeypatch.setenv(name, value)
    owner = options(minio, guarded)
    refused: dict[str, str] = {}
    async with S3Store(owner) as owners, S3Store(ObjectsSettings(bucket=guarded, endpoint=minio.endpoint)) as objects:
        upload = await owners.create_upload(f"{PREFIX}upload")
        for name, asked in {
            "s3:PutObject": objects.put(f"{PREFIX}put", b"x"),
            "s3:ListMultipartUploadParts": objects.list_parts(f"{PREFIX}upload", upload),
            "s3:AbortMultipartUpload": objects.abort_upload(f"{PREFIX}upload", upload),
        }.items():
            try:
                await asked
            except Denied as error:
                refused[name] = error.hint
    assert refused.keys() == {taken}
    assert f"allow {taken} to" in refused[taken]
