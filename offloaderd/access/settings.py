"""Settings of encryption, authentication and roles; docs/security.md says how to use them."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from offloaderd.access.roles import Grant
from offloaderd.core.errors import InvalidInput
from offloaderd.core.section import Lines, OptionalSecret, OptionalText, Seconds, Section, Shape


def _grants(value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        try:
            Grant.parse(text)
        except InvalidInput as error:
            raise ValueError(f"{error.message} ({error.hint})") from error
    return value


Grants = Annotated[Lines, AfterValidator(_grants), Shape("a list of ROLE IDENTITY WHERE")]


class TlsSettings(Section):
    """The daemon's certificate, for gRPC (as soon as it is given) and HTTP (http.tls)."""

    cert_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/tls.crt"])
    """The daemon's certificate, then those that sign it (PEM). Given: gRPC speaks TLS alone, 1.2 or newer."""

    key_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/tls.key"])
    """Its key (PEM, without a passphrase)."""

    client_ca_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/clients-ca.crt"])
    """Authorities that sign clients' certificates (PEM). Given: nobody connects without one, and its common name (CN)
    or an alternative name (URI, DNS) is the caller's identity unless a token is sent as well."""

    reload_s: Seconds = Field(default=10.0, ge=0.1, le=3600)
    """How often the files are looked at; changed ones are used for new connections. Those that cannot be used, or do
    not fit each other, leave the old in place (offloaderd_tls_reload_failing)."""


class AccessSettings(Section):
    """Who may call what. Without client certificates and tokens: everybody, everything."""

    grants: Grants = Field(
        default=(), examples=[("admin alice *", "offload broker public/*", "read spark public/default/clicks")]
    )
    """Roles, each as ROLE IDENTITY WHERE. ROLE: read; offload (push entries, have them offloaded); admin (both, and
    change what holds). IDENTITY: cert:NAME (common name), uri:NAME or dns:NAME (alternative names of a certificate; a
    SPIFFE id is a URI), token:NAME; a bare NAME, without a colon, means cert: and token: alike. WHERE: a topic,
    TENANT/NAMESPACE/*, TENANT/*, re:EXPRESSION, or * for everything, the daemon included. In the environment separated
    by semicolons."""

    token_secret_key: OptionalSecret = Field(default=None, examples=["file:///etc/offloaderd/token-secret.key"])
    """Secret with which tokens are signed, as Pulsar's tokenSecretKey: file:///PATH, data:;base64,..., or base64. Never
    shown."""

    token_public_key: OptionalSecret = Field(default=None, examples=[""])
    """Public key of the pair with which tokens are signed, as Pulsar's tokenPublicKey; same forms."""

    token_public_alg: Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"] = Field(
        default="RS256"
    )
    """Pulsar's tokenPublicAlg: the one algorithm that is accepted with token_public_key."""

    token_secret_key_previous: OptionalSecret = Field(default=None, examples=[""])
    """The secret before, while tokens are replaced: what it signed is taken as well. Never shown."""

    token_public_key_previous: OptionalSecret = Field(default=None, examples=[""])
    """The public key before, while tokens are replaced."""

    token_public_alg_previous: (
        Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"] | None
    ) = Field(default=None, examples=["RS256"])
    """The one algorithm that is accepted with token_public_key_previous. Not set: token_public_alg."""

    token_claim: str = Field(default="sub", min_length=1)
    """Pulsar's tokenAuthClaim: the claim that names the caller."""

    token_audience_claim: str = Field(default="aud", min_length=1)
    """Pulsar's tokenAudienceClaim; looked at if token_audience is set."""

    token_audience: OptionalText = Field(default=None, examples=["offloaderd"])
    """Pulsar's tokenAudience: for whom a token must be meant. Not set: for anybody."""

    token_leeway_s: Seconds = Field(default=0.0, ge=0, le=600)
    """By how much clocks may differ when a token's dates are judged."""

    identity_calls_max: int = Field(default=1536, ge=1, le=1_000_000)
    """Calls of one identity that are served at the same time; the next is refused and may come again. What is left of
    grpc.calls_max is for others. Counts with authentication alone."""

    identity_readers_max: int = Field(default=192, ge=1, le=100_000)
    """Reads of one identity that are open at the same time, as identity_calls_max: what is left of read.readers_max is
    for others, for instance for brokers beside a job that reads."""

    namespace_topics_max: int = Field(default=10_000, ge=0, le=1_000_000)
    """Topics that a namespace may have here before a broker's offload enables no further one that nobody spoke of: the
    role offload is enough for that. What is enabled by hand or by a pattern is not bounded."""

    tenant_namespaces_max: int = Field(default=1000, ge=0, le=1_000_000)
    """Namespaces that a tenant may have here, and tenants in all, before a broker's offload adds another one; as
    namespace_topics_max."""

    namespace_expressions_max: int = Field(default=20, ge=0, le=10_000)
    """Patterns re:EXPRESSION that may be enabled of a namespace, as the expression spells it out, of a tenant as a
    whole, and of the cluster; each takes up to some milliseconds of every daemon for each topic. Those that are there
    stay when the number is lowered."""

    audit_reads: bool = False
    """Write an event audit.read at the end of each read: who, topic, the range that was asked for, the bytes that were
    sent. Brokers read many times a second, and the log grows with them."""

    calls_per_s: int = Field(default=1000, ge=1, le=1_000_000)
    """Calls that one identity (without authentication: one address) may begin in a second, in bursts of as many. A
    stream is one call however long it lasts."""

    @property
    def has_tokens(self) -> bool:
        """Whether callers may show a token."""
        return self.token_secret_key is not None or self.token_public_key is not None
