"""A daemon as seen by its users: one asyncio client over all services."""

from offloaderd.client.append import AppendCalls
from offloaderd.client.entries import EntryCalls
from offloaderd.client.push import PushCalls


class DaemonClient(AppendCalls, EntryCalls, PushCalls):
    """Async context manager over a channel to the first of `addresses` (`host:port`) that answers.

    `timeout_s` is the deadline of each call that is not a stream; streams take their own (None: no limit). `trust` is
    TLS, certificate and token. Every method raises what the daemon raised, Unreachable and TimedOut; topics may be
    names or texts as pulsar-admin takes them. Answers are the messages of the API (docs/api.md).

    Calls are made once: only `read` and `push`, which know how far they are, go on by themselves after a daemon was
    lost, at the next address or at a daemon that the first one told of.
    """
