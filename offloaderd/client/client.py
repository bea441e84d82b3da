"""The asyncio client over all services of a daemon."""

from offloaderd.client.append import AppendCalls
from offloaderd.client.entries import EntryCalls
from offloaderd.client.push import PushCalls


class DaemonClient(AppendCalls, EntryCalls, PushCalls):
    """Async context manager over a channel to the first of `addresses` (`host:port`) that answers.

    `timeout_s` is the deadline of each call that is not a stream; streams take their own (None: no limit). `trust` is
    TLS, certificate and token. Every method raises what the daemon raised, Unreachable and TimedOut; topics may be
    names or texts as pulsar-admin takes them. Answers are the messages of the API (docs/api.md).

    Calls are made once. Only `read` and `push` know their position and continue after a daemon was lost, at the next
    address or at another daemon of the cluster.
    """
