"""What must hold between settings: pure functions from settings to the rules they break.

Each broken rule names every key it is about, so that it is not reported when one of them was wrong by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offloaderd.config.rules_access import Broken, access_rules, both_or_neither
from offloaderd.config.rules_tracing import tracing_rules
from offloaderd.model import ENTRY_BYTES_MAX, OutagePolicy, TierRetention
from offloaderd.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offloaderd.config.sections import Settings

S3_PART_BYTES_MIN = 5 * 1024**2
S3_PARTS_MAX = 10_000
UPLOAD_PARTS_MIN = 3
"""One being assembled, one on its way, one that waits: less would stop the pipeline at every part."""
CACHE_BLOCKS_MIN = 4
MESSAGE_OVERHEAD_BYTES = 64 * 1024
RATE_BYTES_MIN = 64 * 1024
"""A limit below it is a forgotten unit: it would take minutes for one large entry."""


def broken_rules(settings: Settings) -> list[Broken]:
    """Return every rule that does not hold, in the order of the sections."""
    return [
        *_servers(settings),
        *access_rules(settings),
        *_objects(settings),
        *_bookkeeper(settings),
        *_bookies(settings),
        *_pulsar(settings),
        *_offload(settings),
        *_retention(settings),
        *_memory(settings),
        *_outage(settings),
        *tracing_rules(settings),
    ]


def _servers(settings: Settings) -> Iterator[Broken]:
    grpc, http = settings.grpc, settings.http
    if grpc.port and (grpc.host, grpc.port) == (http.host, http.port):
        yield Broken(("grpc.port", "http.port"), f"grpc.port and http.port are both {grpc.port}: give each its own")
    if settings.read.batch_bytes + ENTRY_BYTES_MAX + MESSAGE_OVERHEAD_BYTES > grpc.message_bytes_max:
        yield Broken(
            ("read.batch_bytes", "grpc.message_bytes_max"),
            f"grpc.message_bytes_max = {format_bytes(grpc.message_bytes_max)} cannot hold a batch of "
            f"read.batch_bytes = {format_bytes(settings.read.batch_bytes)} and "
            f"one more entry of {format_bytes(ENTRY_BYTES_MAX)}",
        )


def _objects(settings: Settings) -> Iterator[Broken]:
    objects = settings.objects
    if objects.kind == "s3" and not objects.bucket:
        yield Broken(
            ("objects.kind", "objects.bucket"),
            'objects.kind = "s3" needs a bucket: set objects.bucket',
        )
    if objects.kind == "filesystem" and objects.places:
        yield Broken(
            ("objects.kind", "objects.places"),
            'objects.places names buckets, and objects.kind = "filesystem" has none: leave it empty',
        )
    if (objects.access_key is None) != (objects.secret_key is None):
        given, missing = ("access_key", "secret_key") if objects.access_key else ("secret_key", "access_key")
        yield Broken(
            ("objects.access_key", "objects.secret_key"),
            f"objects.{given} is set without objects.{missing}: set both, or neither for the AWS chain",
        )


def _bookkeeper(settings: Settings) -> Iterator[Broken]:
    """Where the cluster keeps its metadata, and how often and how much is asked."""
    bookkeeper = settings.bookkeeper
    roots = {
        "bookkeeper.ledgers_root": bookkeeper.ledgers_root,
        "bookkeeper.managed_ledgers_root": bookkeeper.managed_ledgers_root,
    }
    if _overlap(*roots.values()):
        yield Broken(
            tuple(roots),
            f"bookkeeper.ledgers_root = {bookkeeper.ledgers_root!r} and bookkeeper.managed_ledgers_root = "
            f"{bookkeeper.managed_ledgers_root!r} must not lie in each other: BookKeeper and Pulsar keep them apart",
        )
    for key, root in roots.items():
        if settings.ledgers.kind == "bookkeeper" and _overlap(settings.metadata.root, root):
            yield Broken(
                ("ledgers.kind", "metadata.root", key),
                f"metadata.root = {settings.metadata.root!r} must lie apart from {key} = {root!r}, which is the "
                "cluster's own and never written: /offloaderd is a good place",
            )
    if bookkeeper.poll_min_s > bookkeeper.poll_max_s:
        yield Broken(
            ("bookkeeper.poll_min_s", "bookkeeper.poll_max_s"),
            f"bookkeeper.poll_min_s = {bookkeeper.poll_min_s:g} must not be more than bookkeeper.poll_max_s = "
            f"{bookkeeper.poll_max_s:g}",
        )
    if bookkeeper.hedge_s > bookkeeper.request_timeout_s:
        yield Broken(
            ("bookkeeper.hedge_s", "bookkeeper.request_timeout_s"),
            f"bookkeeper.hedge_s = {bookkeeper.hedge_s:g} must not be more than bookkeeper.request_timeout_s = "
            f"{bookkeeper.request_timeout_s:g}: by then the first request has been given up",
        )
    for name in ("bytes_per_s", "topic_bytes_per_s"):
        rate = getattr(bookkeeper, name)
        if 0 < rate < RATE_BYTES_MIN:
            yield Broken(
                (f"bookkeeper.{name}",),
                f"bookkeeper.{name} = {rate} bytes is too little to work with: {format_bytes(RATE_BYTES_MIN)} or more, "
                'or 0 for no limit; sizes take units, as in "50MiB"',
            )


def _bookies(settings: Settings) -> Iterator[Broken]:
    """How bookies are persuaded to talk."""
    bookkeeper = settings.bookkeeper
    for name in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
        if getattr(bookkeeper, name) is not None and not bookkeeper.tls:
            yield Broken(
                (f"bookkeeper.{name}", "bookkeeper.tls"),
                f"bookkeeper.{name} is set, but bookkeeper.tls is not: set bookkeeper.tls = true, or remove the file",
            )
    yield from both_or_neither(settings, "bookkeeper", "tls_cert_file", "tls_key_file")
    yield from both_or_neither(settings, "bookkeeper", "sasl_username", "sasl_password")


def _pulsar(settings: Settings) -> Iterator[Broken]:
    """How the brokers' admin API is asked."""
    pulsar = settings.pulsar
    if pulsar.admin_token is not None and pulsar.admin_token_file is not None:
        yield Broken(
            ("pulsar.admin_token", "pulsar.admin_token_file"),
            "pulsar.admin_token and pulsar.admin_token_file are both set: keep one",
        )
    if pulsar.admin_url is None:
        for name in ("admin_token", "admin_token_file", "admin_ca_file"):
            if getattr(pulsar, name) is not None:
                yield Broken(
                    (f"pulsar.{name}", "pulsar.admin_url"),
                    f"pulsar.{name} is set without pulsar.admin_url: set the URL that it is for, or remove it",
                )
    elif pulsar.admin_ca_file is not None and not pulsar.admin_url.startswith("https://"):
        yield Broken(
            ("pulsar.admin_ca_file", "pulsar.admin_url"),
            f"pulsar.admin_ca_file is set, but pulsar.admin_url = {pulsar.admin_url!r} does not use TLS: write https://",
        )


def _overlap(first: str, second: str) -> bool:
    """Whether one node is the other, or lies below it."""
    return f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")


def _offload(settings: Settings) -> Iterator[Broken]:
    offload = settings.offload
    if settings.objects.kind == "s3" and offload.part_bytes < S3_PART_BYTES_MIN:
        yield Broken(
            ("objects.kind", "offload.part_bytes"),
            f"offload.part_bytes = {format_bytes(offload.part_bytes)} is less than S3 takes: "
            f"{format_bytes(S3_PART_BYTES_MIN)} or more",
        )
    if offload.block_bytes > offload.part_bytes:
        yield Broken(
            ("offload.block_bytes", "offload.part_bytes"),
            f"offload.block_bytes = {format_bytes(offload.block_bytes)} must not be more than offload.part_bytes = "
            f"{format_bytes(offload.part_bytes)}: a part holds whole blocks",
        )
    if offload.segment_bytes_max > offload.part_bytes * S3_PARTS_MAX:
        yield Broken(
            ("offload.segment_bytes_max", "offload.part_bytes"),
            f"offload.segment_bytes_max = {format_bytes(offload.segment_bytes_max)} does not fit into {S3_PARTS_MAX} "
            f"parts of offload.part_bytes = {format_bytes(offload.part_bytes)}",
        )
    if offload.segment_age_min_s > offload.segment_age_max_s:
        yield Broken(
            ("offload.segment_age_min_s", "offload.segment_age_max_s"),
            f"offload.segment_age_min_s = {offload.segment_age_min_s:g} must not be more than "
            f"offload.segment_age_max_s = {offload.segment_age_max_s:g}",
        )


def _outage(settings: Settings) -> Iterator[Broken]:
    if settings.outage.policy is OutagePolicy.SPILL and settings.spill.directory is None:
        yield Broken(("outage.policy", "spill.directory"), "outage.policy = spill needs a spill.directory to write to")


def _retention(settings: Settings) -> Iterator[Broken]:
    retention = settings.retention
    if retention.kind is TierRetention.LIMITED and not (retention.age_s or retention.size_bytes):
        yield Broken(
            ("retention.kind", "retention.age_s", "retention.size_bytes"),
            "retention.kind = limited needs retention.age_s or retention.size_bytes",
        )
    if retention.kind is TierRetention.FOLLOW and settings.ledgers.kind != "bookkeeper":
        yield Broken(
            ("retention.kind", "ledgers.kind"),
            f"retention.kind = follow goes by Pulsar's list of ledgers, and ledgers.kind = {settings.ledgers.kind} has "
            "none: choose keep or limited",
        )


def _memory(settings: Settings) -> Iterator[Broken]:
    memory, offload = settings.memory, settings.offload
    if memory.upload_bytes < UPLOAD_PARTS_MIN * offload.part_bytes:
        yield Broken(
            ("memory.upload_bytes", "offload.part_bytes"),
            f"memory.upload_bytes = {format_bytes(memory.upload_bytes)} must hold {UPLOAD_PARTS_MIN} parts of "
            f"offload.part_bytes: {format_bytes(UPLOAD_PARTS_MIN * offload.part_bytes)} or more",
        )
    if memory.cache_bytes < CACHE_BLOCKS_MIN * offload.block_bytes:
        yield Broken(
            ("memory.cache_bytes", "offload.block_bytes"),
            f"memory.cache_bytes = {format_bytes(memory.cache_bytes)} must hold {CACHE_BLOCKS_MIN} blocks of "
            f"offload.block_bytes: {format_bytes(CACHE_BLOCKS_MIN * offload.block_bytes)} or more",
        )
    if settings.read.read_ahead_bytes > memory.cache_bytes:
        yield Broken(
            ("read.read_ahead_bytes", "memory.cache_bytes"),
            f"read.read_ahead_bytes = {format_bytes(settings.read.read_ahead_bytes)} must not be more than "
            f"memory.cache_bytes = {format_bytes(memory.cache_bytes)}: what is read ahead waits in the cache",
        )
