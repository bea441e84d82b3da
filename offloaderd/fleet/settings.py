"""Settings of how topics are spread over daemons and move between them."""

from pydantic import Field

from offloaderd.core.section import Seconds, Section


class PlacementSettings(Section):
    """How topics are spread over the daemons of a cluster. Every daemon should be given the same."""

    settle_s: Seconds = Field(default=15.0, ge=0, le=3600)
    """Topics are handed over to a daemon that joined or came back only when no daemon has joined or left for this long,
    so that a rolling restart moves each topic few times. What a leaver had is taken at once."""

    grace_s: Seconds = Field(default=20.0, gt=0, le=3600)
    """How long the daemon that ranks first for a topic may leave it alone before the next one takes it; the one after
    that waits twice as long. Also how long a hand-over may wait to be taken."""

    handovers_max: int = Field(default=8, ge=1, le=10_000)
    """Topics on their way to another daemon at the same time. Each of them seals its open segment early: more move
    faster and make more small segments at once."""

    handover_s: Seconds = Field(default=60.0, gt=0, le=3600)
    """How long a hand-over may take to seal and commit the open segment; then the topic is released without that, and
    the next owner goes on with the segment."""

    cooldown_s: Seconds = Field(default=600.0, ge=0)
    """How long topics are left where they are after the daemon they belong to did not take one."""

    impaired_s: Seconds = Field(default=30.0, gt=0)
    """A daemon that could not reach the bucket for this long hands its topics to daemons that can. When none can, all
    stay where they are."""
