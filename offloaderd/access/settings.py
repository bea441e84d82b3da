"""Settings of encryption, authentication and roles; docs/security.md explains their use."""

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


Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
Grants = Annotated[Lines, AfterValidator(_grants), Shape("a list of ROLE IDENTITY WHERE")]


class TlsSettings(Section):
    """The daemon's certificate, for gRPC (as soon as it is given) and HTTP (http.tls)."""

    cert_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/tls.crt"])
    """The daemon's certificate, then those that sign it (PEM). With it gRPC accepts TLS only, 1.2 or newer."""

    key_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/tls.key"])
    """Its key (PEM, without a passphrase)."""

    client_ca_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/clients-ca.crt"])
    """Authorities that sign clients' certificates (PEM). With it nobody connects without a certificate. The
    certificate's common name (CN) and alternative names (URI, DNS) are the caller's identity unless a token is sent as
    well."""

    reload_s: Seconds = Field(default=10.0, ge=0.1, le=3600)
    """How often the files are read again. New connections use changed files. Files that cannot be used, or that do not
    belong together, leave the old ones in use (offloaderd_tls_reload_failing)."""


class AccessSettings(Section):
    """Who may call what. Without client certificates and tokens everybody may call everything."""

    grants: Grants = Field(
        default=(), examples=[("admin alice *", "offload broker public/*", "read spark public/default/clicks")]
    )
    """Roles, each as ROLE IDENTITY WHERE. ROLE: read; offload (push entries, have them offloaded); admin (both, and all
    changes). IDENTITY: cert:NAME (common name), uri:NAME or dns:NAME (alternative names of a certificate; a SPIFFE id
    is a URI, uri:NAME/* all below it), token:NAME, group:NAME (of a token, see token_groups_claim); a bare NAME,
    without a colon, is both cert:NAME and token:NAME. WHERE: a topic, TENANT/NAMESPACE/*, TENANT/*, re:EXPRESSION, or *
    for everything, the daemon included. In the environment separated by semicolons."""

    token_secret_key: OptionalSecret = Field(default=None, examples=["file:///etc/offloaderd/token-secret.key"])
    """Secret with which tokens are signed, as Pulsar's tokenSecretKey: file:///PATH, data:;base64,..., a path, or
    base64. Never shown."""

    token_public_key: OptionalSecret = Field(default=None, examples=[""])
    """Public key of the pair with which tokens are signed, as Pulsar's tokenPublicKey; same forms."""

    token_public_alg: Algorithm = Field(default="RS256")
    """Pulsar's tokenPublicAlg: the one algorithm that is accepted with token_public_key."""

    token_secret_key_previous: OptionalSecret = Field(default=None, examples=[""])
    """The previous secret, while tokens are replaced: tokens that it signed are still accepted. Never shown."""

    token_public_key_previous: OptionalSecret = Field(default=None, examples=[""])
    """The previous public key, while tokens are replaced: tokens that it verifies are still accepted."""

    token_public_alg_previous: Algorithm | None = Field(default=None, examples=["RS256"])
    """The one algorithm that is accepted with token_public_key_previous. Not set: token_public_alg."""

    token_jwks: OptionalText = Field(default=None, examples=["https://login.example.org/keys"])
    """Keys of an OpenID provider (its jwks_uri), or a file with them. They are read again every five minutes, and when
    a token names an unknown key. Beside token_secret_key or token_public_key both kinds of tokens are accepted."""

    token_jwks_ca_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/provider-ca.crt"])
    """Authority of the provider's certificate (PEM). Not set: those of the system."""

    token_issuer: OptionalText = Field(default=None, examples=["https://login.example.org"])
    """The claim iss of tokens that a key of token_jwks signed; required with it."""

    token_groups_claim: OptionalText = Field(default=None, examples=["groups"])
    """The claim with the caller's groups, which grants name as group:NAME; a claim within others is written with dots,
    as realm_access.roles. Not set: tokens have no groups."""

    token_claim: str = Field(default="sub", min_length=1)
    """Pulsar's tokenAuthClaim: the claim that names the caller."""

    token_audience_claim: str = Field(default="aud", min_length=1)
    """Pulsar's tokenAudienceClaim: the claim that names the audience, if token_audience is set."""

    token_audience: OptionalText = Field(default=None, examples=["offloaderd"])
    """Pulsar's tokenAudience: the audience that a token must name. Not set: any."""

    token_leeway_s: Seconds = Field(default=0.0, ge=0, le=600)
    """How much clocks may differ when the dates of a token are checked."""

    identity_calls_max: int = Field(default=1536, ge=1, le=1_000_000)
    """Calls of one identity that are served at the same time; the next is refused and may be repeated. The rest of
    grpc.calls_max is for others. It needs authentication to have an effect."""

    identity_readers_max: int = Field(default=192, ge=1, le=100_000)
    """Reads of one identity that are open at the same time. The rest of read.readers_max is for others, for instance
    for brokers beside a job that reads."""

    namespace_topics_max: int = Field(default=10_000, ge=0, le=1_000_000)
    """A broker that wants a ledger offloaded enables its topic if no policy names it, for which the role offload is
    enough. This is the number of topics of a namespace from which on that enables no more. Topics that are enabled by
    hand or by a pattern are not limited."""

    tenant_namespaces_max: int = Field(default=1000, ge=0, le=1_000_000)
    """The same for the namespaces of a tenant, and for the tenants: from this number on, requests of brokers add no
    more."""

    namespace_expressions_max: int = Field(default=20, ge=0, le=10_000)
    """Patterns re:EXPRESSION that may be enabled for a namespace that the expression spells out, for a tenant as a
    whole, and for the cluster. Each costs every daemon up to some milliseconds for each topic. Existing ones stay when
    the number is lowered."""

    audit_calls: bool = False
    """Write an event audit.call at the end of each call, also of those that push entries or only read states; without
    it only of calls that need admin, and of refused ones. With audit_reads as well the log has one event for every
    call but health checks."""

    audit_reads: bool = False
    """Write an event audit.read at the end of each read: the identity, the topic, the requested range, the bytes that
    were sent. Brokers read many times a second, so the log grows fast."""

    calls_per_s: int = Field(default=1000, ge=1, le=1_000_000)
    """Calls that one identity (without authentication: one address) may begin in a second; all of them may come at
    once. A stream is one call, however long it lasts."""

    @property
    def has_tokens(self) -> bool:
        """Whether callers may show a token."""
        return self.token_jwks is not None or self.has_own_key

    @property
    def has_own_key(self) -> bool:
        """Whether tokens that were signed with a key of the settings are accepted."""
        return self.token_secret_key is not None or self.token_public_key is not None
