"""Settings of the API."""

from pydantic import Field

from offloaderd.core.section import Address, Bytes, Port, Seconds, Section

MiB, GiB = 1024**2, 1024**3


class GrpcSettings(Section):
    """The API: StreamingOffload, Read, Admin, health and reflection."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Loopback; another one needs authentication (tls.client_ca_file, or access with tokens)."""

    port: Port = 7650
    """Port to listen on; 0 takes any free one."""

    advertise: Address = Field(default=None, examples=["offloaderd-0.example:7650"])
    """HOST:PORT under which others reach this daemon; other daemons give it to their clients. Not set: grpc.host and
    the port in use."""

    process_port: Port = 7660
    """With several processes (daemon.processes) all listen on grpc.port, and each on this port plus its number as well:
    other daemons and clients reach the owner of a topic there, by the host of grpc.advertise. 0 takes any free ones."""

    allow_unauthenticated: bool = False
    """Allow grpc.host to be other than loopback without authentication: whoever reaches the port may read and change
    everything then. Off, so that nobody opens it by accident."""

    message_bytes_max: Bytes = Field(default=16 * MiB, ge=6 * MiB, le=1 * GiB)
    """Largest message taken or sent. Must hold a batch and one more entry of 5 MiB."""

    streams_max: int = Field(default=256, ge=1, le=100_000)
    """Calls served at the same time on one connection; more wait. Bounds what one client can hold."""

    calls_max: int = Field(default=2048, ge=1, le=1_000_000)
    """Calls served at the same time on all connections, probes apart; the next is refused and may come again."""

    call_s_max: Seconds = Field(default=900.0, gt=0, le=86_400)
    """How long a call with one answer may take, whatever its client allows. Changing the policies of ten thousand
    topics takes some ten seconds. Streams may last."""

    send_s_max: Seconds = Field(default=120.0, gt=0, le=86_400)
    """How long the client of a stream may take nothing of an answer that is ready, before the call is cut: a read
    does not hold its memory for a client that does not take the answer."""

    handshake_s_max: Seconds = Field(default=10.0, gt=0, le=300)
    """How long a new connection may take over TLS and the first frames; then it is closed."""
