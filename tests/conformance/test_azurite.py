"""What Azurite refuses, as the adapter names it; and the roles in deploy/azure."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from azure.storage.blob import generate_container_sas
from pydantic import SecretStr

from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import BucketMissing, Denied, Expired
from offloaderd.objects.azure.errors import RIGHTS
from offloaderd.objects.azure.store import AzureStore
from tests.azure.service import ACCOUNT, KEY, options

if TYPE_CHECKING:
    from offloaderd.objects.settings import ObjectsSettings

DEPLOY = Path(__file__).parents[2] / "deploy" / "azure"


@pytest.fixture
async def owner(azurite: str) -> ObjectsSettings:
    """Access by the account's key to a new container that has one object."""
    found = options(azurite, f"test-{SystemClock().uuid().hex[:16]}")
    async with AzureStore(found) as store:
        await store.create_bucket()
        await store.put("key", b"content")
    return found


def by_sas(owner: ObjectsSettings, letters: str, until_s: float = 3600) -> ObjectsSettings:
    """Return access by a SAS with these letters."""
    now = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)
    sas = generate_container_sas(
        ACCOUNT,
        owner.bucket,
        KEY,
        permission=letters,
        start=now - timedelta(days=1),
        expiry=now + timedelta(seconds=until_s),
    )
    return owner.model_copy(update={"azure_key": None, "azure_sas": SecretStr(sas)})


async def test_the_letters_of_the_roles_page_are_enough(owner: ObjectsSettings) -> None:
    """Every request is made with a SAS of these four letters."""
    async with AzureStore(by_sas(owner, "rwdl")) as store:
        await store.check()
        upload = await store.create_upload("parts")
        part = await store.upload_part("parts", upload, 1, [b"part"])
        assert list(await store.list_parts("parts", upload)) == [part]
        info = await store.complete_upload("parts", upload, [part])
        assert await store.made_of(info, [part])
        assert [found.key async for found in store.list()] == ["key", "parts"]
        await store.delete(["key", "parts"])


@pytest.mark.parametrize("letter", ["r", "w", "d", "l"])
async def test_a_letter_that_a_sas_lacks_is_named(owner: ObjectsSettings, letter: str) -> None:
    """With the data action that it stands for."""
    async with AzureStore(by_sas(owner, "rwdl".replace(letter, ""))) as store:
        calls = {
            "r": lambda: store.get("key"),
            "w": lambda: store.put("key", b""),
            "d": lambda: store.delete(["key"]),
            "l": store.check,
        }
        with pytest.raises(Denied) as caught:
            await calls[letter]()
    assert f"(SAS: {letter})" in caught.value.hint


async def test_a_sas_that_has_expired_is_named(owner: ObjectsSettings) -> None:
    """It is another error than a missing right; Azurite gives both the same code, and tells them apart by nothing."""
    async with AzureStore(by_sas(owner, "rwdl", until_s=-60)) as store:
        with pytest.raises((Expired, Denied)) as caught:
            await store.check()
    assert "SAS" in caught.value.hint


async def test_a_wrong_key_a_wrong_account_and_no_container(owner: ObjectsSettings) -> None:
    """Each is named by what to correct."""
    for change, kind, remedy in (
        ({"azure_key": SecretStr("d3Jvbmc=")}, Denied, "its key"),
        ({"azure_account": "another"}, BucketMissing, "objects.azure_account"),
        ({"bucket": "absent"}, BucketMissing, "create the container"),
    ):
        async with AzureStore(owner.model_copy(update=change)) as store:
            for call in (store.check(), store.put("key", b"x"), store.get("key"), store.head("key")):
                with pytest.raises(kind) as caught:
                    await call
                assert remedy in caught.value.hint


def test_the_roles_allow_what_the_code_requests_and_no_more() -> None:
    """Each request has its data action in deploy/azure/role.json, and each action a request, or sets tags."""
    needed = {right.partition(" ")[0] for operation, right in RIGHTS.items() if operation != "CreateContainer"}
    role = json.loads((DEPLOY / "role.json").read_text(encoding="utf-8"))
    tags = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/tags/write"
    assert set(role["DataActions"]) == {*needed, tags}
    assert role["Actions"] == []
    reader = json.loads((DEPLOY / "reader-role.json").read_text(encoding="utf-8"))
    assert set(reader["DataActions"]) == {one for one in needed if one.endswith("/read")}
    page = (DEPLOY / "README.md").read_text(encoding="utf-8")
    assert all(operation in page for operation in RIGHTS if operation != "CreateContainer")
