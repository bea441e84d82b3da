"""A daemon's parts follow each setting that is said to be followed, on in-memory stores."""

from __future__ import annotations

import contextlib
import pkgutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from offloaderd.access.jwks import parse
from offloaderd.access.roles import Identity, Kind, Role
from offloaderd.api.admin import DaemonSnapshot
from offloaderd.api.push import LedgerService
from offloaderd.bookkeeper.rate_limits import Limits as SourceLimits
from offloaderd.core.clock import SystemClock
from offloaderd.core.errors import InvalidConfig
from offloaderd.core.limits import ByteBudget
from offloaderd.core.metrics.metrics import Metrics
from offloaderd.core.model import TopicName
from offloaderd.daemon import topic_context as contexts
from offloaderd.daemon.components import Components
from offloaderd.daemon.guard import Guard, _provider
from offloaderd.daemon.log_levels import LogLevels
from offloaderd.daemon.reload import LIVE, Reloader
from offloaderd.daemon.settings import Settings, check
from offloaderd.daemon.stores import Ledgers
from offloaderd.protocol import v1
from offloaderd.testing.memory.metadata import MemoryTree
from offloaderd.testing.memory.objects import MemoryStore
from offloaderd.topic.buffer import BufferPool
from tests.authority import Authority
from tests.unit.access.test_jwks import RSA_KEY, jwk
from tests.unit.access.test_jwks import listed as document
from tests.unit.daemon.test_log_levels import standard_levels

REAL_TIME = "gRPC"

TOPIC = TopicName.parse("public/default/orders")
CLOCK = SystemClock()
PUBLIC = Path(__file__).parents[2] / "golden" / "token-public.txt"
SECRET = "data:;base64," + "QUJD" * 11
HELD_BY_POLICIES = {
    "grants.deletion_lag_s": "deletion_lag_s",
    "mirror.place": "mirror",
    "mirror.required": "mirror_required",
    "offload.segment_age_max_s": "segment_age_max_s",
    "offload.segment_age_min_s": "segment_age_min_s",
    "offload.segment_bytes_max": "segment_bytes_max",
    "outage.policy": "outage",
    "read.priority": "read_priority",
    "retention.age_s": "retention_age_s",
    "retention.kind": "retention",
    "retention.size_bytes": "retention_bytes",
}
ASKED_FOR_WHEN_NEEDED = {
    *("capture.enabled", "capture.interval_s", "capture.keep"),
    *("gc.interval_s", "gc.mode", "shutdown.drain_s", "placement.impaired_s"),
}
"""By the daemon itself, of the settings that hold."""

_all_levels = standard_levels


SNAPSHOT = DaemonSnapshot(daemon_id="d", version="0", state="serving", started_ms=1)


ALICE, BOB = (Identity(Kind.TOKEN, name) for name in ("alice", "bob"))


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    """Who signs the daemon's certificate."""
    return Authority(tmp_path)


class Site:
    """Settings of a daemon with tokens, and its parts."""

    def __init__(self, ca: Authority) -> None:
        files = ca.server()
        self.given = {
            "objects.bucket": "offload",
            "objects.places": "pulsar-archive/a",
            "tls.cert_file": str(files.cert),
            "tls.key_file": str(files.key),
            "access.token_secret_key": SECRET,
            "access.grants": "admin alice *",
        }
        metrics = Metrics()
        settings = self.read({})
        self.guard = Guard(settings, CLOCK, metrics)
        objects = MemoryStore(CLOCK)
        limits = SourceLimits(settings.bookkeeper, CLOCK, metrics)
        ledgers = Ledgers(limits=limits)
        pool, uploads = BufferPool(settings.memory.buffer_bytes), ByteBudget(settings.memory.upload_bytes)
        context = contexts.topic_context(
            settings, MemoryTree().connect(), objects, ledgers, pool, uploads, clock=CLOCK, metrics=metrics
        )
        self.levels = LogLevels(settings.log, CLOCK, metrics)
        reloader = Reloader(settings, None, CLOCK, metrics)
        self.components: Components = Components(
            settings, context, ledgers, self.guard, self.levels, reloader, snapshot=lambda: SNAPSHOT, clock=CLOCK
        )

    def read(self, changed: dict[str, str]) -> Settings:
        """Return settings in which something is different; an empty value takes one away."""
        given = {key: value for key, value in {**self.given, **changed}.items() if value}
        report = check(None, {}, given)
        assert report.settings is not None, report.mistakes
        return report.settings

    def state(self) -> dict[str, Any]:
        """Return what the parts go by, by the setting that it comes from."""
        components, gate = self.components, self.guard.gate
        context, rules, bounds = components.engine.context, gate._authentication, gate._limits
        token = rules.token_rules if rules is not None else None
        source, grants = components.ledgers.limits, components.grants
        assert source is not None
        daemon = [(scope._bytes, scope._requests) for scope in source._daemon]
        placement, scrub = components.engine.placement.options, components.scrubber._options
        levels = self.levels.shown()
        holds = components.engine.book.effective(TOPIC, None).values
        found: dict[str, Any] = {key: getattr(holds, name) for key, name in HELD_BY_POLICIES.items()}
        return found | {
            "access.audit_calls": bounds.audit_calls,
            "access.audit_reads": bounds.audit_reads,
            "access.calls_per_s": bounds.calls_per_s,
            "access.grants": rules and [rules.rights.allow([one], Role.READ, None) for one in (ALICE, BOB)],
            "access.identity_calls_max": bounds.identity_calls_max,
            "access.identity_readers_max": bounds.identity_readers_max,
            "access.namespace_expressions_max": components.engine._selector.expressions_max,
            "access.namespace_topics_max": components.broker.topics.namespace_topics_max,
            "access.tenant_namespaces_max": components.broker.topics.tenant_namespaces_max,
            "access.token_audience": token and token.audience,
            "access.token_audience_claim": token and token.audience_claim,
            "access.token_claim": token and token.claim,
            "access.token_groups_claim": token and token.groups_claim,
            "access.token_issuer": token and token.issuer,
            "access.token_leeway_s": token and token.leeway_s,
            "access.token_secret_key": rules and next(iter(rules.token_keys()), None),
            "access.token_secret_key_previous": rules and list(rules.token_keys())[1:],
            "bookkeeper.bytes_per_s": [one is None for one, _ in daemon],
            "bookkeeper.requests_per_s": [one is None for _, one in daemon],
            "bookkeeper.topic_bytes_per_s": source._topic_rates[0],
            "bookkeeper.topic_requests_per_s": source._topic_rates[1],
            "gc.grace_s": components.upkeep.grace_s,
            "grants.interval_s": grants._options.interval_s,
            "grants.readback": grants._checker.readback,
            "grpc.call_s_max": bounds.call_s_max,
            "grpc.calls_max": bounds.calls_max,
            "grpc.send_s_max": bounds.send_s_max,
            "log.level": levels[0].level,
            "log.levels": levels[1:],
            "memory.buffer_bytes": context.pool.limit_bytes,
            "memory.upload_bytes": context.upload_context.budget.limit,
            "offload.parts_in_flight_max": context.upload_context.limits.parts_in_flight_max,
            "offload.suspend_after_s": components.engine.idle_topics.options.after_s,
            "offload.verify": context.upload_context.limits.readback,
            "placement.grace_s": placement.grace_s,
            "placement.handover_s": placement.handover_s,
            "placement.handovers_max": placement.handovers_max,
            "placement.cooldown_s": placement.cooldown_s,
            "placement.settle_s": placement.settle_s,
            "read.batch_bytes": components.reader.options.batch_bytes,
            "read.readers_max": components.reads.readers_max,
            "retention.follow_lag_s": components.retention.options.follow_lag_s,
            "retention.interval_s": components.retention.options.interval_s,
            "mirror.bytes_per_s": components.mirror._throttle.per_s,
            "scrub.bytes_per_s": components.scrubber._throttle.per_s,
            "scrub.first_after_s": scrub.first_after_s,
            "scrub.interval_s": scrub.interval_s,
            "tls.reload_s": self.guard._settings.tls.reload_s,
            "upload.concurrency_max": context.upload_context.pace.ceiling,
        }


OTHER = {
    "access.audit_calls": "true",
    "access.audit_reads": "true",
    "access.calls_per_s": "7",
    "access.grants": "read bob *",
    "access.identity_calls_max": "17",
    "access.identity_readers_max": "17",
    "access.namespace_expressions_max": "16",
    "access.namespace_topics_max": "17",
    "access.tenant_namespaces_max": "18",
    "access.token_audience": "us",
    "access.token_audience_claim": "whom",
    "access.token_claim": "who",
    "access.token_groups_claim": "groups",
    "access.token_issuer": "https://login.example.org",
    "access.token_leeway_s": "3",
    "access.token_secret_key": SECRET + "QUJD",
    "access.token_secret_key_previous": SECRET + "QUJD",
    "bookkeeper.bytes_per_s": "1MiB",
    "bookkeeper.requests_per_s": "7",
    "bookkeeper.topic_bytes_per_s": "1MiB",
    "bookkeeper.topic_requests_per_s": "7",
    "gc.grace_s": "90000",
    "grants.deletion_lag_s": "17",
    "grants.interval_s": "17",
    "grants.readback": "true",
    "grpc.call_s_max": "17",
    "grpc.calls_max": "17",
    "grpc.send_s_max": "17",
    "log.level": "error",
    "log.levels": "read debug",
    "memory.buffer_bytes": "17MiB",
    "memory.upload_bytes": "117MiB",
    "offload.parts_in_flight_max": "3",
    "offload.segment_age_max_s": "17",
    "offload.segment_age_min_s": "17",
    "offload.segment_bytes_max": "17MiB",
    "offload.suspend_after_s": "17",
    "offload.verify": "readback",
    "outage.policy": "block",
    "placement.grace_s": "17",
    "placement.handover_s": "17",
    "placement.handovers_max": "3",
    "placement.cooldown_s": "17",
    "placement.settle_s": "17",
    "read.batch_bytes": "17KiB",
    "read.priority": "bookkeeper-first",
    "read.readers_max": "17",
    "retention.follow_lag_s": "17",
    "retention.interval_s": "17",
    "retention.kind": "keep",
    "retention.size_bytes": "17MiB",
    "retention.age_s": "17",
    "mirror.bytes_per_s": "17MiB",
    "mirror.place": "pulsar-archive/a",
    "mirror.required": "true",
    "scrub.bytes_per_s": "17MiB",
    "scrub.first_after_s": "17",
    "scrub.interval_s": "17000",
    "tls.reload_s": "17",
    "upload.concurrency_max": "3",
}
NEEDED = {"mirror.required": {"mirror.place": "pulsar-archive/a"}}
"""Settings without which another one is refused."""
LIMITED = {"retention.kind": "limited", "retention.age_s": "5", "retention.size_bytes": "5MiB"}
PUBLIC_KEY = {f"access.token_public_{name}{age}" for name in ("key", "alg") for age in ("", "_previous")}
"""In place of the secret; see below."""
PROVIDER = {"access.token_jwks", "access.token_jwks_ca_file"}
"""Beside the secret; see below."""


def test_the_list_of_what_is_followed_is_the_list_of_what_is_tried() -> None:
    """A setting that is said to be followed, and that nobody tells of, would be a lie in the documentation."""
    assert OTHER.keys() | ASKED_FOR_WHEN_NEEDED | PUBLIC_KEY | PROVIDER == LIVE


@pytest.mark.parametrize("key", sorted(OTHER))
def test_each_setting_that_is_followed_changes_what_a_part_goes_by(ca: Authority, key: str) -> None:
    """After it was followed its part goes by another value, and back again; preparing alone changes nothing."""
    site = Site(ca)
    needed = LIMITED if key in LIMITED else NEEDED.get(key, {})
    site.components.prepare(site.read(needed))()
    before = site.state()
    follow = site.components.prepare(site.read({**needed, key: OTHER[key]}))
    assert site.state() == before
    follow()
    assert site.state()[key] != before[key]
    site.components.prepare(site.read(needed))()
    assert site.state() == before


def test_a_token_key_that_cannot_be_used_refuses_all_of_it(ca: Authority) -> None:
    """The file is read before anybody is told."""
    site = Site(ca)
    before = site.state()
    changed = {"access.token_secret_key": "file:///nowhere/key", "grpc.calls_max": "17"}
    with pytest.raises(InvalidConfig, match="nowhere"):
        site.components.prepare(site.read(changed))
    assert site.state() == before


def test_another_kind_of_token_key_takes_the_place_of_the_secret(ca: Authority) -> None:
    """The pinned algorithm goes with it."""
    site = Site(ca)
    public = {"access.token_secret_key": "", "access.token_public_key": PUBLIC.read_text().strip()}
    for algorithm in ("RS256", "RS512"):
        site.components.prepare(site.read({**public, "access.token_public_alg": algorithm}))()
        assert site.state()["access.token_secret_key"].algorithms == (algorithm,)
    before = {"access.token_secret_key_previous": SECRET}
    site.components.prepare(site.read({**public, **before}))()
    assert [key.algorithms for key in site.state()["access.token_secret_key_previous"]] == [("HS256",)]
    elder = {"access.token_public_key_previous": public["access.token_public_key"]}
    site.components.prepare(site.read({**elder, "access.token_public_alg_previous": "PS256"}))()
    assert [key.algorithms for key in site.state()["access.token_secret_key_previous"]] == [("PS256",)]
    with pytest.raises(InvalidConfig, match=r"access\.token_public_key_previous.*cannot be used with ES256"):
        site.components.prepare(site.read({**elder, "access.token_public_alg_previous": "ES256"}))


def test_keys_of_a_provider_are_taken_beside_the_secret(ca: Authority, tmp_path: Path) -> None:
    """Out of a file, or from an address, which is not read before the daemon serves; an issuer has to be named."""
    site, listed = Site(ca), tmp_path / "keys.json"
    listed.write_bytes(document(jwk(RSA_KEY, "a")))
    issuer = {"access.token_issuer": "https://login.example.org"}
    site.components.prepare(site.read({"access.token_jwks": str(listed), **issuer}))()
    assert [key.key_id for key in site.state()["access.token_secret_key_previous"]] == ["a"]
    site.components.prepare(site.read({"access.token_jwks": "https://login.example.org/keys", **issuer}))()
    assert site.state()["access.token_secret_key_previous"] == []
    with pytest.raises(InvalidConfig, match="cannot read"):
        site.components.prepare(site.read({"access.token_jwks": str(tmp_path / "none"), **issuer}))
    with pytest.raises(AssertionError, match=r"access\.token_issuer"):
        site.read({"access.token_jwks": str(listed)})
    with pytest.raises(AssertionError, match="without TLS"):
        site.read({"access.token_jwks": "http://login.example.org/keys", **issuer})


@contextlib.asynccontextmanager
async def provider(ca: Authority, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """Serve the keys of a provider; yields their address."""
    app, files = web.Application(), ca.server()
    app.router.add_get("/keys", answer)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        yield f"https://localhost:{runner.addresses[0][1]}/keys"
    finally:
        await runner.cleanup()


async def test_keys_at_an_address_are_read_to_their_end(ca: Authority) -> None:
    """An answer comes in pieces, of which each may be shorter than the document."""
    whole = document(jwk(RSA_KEY, "a"))

    async def keys(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for piece in (whole[:50], whole[50:]):
            await answer.write(piece)
            await CLOCK.sleep(0.1)
        return answer

    async with provider(ca, keys) as address:
        site = Site(ca)
        given = {"access.token_jwks": address, "access.token_jwks_ca_file": str(ca.file)}
        settings = site.read({**given, "access.token_issuer": "https://login.example.org"})
        keeper = _provider(settings, CLOCK)
        assert keeper is not None
        assert await keeper.refresh()
        assert [key.key_id for key in keeper.value] == ["a"]


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_another_answer_than_keys_is_none(ca: Authority, status: int) -> None:
    """Nor is a redirection followed, which could lead to an address without TLS; the last keys stay in use."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        where = str(request.url.with_query("again"))
        return web.Response(status=status, headers={"Location": where}, body=document(jwk(RSA_KEY, "a")))

    async with provider(ca, answer) as address:
        given = {"access.token_jwks": address, "access.token_jwks_ca_file": str(ca.file)}
        settings = Site(ca).read({**given, "access.token_issuer": "https://login.example.org"})
        keeper = _provider(settings, CLOCK)
        assert keeper is not None
        assert not await keeper.refresh()
        assert keeper.failing
        assert asked == ["/keys"]


async def test_the_name_of_no_host_is_a_failure_like_others(ca: Authority) -> None:
    """It may be in settings that a running daemon follows, which goes on with the keys that it has."""
    given = {"access.token_jwks": "https://login..example.org/keys", "access.token_issuer": "https://login.example.org"}
    keeper = _provider(Site(ca).read(given), CLOCK)
    assert keeper is not None
    assert not await keeper.refresh()
    assert keeper.failing


def test_keys_of_a_provider_stay_in_use_when_other_settings_of_keys_change(ca: Authority, tmp_path: Path) -> None:
    """Its callers are not cut by the rotation of a secret, or of the authority of its address; another address has
    other keys.
    """
    site, keys = Site(ca), parse(document(jwk(RSA_KEY, "a")), "here")
    given = {"access.token_jwks": "https://login.example.org/keys", "access.token_issuer": "https://login.example.org"}
    site.components.prepare(site.read(given))()
    assert site.guard._provider is not None
    site.guard._provider.value = keys
    (tmp_path / "ca.crt").write_bytes(ca.file.read_bytes())
    for changed in (
        {"access.token_secret_key": SECRET + "QUJD"},
        {"access.token_jwks_ca_file": str(ca.file)},
        {"access.token_jwks_ca_file": str(tmp_path / "ca.crt")},
    ):
        given |= changed
        site.components.prepare(site.read(given))()
        assert site.state()["access.token_secret_key_previous"] == list(keys)
    site.components.prepare(site.read({**given, "access.token_jwks": "https://other.example.org/keys"}))()
    assert site.state()["access.token_secret_key_previous"] == []


async def test_each_service_of_the_protos_is_served(ca: Authority) -> None:
    """The daemon has a service for each proto that declares one, and it answers each call; ledgers need a store."""
    served = {name: type(service) for name, service in Site(ca).components.services.items()} | {
        "ledgers": LedgerService
    }
    stubs = [one.name for one in pkgutil.iter_modules(v1.__path__) if one.name.endswith("_pb2_grpc")]
    assert {name.removesuffix("_pb2_grpc") for name in stubs} == set(served)
    for name, service in served.items():
        (declared,) = import_module(f"{v1.__name__}.{name}_pb2").DESCRIPTOR.services_by_name.values()
        bare = getattr(import_module(f"{v1.__name__}.{name}_pb2_grpc"), f"{declared.name}Servicer")
        assert issubclass(service, bare)
        assert not [one.name for one in declared.methods if getattr(service, one.name) is getattr(bare, one.name)]
