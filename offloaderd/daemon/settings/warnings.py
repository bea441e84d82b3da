"""Settings that are allowed and work, and may still not be what somebody wants."""

from collections.abc import Iterator

from offloaderd.access.roles import BARE, Grant
from offloaderd.core.section import is_loopback, is_private
from offloaderd.daemon.settings.sections import Settings

RENAMED = "write the new name: the next release does not take the old one"


def doubtful(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield what may be a mistake, and what to do about it."""
    yield from ((line, RENAMED) for line in settings.renamed)
    pulsar, bookkeeper = settings.pulsar, settings.bookkeeper
    has_token = pulsar.admin_token is not None or pulsar.admin_token_file is not None
    if has_token and pulsar.admin_url is not None and not is_private(pulsar.admin_url):
        yield f"the admin token is sent in the clear to {pulsar.admin_url}", "use https:// in pulsar.admin_url"
    if bookkeeper.sasl_username is not None and not bookkeeper.tls:
        yield "bookies are authenticated to, but not encrypted", "set bookkeeper.tls = true if they offer it"
    if not settings.is_authenticated and not is_loopback(settings.grpc.host):
        yield "the API is open to whoever reaches its port", "let only clients and daemons reach grpc.port"
    if settings.ledgers.kind == "none" and settings.pulsar.admin_url is not None:
        yield "pulsar.admin_url is set, but no ledgers are tailed", 'set ledgers.kind = "bookkeeper", or remove it'
    yield from _access(settings)
    yield from _stores(settings)


def _access(settings: Settings) -> Iterator[tuple[str, str]]:
    access = settings.access
    bare = [text for text in access.grants if Grant.parse(text).kinds == BARE]
    if bare and access.has_tokens and settings.tls.client_ca_file is not None:
        yield (
            f"certificates and tokens are both taken, and {len(bare)} of access.grants, as {bare[0]!r}, mean either: a "
            "token's subject may be a certificate's name",
            "write cert:NAME or token:NAME in access.grants",
        )
    if access.has_tokens and access.token_audience is None:
        yield (
            "a token that was made for any other service with this key is good here as well",
            "set access.token_audience, and make tokens for it",
        )


def _stores(settings: Settings) -> Iterator[tuple[str, str]]:
    endpoint = settings.objects.endpoint
    if is_metadata_open(settings):
        yield (
            "whoever reaches ZooKeeper may write the daemon's nodes, policies and retention among them, and so have "
            "what is stored deleted",
            'set metadata.acl = "creator" with metadata.username or metadata.tls_cert_file, and let few reach it',
        )
    if settings.objects.kind == "s3" and endpoint is not None and not is_private(endpoint):
        yield (
            f"entries go in the clear to {endpoint}, for anybody on the way to read and, in answers, to change",
            "use https:// in objects.endpoint",
        )


def is_metadata_open(settings: Settings) -> bool:
    """Whether others than the daemons may write what they keep in a ZooKeeper that other machines reach."""
    metadata = settings.metadata
    hosts = [one.rpartition(":")[0] for one in metadata.servers.partition("/")[0].split(",")]
    return metadata.acl == "open" and not all(map(is_loopback, hosts))
