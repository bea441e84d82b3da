"""Whom the S3 adapter speaks for, what it has encrypted, and which rights it needs."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest

from offloaderd.core.clock import SystemClock
from offloaderd.drill.tcp_proxy import Listener
from offloaderd.objects.s3.errors import RIGHTS
from offloaderd.objects.settings import ObjectsSettings
from tests.unit.objects.faulty import Connection, FaultyServer, store_at

REAL_TIME = "HTTP"

ROOT = Path(__file__).resolve().parents[3]
KEYLESS = {"access_key": None, "secret_key": None}
UPLOAD = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own AWS settings."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


async def taken(connection: Connection) -> None:
    """Take whatever comes."""
    if connection.head.startswith(b"PUT"):
        await connection.read_body()
    connection.answer("200 OK", UPLOAD if b"?uploads" in connection.head else b"", ETag='"e"', Connection="close")


@pytest.mark.parametrize(
    ("options", "expected", "absent"),
    [
        ({}, (), (b"x-amz-server-side-encryption",)),
        ({"encryption": "sse-s3"}, (b"x-amz-server-side-encryption: aes256\r\n",), (b"kms-key-id",)),
        (
            {"encryption": "sse-kms", "kms_key_id": "alias/offload"},
            (
                b"x-amz-server-side-encryption: aws:kms\r\n",
                b"x-amz-server-side-encryption-aws-kms-key-id: alias/offload\r\n",
            ),
            (),
        ),
    ],
)
async def test_every_new_object_requests_its_encryption(
    options: dict[str, object], expected: tuple[bytes, ...], absent: tuple[bytes, ...]
) -> None:
    """Both ways in which objects begin; parts belong to an upload that has said it."""
    server = FaultyServer(taken)
    async with store_at(server, **options) as store:
        await store.put("k", b"abc")
        assert await store.create_upload("k") == "u"
        await store.upload_part("k", "u", 1, [b"abc"])
    put, create, part = (head.lower() for head in server.heads)
    for head in (put, create):
        assert all(line in head for line in expected)
        assert not any(word in head for word in absent)
    assert b"server-side-encryption" not in part


@pytest.mark.parametrize("signed", [True, False])
async def test_what_goes_over_an_open_line_is_signed(monkeypatch: pytest.MonkeyPatch, *, signed: bool) -> None:
    """Of objects and of parts, with the hash of their bytes, so that nobody on the way puts others in their place."""
    server = FaultyServer(taken)
    monkeypatch.setattr(ObjectsSettings, "sign_payloads", signed)
    async with store_at(server) as store:
        await store.put("k", b"abc")
        await store.upload_part("k", "u", 1, [b"ab", b"c"])
    expected = sha256(b"abc").hexdigest().encode() if signed else b"unsigned-payload"
    for head in server.heads:
        assert b"x-amz-content-sha256: " + expected in head.lower()
        assert b"expect:" not in head.lower()


@pytest.mark.parametrize(
    ("said", "opaque"),
    [
        ({}, False),
        ({"x-amz-server-side-encryption": "AES256"}, False),
        ({"x-amz-server-side-encryption": "aws:kms"}, True),
        ({"x-amz-server-side-encryption": "aws:kms:dsse"}, True),
        ({"x-amz-server-side-encryption-customer-algorithm": "AES256"}, True),
    ],
)
async def test_an_etag_of_what_is_encrypted_with_a_key_proves_nothing(said: dict[str, str], *, opaque: bool) -> None:
    """The store says how, and the shape of the ETag is not asked."""

    async def told(connection: Connection) -> None:
        when = "Sun, 22 Nov 2026 21:00:00 GMT"
        connection.answer("200 OK", b"", ETag='"0123456789abcdef0123456789abcdef"', Last_Modified=when, **said)

    server = FaultyServer(told)
    async with store_at(server) as store:
        assert (await store.head("k")).etag_opaque is opaque


async def test_a_profile_is_taken_by_its_name(tmp_path: Path) -> None:
    """The one of the settings, whatever the default says."""
    names = ("default", "two")
    lines = [f"[{name}]\naws_access_key_id = AKIA{name.upper()}\naws_secret_access_key = hush\n" for name in names]
    (tmp_path / "credentials").write_text("".join(lines))
    server = FaultyServer(taken)
    async with store_at(server, **KEYLESS, profile="two") as store:
        await store.put("k", b"abc")
        await store.get("k")
    assert all(b"Credential=AKIATWO/" in head for head in server.heads)
    assert len(server.heads) == 2


async def test_a_web_identity_becomes_a_role_and_is_renewed_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token file is read and exchanged for keys; those that end within minutes are exchanged at the next use."""
    asked: list[str] = []

    async def exchange(connection: Connection) -> None:
        asked.append((await connection.read_body()).decode())
        ends_s = SystemClock().wall_ms() / 1000 + (300 if len(asked) == 1 else 86_400)
        ends = datetime.fromtimestamp(ends_s, UTC).isoformat()
        connection.answer(
            "200 OK",
            (
                "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
                f"<AccessKeyId>AKIAROLE{len(asked)}</AccessKeyId><SecretAccessKey>hush</SecretAccessKey>"
                f"<SessionToken>session{len(asked)}</SessionToken><Expiration>{ends}</Expiration>"
                "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
            ).encode(),
            Connection="close",
        )

    token = tmp_path / "token"
    token.write_text("canary-identity")
    sts, server = FaultyServer(exchange), FaultyServer(taken)
    role = {"role_arn": "arn:aws:iam::1:role/offloaderd", "web_identity_token_file": str(token)}
    async with Listener(sts.serve) as listener:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", listener.endpoint)
        async with store_at(server, **KEYLESS, **role) as store:
            await store.put("k", b"abc")
            await store.get("k")
    assert len(asked) == 2
    assert all("WebIdentityToken=canary-identity" in one and "Action=AssumeRoleWithWebIdentity" in one for one in asked)
    assert [key for head in server.heads for key in re.findall(rb"Credential=(\w+)", head)] == [
        b"AKIAROLE1",
        b"AKIAROLE2",
    ]
    assert b"session2" in server.heads[-1]


def test_the_policy_allows_what_the_code_calls_and_no_more() -> None:
    """Each call of the adapter has its action in deploy/s3/bucket-policy.json, and each action its call."""
    source = "".join(path.read_text() for path in (ROOT / "offloaderd/objects/s3").glob("*.py"))
    calls = set(re.findall(r"client\.([a-z_0-9]+)\(", source)) - {"create_bucket"}  # which only standalone asks for
    requests = {operation for operation in RIGHTS if operation != "CreateBucket"}
    sent = set(re.findall(r'self\._answered\("(\w+)"', source))
    assert {name.title().replace("_", "") for name in calls} | sent == requests
    policy = json.loads((ROOT / "deploy/s3/bucket-policy.json").read_text())
    allowed = [action for statement in policy["Statement"] for action in statement["Action"]]
    rights = {RIGHTS[operation] for operation in requests} | {"s3:PutObjectTagging"}  # of requests with tags
    assert {action for action in allowed if action.startswith("s3:")} == rights
    assert not [action for action in allowed if "*" in action]
    assert {statement["Effect"] for statement in policy["Statement"]} == {"Allow"}
