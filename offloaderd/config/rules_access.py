"""What must hold between the settings of encryption, authentication and where to listen; see rules.py."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offloaderd.config.sections import Settings


class Broken(NamedTuple):
    """A rule that does not hold: the keys it is about, and what to change."""

    keys: tuple[str, ...]
    text: str


def access_rules(settings: Settings) -> Iterator[Broken]:
    """Yield what would leave the API open, or closed to everybody, by mistake."""
    yield from _listening(settings)
    yield from _files(settings)
    yield from _tokens(settings)
    yield from _grants(settings)
    yield from _zookeeper(settings)
    yield from _bucket(settings)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; names other than localhost are not looked up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def has_tokens(settings: Settings) -> bool:
    """Whether callers may show a token."""
    return settings.access.token_secret_key is not None or settings.access.token_public_key is not None


def is_authenticated(settings: Settings) -> bool:
    """Whether callers have to say who they are."""
    return settings.tls.client_ca_file is not None or has_tokens(settings)


def both_or_neither(settings: Settings, section: str, first: str, second: str) -> Iterator[Broken]:
    """Yield the rule that two settings go together."""
    values = getattr(settings, section)
    if (getattr(values, first) is None) != (getattr(values, second) is None):
        given, missing = (second, first) if getattr(values, first) is None else (first, second)
        yield Broken(
            (f"{section}.{first}", f"{section}.{second}"),
            f"{section}.{given} is set without {section}.{missing}: set both, or neither",
        )


def _listening(settings: Settings) -> Iterator[Broken]:
    grpc = settings.grpc
    if not grpc.insecure_elsewhere and not is_loopback(grpc.host) and not is_authenticated(settings):
        yield Broken(
            ("grpc.host", "grpc.insecure_elsewhere", "tls.client_ca_file", "access.token_secret_key"),
            f"grpc.host = {grpc.host!r} opens the API to others without encryption or authentication: use 127.0.0.1, "
            "set tls.client_ca_file or a key for tokens, or set grpc.insecure_elsewhere = true if the network keeps "
            "strangers out",
        )


def _files(settings: Settings) -> Iterator[Broken]:
    tls, http = settings.tls, settings.http
    yield from both_or_neither(settings, "tls", "cert_file", "key_file")
    if tls.client_ca_file is not None and tls.cert_file is None:
        yield Broken(
            ("tls.client_ca_file", "tls.cert_file"),
            "tls.client_ca_file is set without tls.cert_file: clients show certificates over TLS only",
        )
    if http.tls != "off" and tls.cert_file is None:
        yield Broken(("http.tls", "tls.cert_file"), f"http.tls = {http.tls} needs tls.cert_file and tls.key_file")
    if http.tls == "mutual" and tls.client_ca_file is None:
        yield Broken(("http.tls", "tls.client_ca_file"), "http.tls = mutual needs tls.client_ca_file")


def _tokens(settings: Settings) -> Iterator[Broken]:
    access = settings.access
    if access.token_secret_key is not None and access.token_public_key is not None:
        yield Broken(
            ("access.token_secret_key", "access.token_public_key"),
            "access.token_secret_key and access.token_public_key are both set: tokens are signed in one way",
        )
    for name in ("token_secret_key_previous", "token_public_key_previous"):
        if getattr(access, name) is not None and not has_tokens(settings):
            yield Broken(
                (f"access.{name}", "access.token_secret_key", "access.token_public_key"),
                f"access.{name} is set without a present key: set access.token_secret_key or access.token_public_key",
            )
    if has_tokens(settings) and settings.tls.cert_file is None:
        yield Broken(
            ("access.token_secret_key", "access.token_public_key", "tls.cert_file"),
            "tokens would be sent in the clear, for anybody to use: set tls.cert_file and tls.key_file",
        )


def _grants(settings: Settings) -> Iterator[Broken]:
    keys = ("access.grants", "tls.client_ca_file", "access.token_secret_key", "access.token_public_key")
    if settings.access.grants and not is_authenticated(settings):
        yield Broken(
            keys,
            "access.grants are set, but nobody has to say who they are: set tls.client_ca_file or a key for tokens",
        )
    if is_authenticated(settings) and not settings.access.grants:
        yield Broken(
            keys,
            "callers are told apart, but access.grants gives none of them a role: write at least one, as in "
            '"admin NAME *"',
        )


def _zookeeper(settings: Settings) -> Iterator[Broken]:
    metadata = settings.metadata
    yield from both_or_neither(settings, "metadata", "tls_cert_file", "tls_key_file")
    yield from both_or_neither(settings, "metadata", "username", "password")
    for name in ("tls_ca_file", "tls_cert_file"):
        if getattr(metadata, name) is not None and not metadata.tls:
            yield Broken(
                (f"metadata.{name}", "metadata.tls"),
                f"metadata.{name} is set, but metadata.tls is not: set metadata.tls = true, or remove the file",
            )
    if metadata.acl == "creator" and metadata.username is None and metadata.tls_cert_file is None:
        yield Broken(
            ("metadata.acl", "metadata.username", "metadata.tls_cert_file"),
            "metadata.acl = creator needs a name: set metadata.username and its password, or metadata.tls_cert_file",
        )


def _bucket(settings: Settings) -> Iterator[Broken]:
    objects = settings.objects
    yield from both_or_neither(settings, "objects", "role_arn", "web_identity_token_file")
    if objects.kms_key_id is not None and objects.encryption != "sse-kms":
        yield Broken(
            ("objects.kms_key_id", "objects.encryption"),
            f"objects.kms_key_id is set, but objects.encryption = {objects.encryption}: set it to sse-kms",
        )
    ways = [name for name in ("access_key", "profile", "role_arn") if getattr(objects, name) is not None]
    if len(ways) > 1:
        yield Broken(
            tuple(f"objects.{name}" for name in ways),
            f"objects.{' and objects.'.join(ways)} are ways to the same credentials: keep one",
        )
