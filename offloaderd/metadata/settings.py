"""Settings of the metadata store."""

from typing import Literal

from pydantic import Field

from offloaderd.core.section import NodePath, OptionalSecret, OptionalText, Seconds, Section, Servers


class MetadataSettings(Section):
    """ZooKeeper."""

    servers: Servers = "127.0.0.1:2181"
    """HOST:PORT of each server, separated by commas: the brokers' metadata store."""

    root: NodePath = "/offloaderd"
    """Node that holds all records of the daemons, in a node for each cluster. It must be apart from /ledgers and
    /managed-ledgers, which are never written."""

    session_timeout_s: Seconds = Field(default=30.0, ge=1, le=600)
    """How long ZooKeeper waits for a silent daemon before other daemons may take its topics. 30 s is what Pulsar's
    brokers use. A shorter time moves topics at every pause, a longer one leaves the topics of a dead daemon without an
    owner for longer."""

    connect_timeout_s: Seconds = Field(default=10.0, gt=0, le=600)
    """How long one try to connect may take; tries are repeated until one succeeds."""

    tls: bool = False
    """Connect to the servers by TLS (their secureClientPort). This setting, the other tls settings here, and username
    and password are used for bookkeeper.servers too."""

    tls_ca_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/zookeeper-ca.pem"])
    """Authorities that sign the servers' certificates (PEM), besides those of the system."""

    tls_cert_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/zookeeper-cert.pem"])
    """This daemon's certificate (PEM). ZooKeeper asks for one unless ssl.clientAuth is none, and identifies the daemon
    by it (scheme x509)."""

    tls_key_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/zookeeper-key.pem"])
    """Its key (PEM, without a passphrase)."""

    tls_hostname_check: bool = True
    """Compare the name in a server's certificate with the host in metadata.servers."""

    auth: Literal["digest", "sasl"] = "digest"
    """How username and password are presented. digest: ZooKeeper's own scheme, for access lists. sasl: DIGEST-MD5
    against the users that the servers know (JAAS); needs the extra offloaderd[sasl]. Use TLS with either."""

    username: OptionalText = Field(default=None, examples=["offloaderd"])
    """The daemon's name for ZooKeeper. Not set: it connects without a name."""

    password: OptionalSecret = Field(default=None, examples=[""])
    """Its password; better given as OFFLOADERD__METADATA__PASSWORD than in a file. Never shown."""

    acl: Literal["open", "creator"] = "open"
    """Who may read and write the nodes that the daemon creates. open: everybody who reaches ZooKeeper. creator: only
    the daemon's own name (username, or tls_cert_file), which must be the same for all daemons. Existing nodes keep
    their access lists."""
