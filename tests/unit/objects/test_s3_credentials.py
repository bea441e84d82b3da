"""Credentials that the store no longer takes are read again from where they came, once for all requests."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from offloaderd.core.errors import Denied, Expired
from offloaderd.objects.s3 import client as s3_client
from tests.unit.objects.faulty import Connection, FaultyServer, error_body, store_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from offloaderd.objects.s3.store import S3Store

REAL_TIME = "HTTP"

FRESH_KEY = "AKIAFRESH"
KEYLESS = {"access_key": None, "secret_key": None}


def profile(key: str) -> str:
    """A credentials file as somebody's agent writes it."""
    return f"[default]\naws_access_key_id = {key}\naws_secret_access_key = hush\naws_session_token = token-of-{key}\n"


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the store's chain finds: the test writes it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    path.write_text(profile("AKIASTALE"))
    return path


def key_of(head: bytes) -> str:
    """The access key that signed a request."""
    found = re.search(rb"Credential=(\w+)/", head)
    return found[1].decode() if found else ""


def taking(key: str, *, refusal: str = "ExpiredToken") -> FaultyServer:
    """A server that takes one access key only."""

    async def classifier(connection: Connection) -> None:
        await connection.read_body()
        if key_of(connection.head) == key:
            connection.answer("200 OK", ETag='"e"')
        else:
            connection.answer("400 Bad Request", error_body(refusal))

    return FaultyServer(classifier)


USES: dict[str, Callable[[S3Store], Awaitable[object]]] = {
    "put": lambda store: store.put("k", b"abc"),
    "get": lambda store: store.get("k"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("refusal", ["ExpiredToken", "InvalidAccessKeyId"])
async def test_a_refused_key_is_read_again_before_the_next_request(credentials: Path, refusal: str, use: str) -> None:
    """The request after the refusal is signed with what the file says by then, its session token included."""
    server = taking(FRESH_KEY, refusal=refusal)
    async with store_at(server, **KEYLESS) as store:
        with pytest.raises(Denied):
            await USES[use](store)
        credentials.write_text(profile(FRESH_KEY))
        await USES[use](store)
    assert [key_of(head) for head in server.heads] == ["AKIASTALE", FRESH_KEY]
    assert b"token-of-AKIAFRESH" in server.heads[-1]


async def test_nothing_is_read_again_while_the_store_takes_the_key(
    credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New content alone changes nothing; other refusals than of the credentials neither."""
    monkeypatch.setattr(s3_client, "RENEWAL_S", 0.0)
    server = taking("AKIASTALE")
    async with store_at(server, **KEYLESS) as store:
        await store.put("k", b"abc")
        credentials.write_text(profile(FRESH_KEY))
        await store.put("k", b"abc")
    assert {key_of(head) for head in server.heads} == {"AKIASTALE"}


async def test_requests_that_are_refused_together_read_once_and_not_again_at_once(credentials: Path) -> None:
    """Many topics fail at a time: one search of the chain for all, and no other before a few seconds are over."""
    server = taking(FRESH_KEY)
    async with store_at(server, **KEYLESS) as store:

        async def put() -> str:
            try:
                await store.put("k", b"abc")
            except Expired:
                return "refused"
            return "stored"

        async def many() -> set[str]:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(put()) for _ in range(8)]
            return {task.result() for task in tasks}

        clients = store._clients
        assert await many() == {"refused"}
        first = clients._current
        assert await many() == {"refused"}
        assert clients._current is not first
        second = clients._current
        credentials.write_text(profile(FRESH_KEY))
        assert await many() == {"refused"}
        assert clients._current is second, "too soon for another look"
        clients._renewed_s = clients._clock.monotonic() - s3_client.RENEWAL_S
        assert await many() == {"stored"}


async def test_a_request_on_its_way_is_not_cut_off(credentials: Path) -> None:
    """While a slow answer is awaited, another request has the credentials read again: both end well."""
    go, arrived = asyncio.Event(), asyncio.Event()

    async def classifier(connection: Connection) -> None:
        await connection.read_body()
        if b"/slow" in connection.head:
            arrived.set()
            await go.wait()
        elif key_of(connection.head) != FRESH_KEY:
            connection.answer("400 Bad Request", error_body("ExpiredToken"))
            return
        connection.answer("200 OK", ETag='"e"')

    server = FaultyServer(classifier)
    async with store_at(server, **KEYLESS) as store, asyncio.TaskGroup() as group:
        slow = group.create_task(store.put("slow", b"abc"))
        await arrived.wait()
        with pytest.raises(Expired):
            await store.put("k", b"abc")
        credentials.write_text(profile(FRESH_KEY))
        await store.put("k", b"abc")
        go.set()
        assert (await slow).etag == "e"


async def test_a_chain_that_cannot_be_searched_leaves_the_old_key(credentials: Path) -> None:
    """A profile that is being written says nothing; the next try looks again."""
    server = taking(FRESH_KEY)
    async with store_at(server, **KEYLESS) as store:
        with pytest.raises(Expired):
            await store.put("k", b"abc")
        credentials.write_text("[default\n half of a line")
        with pytest.raises(Expired):
            await store.put("k", b"abc")
        credentials.write_text(profile(FRESH_KEY))
        store._clients._renewed_s = None
        await store.put("k", b"abc")


async def test_keys_of_the_settings_are_kept() -> None:
    """There is nowhere to read them again from."""
    server = taking(FRESH_KEY)
    async with store_at(server) as store:
        before = store._clients._current
        for _ in range(3):
            with pytest.raises(Expired):
                await store.put("k", b"abc")
        assert store._clients._current is before
