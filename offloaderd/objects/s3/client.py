"""botocore's client for the S3 adapter, and its renewal after the store has refused its credentials.

botocore replaces a role's credentials in time, by their date. It cannot know that they were revoked, that the profile's
file has new ones, or that this machine's clock is wrong. So after a refusal the next request makes a new client, which
searches the whole chain again; the old one stays open while requests use it. Keys from the settings cannot be renewed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

import structlog
from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from aiobotocore.credentials import AioAssumeRoleWithWebIdentityProvider  # type: ignore[import-untyped]
from aiobotocore.httpsession import AIOHTTPSession  # type: ignore[import-untyped]
from aiobotocore.session import AioSession  # type: ignore[import-untyped]
from botocore.exceptions import BotoCoreError
from botocore.handlers import add_expect_header
from botocore.loaders import Loader

from offloaderd.core.clock import Clock
from offloaderd.core.errors import Archived, Closed, Denied, InvalidConfig
from offloaderd.objects.s3.errors import invalid_options
from offloaderd.objects.s3.sender import Sender
from offloaderd.objects.settings import ServiceSettings

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest
    from types_aiobotocore_s3 import S3Client

log = structlog.get_logger(__name__)

KEEPALIVE_S = 12.0
"""Idle connections are closed after this time, before servers and load balancers drop them."""

RENEWAL_S = 5.0
"""Least time between two renewals: many simultaneous refusals search the chain once."""


class Opened:
    """One client, and the number of requests that use it."""

    def __init__(self, client: S3Client, sender: Sender, stack: AsyncExitStack) -> None:
        self.client = client
        """For all requests but those of the sender."""
        self.sender = sender
        self.users = 0
        self.replaced = False
        self._stack = stack

    async def close_if_idle(self) -> None:
        """Close the connections of a replaced client after its last request."""
        if self.replaced and not self.users:
            await self._stack.aclose()


class Clients:
    """Lends the client to one request at a time, between `open` and `close`."""

    def __init__(self, options: ServiceSettings, where: str, clock: Clock) -> None:
        self._options = options
        self._where = where
        self._clock = clock
        self._current: Opened | None = None
        self._refused: Opened | None = None
        self._renewed_s: float | None = None
        self._renewing = asyncio.Lock()

    async def open(self) -> None:
        """Make the first client, without a request. Raises InvalidConfig."""
        self._current = await self._made()

    async def close(self) -> None:
        """Close the connections, and lend no client any more."""
        opened, self._current = self._current, None
        if opened is not None:
            opened.replaced = True
            opened.users = 0
            await opened.close_if_idle()

    @asynccontextmanager
    async def one_request(self) -> AsyncIterator[Opened]:
        """Lend the client for a request; Denied makes the next request read the credentials again."""
        await self._renew()
        opened = self._current
        if opened is None:
            raise Closed("the S3 store is closed")
        opened.users += 1
        try:
            yield opened
        except Archived:
            raise  # which other credentials would not change
        except Denied:
            self._refused = opened
            raise
        finally:
            opened.users -= 1
            await opened.close_if_idle()

    async def _renew(self) -> None:
        """Replace the client if its credentials were refused, but not twice within RENEWAL_S."""
        if not self._renewal_due():
            return
        async with self._renewing:
            if not self._renewal_due():
                return
            self._renewed_s = self._clock.monotonic()
            before = self._current
            try:
                async with asyncio.timeout(self._options.connect_timeout_s + self._options.read_timeout_s):
                    made = await self._made()
            except (InvalidConfig, TimeoutError) as error:
                log.warning("credentials.unreadable", where=self._where, error=str(error) or "no answer in time")
                return
            if before is None or self._current is not before:
                made.replaced = True
                await made.close_if_idle()
                return
            self._current = made
            before.replaced = True
            log.info("credentials.reloaded", where=self._where)
            await before.close_if_idle()

    def _renewal_due(self) -> bool:
        if self._refused is None or self._refused is not self._current or self._options.access_key is not None:
            return False
        return self._renewed_s is None or self._clock.monotonic() - self._renewed_s >= RENEWAL_S

    async def _made(self) -> Opened:
        options, stack = self._options, AsyncExitStack()
        session = AioSession(profile=options.profile)
        if options.role_arn is not None:
            _assume(session, options)
        session.register_component("data_loader", _loader())
        connections: list[AIOHTTPSession] = []

        class Connections(AIOHTTPSession):  # type: ignore[misc]
            """The client's own, which it does not show."""

            def __init__(self, *args: object, **options: object) -> None:
                super().__init__(*args, **options)
                connections.append(self)

        try:
            made = session.create_client(
                "s3",
                region_name=options.region,
                endpoint_url=options.endpoint,
                aws_access_key_id=options.access_key,
                aws_secret_access_key=options.secret_key.get_secret_value() if options.secret_key else None,
                # Without TLS there is nothing to verify, and loading the authorities takes time and a thread.
                verify=False if (options.endpoint or "").startswith("http://") else None,
                config=_client_config(options, Connections),
            )
            client: S3Client = await stack.enter_async_context(made)
        except (BotoCoreError, ValueError) as error:
            raise invalid_options(error, self._where) from error
        if options.sign_payloads:
            client.meta.events.unregister("before-call.s3", add_expect_header)  # bodies with `read` are no files
        if options.signed_host is not None:
            client.meta.events.register("before-sign.s3", partial(_name_host, options.signed_host))
        return Opened(client, Sender(client, options.bucket, connections[0].send), stack)


def _name_host(host: str, *, request: AWSRequest, **_: object) -> None:
    """Set the request's Host header, which is also signed."""
    del request.headers["Host"]  # else both names would be signed
    request.headers["Host"] = host


def _assume(session: AioSession, options: ServiceSettings) -> None:
    """Let the session first take a role with a web identity; botocore renews it in time."""
    profile = {
        "role_arn": options.role_arn,
        "web_identity_token_file": options.web_identity_token_file,
        "role_session_name": "offloaderd",
    }
    provider = AioAssumeRoleWithWebIdentityProvider(
        load_config=lambda: {"profiles": {"offloaderd": profile}},
        client_creator=partial(session.create_client, region_name=options.region),
        profile_name="offloaderd",
        disable_env_vars=True,
    )
    session.get_component("credential_provider").providers.insert(0, provider)


@cache
def _loader() -> Loader:
    """Share the parsed service descriptions, which take most of the time to make a client."""
    return Loader(include_default_search_paths=True)


def _client_config(options: ServiceSettings, connections: type[AIOHTTPSession]) -> AioConfig:
    """Return botocore's settings: no retries, no hashes of bodies that TLS protects, no validation of arguments."""
    return AioConfig(
        s3={
            "addressing_style": "path" if options.path_style else "virtual",
            "payload_signing_enabled": options.sign_payloads,
        },
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=options.connections_max,
        parameter_validation=False,
        connector_args={"keepalive_timeout": KEEPALIVE_S},
        http_session_cls=connections,
    )
