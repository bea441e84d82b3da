"""What a writer says to a bookie, on one connection: adding, fencing, explicit LACs. Test code alone can spell it.

    link = await BookieLink.open(host, port)
    answer = await link.add(ledger_id, entry_id, master_key, stored)     # answer.code 0: stored
    answer = await link.read(ledger_id, entry_id, fence=master_key)      # answer.body: the stored entry

Requests are sent at the call and answered by a future, so that a caller has as many in flight as it likes. Nothing
raises: a connection that ends answers what is open, and all that comes after, with LOST.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offloaderd.bookkeeper.metadata import registration_paths, resolve_address
from offloaderd.bookkeeper.wire.protocol import Decoder, frame
from offloaderd.core.errors import NotFound
from offloaderd.format.pb.bookkeeper import protocol_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from offloaderd.metadata.port import MetadataStore

LOST: Final = -1
"""In place of a bookie's code: the connection ended before an answer came."""
ADD, READ, WRITE_LAC = 1, 2, 6
FENCE, RECOVERY_ADD = 0x0001, 0x0002

_HEAD = struct.Struct(">BBHqq")
_ADD_HEAD = struct.Struct(">BBH20s")
_ANSWER = struct.Struct(">BBHiqq")
_FRAME_BYTES_MAX = 64 * 1024 * 1024

Key: TypeAlias = tuple[int, int, int]


class Answer(NamedTuple):
    """A bookie's code (0: done) and what came with it."""

    code: int
    body: bytes = b""


Answered: TypeAlias = "asyncio.Future[Answer]"


class BookieLink(asyncio.Protocol):
    """One connection that speaks v2, or v3 once its first request did. Use `open`."""

    def __init__(self, parse: Callable[[bytes], tuple[Key, Answer]]) -> None:
        self._parse = parse
        self._frames: Decoder[bytes] = Decoder(bytes, frame_bytes_max=_FRAME_BYTES_MAX)
        self._waiting: dict[Key, deque[Answered]] = defaultdict(deque)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._lac_requests = 0

    @classmethod
    async def open(cls, host: str, port: int, *, v3: bool = False) -> BookieLink:
        """Connect. Raises OSError."""
        parse = _parse_v3 if v3 else _parse_v2
        _, link = await asyncio.get_running_loop().create_connection(lambda: cls(parse), host, port)
        return link

    @property
    def lost(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._transport is None

    def add(self, ledger_id: int, entry_id: int, key: bytes, stored: bytes, *, recovery: bool = False) -> Answered:
        """Have an entry stored; `recovery` is let in where the ledger is fenced."""
        head = _ADD_HEAD.pack(2, ADD, RECOVERY_ADD if recovery else 0, key)
        return self._ask((ADD, ledger_id, entry_id), head + stored)

    def read(self, ledger_id: int, entry_id: int, *, fence: bytes | None = None) -> Answered:
        """Ask for an entry, -1 for the last one; with the master key in `fence` the ledger takes no add from now on."""
        head = _HEAD.pack(2, READ, 0 if fence is None else FENCE, ledger_id, entry_id)
        return self._ask((READ, ledger_id, entry_id), head + (fence or b""))

    def write_lac(self, ledger_id: int, lac: int, key: bytes, body: bytes) -> Answered:
        """Tell the LAC explicitly; on a connection that was opened for v3."""
        self._lac_requests += 1
        header = _field(1, 3) + _field(2, WRITE_LAC) + _field(3, self._lac_requests)
        request = _field(1, ledger_id) + _field(2, lac) + _field(3, key) + _field(4, body)
        return self._ask((WRITE_LAC, self._lac_requests, 0), _field(1, header) + _field(103, request))

    def close(self) -> None:
        """End it; what is still open is answered with LOST."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection over."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer whoever waits."""
        for message in self._frames.feed(data):
            key, answer = self._parse(message)
            waiting = self._waiting[key].popleft()
            if not self._waiting[key]:
                del self._waiting[key]
            if not waiting.done():
                waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave nobody waiting."""
        self._end()

    def _ask(self, key: Key, message: bytes) -> Answered:
        answered: Answered = self._loop.create_future()
        if self._transport is None:
            answered.set_result(Answer(LOST))
        else:
            self._waiting[key].append(answered)
            self._transport.write(frame(message))
        return answered

    def _end(self) -> None:
        self._transport = None
        waiting, self._waiting = self._waiting, defaultdict(deque)
        for queue in waiting.values():
            for answered in queue:
                if not answered.done():
                    answered.set_result(Answer(LOST))


class BookieLinks:
    """Connections to all bookies of a cluster, made when they are first needed and again when they are lost."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._root = root
        self._links: dict[tuple[str, bool], BookieLink] = {}

    async def to(self, bookie_id: str, *, v3: bool = False) -> BookieLink:
        """Return a connection to a bookie; one that cannot be had is returned lost, and answers so."""
        link = self._links.get((bookie_id, v3))
        if link is None or link.lost:
            address = resolve_address(bookie_id, await self._registration(bookie_id))
            try:
                link = await BookieLink.open(address.host, address.port, v3=v3)
            except OSError:
                return BookieLink(_parse_v2)
            self._links[bookie_id, v3] = link
        return link

    def close(self) -> None:
        """End them all."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    async def _registration(self, bookie_id: str) -> bytes | None:
        for path in registration_paths(self._root, bookie_id):
            with suppress(NotFound):
                return (await self._store.get(path)).value
        return None


def _parse_v2(message: bytes) -> tuple[Key, Answer]:
    _, operation, _, code, ledger_id, entry_id = _ANSWER.unpack_from(message)
    return (operation, ledger_id, entry_id), Answer(code, message[_ANSWER.size :])


def _parse_v3(message: bytes) -> tuple[Key, Answer]:
    response = pb.Response.FromString(message)
    return (response.header.operation, response.header.txnId, 0), Answer(response.status)


def _field(number: int, value: int | bytes) -> bytes:
    """Return one field of a protobuf message: the messages of the package leave out what writes."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value % 2**64)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
