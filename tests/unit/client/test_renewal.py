"""A client whose certificates and tokens are replaced while it lives: what it shows is what is there now."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from offloaderd.access.tokens import TokenKey
from offloaderd.client import DaemonClient, NotTrusted, Trust
from offloaderd.client.channel import Resume
from offloaderd.core.errors import Denied, Unauthenticated
from offloaderd.testing.clock import FakeClock
from tests.authority import Authority, Pair, token
from tests.unit.api.guarded import guarded

if TYPE_CHECKING:
    from pathlib import Path

REAL_TIME = "gRPC"

SECRET = bytes(range(1, 33))
GRANTS = ("read alice *", "read bob public/default/*")


async def allowed(client: DaemonClient) -> bool:
    """Whether somebody may see everything, as alice may and bob may not."""
    try:
        await client.status()
    except Denied:
        return False
    return True


async def test_a_token_is_read_again_for_each_call(tmp_path: Path) -> None:
    """One that was replaced counts at once, on the same connection; while there is none the last good one does."""
    ca, file = Authority(tmp_path), tmp_path / "token"
    file.write_text(token(SECRET, "bob"))
    async with (
        guarded(files=ca.server(), grants=GRANTS, token_keys=lambda: [TokenKey(SECRET, ("HS256",))]) as site,
        site.client(ca_file=ca.file, token_file=file) as client,
    ):
        assert not await allowed(client)
        file.write_text(token(SECRET, "alice"))
        assert await allowed(client)
        file.write_text("")
        assert await allowed(client)


async def test_certificates_are_read_again_for_new_channels(tmp_path: Path) -> None:
    """Calls that begin after a certificate was replaced show the new one; halves of a pair leave the old in use."""
    ca = Authority(tmp_path)
    shown = Pair(tmp_path / "client.crt", tmp_path / "client.key")

    def take(pair: Pair) -> None:
        shown.cert.write_bytes(pair.cert.read_bytes())
        shown.key.write_bytes(pair.key.read_bytes())

    take(ca.issue("bob"))
    async with (
        guarded(files=ca.server(ca.file), grants=GRANTS, certificates=True) as site,
        site.client(ca_file=ca.file, cert_file=shown.cert, key_file=shown.key) as client,
    ):
        assert not await allowed(client)
        take(ca.issue("alice"))
        assert await allowed(client)
        shown.key.write_bytes(ca.issue("bob").key.read_bytes())
        assert await allowed(client)


async def persistent(resume: Resume, error: Unauthenticated) -> None:
    """Try until the error is final."""
    with suppress(Unauthenticated):
        while True:
            await resume.after(error)


async def test_a_stream_that_its_token_ended_goes_on_with_the_next(tmp_path: Path) -> None:
    """One that worked, whose token comes from a file; not for longer than any other trouble, and nobody else's."""
    clock = FakeClock()
    ended = Unauthenticated("the token has expired during the call")

    def resume(trust: Trust) -> Resume:
        return Resume(DaemonClient("127.0.0.1:1", trust=trust, clock=clock), clock, 60.0)

    renewed = resume(Trust(tls=True, token_file=tmp_path / "token"))
    with pytest.raises(Unauthenticated):
        await renewed.after(ended)  # it never worked
    fixed = resume(Trust(tls=True, token="t"))
    fixed.worked()
    with pytest.raises(Unauthenticated):
        await fixed.after(ended)
    renewed.worked()
    with pytest.raises(NotTrusted):
        await renewed.after(NotTrusted("the daemon shows another certificate"))
    async with asyncio.TaskGroup() as group:
        refused = group.create_task(persistent(renewed, ended))
        await clock.advance(59)
        assert not refused.done()
        await clock.advance(10)
        assert refused.done()
