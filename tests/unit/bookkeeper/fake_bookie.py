"""A bookie for tests, on loopback: it speaks both protocols, answers what it is given to store, or does as it is told.

async with fake_bookie() as bookie:                  # bookie.bookie_id is its address, so it needs no registration
    bookie.stored[7, 0] = package(...)               # answered from here, NO_LEDGER and NO_ENTRY otherwise
    bookie.on_request = requests.append              # or: keep them, and answer by hand, in any order
    requests[1].reply(b"...")                        # frames by `wire`, or anything else
    requests[0].session.cut()                        # end the connection
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from offloaderd.core.errors import first_of
from offloaderd.format.pb.bookkeeper import protocol_pb2 as pb
from offloaderd.standalone.ports import LOOPBACK
from tests.patience import PATIENCE_S
from tests.unit.bookkeeper import wire

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable

    from tests.unit.bookkeeper.digest_server import DigestServer

Operation = Literal["read", "batch", "last", "wait", "auth", "tls", "unknown"]

_READ = struct.Struct(">BBHqq")
_BATCH = struct.Struct(">BBHqqqiq")
OK, NO_LEDGER, NO_ENTRY, UNAUTHORISED, BUSY = 0, 1, 2, 102, 106
V3_CODES = {OK: 0, NO_LEDGER: 402, NO_ENTRY: 403, 100: 404, 101: 501, UNAUTHORISED: 502, BUSY: 506, 107: 507}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request; `number` is a batch's or a v3 message's own, `v3` says in which protocol it came."""

    session: Session
    operation: Operation
    ledger_id: int = -1
    entry_id: int = -1
    number: int = -1
    count_max: int = 0
    bytes_max: int = 0
    previous_lac: int = -1
    timeout_ms: int = 0
    token: pb.AuthMessage = field(default_factory=pb.AuthMessage)
    v3: bool = False

    def reply(self, frames: bytes) -> None:
        """Send these bytes."""
        self.session.send(frames)

    def refuse(self, code: int) -> None:
        """Answer with a code of v2, in whichever protocol it was asked."""
        match self.operation:
            case "batch":
                self.reply(wire.v2_batch(self.number, self.ledger_id, self.entry_id, [], code=code))
            case "read" if not self.v3:
                self.reply(wire.v2_read(self.ledger_id, self.entry_id, code=code))
            case _:
                self.reply(wire.v3_read(self.number, self.ledger_id, self.entry_id, code=V3_CODES[code]))

    def answer(self) -> None:
        """Answer from what the bookie stores."""
        self.session.bookie.answer(self)


class Session(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, bookie: FakeBookie) -> None:
        self.bookie = bookie
        self.transport: asyncio.Transport
        self._buffer = bytearray()
        self._encrypting = False
        self.ended = False
        self.trusted = False
        self.packets = 0
        """How often anything came."""

    def send(self, data: bytes) -> None:
        """Send bytes, whole frames or not."""
        self.transport.write(data)

    def cut(self) -> None:
        """End the connection at once, by a reset."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a client in."""
        self.transport = cast("asyncio.Transport", transport)
        self.bookie.sessions.append(self)

    def data_received(self, data: bytes) -> None:
        """Take requests out of what comes."""
        self.packets += 1
        self._buffer += data
        if not self._encrypting:
            self._take()

    def _take(self) -> None:
        while len(self._buffer) >= 4 and len(self._buffer) >= 4 + (length := int.from_bytes(self._buffer[:4], "big")):
            message = bytes(self._buffer[4 : 4 + length])
            del self._buffer[: 4 + length]
            self.bookie.take(self._parse(message))

    async def encrypt(self, context: ssl.SSLContext, number: int) -> None:
        """Go on in TLS; a client that does not get it right is cut off."""
        loop = asyncio.get_running_loop()
        self._encrypting = True
        try:
            encrypted = await loop.start_tls(self.transport, self, context, server_side=True)
        except OSError:
            self.cut()
            self.ended = True
        else:
            self.transport = cast("asyncio.Transport", encrypted)
            self._encrypting = False
            if self.bookie.users is not None:
                self.send(wire.v3_refusal(number, 9, 502))
            self._take()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the client has gone."""
        self.ended = True

    def _parse(self, message: bytes) -> Asked:
        if message[0] != 2:
            return self._parse_v3(pb.Request.FromString(message))
        match message[1]:
            case 2:
                _, _, flags, ledger_id, entry_id = _READ.unpack(message)
                assert flags == 0
                return Asked(session=self, operation="read", ledger_id=ledger_id, entry_id=entry_id)
            case 7:
                _, _, flags, ledger_id, first, number, count, size = _BATCH.unpack(message)
                assert flags == 0
                return Asked(
                    session=self,
                    operation="batch",
                    ledger_id=ledger_id,
                    entry_id=first,
                    number=number,
                    count_max=count,
                    bytes_max=size,
                )
        return Asked(session=self, operation="unknown")

    def _parse_v3(self, request: pb.Request) -> Asked:
        operations: dict[int, Operation] = {1: "read", 5: "auth", 9: "tls"}
        operation = operations.get(request.header.operation, "unknown")
        read = request.readRequest
        if operation == "read" and read.HasField("previousLac"):
            assert (read.entryId, read.flag) == (-1, pb.ReadRequest.ENTRY_PIGGYBACK)
            operation = "wait"
        return Asked(
            session=self,
            operation="last" if operation == "read" and read.entryId == -1 else operation,
            ledger_id=read.ledgerId,
            entry_id=read.entryId,
            number=request.header.txnId,
            previous_lac=read.previousLac,
            timeout_ms=read.timeoutMs,
            token=request.authRequest,
            v3=True,
        )


class FakeBookie:
    """What it stores and what it was asked. `on_request` decides about each request; by default it is answered."""

    def __init__(self) -> None:
        self.stored: dict[tuple[int, int], bytes] = {}
        self.max_lac: dict[int, int] = {}
        self.sessions: list[Session] = []
        self.requests: list[Asked] = []
        self.on_request: Callable[[Asked], object] = self.answer
        self.on_tls: Callable[[Asked], object] = self._start_tls
        self.on_auth: Callable[[Asked], object] = self._authenticate
        self.tls: ssl.SSLContext | None = None
        self.users: DigestServer | None = None
        self.plugin = "sasl"
        self.port = 0
        self.group = asyncio.TaskGroup()
        self._came = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def bookie_id(self) -> str:
        """Its id, which is its address."""
        return f"{LOOPBACK}:{self.port}"

    async def listen(self, port: int) -> None:
        """Take connections on a port, 0 for any that is free."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Session(self), LOOPBACK, port)
        self.port = self._server.sockets[0].getsockname()[1]

    def shut(self) -> None:
        """Break down: all connections end, and no new one is taken."""
        if self._server is not None:
            self._server.close()
        for session in self.sessions:
            session.cut()

    def take(self, asked: Asked) -> None:
        """Note a request and do with it what is to be done."""
        self.requests.append(asked)
        self._came.set()
        if asked.operation == "tls":
            self.on_tls(asked)
        elif asked.operation == "auth":
            self.on_auth(asked)
        elif self.users is not None and not asked.session.trusted:
            asked.refuse(UNAUTHORISED)
        else:
            self.on_request(asked)

    async def asked(self, count: int = 1) -> list[Asked]:
        """Return all requests so far, once there are at least `count`."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.requests) < count:
                self._came.clear()
                await self._came.wait()
        return self.requests

    def answer(self, asked: Asked) -> None:
        """Answer a request as a bookie with these entries does."""
        match asked.operation:
            case "read" if not asked.v3:
                self._answer_v2(asked)
            case "batch":
                self._answer_batch(asked)
            case "read" | "last":
                self._answer_v3(asked)
            case "wait":
                pass  # nothing happens here unless a test lets it
            case _:
                asked.session.cut()

    def _start_tls(self, asked: Asked) -> None:
        if self.tls is None:
            asked.reply(wire.v3_refusal(asked.number, 9, 404))
        else:
            asked.session.transport.pause_reading()
            asked.reply(wire.v3_start_tls(asked.number))
            self.group.create_task(asked.session.encrypt(self.tls, asked.number))

    def _authenticate(self, asked: Asked) -> None:
        if self.users is None:
            asked.reply(wire.v3_auth(asked.number, "AuthDisabledPlugin", b""))
        elif not asked.token.payload:
            asked.reply(wire.v3_auth(asked.number, self.plugin, self.users.challenge))
        else:
            with suppress(PermissionError):  # a real one does not answer either
                last = self.users.check(asked.token.payload)
                asked.session.trusted = True
                asked.reply(wire.v3_auth(asked.number, self.plugin, last))

    def _answer_v2(self, asked: Asked) -> None:
        stored = self.stored.get((asked.ledger_id, asked.entry_id))
        if stored is None:
            asked.refuse(self._missing(asked.ledger_id))
        else:
            asked.reply(wire.v2_read(asked.ledger_id, asked.entry_id, stored))

    def _answer_batch(self, asked: Asked) -> None:
        entries: list[bytes] = []
        size = 36
        while len(entries) < asked.count_max:
            stored = self.stored.get((asked.ledger_id, asked.entry_id + len(entries)))
            if stored is None or (entries and size + 4 + len(stored) > asked.bytes_max):
                break
            entries.append(stored)
            size += 4 + len(stored)
        if entries:
            asked.reply(wire.v2_batch(asked.number, asked.ledger_id, asked.entry_id, entries))
        else:
            asked.refuse(self._missing(asked.ledger_id))

    def _answer_v3(self, asked: Asked) -> None:
        held = sorted(entry for ledger, entry in self.stored if ledger == asked.ledger_id)
        at = held[-1] if held and asked.entry_id == -1 else asked.entry_id
        stored = self.stored.get((asked.ledger_id, at))
        lac = self.max_lac.get(asked.ledger_id)
        code = 0 if stored is not None else V3_CODES[self._missing(asked.ledger_id)]
        asked.reply(wire.v3_read(asked.number, asked.ledger_id, asked.entry_id, stored, max_lac=lac, code=code))

    def _missing(self, ledger_id: int) -> int:
        return NO_ENTRY if any(ledger == ledger_id for ledger, _ in self.stored) else NO_LEDGER


@asynccontextmanager
async def fake_bookie(port: int = 0) -> AsyncIterator[FakeBookie]:
    """Run a bookie on a free port, or on a given one; its connections end with it."""
    bookie = FakeBookie()
    await bookie.listen(port)
    try:
        async with bookie.group:
            yield bookie
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    finally:
        bookie.shut()
        while not all(session.ended for session in bookie.sessions):
            await asyncio.sleep(0)  # noqa: TID251 - only a turn of the loop
