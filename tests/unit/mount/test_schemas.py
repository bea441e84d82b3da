"""Schemas of a capture, given to a broker that plays the registry of one topic."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from offloaderd.capture.records import Capture, Key, Kind, schema_value
from offloaderd.core.errors import Conflict, Denied, InvalidInput, Transient
from offloaderd.core.model import TopicName
from offloaderd.ledgers.pulsar.admin import PulsarAdmin
from offloaderd.ledgers.pulsar.schemas import Schema
from offloaderd.mount.captured import Captured
from offloaderd.mount.schemas import SchemaAdmin, restored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

REAL_TIME = "HTTP"
TOPIC = TopicName("public", "default", "a b")
PATH = "/admin/v2/schemas/public/default/a%20b"
AVRO = Schema(type="AVRO", content=b'{"n": 1}', deleted=False, created_ms=5, properties={"by": "me"})
TWO = replace(AVRO, content=b'{"n": 2}')
GONE = replace(AVRO, content=b"", deleted=True)


class Registry:
    """A broker with the schemas of a topic, numbered from 0; a deletion is a version, and hides those before it."""

    def __init__(self) -> None:
        self.url = ""
        self.versions: list[dict[str, Any] | None] = []
        self.refused: tuple[int, str] | None = None
        self.shift = 0
        self.delay_s = 0.0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        await asyncio.sleep(self.delay_s)  # noqa: TID251 - as late as the test says
        if self.refused is not None:
            return web.Response(status=self.refused[0], text=self.refused[1])
        if request.method == "GET":
            if request.raw_path.startswith(f"{PATH}/schema/"):
                version = int(request.raw_path.rpartition("/")[2])
                found = self.versions[version] if version < len(self.versions) else None
                return web.Response(status=404) if found is None else web.json_response({"version": version})
            if request.raw_path != f"{PATH}/schemas":
                return web.json_response({"getSchemaResponses": []})
            first = 1 + max((index for index, one in enumerate(self.versions) if one is None), default=-1)
            listed = [
                {"version": index, "type": one["type"], "data": one["schema"], "properties": one["properties"]}
                for index, one in enumerate(self.versions)
                if one is not None and index >= first
            ]
            return web.json_response({"getSchemaResponses": listed})
        assert request.raw_path == f"{PATH}/schema"
        self.versions.append(await request.json() if request.method == "POST" else None)
        return web.json_response({"version": {"version": len(self.versions) - 1 + self.shift}})


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    """A broker on loopback."""
    registry = Registry()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", registry.handle)
    async with TestServer(app) as server:
        registry.url = str(server.make_url("")).rstrip("/")
        yield registry


async def restore(registry: Registry, versions: Mapping[int, Schema]) -> int:
    """Write versions by a client of their own."""
    async with SchemaAdmin(registry.url) as admin:
        return await admin.restore(TOPIC, versions)


async def test_versions_come_up_under_their_numbers_once(registry: Registry) -> None:
    """The rest of them, where a try before has written some."""
    assert await restore(registry, {0: AVRO}) == 1
    assert await restore(registry, {1: TWO, 0: AVRO}) == 1
    assert await restore(registry, {0: AVRO, 1: TWO}) == 0
    assert registry.versions == [
        {"type": "AVRO", "schema": '{"n": 1}', "properties": {"by": "me"}},
        {"type": "AVRO", "schema": '{"n": 2}', "properties": {"by": "me"}},
    ]


async def test_a_deletion_is_a_version(registry: Registry) -> None:
    """Later ones keep their numbers, also if the command is repeated."""
    versions = {0: AVRO, 1: GONE, 2: TWO}
    assert await restore(registry, versions) == 3
    assert [one is None for one in registry.versions] == [False, True, False]
    assert await restore(registry, versions) == 0


async def test_a_schema_that_is_deleted_at_the_end_is_written_once(registry: Registry) -> None:
    """The broker lists nothing of it then; the rest is written where a try before has written some."""
    versions = {0: AVRO, 1: GONE, 2: TWO, 3: GONE}
    assert await restore(registry, {0: AVRO, 1: GONE}) == 2
    assert await restore(registry, versions) == 2
    assert await restore(registry, versions) == 0
    assert [one is None for one in registry.versions] == [False, True, False, True]


async def test_a_broker_that_has_just_come_up_may_answer_late(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that asks for a position has no such patience."""
    monkeypatch.setattr(PulsarAdmin, "timeout_s", 0.01)
    registry.delay_s = 0.1
    with pytest.raises(Transient):
        async with PulsarAdmin(registry.url) as admin:
            await admin.last_confirmed(TOPIC)
    assert await restore(registry, {0: AVRO}) == 1


async def test_another_schema_stays(registry: Registry) -> None:
    """A producer has registered one meanwhile."""
    await restore(registry, {0: TWO})
    with pytest.raises(Conflict, match="another schema here, version 0"):
        await restore(registry, {0: AVRO, 1: TWO})
    await restore(registry, {0: TWO, 1: AVRO})
    with pytest.raises(Conflict, match="version 1"):
        await restore(registry, {0: TWO})
    assert len(registry.versions) == 2


async def test_nothing_is_written_behind_a_version_that_was_not_captured(registry: Registry) -> None:
    """It would get the number of that one."""
    with pytest.raises(Conflict, match=r"version 1 .* was not captured"):
        await restore(registry, {0: AVRO, 2: TWO})
    assert len(registry.versions) == 1


async def test_a_version_that_gets_another_number_ends_the_topic(registry: Registry) -> None:
    """Messages would be read by a wrong schema."""
    registry.shift = 3
    with pytest.raises(Conflict, match="became version 3"):
        await restore(registry, {0: AVRO, 1: TWO})
    assert len(registry.versions) == 1


async def test_pairs_are_compared_by_their_content(registry: Registry) -> None:
    """A stored pair has lengths; one of them may be empty, or absent."""
    key, value = b'{"type":"string"}', b""
    content = len(key).to_bytes(4, "big") + key + (-1).to_bytes(4, "big", signed=True) + value
    pair = replace(AVRO, type="KEY_VALUE", content=content)
    assert await restore(registry, {0: pair}) == 1
    (written,) = registry.versions
    assert written is not None
    assert json.loads(written["schema"]) == {"key": {"type": "string"}, "value": ""}
    written["schema"] = '{ "value": "", "key": {"type": "string"} }'
    assert await restore(registry, {0: pair}) == 0
    with pytest.raises(InvalidInput, match="KEY_VALUE"):
        await restore(registry, {0: pair, 1: replace(pair, content=content[:-9])})
    deep = len(b"[" * 10**5).to_bytes(4, "big") + b"[" * 10**5
    with pytest.raises(InvalidInput, match="KEY_VALUE"):
        await restore(registry, {0: pair, 1: replace(pair, content=deep)})


@pytest.mark.parametrize(("status", "error"), [(403, Denied), (500, Transient), (409, Conflict), (422, Conflict)])
async def test_answers_of_brokers_are_errors_of_their_kind(registry: Registry, status: int, error: type) -> None:
    """What is incompatible is told with the broker's words."""
    async with SchemaAdmin(registry.url) as admin:
        registry.refused = (status, "incompatible, says the broker")
        with pytest.raises(error) as caught:
            await admin._write(TOPIC, AVRO)
    assert error is not Conflict or "says the broker" in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "{", '{"getSchemaResponses": [{}]}', '{"version": 1}'])
async def test_an_answer_that_is_none_is_transient(registry: Registry, text: str) -> None:
    """It may be a proxy's."""
    registry.refused = (200, text)
    with pytest.raises(Transient):
        await restore(registry, {0: AVRO})
    async with SchemaAdmin(registry.url) as admin:
        with pytest.raises(Transient):
            await admin._write(TOPIC, AVRO)


@pytest.mark.parametrize(
    "value",
    [{"type": 7}, schema_value(replace(AVRO, content=b"\xff")), schema_value(replace(AVRO, type="KEY_VALUE"))],
)
async def test_a_captured_schema_that_cannot_be_read_stops_no_other_topic(registry: Registry, value: object) -> None:
    """No record of a schema, no text, no pair: each is told; a topic without schemas is neither counted nor told."""
    other, without = replace(TOPIC, local="other"), replace(TOPIC, local="none")
    records: dict[Key, object] = {
        (Kind.SCHEMA, str(other), "0"): value,
        (Kind.SCHEMA, str(TOPIC), "0"): schema_value(AVRO),
        (Kind.SCHEMA, str(TOPIC), "odd"): schema_value(AVRO),
    }
    captured = Captured(Capture(cluster="c", deployment_id="", taken_ms=5, records=records))
    async with SchemaAdmin(registry.url) as admin:
        counts, problems = await restored(admin, captured, [other, without, TOPIC])
    assert (counts, list(problems)) == ({TOPIC: 1}, [other])
