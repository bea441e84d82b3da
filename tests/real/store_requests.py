"""The operations of the ports by the requests of Azure's adapter and Google's, for faults that S3Proxy injects."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

from offloaderd.objects import keys
from offloaderd.objects.azure.blocks import parse_record
from offloaderd.objects.gcs import uploads

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.drill.s3_proxy import Message

_NAME = re.compile(rb'"name": ?"([^"]+)"')
"""Of an object, in the description that comes before its bytes."""
_OF_ONE_UPLOAD = re.compile("/[0-9a-f]{32}/$")


def _parts(request: Message) -> tuple[str, str, dict[str, str]]:
    """Return method, path and query."""
    method, target, _ = request.head[0].decode().split(" ", 2)
    path, _, query = target.partition("?")
    return method, path, dict(parse_qsl(query))


def _of_object(method: str, key: str) -> str:
    """Return the operation of a request for one object."""
    name = keys.parse("", key)
    return "delete" if method == "DELETE" else f"{method.lower()} {name.kind.value if name else 'other'}"


def of_azure(request: Message) -> str:
    """Return the operation of a request of Azure's adapter, without a prefix of the place; all lists are of uploads."""
    method, path, query = _parts(request)
    lists = {"block": "upload_part", "blocklist": "complete_upload" if method == "PUT" else "list_parts"}
    if (asked := query.get("comp", "")) in {*lists, "list"}:
        return lists.get(asked, "list_uploads")
    key = unquote("/".join(path.split("/")[3:]))  # behind account and container
    if parse_record(key) is not None:
        return {"PUT": "create_upload", "DELETE": "abort_upload"}.get(method, "other")
    return _of_object(method, key)


def of_google(request: Message) -> str:
    """Return the operation of a request of Google's adapter, without a prefix of the place."""
    method, path, query = _parts(request)
    if path.endswith("/compose"):
        return "complete_upload"
    if path.startswith("/upload/"):
        described = _NAME.search(request.body)
        name = query.get("name") or (described[1].decode() if described is not None else "")
        if name.startswith(uploads.ROOT):
            return "upload_part" if uploads.is_part(name) else "create_upload"
        return _of_object("PUT", name)
    key = unquote(path.partition("/o/")[2])
    if not key:
        prefix = query.get("prefix", "")
        if not prefix.startswith(uploads.ROOT):
            return "list"
        return "list_parts" if _OF_ONE_UPLOAD.search(prefix) else "list_uploads"
    if key.startswith(uploads.ROOT):
        return "abort_upload" if method == "DELETE" else "other"
    return _of_object("HEAD" if method == "GET" and query.get("alt") != "media" else method, key)


OPERATION_OF: dict[str, Callable[[Message], str] | None] = {"s3": None, "azure": of_azure, "gcs": of_google}
"""By `objects.kind`; None for what the proxy knows by itself."""
