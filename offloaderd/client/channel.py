"""A channel to one of several daemons, with the deadline, limits and errors of calls; when streams are reopened.

Channels stay open, so a running call is not cut off when others move to another daemon. There are at most
`ADDRESSES_MAX` of them, and those with certificates that have been replaced since.

After a daemon was lost, stops or ended a long call, a stream is reopened until `resume_s` have passed without progress.
Failures that a daemon reports (the bucket is unreachable, too many readers) are retried only if the stream has worked
before: at the first request the caller gets the error. The same holds for a token from a file that expired during a
stream.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple, Self

import grpc
from grpc import aio

from offloaderd.client.trust import Trust
from offloaderd.core.aio import Group
from offloaderd.core.clock import Clock, SystemClock
from offloaderd.core.errors import (
    Closed,
    Conflict,
    InvalidConfig,
    InvalidInput,
    OffloaderError,
    Transient,
    Unauthenticated,
    first_of,
)
from offloaderd.core.retry import doubled
from offloaderd.protocol.errors import DETAIL_KEY, CallTooLong, from_rpc_error
from offloaderd.protocol.v1 import placement_pb2, placement_pb2_grpc

LATE = "allow more with --timeout SECONDS; `offloadctl status` shows whether something does not answer"
_CUT_OFF = ("RST_STREAM", "Stream removed", "Internal error from Core")
"""Texts of gRPC for a broken call without the code UNAVAILABLE; the last one is that of a failed write."""


class Unreachable(Transient):
    """No daemon answers at the address, or at any of them."""


class TimedOut(Transient):
    """The call's deadline passed before its result was there."""


class NotOffered(InvalidInput):
    """The daemon does not know the call, or has nothing that would answer it."""


class NotConsecutive(Conflict):
    """Entries were pushed that do not follow what the daemon has; the message names both positions."""


def translated(error: aio.AioRpcError, address: str) -> OffloaderError:
    """Return the error of a failed call as one of ours.

    Errors of the daemon carry its detail; UNAVAILABLE without it comes from the transport: no daemon answers.
    """
    code = error.code()
    if any(key == DETAIL_KEY for key, _ in error.trailing_metadata() or ()):
        return from_rpc_error(error)
    said = error.details() or ""
    broken = code in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN} and any(word in said for word in _CUT_OFF)
    if broken or code is grpc.StatusCode.UNAVAILABLE:
        return Unreachable(f"lost the daemon at {address}: {said}", hint="it may be restarting; try again")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in said:
        return InvalidInput(f"a message is too large: {said}", hint="raise message_bytes_max, or ask for less at once")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimedOut("no result before the deadline", hint=LATE)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return NotOffered(
            f"the daemon at {address} does not offer this call",
            hint="it may be an older release; appending needs an embedded ledger store, as standalone has",
        )
    return from_rpc_error(error)


log = logging.getLogger(__name__)
MESSAGE_BYTES_MAX = 32 * 1024 * 1024
"""Largest message that is sent or taken; an entry is at most 5 MiB, a batch a little more than the batch size."""
FRAME_BYTES = 1024 * 1024
"""Largest frame of HTTP/2 that is taken: an answer of a read is about this long, and cheaper in one than in many."""
CONNECT_S = 5.0
ADDRESSES_MAX = 64
PEERS_S = 10.0
"""Longest wait for the list of the other daemons, which is only needed if this one fails."""


class OpenChannel(NamedTuple):
    """A channel, and the state of the files that it was made with."""

    channel: aio.Channel
    files: tuple[object, ...]


class Connection:
    """Async context manager over channels to daemons: connected to the first of `addresses` that answers.

    Every call runs on the present channel. Raises Unreachable, NotTrusted, InvalidInput, InvalidConfig.
    """

    def __init__(
        self,
        *addresses: str,
        timeout_s: float | None = 30.0,
        connect_s: float = CONNECT_S,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        trust: Trust | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not 0 < len(addresses) <= ADDRESSES_MAX:
            raise InvalidInput(f"{len(addresses)} addresses of daemons", hint=f"give 1 to {ADDRESSES_MAX}")
        self._addresses = [checked_address(address) for address in dict.fromkeys(addresses)]
        self._given = frozenset(self._addresses)
        self.address = self._addresses[0]
        self._trust = trust or Trust()
        self._timeout_s = timeout_s
        self._connect_s = connect_s
        self._message_bytes_max = message_bytes_max
        self._clock: Clock = clock or SystemClock()
        self._options = (
            ("grpc.max_receive_message_length", message_bytes_max),
            ("grpc.max_send_message_length", message_bytes_max),
            ("grpc.http2.max_frame_size", FRAME_BYTES),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.enable_http_proxy", 0),
        )
        self._channels: dict[str, OpenChannel] = {}
        self._retired: list[OpenChannel] = []
        self._moving = asyncio.Lock()
        self._peers_known = False

    async def __aenter__(self) -> Self:
        """Connect to the first address that answers."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._group = await Group().__aenter__()
        try:
            await self._connect_any(self._addresses)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the channels; calls that still run are cancelled."""
        for task in self._tasks:
            task.cancel()
        try:
            await self._group.__aexit__(None, None, None)
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        finally:
            for one in (*self._channels.values(), *self._retired):
                await one.channel.close()
            self._channels.clear()
            self._retired.clear()

    def at(self, address: str) -> Self:
        """Return a client for another daemon, not connected yet, with the same trust and limits."""
        return type(self)(
            address,
            timeout_s=self._timeout_s,
            connect_s=self._connect_s,
            message_bytes_max=self._message_bytes_max,
            trust=self._trust,
            clock=self._clock,
        )

    async def move(self, lost: str) -> None:
        """Connect to another daemon, if the present one is `lost`; that one is tried last.

        Of several calls that lose a daemon the first moves, the others follow. Raises what connecting raises.
        """
        async with self._moving:
            if self.address == lost:
                place = self._addresses.index(lost) + 1 if lost in self._addresses else 0
                await self._connect_any([*self._addresses[place:], *self._addresses[:place]])

    async def learn_peers(self, topic: str) -> None:
        """Read once the addresses of the other daemons, in case this one fails.

        An error is ignored: then only the given addresses are known.
        """
        if self._peers_known:
            return
        self._peers_known = True
        stub = placement_pb2_grpc.PlacementServiceStub(self._channel)
        try:
            with self._errors():
                found = await stub.ListDaemons(placement_pb2.ListDaemonsRequest(topic=topic), timeout=PEERS_S)
            others = [checked_address(one.address) for one in found.daemons if not one.asked]
        except OffloaderError:
            return
        known = dict.fromkeys([*self._addresses, *others])
        self._addresses = list(known)[:ADDRESSES_MAX]

    @property
    def _channel(self) -> aio.Channel:
        """The present channel. Raises InvalidInput outside the context."""
        if self.address not in self._channels:
            raise InvalidInput("the client is not connected", hint="use it in `async with`")
        return self._channel_to(self.address)

    def _channel_to(self, address: str) -> aio.Channel:
        """Return a channel with the present certificates. Raises InvalidConfig for unusable ones at first.

        While files are being replaced they may not match: then the present channel stays in use.
        """
        found, files = self._channels.get(address), self._trust.files()
        if found is not None and found.files == files:
            return found.channel
        try:
            made = OpenChannel(self._trust.channel(address, self._options), files)
        except InvalidConfig:
            if found is None:
                raise
            return found.channel
        if found is not None:
            self._retired.append(found)
        elif address not in self._given and self._trust.has_token:
            log.info("the token goes to %s as well, which another daemon named, if its certificate is good", address)
        self._channels[address] = made
        return made.channel

    @property
    def renewed(self) -> bool:
        """Whether a call that was refused for its token may succeed with the next token."""
        return self._trust.renewed

    async def _connect_any(self, addresses: list[str]) -> None:
        """Connect to the first that answers. A refusal is raised before errors of unreachable daemons."""
        errors: list[OffloaderError] = []
        for address in addresses:
            channel = self._channel_to(address)
            try:
                await self._connected(address, channel)
            except OffloaderError as error:
                errors.append(error)
                continue
            self.address = address
            return
        told = next((error for error in errors if not isinstance(error, Unreachable)), None)
        if told is not None or len(errors) == 1:
            raise told or errors[0]
        raise Unreachable("no daemon answers: " + "; ".join(error.message for error in errors), hint=errors[0].hint)

    async def _connected(self, address: str, channel: aio.Channel) -> None:
        """Wait until the channel is ready; the first failure is final, since a user is waiting."""
        hint = "is the daemon running there? `offloaderd standalone` or `offloaderd serve` starts one"
        try:
            async with asyncio.timeout(self._connect_s):
                state = channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        if (reason := await self._trust.diagnosis(address)) is not None:
                            raise reason
                        raise Unreachable(f"cannot connect to the daemon at {address}", hint=hint)
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise Unreachable(f"no answer from {address} within {self._connect_s:g} s", hint=hint) from None

    @asynccontextmanager
    async def _beside(self, work: Coroutine[object, object, None], *, name: str) -> AsyncIterator[None]:
        """Run a task beside the caller; it ends with the context, and with the client at the latest."""
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    @contextmanager
    def _errors(self, call: aio.Call | None = None) -> Iterator[None]:
        """Turn the exception of gRPC into ours, and cancel a stream at the end."""
        try:
            yield
        except aio.AioRpcError as error:
            raise translated(error, self.address) from None
        finally:
            if call is not None:
                call.cancel()


def checked_address(text: str) -> str:
    """Return `host:port` if it can be an address; raises InvalidInput."""
    host, colon, port = text.rpartition(":")
    hint = "write HOST:PORT, for instance 127.0.0.1:7650"
    numbered = colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65_536
    bracketed = host.startswith("[")
    if not numbered or "/" in host or bracketed != host.endswith("]") or (":" in host and not bracketed):
        raise InvalidInput(f"not an address: {text!r}", hint=hint)
    return text


RESUME_S = 60.0
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0
LOST = (Unreachable, Closed, CallTooLong)


class Resume:
    """The retries of one stream. `resume_s` 0: none; None: without end."""

    def __init__(self, client: Connection, clock: Clock, resume_s: float | None) -> None:
        self._client = client
        self._clock = clock
        self._resume_s = resume_s
        self._address = client.address
        self._begun = False
        self._since_s: float | None = None
        self._pauses = 0

    def worked(self) -> None:
        """Record progress."""
        self._begun, self._since_s, self._pauses = True, None, 0

    def opening(self) -> None:
        """Record the daemon at which the stream is opened."""
        self._address = self._client.address

    async def after(self, error: OffloaderError) -> None:
        """Pause, and move to another daemon if it was lost. Raises `error` if it is final or lasts too long."""
        lost = isinstance(error, LOST)
        # An expired token may have been replaced.
        passes = isinstance(error, Transient) or (self._client.renewed and type(error) is Unauthenticated)
        if isinstance(error, TimedOut) or not (lost or (self._begun and passes)):
            raise error
        await self.pause(error)
        if lost:
            try:
                await self._client.move(self._address)
            except Unreachable:
                return  # the next try says so, and is counted

    async def pause(self, error: OffloaderError) -> None:
        """Pause. Raises `error` when no progress was made for too long."""
        now_s = self._clock.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        if self._resume_s is not None and now_s - self._since_s >= self._resume_s:
            raise error
        self._pauses += 1
        await self._clock.sleep(self._clock.jitter(doubled(PAUSE_FIRST_S, PAUSE_MAX_S, self._pauses)))
