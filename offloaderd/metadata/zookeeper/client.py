"""How kazoo's client is made: which servers, how patient, by TLS or not, as whom, and who may touch what it creates."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from offloaderd.core.errors import InvalidConfig

if TYPE_CHECKING:
    from offloaderd.metadata.zookeeper.kazoo_types import ZooKeeperClient

RECONNECT_PAUSE_S, RECONNECT_PAUSE_MAX_S = 0.1, 2.0
GREETING_S = 3.0
"""A server that accepts a connection and does not greet within about this time is left for the next try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSecurity:
    """How the servers are trusted, and who we are to them. Nothing of it: plain connections of nobody.

    `sasl` uses name and password with DIGEST-MD5, else with the digest scheme; `private` gives all rights to what is
    created to ourselves alone, by whichever way we have a name.
    """

    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    hostname_check: bool = True
    username: str | None = None
    password: str | None = None
    sasl: bool = False
    private: bool = False

    def __repr__(self) -> str:
        """Without the password."""
        return f"ZooKeeperSecurity(tls={self.tls}, username={self.username!r}, private={self.private})"

    def options(self) -> dict[str, Any]:
        """Return what kazoo is told. Raises InvalidConfig for what is not there: kazoo would try for ever."""
        options: dict[str, Any] = {}
        if self.tls:
            files = {"ca": self.ca_file, "certfile": self.cert_file, "keyfile": self.key_file}
            for name, file in files.items():
                if file is not None and not Path(file).is_file():
                    raise InvalidConfig(f"metadata.tls_*: {file} ({name}) is not there", hint="name a PEM file")
            options |= {"use_ssl": True, "verify_certs": True, "check_hostname": self.hostname_check, **files}
        if self.username is not None:
            password = self.password or ""
            if self.sasl:
                if find_spec("puresasl") is None:
                    raise InvalidConfig('metadata.auth = "sasl" needs pure-sasl', hint="pip install 'offloaderd[sasl]'")
                named = {"username": self.username, "password": password}
                options["sasl_options"] = {"mechanism": "DIGEST-MD5", **named}
            else:
                options["auth_data"] = [("digest", f"{self.username}:{password}")]
        if self.private:
            options["default_acl"] = CREATOR_ALL_ACL
        return options


def make_client(servers: str, session_timeout_s: float, security: ZooKeeperSecurity) -> ZooKeeperClient:
    """Return a client that is not started. Raises InvalidConfig."""
    retry = KazooRetry(max_tries=-1, delay=RECONNECT_PAUSE_S, backoff=2, max_delay=RECONNECT_PAUSE_MAX_S)
    try:
        client: ZooKeeperClient = KazooClient(
            hosts=_hosts(servers, session_timeout_s),
            timeout=session_timeout_s,
            connection_retry=retry,
            command_retry=KazooRetry(max_tries=1),
            **security.options(),
        )
    except ValueError as error:
        raise InvalidConfig(
            f"metadata.servers is not a list of servers: {servers!r} ({error})", hint="write HOST:PORT,HOST:PORT"
        ) from None
    return client


def _hosts(servers: str, session_timeout_s: float) -> str:
    """Return the servers, again and again: kazoo gives each of its hosts an equal share of a session to greet.

    A server that is just starting may accept a connection and never answer; with one server alone the wait for it
    would last as long as the session, and cost it.
    """
    hosts, slash, root = servers.partition("/")
    share_s = session_timeout_s / (hosts.count(",") + 1)
    return ",".join([hosts] * max(1, int(share_s / GREETING_S))) + slash + root
