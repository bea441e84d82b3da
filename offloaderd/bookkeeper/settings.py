"""Settings of the BookKeeper client."""

from pydantic import Field

from offloaderd.core.section import Bytes, NodePath, OptionalSecret, OptionalServers, OptionalText, Seconds, Section

KiB, MiB = 1024, 1024**2
SINGLES_WINDOW_MAX = 64


class BookkeeperSettings(Section):
    """The cluster whose ledgers are read when ledgers.kind is bookkeeper; docs/bookkeeper.md describes all of it."""

    servers: OptionalServers = Field(default=None, examples=["zk-0.example:2181,zk-1.example:2181,zk-2.example:2181"])
    """ZooKeeper of the bookies and brokers. Not set: metadata.servers, which is right unless the daemon's own records
    are in another ZooKeeper. It is only read."""

    ledgers_root: NodePath = "/ledgers"
    """Node of BookKeeper's metadata. If the cluster's metadataStoreUrl ends with a path, put that path in front."""

    managed_ledgers_root: NodePath = "/managed-ledgers"
    """Node of Pulsar's lists of ledgers. If metadataStoreUrl ends with a path, put that path in front here too."""

    poll_min_s: Seconds = Field(default=0.2, ge=0.01, le=60)
    """Pause between two requests for the end of an open ledger that gets entries. Shorter: entries are seen sooner, for
    more requests; each poll is one small request for each topic."""

    poll_max_s: Seconds = Field(default=2.0, ge=0.01, le=600)
    """The longest such pause. For a topic that gets no entries the pause grows to it step by step. Where no long polls
    are sent (long_poll_s), the first entry after a silence is seen up to this much later, or as much as
    idle_polls_per_s makes it."""

    long_poll_s: Seconds = Field(default=120.0, ge=0, le=300)
    """For a topic that has reached poll_max_s, a bookie is asked to answer when the next entry comes (a long poll), and
    after this time at the latest. Longer: fewer requests for idle topics. 0, or not more than poll_max_s: no long
    polls."""

    idle_polls_per_s: int = Field(default=100, ge=1, le=10_000)
    """Most polls in a second of all topics that have reached poll_max_s and have no long poll. Of more than poll_max_s
    times this many topics each is polled more rarely: 6,000 once a minute. The pause grows with the topic's silence, to
    half of it at most."""

    connect_timeout_s: Seconds = Field(default=5.0, gt=0, le=300)
    """How long a connection to a bookie may take to open, including TLS."""

    request_timeout_s: Seconds = Field(default=5.0, gt=0, le=300)
    """How long one bookie may take to answer before another replica gets the request; the Java client's default."""

    hedge_s: Seconds = Field(default=2.0, gt=0, le=300)
    """Ask a second replica as well when the first has not answered for this long; the Java client's default. A shorter
    time makes up for slow bookies better, and doubles the load sooner."""

    batch_bytes: Bytes = Field(default=1 * MiB, ge=64 * KiB, le=4 * MiB)
    """Largest answer of one batch read. A bookie sends up to 5 MiB; more than 1 MiB gains nothing."""

    requests_in_flight_max: int = Field(default=256, ge=1, le=10_000)
    """Requests to one bookie that are not answered yet. The number is halved when a bookie answers that it has too many
    (its maxPendingReadRequestsPerThread, 2,500 in Pulsar)."""

    long_polls_in_flight_max: int = Field(default=1000, ge=1, le=50_000)
    """Long polls that one bookie has not answered yet; further idle topics are polled instead (idle_polls_per_s). A
    bookie counts the long polls of all daemons as reads in progress: keep their sum far below its
    maxReadsInProgressLimit (10,000 in later versions of BookKeeper)."""

    bytes_per_s: Bytes = Field(default=0, ge=0)
    """Most that all topics together read from bookies in a second; 0: no limit. One daemon's processor is a limit of
    about 75 MiB/s already. Must stay above what producers write, or the lag grows for ever."""

    requests_per_s: int = Field(default=0, ge=0, le=1_000_000)
    """Most reads that all topics together send to bookies in a second, requests for the end of open ledgers not
    counted; 0: no limit."""

    topic_bytes_per_s: Bytes = Field(default=0, ge=0)
    """Most that one topic reads from bookies in a second, so that a topic with a long history leaves room for others;
    0: no limit."""

    topic_requests_per_s: int = Field(default=0, ge=0, le=1_000_000)
    """Most reads of one topic in a second; 0: no limit."""

    tls: bool = False
    """Require TLS with every bookie (START_TLS on its usual port, as BookKeeper's own clients do)."""

    tls_ca_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/bookies-ca.pem"])
    """Authorities that sign the bookies' certificates (PEM). Not set: those of the system."""

    tls_cert_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/bookies-cert.pem"])
    """This daemon's certificate (PEM), for bookies that ask for one (tlsClientAuthentication)."""

    tls_key_file: OptionalText = Field(default=None, examples=["/etc/offloaderd/bookies-key.pem"])
    """Its key (PEM, without a passphrase)."""

    tls_hostname_check: bool = True
    """Compare the name in a bookie's certificate with the host it was reached at. Off only for certificates without
    names, as older Pulsar guides made them."""

    sasl_username: OptionalText = Field(default=None, examples=["offloaderd"])
    """User for bookies with SASL DIGEST-MD5 (bookieAuthProviderFactoryClass). Not set: no authentication, as Pulsar's
    bookies come."""

    sasl_password: OptionalSecret = Field(default=None, examples=[""])
    """Its password; better given as OFFLOADERD__BOOKKEEPER__SASL_PASSWORD than in a file. Never shown."""

    @property
    def singles_window(self) -> int:
        """Single reads of one ledger at the same time; more only take memory."""
        return min(SINGLES_WINDOW_MAX, self.requests_in_flight_max)
