"""What the other daemons hear of this one, and what it takes over from a former run of itself."""

from offloaderd import __version__
from offloaderd.core.clock import Clock
from offloaderd.fleet import processes
from offloaderd.fleet.engine import Engine
from offloaderd.fleet.registration import Registration
from offloaderd.metadata.port import MetadataStore
from offloaderd.metadata.records.daemon import DaemonNode

PATIENCE_SESSIONS = 1.5
"""A former run's node goes with its session; somewhat longer than one lasts, and it is another daemon's."""


def registration_of(
    daemon_id: str, engine: Engine, metadata: MetadataStore, clock: Clock, *, session_timeout_s: float
) -> Registration:
    """Return a daemon's registration; its address is still to come.

    A former run that was killed is known by its process: what its session holds is taken without waiting for its end.
    """
    node = DaemonNode(
        daemon_id=daemon_id,
        address="",
        version=__version__,
        started_ms=clock.wall_ms(),
        process=processes.mark(),
    )

    def ended(other: DaemonNode) -> bool:
        if processes.has_ended(other.process):
            engine.inherit(other.session_id)
            return True
        return False

    return Registration(
        metadata,
        node,
        clock=clock,
        patience_s=session_timeout_s * PATIENCE_SESSIONS,
        changed=engine.placement.become,
        ended=ended,
    )
