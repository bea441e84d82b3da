"""Rules between settings, and settings that are valid but may be a mistake.

A rule names every key that it is about, so that it is not reported when one of them was invalid by itself. Its text has
the values of the settings in braces, by key.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from offloaderd.access.roles import BARE, Grant
from offloaderd.core.model import ENTRY_BYTES_MAX, OutagePolicy, TierRetention
from offloaderd.core.section import Section, SizeMark, is_loopback, is_private
from offloaderd.core.units import format_bytes
from offloaderd.daemon.log import unknown_modules
from offloaderd.daemon.settings.sections import Settings, header_pairs
from offloaderd.daemon.settings.share import divided, port_of
from offloaderd.objects.failures import in_section
from offloaderd.objects.kinds import KINDS
from offloaderd.objects.port import PartRules
from offloaderd.objects.settings import ObjectsSettings
from offloaderd.objects.stored_as import class_flaw, tags_flaw
from offloaderd.policy.policies import place_named

UPLOAD_PARTS_MIN = 3
"""One part is assembled, one uploaded, one waits: fewer would stop the pipeline at every part."""
CACHE_BLOCKS_MIN = 4
MESSAGE_OVERHEAD_BYTES = 64 * 1024
RATE_BYTES_MIN = 64 * 1024
"""A lower limit is a forgotten unit: one large entry would take minutes."""
OF_KINDS: Mapping[str, Sequence[str]] = {
    "s3": (
        *("signed_host", "region", "path_style", "access_key", "secret_key", "profile", "role_arn"),
        *("web_identity_token_file", "encryption", "kms_key_id"),
    ),
    "gcs azure": ("credentials_file",),
    "azure": ("azure_account", "azure_key", "azure_sas", "azure_connection_string", "azure_client_id"),
    "filesystem": ("directory",),
}
"""Settings of `objects` by the kinds of stores that use them."""
TRACING_MODULES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc")


class Broken(NamedTuple):
    """A rule that does not hold: the keys it is about, and what to change."""

    keys: tuple[str, ...]
    text: str

    def of_service(self, section: str) -> "Broken":
        """Return the same about a further service, from a rule about `objects`."""
        return Broken(tuple(in_section(key, section) for key in self.keys), in_section(self.text, section))


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between settings; `keys` are separated by blanks."""

    keys: str
    is_broken: Callable[[Settings], bool]
    text: str | Callable[[Settings], str]

    def says(self, settings: Settings) -> str:
        """Return the text with the values in it."""
        text = self.text if isinstance(self.text, str) else self.text(settings)
        return text.format(**{name: _Shown(getattr(settings, name)) for name in type(settings).model_fields})


def broken_rules(settings: Settings) -> list[Broken]:
    """Return every broken rule."""
    broken = [Broken(tuple(rule.keys.split()), rule.says(settings)) for rule in RULES if rule.is_broken(settings)]
    broken += _credentials(settings)
    for service in settings.objects.services.values():
        there = settings.model_copy(update={"objects": service})
        concerned = [rule for rule in RULES if "objects." in rule.keys and rule.is_broken(there)]
        found = [Broken(tuple(rule.keys.split()), rule.says(there)) for rule in concerned]
        broken += [one.of_service(service.section) for one in (*found, *_credentials(there))]
    return [*broken, *_apart_services(settings), *_mirror(settings), *_shares(settings)]


def _shares(settings: Settings) -> Iterator[Broken]:
    """Yield the rules that the settings keep, and the share of one of several processes does not."""
    if settings.daemon.processes > 1:
        share = divided(settings)
        for rule in RULES:
            if rule.is_broken(share) and not rule.is_broken(settings):
                text = f"{rule.says(share)}; it is divided by daemon.processes = {settings.daemon.processes}"
                yield Broken((*rule.keys.split(), "daemon.processes"), text)


def _apart_services(settings: Settings) -> Iterator[Broken]:
    """Yield what two services share: a segment names its bucket alone, and all below a directory is its own."""
    services = settings.objects.every_service
    for number, one in enumerate(services):
        for other in services[:number]:
            sections = f"{other.section} and {one.section}"
            shared = {place.bucket for place in one.own_places} & {place.bucket for place in other.own_places}
            if shared - {""}:
                keys = [f"{given.section}.{name}" for given in (one, other) for name in ("kind", "bucket", "places")]
                yield Broken(
                    tuple(keys),
                    f"{sections} both have {' and '.join(map(repr, sorted(shared - {''})))}, and a segment names its "
                    "bucket alone: give each bucket of the daemon another name",
                )
            elif "" in shared and not (KINDS[one.kind].has_buckets or KINDS[other.kind].has_buckets):
                keys = [f"{given.section}.{name}" for given in (one, other) for name in ("kind", "bucket")]
                yield Broken(
                    tuple(keys),
                    f"{sections} are both directories without a name: set {one.section}.bucket, the name of that "
                    "directory in policies and segments",
                )
            if one.kind == other.kind == "filesystem" and _overlap(*(str(Path(at.directory)) for at in (one, other))):
                yield Broken(
                    (f"{one.section}.directory", f"{other.section}.directory"),
                    f"{sections} store in {other.directory} and {one.directory}: one must not be inside the other",
                )


def _mirror(settings: Settings) -> Iterator[Broken]:
    """Yield why the mirror of topics that name none is no second place; it may be in any service."""
    text, places = settings.mirror.place, settings.objects.all_places
    named = place_named(text)
    if named is not None and places.find(*named) is None:
        yield Broken(
            ("mirror.place", "objects.places"),
            f"mirror.place = {text} is none of objects.places, nor of a further service's: name it there",
        )
    if named == (places.home.bucket, places.home.prefix):
        yield Broken(
            ("mirror.place", "objects.bucket", "objects.prefix"),
            f"mirror.place = {text} is the place of objects.bucket and objects.prefix: a second copy needs another",
        )


class _Shown:
    """The values of a section as a rule's text writes them: sizes with units, numbers short."""

    def __init__(self, section: Section) -> None:
        self._section = section

    def __getattr__(self, name: str) -> object:
        value = getattr(self._section, name)
        if any(isinstance(mark, SizeMark) for mark in type(self._section).model_fields[name].metadata):
            return format_bytes(value)
        return f"{value:g}" if isinstance(value, float) else value


def _value(settings: Settings, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)


def _is_set(settings: Settings, key: str) -> bool:
    return _value(settings, key) not in (None, False)


def _needs(key: str, other: str, text: str, keys: str = "") -> Rule:
    """Return the rule that one setting needs the other."""
    return Rule(keys or f"{key} {other}", lambda given: _is_set(given, key) and not _is_set(given, other), text)


def _needs_too(key: str, other: str, otherwise: str) -> Rule:
    return _needs(key, other, f"{key} is set without {other}: {otherwise}")


def _together(section: str, first: str, second: str, otherwise: str = "") -> list[Rule]:
    """Return the rules that both settings of a section are set, or neither."""
    keys = f"{section}.{first}", f"{section}.{second}"
    says = "{} is set without {}: set both, or neither" + otherwise
    return [_needs(*given, says.format(*given), " ".join(keys)) for given in (keys, keys[::-1])]


def _of_kinds(kinds: str, name: str) -> Rule:
    """Return the rule that a setting of the object store is given for these kinds alone: others would ignore it."""
    default, named = ObjectsSettings.model_fields[name].default, kinds.split()
    more = ", and set the encryption of the bucket or disk itself" if name == "encryption" else ""
    allowed = " or ".join(f'"{kind}"' for kind in named)
    return Rule(
        f"objects.kind objects.{name}",
        lambda given: given.objects.kind not in named and getattr(given.objects, name) != default,
        f'objects.{name} is for objects.kind = {allowed} alone, and it is "{{objects.kind}}": remove it{more}',
    )


def _at_most(key: str, most: str, why: str = "") -> Rule:
    """Return the rule that one setting is not more than the other."""
    text = f"{key} = {{{key}}} must not be more than {most} = {{{most}}}{why}"
    return Rule(f"{key} {most}", lambda given: _value(given, key) > _value(given, most), text)  # type: ignore[operator]


def _holds(key: str, count: int, what: str, unit: str) -> Rule:
    """Return the rule that a budget holds a number of items whose size is a setting."""

    def least(settings: Settings) -> int:
        return count * int(_value(settings, unit))  # type: ignore[call-overload,no-any-return]

    def text(settings: Settings) -> str:
        return f"{key} = {{{key}}} must hold {count} {what} of {unit}: {format_bytes(least(settings))} or more"

    return Rule(f"{key} {unit}", lambda given: _value(given, key) < least(given), text)  # type: ignore[operator]


def _parts(settings: Settings) -> PartRules:
    return KINDS[settings.objects.kind].parts


def _overlap(first: str, second: str) -> bool:
    """Whether two nodes are the same, or one is below the other."""
    return f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")


def _apart(name: str) -> Rule:
    """Return the rule that the nodes of the daemon are outside of those of the cluster."""
    key = f"bookkeeper.{name}"
    return Rule(
        f"ledgers.kind metadata.root {key}",
        lambda s: s.ledgers.kind == "bookkeeper" and _overlap(s.metadata.root, getattr(s.bookkeeper, name)),
        f"metadata.root = {{metadata.root!r}} must be apart from {key} = {{{key}!r}}, which is the cluster's own and "
        "never written: /offloaderd is a good place",
    )


def _fast_enough(key: str) -> Rule:
    return Rule(
        key,
        lambda given: 0 < _value(given, key) < RATE_BYTES_MIN,  # type: ignore[operator]
        lambda given: (
            f"{key} = {_value(given, key)} bytes is too little to work with: {format_bytes(RATE_BYTES_MIN)} or more, "
            'or 0 for no limit; sizes take units, as in "50MiB"'
        ),
    )


def _alone(key: str, other: str, otherwise: str) -> Rule:
    """Return the rule that one of two settings is set at most."""
    text = f"{key} and {other} are both set: {otherwise}"
    return Rule(f"{key} {other}", lambda given: _is_set(given, key) and _is_set(given, other), text)


def _key_before(key: str) -> Rule:
    return Rule(
        f"{key} access.token_secret_key access.token_public_key",
        lambda given: _is_set(given, key) and not given.access.has_own_key,
        f"{key} is set without a present key: set access.token_secret_key or access.token_public_key",
    )


def is_installed(module: str) -> bool:
    """Whether a module can be imported; only its parents are imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _shows_headers(settings: Settings) -> bool:
    """Whether the headers of traces would be sent unencrypted."""
    tracing = settings.tracing
    return tracing.enabled and bool(tracing.endpoint and tracing.headers) and not is_private(tracing.endpoint or "")


def _has_bad_headers(settings: Settings) -> bool:
    tracing = settings.tracing
    if not tracing.enabled or tracing.endpoint is None or tracing.headers is None:
        return False
    return not header_pairs(tracing.headers.get_secret_value())


def _credentials(settings: Settings) -> Iterator[Broken]:
    ways = [f"objects.{name}" for name in ("access_key", "profile", "role_arn") if getattr(settings.objects, name)]
    if len(ways) > 1:
        yield Broken(tuple(ways), f"{' and '.join(ways)} are ways to the same credentials: keep one")


def _with_tls(section: str, *names: str) -> Iterator[Rule]:
    """Yield the rules that files are set only with TLS."""
    for name in names:
        key, tls = f"{section}.{name}", f"{section}.tls"
        yield _needs(key, tls, f"{key} is set, but {tls} is not: set {tls} = true, or remove the file")


PORT_MAX = 65_535


def _process_ports(settings: Settings) -> range:
    """Return the ports that several processes have for themselves."""
    count = settings.daemon.processes
    return range(port_of(settings, 1), port_of(settings, count) + 1) if count > 1 else range(0)


def _is_open(settings: Settings) -> bool:
    grpc = settings.grpc
    return not (grpc.allow_unauthenticated or is_loopback(grpc.host) or settings.is_authenticated)


RULES: tuple[Rule, ...] = (
    Rule(
        "grpc.port http.port",
        lambda s: s.grpc.port != 0 and (s.grpc.host, s.grpc.port) == (s.http.host, s.http.port),
        "grpc.port and http.port are both {grpc.port}: give each its own",
    ),
    Rule(
        "daemon.processes ledgers.kind",
        lambda s: s.daemon.processes > 1 and s.ledgers.kind == "embedded",
        'daemon.processes = {daemon.processes}, and ledgers.kind = "embedded" is a database of one: set it to 1',
    ),
    Rule(
        "daemon.processes grpc.process_port grpc.port http.port",
        lambda s: bool(s.grpc.process_port) and not {s.grpc.port, s.http.port}.isdisjoint(_process_ports(s)),
        lambda s: (
            f"ports {_process_ports(s)[0]} to {_process_ports(s)[-1]} are those of the processes (grpc.process_port), "
            "and grpc.port or http.port is one of them: move them apart"
        ),
    ),
    Rule(
        "daemon.processes grpc.process_port",
        lambda s: bool(_process_ports(s)) and _process_ports(s)[-1] > PORT_MAX,
        f"grpc.process_port = {{grpc.process_port}} and {{daemon.processes}} more is beyond {PORT_MAX}: lower it",
    ),
    Rule(
        "read.batch_bytes grpc.message_bytes_max",
        lambda s: s.read.batch_bytes + ENTRY_BYTES_MAX + MESSAGE_OVERHEAD_BYTES > s.grpc.message_bytes_max,
        "grpc.message_bytes_max = {grpc.message_bytes_max} cannot hold a batch of read.batch_bytes = "
        f"{{read.batch_bytes}} and one more entry of {format_bytes(ENTRY_BYTES_MAX)}",
    ),
    Rule(
        "grpc.host grpc.allow_unauthenticated tls.client_ca_file access.token_secret_key",
        _is_open,
        "grpc.host = {grpc.host!r} opens the API to others without encryption or authentication: use 127.0.0.1, set "
        "tls.client_ca_file or a key for tokens, or set grpc.allow_unauthenticated = true if the network keeps "
        "strangers out",
    ),
    *_together("tls", "cert_file", "key_file"),
    _needs_too("tls.client_ca_file", "tls.cert_file", "clients show certificates over TLS only"),
    Rule(
        "http.tls tls.cert_file",
        lambda s: s.http.tls != "off" and s.tls.cert_file is None,
        "http.tls = {http.tls} needs tls.cert_file and tls.key_file",
    ),
    Rule(
        "http.tls tls.client_ca_file",
        lambda s: s.http.tls == "mutual" and s.tls.client_ca_file is None,
        "http.tls = mutual needs tls.client_ca_file",
    ),
    _alone("access.token_secret_key", "access.token_public_key", "tokens are signed in one way"),
    _key_before("access.token_secret_key_previous"),
    _key_before("access.token_public_key_previous"),
    _needs_too("access.token_jwks", "access.token_issuer", "a provider's keys sign tokens for everybody"),
    _needs_too("access.token_jwks_ca_file", "access.token_jwks", "it is the authority of the provider's address"),
    Rule(
        "access.token_jwks",
        lambda s: (s.access.token_jwks or "").startswith("http://"),
        "access.token_jwks = {access.token_jwks} is read without TLS, so anybody between could replace the keys: use "
        "https",
    ),
    Rule(
        "access.token_secret_key access.token_public_key tls.cert_file",
        lambda s: s.access.has_tokens and s.tls.cert_file is None,
        "tokens would be sent unencrypted, and whoever reads them could use them: set tls.cert_file and tls.key_file",
    ),
    Rule(
        "access.grants tls.client_ca_file access.token_secret_key access.token_public_key",
        lambda s: bool(s.access.grants) and not s.is_authenticated,
        "access.grants are set, but nobody has to say who they are: set tls.client_ca_file or a key for tokens",
    ),
    Rule(
        "access.grants tls.client_ca_file access.token_secret_key access.token_public_key",
        lambda s: s.is_authenticated and not s.access.grants,
        'callers are told apart, but access.grants gives none of them a role: write at least one, as in "admin NAME *"',
    ),
    *_together("metadata", "tls_cert_file", "tls_key_file"),
    *_together("metadata", "username", "password"),
    *_with_tls("metadata", "tls_ca_file", "tls_cert_file"),
    Rule(
        "metadata.acl metadata.username metadata.tls_cert_file",
        lambda s: s.metadata.acl == "creator" and s.metadata.username is None and s.metadata.tls_cert_file is None,
        "metadata.acl = creator needs a name: set metadata.username and its password, or metadata.tls_cert_file",
    ),
    *_together("objects", "role_arn", "web_identity_token_file"),
    Rule(
        "objects.kms_key_id objects.encryption",
        lambda s: s.objects.kms_key_id is not None and s.objects.encryption != "sse-kms",
        "objects.kms_key_id is set, but objects.encryption = {objects.encryption}: set it to sse-kms",
    ),
    *(_of_kinds(kinds, name) for kinds, names in OF_KINDS.items() for name in names),
    Rule(
        "objects.kind objects.bucket",
        lambda s: KINDS[s.objects.kind].has_buckets and not s.objects.bucket,
        'objects.kind = "{objects.kind}" needs a bucket: set objects.bucket',
    ),
    Rule(
        "objects.endpoint",
        lambda s: "@" in (s.objects.endpoint or ""),
        "objects.endpoint has a name or password in it, and is recorded with each segment: remove them, and set the "
        "credentials of their own",
    ),
    Rule(
        "objects.kind objects.places",
        lambda s: not KINDS[s.objects.kind].has_buckets and s.objects.places != "",
        'objects.places names buckets, and objects.kind = "{objects.kind}" has none: leave it empty',
    ),
    Rule(
        "objects.kind objects.storage_class",
        lambda s: bool(class_flaw(s.objects.storage_class, s.objects.service)),
        lambda s: class_flaw(s.objects.storage_class, s.objects.service),
    ),
    Rule(
        "objects.kind objects.tags",
        lambda s: bool(tags_flaw(s.objects.tags, s.objects.service)),
        lambda s: tags_flaw(s.objects.tags, s.objects.service),
    ),
    Rule(
        "mirror.required mirror.place",
        lambda s: s.mirror.required and not s.mirror.place,
        "mirror.required = true needs a mirror: set mirror.place, or demand it by the policies that name a mirror "
        "(mirror_required)",
    ),
    *_together("objects", "access_key", "secret_key", " for the AWS chain"),
    Rule(
        "objects.kind objects.azure_account objects.azure_connection_string",
        lambda s: s.objects.kind == "azure" and not (s.objects.azure_account or s.objects.azure_connection_string),
        'objects.kind = "azure" needs an account: set objects.azure_account or objects.azure_connection_string',
    ),
    _alone("objects.azure_key", "objects.azure_sas", "keep one"),
    _alone("objects.azure_connection_string", "objects.azure_key", "keep one"),
    _alone("objects.azure_connection_string", "objects.azure_sas", "keep one"),
    *(
        _alone("objects.credentials_file", f"objects.azure_{name}", "keep one")
        for name in ("key", "sas", "connection_string")
    ),
    Rule(
        "objects.kind objects.bucket objects.places",
        lambda s: any(re.search(KINDS[s.objects.kind].no_bucket, one.bucket) for one in s.objects.own_places),
        lambda s: f"objects.bucket or objects.places has the name of no bucket: {KINDS[s.objects.kind].bucket_rule}",
    ),
    Rule(
        "bookkeeper.ledgers_root bookkeeper.managed_ledgers_root",
        lambda s: _overlap(s.bookkeeper.ledgers_root, s.bookkeeper.managed_ledgers_root),
        "bookkeeper.ledgers_root = {bookkeeper.ledgers_root!r} and bookkeeper.managed_ledgers_root = "
        "{bookkeeper.managed_ledgers_root!r} must not be inside each other: BookKeeper and Pulsar keep them apart",
    ),
    _apart("ledgers_root"),
    _apart("managed_ledgers_root"),
    _at_most("bookkeeper.poll_min_s", "bookkeeper.poll_max_s"),
    _at_most("bookkeeper.hedge_s", "bookkeeper.request_timeout_s", ": by then the first request has been given up"),
    _fast_enough("bookkeeper.bytes_per_s"),
    _fast_enough("bookkeeper.topic_bytes_per_s"),
    *_with_tls("bookkeeper", "tls_ca_file", "tls_cert_file", "tls_key_file"),
    *_together("bookkeeper", "tls_cert_file", "tls_key_file"),
    *_together("bookkeeper", "sasl_username", "sasl_password"),
    _alone("pulsar.admin_token", "pulsar.admin_token_file", "keep one"),
    *(
        _needs_too(f"pulsar.{name}", "pulsar.admin_url", "set the URL that it is for, or remove it")
        for name in ("admin_token", "admin_token_file", "admin_ca_file")
    ),
    Rule(
        "pulsar.admin_ca_file pulsar.admin_url",
        lambda s: s.pulsar.admin_ca_file is not None and (s.pulsar.admin_url or "https:")[:6] != "https:",
        "pulsar.admin_ca_file is set, but pulsar.admin_url = {pulsar.admin_url!r} does not use TLS: write https://",
    ),
    Rule(
        "objects.kind offload.part_bytes",
        lambda s: s.offload.part_bytes < _parts(s).bytes_min,
        lambda s: (
            'offload.part_bytes = {offload.part_bytes} is less than objects.kind = "{objects.kind}" takes: '
            f"{format_bytes(_parts(s).bytes_min)} or more"
        ),
    ),
    _at_most("offload.block_bytes", "offload.part_bytes", ": a part holds whole blocks"),
    Rule(
        "objects.kind offload.segment_bytes_max offload.part_bytes",
        lambda s: s.offload.segment_bytes_max > s.offload.part_bytes * _parts(s).number_max,
        lambda s: (
            "offload.segment_bytes_max = {offload.segment_bytes_max} does not fit into "
            f"{_parts(s).number_max} parts of offload.part_bytes = {{offload.part_bytes}}"
        ),
    ),
    _at_most("offload.segment_age_min_s", "offload.segment_age_max_s"),
    Rule(
        "retention.kind retention.age_s retention.size_bytes",
        lambda s: s.retention.kind is TierRetention.LIMITED and not (s.retention.age_s or s.retention.size_bytes),
        "retention.kind = limited needs retention.age_s or retention.size_bytes",
    ),
    Rule(
        "retention.kind ledgers.kind",
        lambda s: s.retention.kind is TierRetention.FOLLOW and s.ledgers.kind != "bookkeeper",
        "retention.kind = follow needs Pulsar's list of ledgers, and ledgers.kind = {ledgers.kind} has none: choose "
        "keep or limited",
    ),
    _holds("memory.upload_bytes", UPLOAD_PARTS_MIN, "parts", "offload.part_bytes"),
    _holds("memory.cache_bytes", CACHE_BLOCKS_MIN, "blocks", "offload.block_bytes"),
    _at_most("read.read_ahead_bytes", "memory.cache_bytes", ": what is read ahead waits in the cache"),
    Rule(
        "outage.policy spill.directory",
        lambda s: s.outage.policy is OutagePolicy.SPILL and s.spill.directory is None,
        "outage.policy = spill needs a spill.directory to write to",
    ),
    Rule(
        "tracing.enabled",
        lambda s: s.tracing.enabled and not all(map(is_installed, TRACING_MODULES)),
        "tracing.enabled = true needs OpenTelemetry, which is not installed: pip install 'offloaderd[otel]', or set "
        "tracing.enabled = false",
    ),
    _needs("tracing.enabled", "tracing.endpoint", "tracing.enabled = true needs tracing.endpoint: say where to send"),
    Rule(
        "tracing.headers tracing.endpoint",
        _shows_headers,
        "tracing.headers would be sent in the clear to {tracing.endpoint}: use https",
    ),
    Rule(
        "tracing.headers",
        _has_bad_headers,
        "tracing.headers is not NAME=VALUE, or several of them with commas between them",
    ),
)


RENAMED = "write the new name: the next release does not take the old one"


def doubtful(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield settings that may be a mistake, each with advice."""
    yield from ((line, RENAMED) for line in settings.renamed)
    yield from unknown_modules(settings.log.levels)
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
    if is_metadata_open(settings):
        yield (
            "whoever reaches ZooKeeper may write the daemon's nodes, policies and retention among them, and so have "
            "what is stored deleted",
            'set metadata.acl = "creator" with metadata.username or metadata.tls_cert_file, and let few reach it',
        )
    for service in settings.objects.every_service:
        endpoint = service.endpoint
        if KINDS[service.kind].has_buckets and endpoint is not None and not is_private(endpoint):
            yield (
                f"entries go in the clear to {endpoint}, for anybody on the way to read and, in answers, to change",
                f"use https:// in {service.section}.endpoint",
            )


def is_metadata_open(settings: Settings) -> bool:
    """Whether everybody may write the nodes of the daemons in a ZooKeeper that other machines reach."""
    metadata = settings.metadata
    hosts = [one.rpartition(":")[0] for one in metadata.servers.partition("/")[0].split(",")]
    return metadata.acl == "open" and not all(map(is_loopback, hosts))
