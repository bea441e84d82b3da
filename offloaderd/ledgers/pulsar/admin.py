"""The brokers' admin API: the last confirmed entry of a topic, and the retention of a namespace.

Rules: a daemon only reads; a mount, which builds on this class, also writes schemas. A broker may redirect to the owner
of the topic: this class follows it itself, and sends the token only over the configured scheme. A token file is read
for every request, so that it may be rotated. A failure does not stop the source, which works without the API; one line
of log reports it.
"""

import json
import ssl
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit

import aiohttp
import structlog

from offloaderd.core.errors import Conflict, Denied, InvalidConfig, OffloaderError, Transient
from offloaderd.core.model import Position, Retained, TopicName
from offloaderd.ledgers.settings import PulsarSettings

log = structlog.get_logger(__name__)

TIMEOUT_S = 5.0
REDIRECTS_MAX = 5
ANSWER_BYTES_MAX = 64 << 20
"""A topic's internal statistics name every ledger and cursor; more than this is no answer of a broker."""
REASON_CHARS = 500
MIB = 1 << 20
_REDIRECTS = {301, 302, 303, 307, 308}


class PulsarAdmin:
    """The admin API of a cluster, by its web service URL. Async context manager."""

    timeout_s = TIMEOUT_S
    """How long an answer may take."""

    def __init__(self, url: str, options: PulsarSettings | None = None) -> None:
        """Raise InvalidConfig for a URL that is none, and for a CA file that cannot be read."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidConfig(f"{url!r} is not the URL of an admin API", hint="write http(s)://HOST:PORT")
        self._url = url.rstrip("/")
        self._scheme = parts.scheme
        self._options = options or PulsarSettings()
        self._ssl: ssl.SSLContext | bool = True
        if self._options.admin_ca_file:
            try:
                self._ssl = ssl.create_default_context(cafile=self._options.admin_ca_file)
            except OSError as error:
                raise InvalidConfig(
                    f"the CA file {self._options.admin_ca_file} cannot be used: {error}",
                    hint="it has to hold PEM certificates",
                ) from None
        self._session: aiohttp.ClientSession | None = None
        self._failing = False

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def last_confirmed(self, topic: TopicName) -> Position | None:
        """Return the writer's last confirmed entry, None when no broker knows the topic or it has none.

        Raises Denied for a token that is missing or wrong, Transient for everything else that goes wrong.
        """
        try:
            name = f"{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}"
            url = f"{self._url}/admin/v2/{topic.domain}/{name}/internalStats"
            position = _position(*await self._followed(url))
        except OffloaderError as error:
            if not self._failing:
                log.warning("pulsar_admin.failed", url=self._url, topic=str(topic), error=str(error))
            self._failing = True
            raise
        if self._failing:
            log.info("pulsar_admin.recovered", url=self._url)
        self._failing = False
        return position

    async def retained(self, tenant: str, namespace: str) -> Retained:
        """Return for how long, and how much, acknowledged entries of a namespace's topics are kept.

        That is `retentionTimeInMinutes` and `retentionSizeInMB` of the namespace's retention (0: nothing, -1: without
        limit). The brokers' default, which holds without one, is not included. Raises Denied, Transient.
        """
        url = f"{self._url}/admin/v2/namespaces/{quote(tenant, safe='')}/{quote(namespace, safe='')}/retention"
        return _retained(*await self._followed(url))

    async def _followed(self, url: str, method: str = "GET", content: object = None) -> tuple[bytes | None, str]:
        """Return the body at a URL, redirects followed (None: it does not exist), and the URL that answered.

        `content` is sent as JSON. Raises Conflict if the broker does not accept it, Denied, Transient.
        """
        for _ in range(REDIRECTS_MAX + 1):
            answer = await self._asked(method, url, content)
            if not isinstance(answer, str):
                return answer, url
            url = answer
        raise Transient(f"the admin API redirects more than {REDIRECTS_MAX} times, last to {url}")

    async def _asked(self, method: str, url: str, content: object) -> bytes | str | None:
        """Return the body at a URL, the target of a redirect (a string), or None if it does not exist."""
        if self._session is None:
            raise Transient("the admin client is not open")
        try:
            async with self._session.request(
                method, url, json=content, headers=self._headers(url), allow_redirects=False, ssl=self._ssl
            ) as answer:
                if answer.status in _REDIRECTS:
                    location = answer.headers.get("Location", "")
                    if not location.startswith(("http://", "https://")) or not urlsplit(location).hostname:
                        raise Transient(f"the admin API redirects {url} to {location!r}")
                    return location
                if answer.status in {204, 404}:  # a setting that is not set is answered without a body
                    return None
                if answer.status in {401, 403}:
                    raise Denied(
                        f"the admin API refused {url} ({answer.status})",
                        hint="set pulsar.admin_token to a token that has the right to it",
                    )
                if content is not None and answer.status in {400, 409, 412, 422}:
                    reason = (await _limited(answer, url)).decode(errors="replace")[:REASON_CHARS]
                    raise Conflict(f"the broker does not accept it ({answer.status}): {reason}")
                if answer.status not in {200, 202}:
                    raise Transient(f"the admin API answered {url} with {answer.status}")
                return await _limited(answer, url)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Transient(f"the admin API did not answer {url}: {reason}") from None

    def _headers(self, url: str) -> dict[str, str]:
        """Return the token's header; none for another scheme than the configured one."""
        token = self._options.admin_token.get_secret_value() if self._options.admin_token else ""
        if self._options.admin_token_file:
            path = Path(self._options.admin_token_file)
            try:
                token = path.read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise Denied(
                    f"the token file {path} cannot be read: {error}", hint="see pulsar.admin_token_file"
                ) from None
        if not token or urlsplit(url).scheme != self._scheme:
            return {}
        return {"Authorization": f"Bearer {token}"}


async def _limited(answer: aiohttp.ClientResponse, url: str) -> bytes:
    """Return an answer's body. Raises Transient above ANSWER_BYTES_MAX."""
    body = bytearray()
    async for data in answer.content.iter_any():
        body += data
        if len(body) > ANSWER_BYTES_MAX:
            raise Transient(f"the admin API's answer to {url} is larger than {ANSWER_BYTES_MAX} bytes")
    return bytes(body)


def _position(answer: bytes | None, url: str) -> Position | None:
    """Return the last confirmed entry that the statistics name; -1 stands for none."""
    if answer is None:
        return None
    try:
        text = json.loads(answer)["lastConfirmedEntry"]
        ledger_id, entry_id = map(int, text.split(":"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Transient(f"the admin API's answer to {url} is not a topic's internal statistics") from None
    return Position(ledger_id, entry_id) if ledger_id >= 0 and entry_id >= 0 else None


def _retained(answer: bytes | None, url: str) -> Retained:
    """Return a namespace's retention. Raises Transient for an invalid one."""
    if not answer:
        return Retained()
    try:
        found = json.loads(answer)
        minutes, mib = found["retentionTimeInMinutes"], found["retentionSizeInMB"]
    except (ValueError, TypeError, KeyError):
        minutes = mib = None
    if not (type(minutes) is int and type(mib) is int):
        raise Transient(f"the admin API's answer at {url} is no retention")
    return Retained(None if minutes < 0 else 60.0 * minutes, None if mib < 0 else mib * MIB)
