"""Schemas out of a capture, through the admin API of the new cluster's brokers, version by version.

Schemas are in BookKeeper, where only brokers write. A version has to get its old number, which the messages name; so
versions are written in their order, and the first one that does not get its number ends the work on its topic.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from offloaderd.core.errors import Conflict, InvalidInput, Transient
from offloaderd.core.model import TopicName
from offloaderd.ledgers.pulsar.admin import PulsarAdmin
from offloaderd.ledgers.pulsar.schemas import KEY_VALUE, Schema, key_value_text
from offloaderd.mount.captured import Captured


class SchemaAdmin(PulsarAdmin):
    """Reads and writes schemas of topics. Async context manager."""

    timeout_s = 60.0
    """A broker of a new cluster answers the first writes late: it makes ledgers, and loads the namespace's policies."""

    async def restore(self, topic: TopicName, versions: Mapping[int, Schema]) -> int:
        """Write the versions of a topic's schema that are missing; return how many those were. May be repeated.

        Raises Conflict if the topic has other ones, or a version would not get its number, InvalidInput for one that
        brokers cannot be given, and Transient and Denied.
        """
        there = await self.schemas(topic)
        for version, found in there.items():
            if version not in versions or found != _payload(versions[version]):
                raise Conflict(f"{topic} has another schema here, version {version}")
        last = max(there) if there else await self._last_deletion(topic, versions)
        missing = range(last + 1, max(versions, default=-1) + 1)
        for version in missing:
            if version not in versions:
                raise Conflict(f"version {version} of the schema of {topic} was not captured, so it ends before that")
            written = await self._write(topic, versions[version])
            if written != version:
                raise Conflict(f"version {version} of the schema of {topic} became version {written} here")
        return len(missing)

    async def schemas(self, topic: TopicName) -> dict[int, dict[str, Any]]:
        """Return the versions of a topic's schema as they are written. Raises Transient, Denied.

        Brokers leave out those before a deletion.
        """
        answer, at = await self._followed(f"{self._schemas(topic)}/schemas")
        try:
            found = json.loads(answer)["getSchemaResponses"] if answer else []
            return {int(one["version"]): _given(one["type"], one["data"], one["properties"]) for one in found}
        except (ValueError, KeyError, TypeError):
            raise Transient(f"the admin API's answer to {at} is no list of schemas") from None

    async def _last_deletion(self, topic: TopicName, versions: Mapping[int, Schema]) -> int:
        """Return the version that an earlier try has written last, where the broker lists none; -1 for none.

        That is the deletion behind the greatest version that the broker still gives by its number.
        """
        for version in sorted(versions, reverse=True):
            if version + 1 in versions and versions[version + 1].deleted and not versions[version].deleted:
                answer, _ = await self._followed(f"{self._schemas(topic)}/schema/{version}")
                if answer is not None:
                    return version + 1
        return -1

    async def _write(self, topic: TopicName, schema: Schema) -> int:
        """Write a version, the deletion of the schema too; return its number."""
        method, content = ("DELETE", None) if schema.deleted else ("POST", _payload(schema))
        answer, at = await self._followed(f"{self._schemas(topic)}/schema", method, content)
        try:
            return int(json.loads(answer or b"")["version"]["version"])
        except (ValueError, KeyError, TypeError):
            raise Transient(f"the admin API's answer to {at} names no version of a schema") from None

    def _schemas(self, topic: TopicName) -> str:
        return f"{self._url}/admin/v2/schemas/{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}"


async def restored(
    admin: SchemaAdmin, captured: Captured, topics: Iterable[TopicName]
) -> tuple[dict[TopicName, int], dict[TopicName, str]]:
    """Write the schemas of topics; return the number of versions written, and why others were not.

    Raises Denied, and Transient where no broker answers.
    """
    counts: dict[TopicName, int] = {}
    problems: dict[TopicName, str] = {}
    for topic in topics:
        try:
            versions = captured.schemas(topic)
            if versions:
                counts[topic] = await admin.restore(topic, versions)
        except (Conflict, InvalidInput) as error:
            problems[topic] = str(error)
    return counts, problems


def _given(kind: str, text: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return a version as it is written and compared; what a pair of schemas says counts, not how it is spelled."""
    schema = json.dumps(json.loads(text), sort_keys=True) if kind == KEY_VALUE else text
    return {"type": kind, "schema": schema, "properties": dict(properties)}


def _payload(schema: Schema) -> dict[str, Any]:
    """Return what the admin API takes (PostSchemaPayload). Raises InvalidInput."""
    try:
        text = key_value_text(schema.content) if schema.type == KEY_VALUE else schema.content.decode()
        return _given(schema.type, text, schema.properties)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"a schema of type {schema.type} cannot be given to brokers: {error}") from None
