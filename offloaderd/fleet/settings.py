"""Settings of how topics are spread over daemons and move between them."""

from pydantic import Field

from offloaderd.core.section import Seconds, Section


class PlacementSettings(Section):
    """How topics are spread over the daemons of a cluster. All daemons should have the same values."""

    settle_s: Seconds = Field(default=15.0, ge=0, le=3600)
    """Topics are handed over to a daemon that joined or returned only when no daemon has joined or left for this long,
    so that a rolling restart moves each topic few times. The topics of a daemon that left are claimed at once."""

    grace_s: Seconds = Field(default=20.0, gt=0, le=3600)
    """How long the daemon that ranks first for a topic may leave it without an owner before the next daemon claims it;
    the one after that waits twice as long. A hand-over may also wait this long for its new owner."""

    handovers_max: int = Field(default=8, ge=1, le=10_000)
    """Topics that are being handed over at the same time. A hand-over seals the open segment early: with a larger
    number topics move faster, and more small segments are made at once."""

    handover_s: Seconds = Field(default=60.0, gt=0, le=3600)
    """How long a hand-over may take to seal and commit the open segment. After that the topic is released anyway, and
    the next owner resumes the segment."""

    cooldown_s: Seconds = Field(default=600.0, ge=0)
    """How long topics that belong to another daemon stay where they are after that daemon did not claim one that was
    handed over to it."""

    impaired_s: Seconds = Field(default=30.0, gt=0)
    """A daemon that could not reach the bucket for this long hands its topics to daemons that can. When none can, all
    stay where they are."""
