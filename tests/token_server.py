"""A server that issues access tokens as Google does: for signed keys, for foreign identities, and to machines."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

EMAIL = "offloaderd@project.iam.gserviceaccount.com"
GOOGLE = "https://oauth2.googleapis.com/token"
"""What a signed request for a token is for, whoever is asked."""
AUDIENCE = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/cluster"


@dataclass(kw_only=True)
class TokenServer:
    """What is issued, and to whom."""

    endpoint: str = ""
    tokens: list[str] = field(default_factory=lambda: ["first"])
    """Tokens by request; the last one from then on."""
    holds_s: int = 3600
    refusal: tuple[int, dict[str, str]] | None = None
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by way."""
    public_key: Any = None
    subject: str = ""
    """The identity token that is known."""

    def _issued(self, way: str) -> web.Response:
        self.requests[way] += 1
        if self.refusal is not None:
            status, said = self.refusal
            return web.json_response(said, status=status)
        token = self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0]
        return web.json_response(
            {
                "access_token": token,
                "expires_in": self.holds_s,
                "token_type": "Bearer",
                "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            }
        )

    async def signed(self, request: web.Request) -> web.Response:
        """Issue a token for a signed assertion (RFC 7523)."""
        form = await request.post()
        claims = jwt.decode(str(form["assertion"]), self.public_key, algorithms=["RS256"], audience=GOOGLE)
        assert claims["iss"] == EMAIL
        assert claims["scope"] == "https://www.googleapis.com/auth/devstorage.read_write"
        return self._issued("signed")

    async def exchanged(self, request: web.Request) -> web.Response:
        """Issue a token for another issuer's (RFC 8693)."""
        form = await request.post()
        assert form["audience"] == AUDIENCE
        if form["subject_token"] != self.subject:
            return web.json_response({"error": "invalid_grant", "error_description": "unknown subject"}, status=400)
        return self._issued("exchanged")

    async def of_the_machine(self, request: web.Request) -> web.Response:
        """Issue the token of the machine's or pod's own service account."""
        assert request.headers["Metadata-Flavor"] == "Google"
        return self._issued("machine")

    async def metadata(self, request: web.Request) -> web.Response:
        """Answer what else a machine asks of its metadata."""
        headers = {"Metadata-Flavor": "Google"}
        if request.path.endswith("project-id"):
            return web.Response(text="project", headers=headers)
        if request.query.get("recursive"):
            said = {"email": EMAIL, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
            return web.json_response(said, headers=headers)
        return web.Response(text="googleapis.com" if "universe" in request.path else "", headers=headers)

    def service_account(self, path: Path) -> Path:
        """Write the key of a service account of this server."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.public_key = key.public_key()
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        described = {
            "type": "service_account",
            "project_id": "project",
            "private_key_id": "1",
            "private_key": pem.decode(),
            "client_email": EMAIL,
            "token_uri": f"{self.endpoint}/token",
        }
        path.write_text(json.dumps(described))
        return path

    def federation(self, path: Path) -> Path:
        """Write the description of a workload identity federation, and the pod's token that it names."""
        identity = path.with_suffix(".token")
        identity.write_text(self.subject)
        described = {
            "type": "external_account",
            "audience": AUDIENCE,
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{self.endpoint}/exchange",
            "credential_source": {"file": str(identity)},
        }
        path.write_text(json.dumps(described))
        return path


@asynccontextmanager
async def token_server() -> AsyncIterator[TokenServer]:
    """Serve on loopback until the block ends."""
    server = TokenServer(subject="token of a pod")
    application = web.Application()
    application.router.add_post("/token", server.signed)
    application.router.add_post("/exchange", server.exchanged)
    application.router.add_get("/computeMetadata/v1/instance/service-accounts/{account}/token", server.of_the_machine)
    application.router.add_get("/{path:.*}", server.metadata)
    runner = web.AppRunner(application, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
