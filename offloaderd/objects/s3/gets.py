"""Ranged GETs by the parts of botocore that they need: its endpoint, its signer and its connections.

A whole call of botocore takes three times the CPU of the request itself: it resolves the endpoint by rules, builds the
headers, calls its handlers and parses an answer that has some twenty headers. Here botocore resolves one GET of the
bucket and does not send it; each GET differs from that one in key and range, is signed by the client's own signer and
sent by its own session. So credentials, addressing, proxies, authorities and errors are what they are for all other
requests (docs/decisions/0058).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from botocore.awsrequest import AWSResponse, create_request_object
from botocore.exceptions import ClientError
from botocore.parsers import create_parser

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aiohttp import ClientResponse
    from botocore.awsrequest import AWSPreparedRequest
    from botocore.model import OperationModel
    from types_aiobotocore_s3 import S3Client

OPERATION = "GetObject"
_KEY = "k"
"""The key of the request that is resolved, at the end of its URL."""


class _Resolved(NamedTuple):
    """A request as botocore would sign and send it, and its signer."""

    request: Mapping[str, Any]
    signer: Any


class Gets:
    """Sends the GETs of one client for one bucket."""

    def __init__(self, client: S3Client, bucket: str, send: Callable[[AWSPreparedRequest], Awaitable[Any]]) -> None:
        """Take a client, which sends no GET itself from now on, and `send` of its own session."""
        self._client = client
        self._send = send
        self._bucket = bucket
        self._resolved: _Resolved | None = None
        client.meta.events.register_last("before-call", _not_sent)

    async def send(self, key: str, headers: Mapping[str, str]) -> ClientResponse:
        """Send a GET and return its answer, which the caller has to release. Raises botocore's errors, and aiohttp's.

        After an error of the service the next request is resolved anew, as botocore may have learnt of another region.
        """
        resolved = self._resolved
        if resolved is None:
            resolved = self._resolved = await self._resolve()
        like, path = resolved.request, quote(key)
        request = create_request_object(
            {
                **like,
                "url": like["url"].removesuffix(_KEY) + path,
                "auth_path": like["auth_path"].removesuffix(_KEY) + path,
                "headers": {**like["headers"], **headers},
                "context": dict(like["context"]),
            }
        )
        request.stream_output = True
        await resolved.signer.sign(OPERATION, request)
        sent = await self._send(request.prepare())
        answer: ClientResponse = sent.raw
        if answer.status < 300:
            return answer
        self._resolved = None
        async with answer:
            raise _refused(answer, await answer.read())

    async def _resolve(self) -> _Resolved:
        found: Any = await self._client.get_object(Bucket=self._bucket, Key=_KEY)  # answered by `_not_sent`
        return _Resolved(**found)


def _not_sent(
    *, model: OperationModel, params: Mapping[str, Any], request_signer: object, **_: object
) -> tuple[AWSResponse, dict[str, Any]] | None:
    """Answer a GET in place of the service with the request itself, as botocore's Stubber does; the last handler."""
    if model.name != OPERATION:
        return None
    return AWSResponse(params["url"], 200, {}, None), {"request": params, "signer": request_signer}


def _refused(answer: ClientResponse, body: bytes) -> ClientError:
    """Return botocore's exception for an error answer."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    status = max(301, answer.status)  # below that botocore's parser looks for an object
    said = create_parser("rest-xml").parse({"status_code": status, "headers": headers, "body": body}, None)
    return ClientError(said, OPERATION)
