"""Construction of kazoo's client: servers, timeouts, TLS, credentials, and the access list of new nodes."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from offloaderd.core.errors import InvalidConfig
from offloaderd.metadata.settings import MetadataSettings
from offloaderd.metadata.zookeeper.kazoo_types import ZooKeeperClient

RECONNECT_PAUSE_S, RECONNECT_PAUSE_MAX_S = 0.1, 2.0
GREETING_S = 3.0
"""About how long a server may take to answer a new connection before the next one is tried."""


def kazoo_options(options: MetadataSettings) -> dict[str, Any]:
    """Return kazoo's options. Raises InvalidConfig for a missing file, because kazoo would retry for ever."""
    told: dict[str, Any] = {}
    if options.tls:
        files = {"ca": options.tls_ca_file, "certfile": options.tls_cert_file, "keyfile": options.tls_key_file}
        for name, file in files.items():
            if file is not None and not Path(file).is_file():
                raise InvalidConfig(f"metadata.tls_*: {file} ({name}) is not there", hint="name a PEM file")
        told |= {"use_ssl": True, "verify_certs": True, "check_hostname": options.tls_hostname_check, **files}
    if options.username is not None:
        password = options.password.get_secret_value() if options.password else ""
        if options.auth == "sasl":
            if find_spec("puresasl") is None:
                raise InvalidConfig('metadata.auth = "sasl" needs pure-sasl', hint="pip install 'offloaderd[sasl]'")
            told["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": options.username, "password": password}
        else:
            told["auth_data"] = [("digest", f"{options.username}:{password}")]
    if options.acl == "creator":
        told["default_acl"] = CREATOR_ALL_ACL
    return told


def make_client(servers: str, options: MetadataSettings) -> ZooKeeperClient:
    """Return a client that is not started yet. Raises InvalidConfig."""
    retry = KazooRetry(max_tries=-1, delay=RECONNECT_PAUSE_S, backoff=2, max_delay=RECONNECT_PAUSE_MAX_S)
    try:
        client: ZooKeeperClient = KazooClient(
            hosts=_hosts(servers, options.session_timeout_s),
            timeout=options.session_timeout_s,
            connection_retry=retry,
            command_retry=KazooRetry(max_tries=1),
            **kazoo_options(options),
        )
    except ValueError as error:
        raise InvalidConfig(
            f"metadata.servers is not a list of servers: {servers!r} ({error})", hint="write HOST:PORT,HOST:PORT"
        ) from None
    return client


def _hosts(servers: str, session_timeout_s: float) -> str:
    """Return the list of servers, repeated: kazoo gives each entry an equal share of the session's time to answer.

    A server that is just starting may accept a connection and never answer. With a single entry, the wait for it would
    last as long as the session, and lose it.
    """
    hosts, slash, root = servers.partition("/")
    share_s = session_timeout_s / (hosts.count(",") + 1)
    return ",".join([hosts] * max(1, int(share_s / GREETING_S))) + slash + root
