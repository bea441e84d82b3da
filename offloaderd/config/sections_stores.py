"""The settings of ZooKeeper and of the object store; see sections.py."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from offloaderd.config.kinds import (
    Bucket,
    KeyPrefix,
    NodePath,
    OptionalSecret,
    OptionalText,
    PlaceList,
    Seconds,
    Servers,
    Url,
)
from offloaderd.config.section import Section


class MetadataSettings(Section):
    """ZooKeeper."""

    servers: Servers = "127.0.0.1:2181"
    """HOST:PORT of each server, separated by commas: the brokers' metadata store."""

    root: NodePath = "/offloaderd"
    """Node below which everything lies, under the cluster's name. Away from /ledgers and /managed-ledgers, which are
    never written."""

    session_timeout_s: Seconds = Field(default=30.0, ge=1, le=600)
    """How long ZooKeeper waits for a silent daemon before others may take its topics. 30 s as Pulsar's brokers: shorter
    moves topics at every pause, longer leaves them without an owner."""

    connect_timeout_s: Seconds = Field(default=10.0, gt=0, le=600)
    """How long one try to connect may take; tries go on until one succeeds."""

    tls: bool = False
    """Speak TLS, with the servers' secureClientPort; for bookkeeper.servers too. The rest here as well."""

    tls_ca_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/zookeeper-ca.pem"])
    """Authorities that sign the servers' certificates (PEM), besides those of the system."""

    tls_cert_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/zookeeper-cert.pem"])
    """This daemon's certificate (PEM): ZooKeeper asks for one unless ssl.clientAuth is none, and knows the daemon by it
    (scheme x509)."""

    tls_key_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/zookeeper-key.pem"])
    """Its key (PEM, without a passphrase)."""

    tls_hostname_check: bool = True
    """Compare the name in a server's certificate with the host in metadata.servers."""

    auth: Literal["digest", "sasl"] = "digest"
    """How username and password are shown. digest: ZooKeeper's own scheme, for access lists. sasl: DIGEST-MD5 against
    the users that the servers know (JAAS); needs the extra offloaderd[sasl]. Both cross the line; use TLS."""

    username: OptionalText = Field(default=None, examples=["offloaderd"])
    """The daemon's name to ZooKeeper. Not set: nobody."""

    password: OptionalSecret = Field(default=None, examples=[""])
    """Its password; better given as OFFLOADERD__METADATA__PASSWORD than in a file. Never shown."""

    acl: Literal["open", "creator"] = "open"
    """Who may touch the nodes that the daemon creates. open: everybody who reaches ZooKeeper. creator: who has the
    daemon's name (username, or tls_cert_file) alone; all daemons need the same. Nodes that are there already keep what
    they have."""


class ObjectsSettings(Section):
    """Where segments are stored."""

    kind: Literal["s3", "filesystem"] = "s3"
    """Kind of object store: an S3 service, or a directory (PIP-76's filesystem offloader)."""

    bucket: Bucket = Field(default="", examples=["pulsar-offload"])
    """Bucket for all topics; must exist. There is no default, as a guess could be someone else's."""

    prefix: KeyPrefix = ""
    """What every key begins with, for a shared bucket; write a final slash for a folder. Empty, as Pulsar's own reader
    looks for keys without any."""

    places: PlaceList = Field(default="", examples=["pulsar-offload-eu/topics/, pulsar-archive"])
    """Further places that the policy of a topic or namespace may name: buckets of the same service, with the same keys,
    and a prefix of their own if they have one. What lies there is read, collected, verified and rebuilt as well; keep a
    place here for as long as segments lie in it."""

    endpoint: Url = Field(default=None, examples=["http://127.0.0.1:9000"])
    """URL of an S3 service other than AWS. Not set: AWS in objects.region."""

    signed_host: OptionalText = Field(default=None, examples=["s3.eu-west-1.amazonaws.com"])
    """Name of the service where objects.endpoint is another way to it (a tunnel, a forwarded port), sent and signed as
    Host. Not set: the host of the endpoint."""

    region: str = Field(default="us-east-1", min_length=1)
    """Region of the bucket; most other services ignore it."""

    access_key: OptionalText = Field(default=None, examples=["AKIAIOSFODNN7EXAMPLE"])
    """Access key. Not set: the usual AWS chain (environment, profile, instance role)."""

    secret_key: OptionalSecret = Field(default=None, examples=[""])
    """Its secret; better given as OFFLOADERD__OBJECTS__SECRET_KEY than in a file. Never shown."""

    profile: OptionalText = Field(default=None, examples=[""])
    """Profile of the AWS files to take credentials from, also one that takes a role or calls a program. Not set: the
    chain's own choice."""

    role_arn: OptionalText = Field(default=None, examples=[""])
    """Role to take with a web identity (objects.web_identity_token_file), as in a Kubernetes pod; its credentials are
    renewed before they end. Not set: AWS_ROLE_ARN, if there is one."""

    web_identity_token_file: OptionalText = Field(default=None, examples=[""])
    """File with the web identity token for role_arn; read at each renewal."""

    encryption: Literal["default", "sse-s3", "sse-kms"] = "default"
    """Server-side encryption asked for with each object. default: the bucket's own setting. sse-s3: keys of S3.
    sse-kms: a key of the KMS, whose rights then count for every read."""

    kms_key_id: OptionalText = Field(default=None, examples=[""])
    """Id, alias or ARN of the key for sse-kms. Not set: the service's own key for S3."""

    path_style: bool = True
    """Name the bucket in the path rather than in the host's name, which services without wildcard DNS need and AWS
    still accepts."""

    connections_max: int = Field(default=32, ge=1, le=1000)
    """Connections to each bucket. Enough for the default uploads and as many reads."""

    connect_timeout_s: Seconds = Field(default=5.0, gt=0, le=300)
    """How long one connection may take to open."""

    read_timeout_s: Seconds = Field(default=30.0, gt=0, le=3600)
    """How long the store may be silent in the middle of a request."""

    directory: str = Field(default="/var/lib/offloaderd/objects", min_length=1)
    """Root of the filesystem store (kind = filesystem)."""
