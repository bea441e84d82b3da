"""What must hold between settings: pure functions from settings to the rules they break.

Each broken rule names every key it is about, so that it is not reported when one of them was wrong by itself.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple

from offloaderd.config.units import format_bytes
from offloaderd.model import ENTRY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offloaderd.config.sections import Settings

S3_PART_BYTES_MIN = 5 * 1024**2
S3_PARTS_MAX = 10_000
UPLOAD_PARTS_MIN = 3
"""One being assembled, one on its way, one that waits: less would stop the pipeline at every part."""
CACHE_BLOCKS_MIN = 4
MESSAGE_OVERHEAD_BYTES = 64 * 1024


class Broken(NamedTuple):
    """A rule that does not hold: the keys it is about, and what to change."""

    keys: tuple[str, ...]
    text: str


def broken_rules(settings: Settings) -> list[Broken]:
    """Return every rule that does not hold, in the order of the sections."""
    return [*_servers(settings), *_objects(settings), *_offload(settings), *_memory(settings)]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; names other than localhost are not looked up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _servers(settings: Settings) -> Iterator[Broken]:
    grpc, http = settings.grpc, settings.http
    if not grpc.insecure_elsewhere and not is_loopback(grpc.host):
        yield Broken(
            ("grpc.host", "grpc.insecure_elsewhere"),
            f"grpc.host = {grpc.host!r} opens the API to others without encryption or authentication: use 127.0.0.1, "
            "or set grpc.insecure_elsewhere = true if the network keeps strangers out",
        )
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
    if (objects.access_key is None) != (objects.secret_key is None):
        given, missing = ("access_key", "secret_key") if objects.access_key else ("secret_key", "access_key")
        yield Broken(
            ("objects.access_key", "objects.secret_key"),
            f"objects.{given} is set without objects.{missing}: set both, or neither for the AWS chain",
        )


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
