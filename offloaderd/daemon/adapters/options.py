"""From settings to what each component wants to know: the one place where both vocabularies meet. No I/O."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from offloaderd.api.server import ServerOptions
from offloaderd.api.services.inspect import InspectService, held
from offloaderd.bookkeeper.connections.options import BookieOptions, SaslOptions, TlsOptions
from offloaderd.bookkeeper.options import SourceOptions
from offloaderd.core.byte_budget import ByteBudget
from offloaderd.core.section import is_private
from offloaderd.ledgers.pulsar.admin import AdminOptions
from offloaderd.metadata.zookeeper.client import ZooKeeperSecurity
from offloaderd.objects.places import Place, Places
from offloaderd.objects.retrying import RetryingReader
from offloaderd.objects.s3.options import S3Options
from offloaderd.objects.settings import named_places
from offloaderd.policy.merge import Level, Origin
from offloaderd.policy.policies import OffloadPolicies
from offloaderd.policy.rules import Surroundings
from offloaderd.read.reader import ReadOptions
from offloaderd.read.segments.reader import SegmentOptions
from offloaderd.upkeep.explain import Explainer
from offloaderd.upkeep.stored import Site
from offloaderd.upkeep.verify.scrub import Scrubber
from offloaderd.upkeep.verify.topic import CALLS_BYTES, TopicVerifier

if TYPE_CHECKING:
    from offloaderd.access.certificates import Certificates
    from offloaderd.access.watched import Watched
    from offloaderd.core.clock import Clock
    from offloaderd.daemon.settings import Settings
    from offloaderd.fleet.engine import Engine
    from offloaderd.metadata.port import MetadataStore
    from offloaderd.objects.port import SegmentStore
    from offloaderd.read.reader import TopicReader
    from offloaderd.segment.context import OffloadContext
    from offloaderd.upkeep.grants.revoke_on_damage import GrantRevoker

SINGLES_WINDOW_MAX = 64
"""Single reads that one ledger's reader has on their way; more than a few answers ahead only takes memory."""


def policy_levels(settings: Settings) -> list[Level]:
    """Return what the daemon says of topics by its settings: what somebody wrote down, and what is so by default."""
    where = {
        "segment_bytes_max": (settings.offload, "segment_bytes_max"),
        "segment_age_max_s": (settings.offload, "segment_age_max_s"),
        "segment_age_min_s": (settings.offload, "segment_age_min_s"),
        "deletion_lag_s": (settings.grants, "deletion_lag_s"),
        "read_priority": (settings.read, "priority"),
        "bucket": (settings.objects, "bucket"),
        "prefix": (settings.objects, "prefix"),
        "outage": (settings.outage, "policy"),
        "retention": (settings.retention, "kind"),
    }
    values: dict[str, Any] = {name: getattr(section, key) for name, (section, key) in where.items()}
    values["bucket"] = places(settings).home.bucket  # a directory has none
    given = {name for name, (section, key) in where.items() if key in section.model_fields_set}
    limits = {"retention_age_s": settings.retention.age_s, "retention_bytes": settings.retention.size_bytes}
    values |= {name: value or None for name, value in limits.items()}
    given |= {"retention_age_s", "retention_bytes"} if "retention" in given else set()
    return [
        Level(Origin.SETTINGS, OffloadPolicies(**{name: value for name, value in values.items() if name in given})),
        Level(Origin.DEFAULT, OffloadPolicies(**values)),
    ]


def surroundings(settings: Settings) -> Surroundings:
    """Return what a policy has to go with on this daemon."""
    kind = settings.ledgers.kind
    return Surroundings(
        places=tuple((place.bucket, place.prefix) for place in places(settings)),
        has_source=kind != "none",
        has_brokers=kind == "bookkeeper",
    )


def read_options(settings: Settings) -> ReadOptions:
    """Return how to read; the tables of segments get an eighth of the cache."""
    cache_bytes = settings.memory.cache_bytes
    return ReadOptions(
        batch_bytes=settings.read.batch_bytes,
        segments=SegmentOptions(
            cache_bytes=cache_bytes - cache_bytes // 8,
            tables_bytes=cache_bytes // 8,
            read_ahead_bytes=settings.read.read_ahead_bytes,
        ),
    )


def server_options(settings: Settings, certificates: Watched[Certificates] | None) -> ServerOptions:
    """Return where the gRPC server listens, with which certificates, and its limits."""
    return ServerOptions(
        host=settings.grpc.host,
        port=settings.grpc.port,
        message_bytes_max=settings.grpc.message_bytes_max,
        streams_max=settings.grpc.streams_max,
        handshake_s_max=settings.grpc.handshake_s_max,
        certificates=certificates,
    )


def zookeeper_security(settings: Settings) -> ZooKeeperSecurity:
    """Return how ZooKeeper is connected to, and as whom."""
    metadata = settings.metadata
    return ZooKeeperSecurity(
        tls=metadata.tls,
        ca_file=metadata.tls_ca_file,
        cert_file=metadata.tls_cert_file,
        key_file=metadata.tls_key_file,
        hostname_check=metadata.tls_hostname_check,
        username=metadata.username,
        password=metadata.password.get_secret_value() if metadata.password else None,
        sasl=metadata.auth == "sasl",
        private=metadata.acl == "creator",
    )


def s3_options(settings: Settings) -> S3Options:
    """Return what the S3 adapter needs to know."""
    objects = settings.objects
    return S3Options(
        endpoint=objects.endpoint,
        signed_host=objects.signed_host,
        region=objects.region,
        bucket=objects.bucket,
        others=tuple(sorted(places(settings).buckets - {objects.bucket})),
        access_key=objects.access_key,
        secret_key=objects.secret_key.get_secret_value() if objects.secret_key else None,
        profile=objects.profile,
        role_arn=objects.role_arn,
        web_identity_token_file=objects.web_identity_token_file,
        encryption={"default": None, "sse-s3": "AES256", "sse-kms": "aws:kms"}[objects.encryption],
        kms_key_id=objects.kms_key_id,
        path_style=objects.path_style,
        sign_payloads=objects.endpoint is not None and not is_private(objects.endpoint),
        connections_max=objects.connections_max,
        connect_timeout_s=objects.connect_timeout_s,
        read_timeout_s=objects.read_timeout_s,
    )


def cluster_servers(settings: Settings) -> str:
    """Return the ZooKeeper of the cluster whose ledgers are read."""
    return settings.bookkeeper.servers or settings.metadata.servers


def bookie_options(settings: Settings) -> BookieOptions:
    """Return how bookies are reached and how much they are asked at a time."""
    bookkeeper = settings.bookkeeper
    tls = sasl = None
    if bookkeeper.tls:
        tls = TlsOptions(
            ca_file=bookkeeper.tls_ca_file,
            cert_file=bookkeeper.tls_cert_file,
            key_file=bookkeeper.tls_key_file,
            hostname_check=bookkeeper.tls_hostname_check,
        )
    if bookkeeper.sasl_username is not None and bookkeeper.sasl_password is not None:
        sasl = SaslOptions(username=bookkeeper.sasl_username, password=bookkeeper.sasl_password.get_secret_value())
    return BookieOptions(
        request_timeout_s=bookkeeper.request_timeout_s,
        connect_timeout_s=bookkeeper.connect_timeout_s,
        window=bookkeeper.requests_in_flight_max,
        long_polls_max=bookkeeper.long_polls_in_flight_max,
        ledgers_root=bookkeeper.ledgers_root,
        tls=tls,
        sasl=sasl,
    )


def source_options(settings: Settings) -> SourceOptions:
    """Return how a cluster's ledgers are followed and read."""
    bookkeeper = settings.bookkeeper
    return SourceOptions(
        ledgers_root=bookkeeper.ledgers_root,
        managed_ledgers_root=bookkeeper.managed_ledgers_root,
        poll_min_s=bookkeeper.poll_min_s,
        poll_max_s=bookkeeper.poll_max_s,
        quiet_poll_s=bookkeeper.quiet_poll_s,
        hedge_s=bookkeeper.hedge_s,
        quiet_s=settings.pulsar.admin_quiet_s,
        batch_read_bytes=bookkeeper.batch_bytes,
        singles_window=min(SINGLES_WINDOW_MAX, bookkeeper.requests_in_flight_max),
        bytes_per_s=bookkeeper.bytes_per_s,
        requests_per_s=bookkeeper.requests_per_s,
        topic_bytes_per_s=bookkeeper.topic_bytes_per_s,
        topic_requests_per_s=bookkeeper.topic_requests_per_s,
    )


def admin_options(settings: Settings) -> AdminOptions:
    """Return how the brokers' admin API is asked."""
    pulsar = settings.pulsar
    return AdminOptions(
        token=pulsar.admin_token.get_secret_value() if pulsar.admin_token else "",
        token_file=pulsar.admin_token_file or "",
        ca_file=pulsar.admin_ca_file or "",
    )


def scrubber(settings: Settings, context: OffloadContext, keeper: GrantRevoker) -> Scrubber:
    """Return who reads what is stored again; it has the memory of uploads, when these leave some."""
    upload_context = context.upload_context
    return Scrubber(
        upload_context.objects,
        context.metadata,
        sites(settings),
        settings.scrub,
        clock=upload_context.clock,
        metrics=upload_context.metrics,
        budget=upload_context.budget,
        damaged=keeper.keep,
    )


def inspection(
    settings: Settings,
    engine: Engine,
    reader: TopicReader,
    metadata: MetadataStore,
    objects: SegmentStore,
    clock: Clock,
    keeper: GrantRevoker,
) -> InspectService:
    """Return who says where entries are, and whether segments are as they were written."""
    found, budget = sites(settings), ByteBudget(CALLS_BYTES)
    looker = partial(RetryingReader, objects, clock=clock, budget=budget)
    explainer = Explainer(engine, partial(held, reader), metadata, looker(), found)
    verifier = TopicVerifier(engine, looker, found, keeper.found)
    return InspectService(explainer, verifier, engine, metadata, keeper.found, reader.priority)


def sites(settings: Settings) -> list[Site]:
    """Return what is looked after: what committed segments say of where they lie has to agree with it."""
    cluster = settings.daemon.cluster
    return [Site(cluster=cluster, bucket=place.bucket, prefix=place.prefix) for place in places(settings)]


def places(settings: Settings) -> Places:
    """Return where the daemon stores: its own place, and those that policies may name."""
    objects = settings.objects
    named = {(objects.bucket, objects.prefix): None} | dict.fromkeys(named_places(objects.places))
    if objects.kind == "filesystem":
        fixed = {"driver": "filesystem", "directory": objects.directory}
        return Places(*(Place(driver={**fixed, "prefix": prefix}) for _, prefix in named))
    fixed = {"driver": "s3", "region": objects.region, "endpoint": objects.endpoint or ""}
    return Places(*(Place(driver={**fixed, "bucket": bucket, "prefix": prefix}) for bucket, prefix in named))
