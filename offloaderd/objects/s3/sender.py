"""Requests about one object by the parts of botocore that they need: its endpoint, its signer and its connections.

A whole call of botocore takes twice to three times the CPU of the request itself: it resolves the endpoint by rules,
builds the headers, calls its handlers and parses an answer that has some twenty headers. Here botocore resolves one GET
of the bucket and does not send it; each request differs from that one in method, key, query, headers and body, which
are named as botocore's parameters are. It is signed by the client's own signer and sent by its own session. So
credentials, addressing, proxies, authorities and errors are what they are for all other requests
(docs/decisions/0058).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from botocore.awsrequest import AWSResponse, create_request_object
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError, create_parser

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aiohttp import ClientResponse
    from botocore.awsrequest import AWSPreparedRequest
    from botocore.model import OperationModel
    from types_aiobotocore_s3 import S3Client

    from offloaderd.objects.request import Body

RESOLVED = "GetObject"
_KEY = "k"
"""The key of the request that is resolved, at the end of its URL."""


class _Resolved(NamedTuple):
    """A request as botocore would sign and send it, and its signer."""

    request: Mapping[str, Any]
    signer: Any


class Answer(NamedTuple):
    """The answer to a request; its headers are found in any case."""

    status: int
    headers: Mapping[str, str]
    text: str
    """What it had to name."""


class Sender:
    """Sends requests about objects of one bucket for one client."""

    def __init__(self, client: S3Client, bucket: str, send: Callable[[AWSPreparedRequest], Awaitable[Any]]) -> None:
        """Take a client, which sends no GET itself from now on, and `send` of its own session."""
        self._client = client
        self._send = send
        self._bucket = bucket
        self._resolved: _Resolved | None = None
        client.meta.events.register_last("before-call", _not_sent)

    async def send(
        self, operation: str, key: str, parameters: Mapping[str, Any], body: Body | bytes = b""
    ) -> ClientResponse:
        """Send a request and return its answer, which the caller has to release.

        `parameters` are botocore's of the operation, without bucket, key and body. Raises botocore's errors, and
        aiohttp's. After an error of the service the next request is resolved anew, as botocore may have learnt of
        another region.
        """
        request, signer = await self._request(operation, key, parameters, body)
        request.stream_output = True
        await signer.sign(operation, request)
        sent = await self._send(request.prepare())
        answer: ClientResponse = sent.raw
        if answer.status < 300:
            return answer
        self._resolved = None
        async with answer:
            raise _refused(operation, answer, await answer.read())

    async def signed_url(self, key: str, valid_s: int) -> str:
        """Return the URL of a GET with its signature, for `valid_s`. Raises botocore's errors."""
        request, signer = await self._request(RESOLVED, key, {}, b"")
        signing = request.context.get("signing", {})
        region, name = signing.get("region", self._client.meta.region_name), signing.get("signing_name", "s3")
        auth = await signer.get_auth_instance(name, region, "s3v4-query", expires=valid_s)
        request.headers = type(request.headers)()  # else the signature has headers that nobody else would send
        auth.add_auth(request)
        return str(request.prepare().url)

    async def _request(
        self, operation: str, key: str, parameters: Mapping[str, Any], body: Body | bytes
    ) -> tuple[Any, Any]:
        """Return a request that is not signed, and the signer."""
        resolved = self._resolved
        if resolved is None:
            resolved = self._resolved = await self._resolve()
        like, path, model = resolved.request, quote(key), self._client.meta.service_model.operation_model(operation)
        headers, query = _placed(model, parameters)
        request = create_request_object(
            {
                **like,
                "method": model.http["method"],
                "url": like["url"].removesuffix(_KEY) + path + query,
                "auth_path": like["auth_path"].removesuffix(_KEY) + path,
                "headers": {**like["headers"], **headers},
                "body": body,
                "context": dict(like["context"]),
            }
        )
        return request, resolved.signer

    async def answered(
        self, operation: str, key: str, parameters: Mapping[str, Any], body: Body | bytes, named: str
    ) -> Answer:
        """Send a request whose answer is short and has to name something, by botocore's name of it.

        Raises as `send`, and ResponseParserError for an answer that does not name it.
        """
        async with await self.send(operation, key, parameters, body) as answer:
            content = await answer.read()
        if b"<Error" in content:  # behind a 200, as botocore expects it of S3
            raise _refused(operation, answer, content)
        return Answer(answer.status, answer.headers, self._named(operation, answer, content, named))

    def _named(self, operation: str, answer: ClientResponse, content: bytes, named: str) -> str:
        """Return the text of a header or an element, by botocore's description of the operation."""
        shape = self._client.meta.service_model.operation_model(operation).output_shape
        place = shape.members[named].serialization
        if place.get("location") == "header":
            text = answer.headers.get(place["name"])
        else:  # headers, which are not wanted, could only be wrong
            said = {"status_code": answer.status, "headers": {}, "body": content}
            text = create_parser("rest-xml").parse(said, shape).get(named)
        if not isinstance(text, str) or not text.strip('"'):
            raise ResponseParserError(f"no {named} in an answer of {len(content)} bytes")
        return text

    async def _resolve(self) -> _Resolved:
        found: Any = await self._client.get_object(Bucket=self._bucket, Key=_KEY)  # answered by `_not_sent`
        # Named once: the signer takes the URL apart for each request that does not name its host.
        scheme, host, *_ = urlsplit(found["request"]["url"])
        found["request"]["headers"]["Host"] = host.removesuffix(":443" if scheme == "https" else ":80")
        return _Resolved(**found)


def _placed(model: OperationModel, parameters: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Return the headers and the query that have these parameters, by botocore's description of the operation."""
    headers: dict[str, str] = {}
    query = [marks] if (marks := model.http["requestUri"].partition("?")[2]) else []
    members = model.input_shape.members
    for name, value in parameters.items():
        place = members[name].serialization
        match place["location"]:
            case "headers":
                headers |= {place["name"] + label: text for label, text in value.items()}
            case "querystring":
                query.append(f"{place['name']}={quote(str(value), safe='-_.~')}")
            case _:
                headers[place["name"]] = value
    return headers, "?" + "&".join(query) if query else ""


def _not_sent(
    *, model: OperationModel, params: Mapping[str, Any], request_signer: object, **_: object
) -> tuple[AWSResponse, dict[str, Any]] | None:
    """Answer a GET in place of the service with the request itself, as botocore's Stubber does; the last handler."""
    if model.name != RESOLVED:
        return None
    return AWSResponse(params["url"], 200, {}, None), {"request": params, "signer": request_signer}


def _refused(operation: str, answer: ClientResponse, body: bytes) -> ClientError:
    """Return botocore's exception for an error answer."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    # Below 301 botocore's parser looks for an object.
    status = max(301, answer.status) if answer.status >= 300 else 500
    said = create_parser("rest-xml").parse({"status_code": status, "headers": headers, "body": body}, None)
    return ClientError(said, operation)
