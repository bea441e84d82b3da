"""Ranged GETs of Azure by the parts of its library that they need: its transport, and the policy that authorizes.

A download of the library has three times the CPU of the request: headers that are sorted as the service does it,
sixteen policies, a body that is copied four times. It also repeats a download that breaks, after a second; here nothing
is repeated (docs/decisions/0058).
"""

from __future__ import annotations

import re
from email.utils import formatdate
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from azure.core.exceptions import HttpResponseError
from azure.core.pipeline import AsyncPipeline
from azure.core.pipeline.transport import HttpRequest

if TYPE_CHECKING:
    from aiohttp import ClientResponse
    from azure.core.pipeline.transport import AioHttpTransport
    from azure.storage.blob.aio import BlobServiceClient

    from offloaderd.core.clock import Clock

_FIELD = re.compile(r"<(\w+)>([^<]*)</\1>")


class Gets:
    """Sends the GETs of one client, with its credentials."""

    def __init__(self, service: BlobServiceClient, url: str, transport: AioHttpTransport, clock: Clock) -> None:
        """Take the client of an account, the account's URL, and the transport of the client."""
        policy: Any = service._credential_policy  # noqa: SLF001 - shown nowhere else; of each kind of credentials
        self._pipeline: AsyncPipeline[HttpRequest, Any] = AsyncPipeline(transport, policies=[policy])
        self._version = service.api_version
        self._url = url
        self._clock = clock

    async def send(self, container: str, key: str, wanted: str) -> ClientResponse:
        """Send a GET for a range, "" for the whole blob; the caller has to release the answer.

        Raises the library's errors.
        """
        headers = {
            "Accept-Encoding": "identity",
            "x-ms-date": formatdate(self._clock.wall_ms() / 1000, usegmt=True),
            "x-ms-version": self._version,
            **({"x-ms-range": wanted} if wanted else {}),
        }
        url = f"{self._url}/{container}/{quote(key, safe='~/')}"
        response = (await self._pipeline.run(HttpRequest("GET", url, headers=headers), stream=True)).http_response
        answer: ClientResponse = response.internal_response
        if response.status_code < 300:
            return answer
        async with answer:
            await response.load_body()
            raise _refused(response)


def _refused(response: Any) -> HttpResponseError:  # noqa: ANN401 - untyped there
    """Return the library's exception for a refusal, with what its own requests note in it."""
    fields = {name: unescape(text) for name, text in _FIELD.findall(response.body().decode(errors="replace"))}
    error: Any = HttpResponseError(message=fields.pop("Message", None) or response.reason, response=response)
    code = fields.pop("Code", None)
    error.error_code = code or response.headers.get("x-ms-error-code")
    error.additional_info = fields
    return error  # type: ignore[no-any-return]
