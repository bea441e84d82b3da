"""The gate from the attacker's side: over real TLS, with no certificate, somebody else's, an old one, forged tokens."""

from __future__ import annotations

import asyncio
import socket
import ssl
import warnings
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import structlog
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from offloaderd.access.callers import of_certificate
from offloaderd.access.roles import Grant, Identity, Kind, Rights
from offloaderd.access.tokens import TokenKey
from offloaderd.api.gate import Authentication, Limits
from offloaderd.client import DaemonClient, NotTrusted, Trust, Unreachable
from offloaderd.core.errors import Denied, InvalidConfig, InvalidInput, OffloaderError, Throttled, Unauthenticated
from offloaderd.core.model import TopicName
from offloaderd.core.names.patterns import TopicPattern
from offloaderd.protocol.v1 import admin_pb2, admin_pb2_grpc, ledgers_pb2, offload_pb2, offload_pb2_grpc, read_pb2_grpc
from offloaderd.protocol.v1.read_pb2 import ReadRequest
from offloaderd.testing.clock import FakeClock
from tests.authority import Authority, token
from tests.patience import PATIENCE_S
from tests.unit.api.guarded import guarded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

REAL_TIME = "gRPC"

SECRET = bytes(range(1, 33))
MINE, THEIRS = TopicName.parse("public/default/mine"), TopicName.parse("public/other/theirs")
GRANTS = ("admin alice *", "read bob public/default/*", "offload broker public/default/mine")


def keys() -> list[TokenKey]:
    """The key of the daemon."""
    return [TokenKey(SECRET, ("HS256",))]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something."""
    while not condition():
        await asyncio.sleep(0.02)  # noqa: TID251 - a test waits for a real server


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    """The authority that both sides trust."""
    return Authority(tmp_path)


@pytest.fixture
def evil(tmp_path: Path) -> Authority:
    """An attacker's authority."""
    return Authority(tmp_path, "evil")


async def test_a_certificate_names_its_caller_and_the_caller_has_a_role(ca: Authority) -> None:
    """Mutual TLS: alice may, bob may read his namespace, carol has a certificate and nothing else."""
    async with guarded(files=ca.server(ca.file), grants=GRANTS, certificates=True) as site:
        for name, allowed in (("alice", True), ("bob", False), ("carol", False)):
            pair = ca.issue(name)
            async with site.client(ca_file=ca.file, cert_file=pair.cert, key_file=pair.key) as client:
                if allowed:
                    await client.status()
                    await client.enable(TopicPattern.parse("public/*"))
                else:
                    what = "everything" if name == "bob" else "any topic"
                    with pytest.raises(Denied, match=f"{name} may not call Status: the role read for {what}"):
                        await client.status()
                    with pytest.raises(Denied, match=r"the role admin for any topic is missing") as caught:
                        await client.enable(TopicPattern.parse("public/*"))
                    assert f"admin cert:{name} WHERE" in caught.value.hint
                if name == "bob":
                    await client.status(MINE)
                    with pytest.raises(Denied, match="public/other/theirs"):
                        await client.status(THEIRS)
        assert site.refusals("denied") == 5


async def test_without_a_certificate_of_the_right_authority_nobody_connects(ca: Authority, evil: Authority) -> None:
    """None, one of another authority, and one that has ended: each is said in its own words."""
    outsider, old = evil.issue("alice"), ca.issue("alice", ended=True)
    async with guarded(files=ca.server(ca.file), grants=GRANTS, certificates=True) as site:
        for trust, message in (
            ({"ca_file": ca.file}, "asks for a certificate, and none was shown"),
            (
                {"ca_file": ca.file, "cert_file": outsider.cert, "key_file": outsider.key},
                "does not accept our certificate",
            ),
            ({"ca_file": ca.file, "cert_file": old.cert, "key_file": old.key}, "does not accept our certificate"),
            ({"ca_file": evil.file}, "cannot be trusted: unable to get local issuer"),
            ({}, "speaks TLS"),
        ):
            with pytest.raises(NotTrusted, match=message):
                async with site.client(**trust):
                    pytest.fail("got in")
        assert site.admin.calls == 0


async def test_a_daemon_with_an_old_or_foreign_certificate_is_not_trusted(ca: Authority) -> None:
    """The client's side of it: the daemon's certificate has ended, or names another host."""
    pairs = [
        (ca.issue("daemon", "127.0.0.1", ended=True), "certificate has expired"),
        (ca.issue("daemon", "other.invalid"), "IP address mismatch"),
    ]
    files = ca.server()
    for pair, message in pairs:
        async with guarded(files=type(files)(cert=pair.cert, key=pair.key)) as site:
            with pytest.raises(NotTrusted, match=message):
                async with site.client(ca_file=ca.file):
                    pytest.fail("trusted it")


async def test_a_client_with_tls_says_so_of_a_daemon_without(ca: Authority) -> None:
    """And a daemon that is not there is not there, TLS or not."""
    async with guarded() as site:
        with pytest.raises(NotTrusted, match="speaks no TLS"):
            async with site.client(ca_file=ca.file):
                pytest.fail("connected")
        address = site.address
    with pytest.raises(Unreachable):
        async with DaemonClient(address, trust=Trust(ca_file=ca.file)):
            pytest.fail("connected")


async def test_old_versions_of_tls_are_refused(ca: Authority) -> None:
    """TLS 1.2 is the oldest that gRPC's server speaks."""
    async with guarded(files=ca.server()) as site:
        host, _, port = site.address.rpartition(":")
        for newest, works in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context = ssl.create_default_context(cafile=str(ca.file))
            context.set_alpn_protocols(["h2"])
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of Python, for asking for it
                context.minimum_version = context.maximum_version = newest
            if works:
                _, writer = await asyncio.open_connection(host, int(port), ssl=context)
                writer.transport.abort()
            else:
                with pytest.raises((ssl.SSLError, ConnectionResetError)):
                    await asyncio.open_connection(host, int(port), ssl=context)


async def test_certificates_are_taken_up_when_they_change(ca: Authority, evil: Authority) -> None:
    """New pair and new authority count for new connections, without a restart; half a pair leaves the old one."""
    files = ca.server(ca.file)
    alice, kept = ca.issue("alice"), ca.file.with_name("kept.pem")
    kept.write_bytes(ca.file.read_bytes())
    trust = {"ca_file": kept, "cert_file": alice.cert, "key_file": alice.key}
    async with guarded(files=files, grants=GRANTS, certificates=True) as site:
        assert site.certificates is not None
        async with site.client(**trust) as before:
            await before.status()
            later = evil.server()
            files.cert.write_bytes(later.cert.read_bytes())
            assert not site.certificates.refresh()
            assert site.certificates.failing
            async with site.client(**trust) as client:
                await client.status()
            files.key.write_bytes(later.key.read_bytes())
            assert files.client_ca is not None
            files.client_ca.write_bytes(evil.file.read_bytes())
            assert site.certificates.refresh()
            with pytest.raises(NotTrusted):
                async with site.client(**trust):
                    pytest.fail("the old pair is still there")
            with pytest.raises(NotTrusted, match="does not accept our certificate"):
                async with site.client(**{**trust, "ca_file": evil.file}):
                    pytest.fail("the old authority is still trusted")
            mine = evil.issue("alice")
            async with site.client(ca_file=evil.file, cert_file=mine.cert, key_file=mine.key) as client:
                await client.status()
            await before.status()


async def test_tokens_over_tls(ca: Authority) -> None:
    """Good, forged, for nobody, without a role, and none: each has its own status and words."""
    async with guarded(files=ca.server(), grants=GRANTS, token_keys=keys) as site:
        async with site.client(ca_file=ca.file, token=token(SECRET)) as client:
            await client.status()
        for text, message in (
            (token(bytes(32)), "the token's signature is wrong"),
            (token(SECRET, exp=1), "the token has expired"),
            ("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.", "is not signed with HS256"),
            ("nonsense", "malformed token"),
            (None, "no token was sent"),
        ):
            async with site.client(ca_file=ca.file, token=text) as client:
                with pytest.raises(Unauthenticated, match=message) as caught:
                    await client.status()
                assert text is None or text not in str(caught.value)
        async with site.client(ca_file=ca.file, token=token(SECRET, "mallory")) as client:
            with pytest.raises(Denied, match="mallory may not call Status"):
                await client.status()
        assert site.admin.calls == 1
        assert site.refusals("unauthenticated") == 5


async def test_a_bad_token_is_not_made_up_for_by_a_good_certificate(ca: Authority) -> None:
    """With both the token counts: alice's certificate with bob's token is bob."""
    alice = ca.issue("alice")
    trust = {"ca_file": ca.file, "cert_file": alice.cert, "key_file": alice.key}
    async with guarded(files=ca.server(ca.file), grants=GRANTS, certificates=True, token_keys=keys) as site:
        async with site.client(**trust, token=token(bytes(32))) as client:
            with pytest.raises(Unauthenticated):
                await client.status()
        async with site.client(**trust, token=token(SECRET, "bob")) as client:
            with pytest.raises(Denied, match="bob may not"):
                await client.status()
        async with site.client(**trust) as client:
            await client.status()


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257])
def test_a_certificate_that_names_nobody_is_nobody(name: str) -> None:
    """No common name, one that cannot be shown, one without end; two of them are none either."""
    for found in ({"x509_common_name": [name.encode()]}, {"x509_common_name": [b"a", b"b"]}, {}):
        with pytest.raises(Unauthenticated):
            of_certificate(found)
    with pytest.raises(Unauthenticated):
        of_certificate({"x509_common_name": [b"\xff"]})
    assert of_certificate({"x509_common_name": [b"alice"]}) == (Identity(Kind.CERTIFICATE, "alice"),)
    spiffe = {"peer_uri": [b"spiffe://x/alice"], "peer_dns": [b"a.example"], "x509_common_name": [b"a", b"b"]}
    assert [str(one) for one in of_certificate(spiffe)] == ["uri:spiffe://x/alice", "dns:a.example"]


async def test_a_tokens_subject_is_no_certificates_name(ca: Authority) -> None:
    """A token for pulsar that names the daemon's own operator opens nothing here; the certificate does."""
    pair = ca.issue("offloaderd", "worker.example")
    trust = {"ca_file": ca.file, "cert_file": pair.cert, "key_file": pair.key}
    grants = ("admin cert:offloaderd *", "read token:reader *", "read dns:worker.example public/*")
    async with guarded(files=ca.server(ca.file), grants=grants, certificates=True, token_keys=keys) as site:
        async with site.client(**trust, token=token(SECRET, "offloaderd")) as client:
            with pytest.raises(Denied, match="offloaderd may not call Status") as caught:
                await client.status()
            assert "would need: read token:offloaderd WHERE" in caught.value.hint
        async with site.client(**trust, token=token(SECRET, "reader")) as client:
            await client.status()
        async with site.client(**trust) as client:
            await client.status()
        site.gate.follow(Limits(), Authentication(rights=Rights([Grant.parse(grants[2])]), certificates=True))
        async with site.client(**trust) as client:
            await client.status(MINE)
            with pytest.raises(Denied, match="the role read for everything is missing"):
                await client.status()


async def test_tokens_of_two_keys_are_taken_while_they_are_replaced(ca: Authority) -> None:
    """Old and new tokens are good at once, and the old no more when its key is taken away; the numbers say when."""
    new, old = TokenKey(bytes(range(2, 34)), ("HS256",)), TokenKey(SECRET, ("HS256",))
    present = [old]
    async with guarded(files=ca.server(), grants=GRANTS, token_keys=lambda: present) as site:

        async def good(key: TokenKey) -> bool:
            async with site.client(ca_file=ca.file, token=token(key.key)) as client:
                try:
                    await client.status()
                except Unauthenticated:
                    return False
                return True

        assert [await good(key) for key in (old, new)] == [True, False]
        present[:] = [new, old]
        assert [await good(key) for key in (old, new)] == [True, True]
        present[:] = [new]
        assert [await good(key) for key in (old, new)] == [False, True]
        name = "offloaderd_grpc_tokens_total"
        counted = [site.metrics.registry.get_sample_value(name, {"signed_by": age}) for age in ("present", "previous")]
        assert counted == [3, 1]


async def test_headers_that_try_to_be_two(ca: Authority) -> None:
    """Two authorizations, another scheme, an empty one: none is guessed at."""
    credentials = grpc.ssl_channel_credentials(ca.file.read_bytes())
    async with (
        guarded(files=ca.server(), grants=GRANTS, token_keys=keys) as site,
        aio.secure_channel(site.address, credentials) as channel,
    ):
        stub: Any = admin_pb2_grpc.AdminServiceStub(channel)
        good = f"Bearer {token(SECRET)}"
        for metadata in (
            [("authorization", good), ("authorization", f"Bearer {token(SECRET, 'bob')}")],
            [("authorization", f"Basic {token(SECRET)}")],
            [("authorization", "Bearer ")],
            [("authorization", "")],
            [("x-authorization", good)],
        ):
            with pytest.raises(aio.AioRpcError) as caught:
                await stub.Status(admin_pb2.StatusRequest(), metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await stub.Status(admin_pb2.StatusRequest(), metadata=[("authorization", good)])


async def test_a_stream_ends_with_its_token(ca: Authority) -> None:
    """A reader that stays is cut when its token ends; a clock that is the test's says when."""
    clock = FakeClock()
    async with guarded(files=ca.server(), grants=GRANTS, token_keys=keys, clock=clock) as site:
        text = token(SECRET, "bob", exp=clock.wall_ms() / 1000 + 1.0)
        async with site.client(ca_file=ca.file, token=text) as client:
            with pytest.raises(Unauthenticated, match="expired during the call"):
                async for _ in client.read_messages(MINE):
                    pass
        await until(lambda: site.reads.open == 0)


async def test_a_call_is_cut_when_its_grant_is_taken_back(ca: Authority) -> None:
    """A reader that stays, and whose role somebody took back: at once, and only this one; new calls are refused."""
    async with guarded(files=ca.server(), grants=(*GRANTS, "read eve *"), token_keys=keys) as site:
        trust: dict[str, Any] = {"ca_file": ca.file}
        async with (
            site.client(**trust, token=token(SECRET, "eve")) as eve,
            site.client(**trust, token=token(SECRET, "bob")) as bob,
        ):
            staying = bob.read_messages(MINE)
            await anext(staying)
            leaving = eve.read_messages(MINE)
            await anext(leaving)
            rules = Authentication(rights=Rights(map(Grant.parse, GRANTS)), token_keys=keys)
            site.gate.follow(Limits(), rules)
            with pytest.raises(Denied, match="the grant by which eve was let in was taken back"):
                async for _ in leaving:
                    pass
            with pytest.raises(Denied, match="eve may not call"):
                await anext(eve.read_messages(MINE))
            for _ in range(3):
                await anext(staying)
        await until(lambda: site.reads.open == 0)


async def some_of(answers: AsyncGenerator[Any, None]) -> None:
    """Take more answers than can be on their way."""
    for _ in range(100):
        await anext(answers)


async def test_a_call_is_cut_when_the_key_of_its_token_is_taken_away(ca: Authority) -> None:
    """A key that got out: what it signed is refused, also in the middle of a call; what the new one signed goes on."""
    present = [TokenKey(bytes(range(2, 34)), ("HS256",)), TokenKey(SECRET, ("HS256",))]
    async with guarded(files=ca.server(), grants=(*GRANTS, "read eve *"), token_keys=lambda: present) as site:
        trust: dict[str, Any] = {"ca_file": ca.file}
        async with (
            site.client(**trust, token=token(SECRET, "eve")) as eve,
            site.client(**trust, token=token(bytes(range(2, 34)), "bob")) as bob,
        ):
            staying, leaving = bob.read_messages(MINE), eve.read_messages(MINE)
            await anext(staying)
            await anext(leaving)
            site.gate.check_running()
            await anext(leaving)
            del present[1]
            site.gate.check_running()
            with pytest.raises(Unauthenticated, match="the key that signed the token was taken away"):
                await some_of(leaving)
            for _ in range(3):
                await anext(staying)
        await until(lambda: site.reads.open == 0)


async def test_limits_that_change_hold_for_the_next_call() -> None:
    """The number of calls at a time, and of those that begin in a second."""
    async with guarded(limits=Limits(calls_per_s=2)) as site, site.client() as client:
        for _ in range(2):
            await client.status()
        with pytest.raises(Throttled, match="more than 2 calls"):
            await client.status()
        site.gate.follow(Limits(calls_max=100), None)
        for _ in range(4):
            await client.status()
        site.admin.slow.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(client.status())
            await until(lambda: site.admin.calls == 7)
            site.gate.follow(Limits(calls_max=1), None)
            with pytest.raises(Throttled, match="serves 1 calls"):
                await client.status()
            site.admin.slow.set()


async def test_each_message_of_a_stream_is_checked(ca: Authority) -> None:
    """A broker that may push one topic cannot slip another one in later, by pushing or by appending."""
    async with (
        guarded(files=ca.server(), grants=GRANTS, token_keys=keys) as site,
        site.client(ca_file=ca.file, token=token(SECRET, "broker")) as client,
    ):
        stub: Any = offload_pb2_grpc.OffloadServiceStub(client._channel)
        call = stub.StreamingOffload()
        await call.write(_opening(str(MINE)))
        await call.read()
        await call.write(_opening(str(THEIRS)))
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
        appending: Any = client._ledgers.Append()
        await appending.write(ledgers_pb2.AppendRequest(topic=str(MINE)))
        await appending.read()
        await appending.write(ledgers_pb2.AppendRequest(topic=str(THEIRS)))
        assert await appending.code() is grpc.StatusCode.PERMISSION_DENIED
        assert (site.pushes.taken, site.appends.taken) == ([str(MINE)], [str(MINE)])
        with pytest.raises(Denied, match="the role read for any topic is missing"):
            await client.status(MINE)


def _opening(topic: str) -> offload_pb2.StreamingOffloadRequest:
    return offload_pb2.StreamingOffloadRequest(open=offload_pb2.StreamingOffloadRequest.Open(topic=topic))


async def test_probes_need_no_name_and_reflection_does(ca: Authority) -> None:
    """Health says up or down to anybody who gets a connection; the API is shown to callers only."""
    async with (
        guarded(files=ca.server(), grants=GRANTS, token_keys=keys) as site,
        site.client(ca_file=ca.file) as client,
    ):
        probe: Any = health_pb2_grpc.HealthStub(client._channel)
        assert (await probe.Check(health_pb2.HealthCheckRequest())).status == 1
        unknown: Any = client._channel.unary_unary("/offloaderd.v1.AdminService/Nothing")
        with pytest.raises(aio.AioRpcError) as caught:
            await unknown(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        open_: Any = client._channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        reflect = open_()
        await reflect.done_writing()
        assert await reflect.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_limits_of_one_caller_and_of_all() -> None:
    """Rate, calls at a time and their length: refused with words and a number, and over when it is over."""
    limits = Limits(calls_max=2, calls_per_s=1000, call_s_max=0.3, send_s_max=5)
    async with guarded(limits=limits) as site, site.client() as client:
        site.admin.slow.clear()
        with pytest.raises(OffloaderError, match=r"took more than 0\.3 s"):
            await client.status()
        tasks = asyncio.TaskGroup()
        async with tasks:
            waiting = [tasks.create_task(_failing(client.status())) for _ in range(2)]
            await until(lambda: site.metrics.registry.get_sample_value("offloaderd_grpc_calls") == 2)
            with pytest.raises(Throttled, match="serves 2 calls already"):
                await client.status()
        assert all("0.3 s" in str(task.result()) for task in waiting)
        site.admin.slow.set()
        await client.status()
        assert (site.refusals("duration"), site.refusals("calls")) == (3, 1)


async def _failing(work: Any) -> OffloaderError | None:  # noqa: ANN401 - any call
    """Return the error that a call ended with."""
    try:
        await work
    except OffloaderError as error:
        return error
    return None


async def test_the_rate_is_each_callers_own(ca: Authority) -> None:
    """One who floods is refused; another one is not; strangers who guess have a rate of their own."""
    clock = FakeClock()
    limits = Limits(calls_per_s=5)
    async with guarded(files=ca.server(), grants=GRANTS, token_keys=keys, limits=limits, clock=clock) as site:
        async with site.client(ca_file=ca.file, token=token(SECRET)) as client:
            for _ in range(5):
                await client.status()
            with pytest.raises(Throttled, match="alice makes more than 5 calls a second"):
                await client.status()
            async with site.client(ca_file=ca.file, token=token(SECRET, "bob")) as other:
                await other.status(MINE)
            await clock.advance(1.0)
            await client.status()
        async with site.client(ca_file=ca.file, token="guess") as client:
            for _ in range(5):
                with pytest.raises(Unauthenticated):
                    await client.status()
            with pytest.raises(Throttled):
                await client.status()
        assert site.refusals("rate") == 2


async def test_a_message_that_is_too_large_is_not_taken(ca: Authority) -> None:
    """gRPC refuses it before anything of it is kept, and the connection lives on."""
    async with (
        guarded(files=ca.server(), grants=GRANTS, token_keys=keys, message_bytes_max=6 << 20) as site,
        site.client(ca_file=ca.file, token=token(SECRET)) as client,
    ):
        with pytest.raises(OffloaderError, match="larger than max"):
            await client.status(TopicName("a", "b", "x" * (7 << 20)))
        await client.status()
        assert site.admin.calls == 1


async def test_a_client_that_takes_nothing_is_cut_off() -> None:
    """A stream whose answers nobody takes ends after the limit, and what it held is free."""
    async with guarded(limits=Limits(send_s_max=0.5)) as site, site.client() as client:
        stub: Any = read_pb2_grpc.ReadServiceStub(client._channel)
        call = stub.ReadMessages(ReadRequest(topic=str(MINE)))
        await call.read()
        await until(lambda: site.refusals("slow") == 1)
        await until(lambda: site.reads.open == 0)
        await until(lambda: site.metrics.registry.get_sample_value("offloaderd_grpc_calls") == 0)
        call.cancel()
        await client.status()


@pytest.mark.parametrize(
    ("tls", "opening"),
    [
        (True, b""),
        (True, b"\x16\x03\x01\x02\x00\x01"),
        (False, b""),
        (False, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (False, b"GET / HTTP/1.1\r\n\r\n"),
    ],
    ids=["silence", "half a handshake", "silence in the clear", "a preface alone", "another protocol"],
)
async def test_a_connection_that_says_nothing_is_closed(ca: Authority, tls: bool, opening: bytes) -> None:
    """Neither silence nor a beginning that goes nowhere holds a socket for longer than the limit."""
    async with guarded(files=ca.server() if tls else None) as site:
        host, _, port = site.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(opening)
        async with asyncio.timeout(PATIENCE_S):
            assert await _until_closed(reader) == b""
        writer.close()


async def _until_closed(reader: asyncio.StreamReader) -> bytes:
    try:
        while await reader.read(1000):
            pass
    except ConnectionResetError:
        pass
    return b""


async def test_what_changes_something_and_what_is_refused_is_audited(ca: Authority) -> None:
    """Who, what, on which topic, with which outcome, and whether it was a dry run; never a token."""
    with structlog.testing.capture_logs() as logs:
        async with guarded(
            files=ca.server(), grants=(*GRANTS, "admin carol public/default/*"), token_keys=keys
        ) as site:
            async with site.client(ca_file=ca.file, token=token(SECRET)) as client:
                await client.enable(TopicPattern.parse("public/*"), dry_run=True)
                await client.status()
            for name in ("carol", "bob"):
                async with site.client(ca_file=ca.file, token=token(SECRET, name)) as client:
                    with pytest.raises(Denied):
                        await client.disable(THEIRS)
            async with site.client(ca_file=ca.file, token="forged.forged.forged") as client:
                with pytest.raises(Unauthenticated):
                    await client.status()
    events = [event for event in logs if event["event"] == "audit.call"]
    told = [(one["identity"], one["method"], one["code"], one.get("topics"), one.get("dry_run")) for one in events]
    assert told == [
        ("alice", "EnableTopic", "OK", ["public/*"], True),
        ("carol", "DisableTopic", "PermissionDenied", ["public/other/theirs"], False),
        ("bob", "DisableTopic", "PermissionDenied", [], None),
        ("", "Status", "Unauthenticated", None, None),
    ]
    assert {one["via"] for one in events[:3]} == {"token"}
    assert all(one["peer"].startswith("ipv4:127.0.0.1:") for one in events)
    assert "forged.forged" not in str(logs)
    assert token(SECRET) not in str(logs)


@pytest.mark.parametrize(
    ("trust", "kind", "message"),
    [
        ({"token": "x"}, InvalidInput, "sent over TLS only"),
        ({"tls": True, "cert_file": "cert"}, InvalidInput, "go together"),
        ({"ca_file": "nowhere"}, InvalidConfig, "cannot read"),
        ({"ca_file": "empty"}, InvalidConfig, "files for TLS cannot be used"),
        ({"tls": True, "token_file": "empty"}, InvalidConfig, "holds no token"),
    ],
)
async def test_what_a_client_is_given_is_checked_first(
    trust: dict[str, Any], kind: type[OffloaderError], message: str, tmp_path: Path
) -> None:
    """Nothing is sent when it cannot work, and a token never in the clear."""
    (tmp_path / "empty").write_text("\n")
    given = {name: tmp_path / value if name.endswith("_file") else value for name, value in trust.items()}
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.setblocking(False)
        client = DaemonClient(f"127.0.0.1:{silent.getsockname()[1]}", trust=Trust(**given))
        with pytest.raises(kind, match=message):
            async with client:
                pytest.fail("connected")
        with pytest.raises(BlockingIOError):
            silent.accept()
