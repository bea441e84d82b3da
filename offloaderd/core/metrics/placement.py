"""Metrics of daemons, owners of topics, and moves of topics between daemons."""

from offloaderd.core.metrics.families import Families, counter, gauge, histogram
from offloaderd.core.metrics.values import LONG_SECONDS_BUCKETS

STANDINGS = ("working", "impaired", "draining")
PLACES = ("first", "elsewhere")
MOVES = ("moved", "returned", "adopted")
WAKE_CAUSES = ("source", "due", "used", "policy")


class PlacementMetrics(Families):
    """The metrics of daemons and their topics."""

    ownership_topics = gauge("Topics that this daemon owns now.")
    topics_suspended = gauge(
        "Topics that this daemon owns and has suspended because they are idle (offload.suspend_after_s)."
    )
    topic_wakes = counter(
        "Suspended topics that were resumed, by cause. source: the source has something new. due: a duty, or an hour "
        "has passed. used: a push, a read, a call. policy: the policy has changed.",
        cause=WAKE_CAUSES,
    )
    ownership_changes = counter(
        "Topics claimed and given up or lost. Rising steadily: sessions flap.", direction=("gained", "lost")
    )
    fenced_writes = counter(
        "Writes refused because another daemon owns the topic now. One after a pause of the daemon is normal; many "
        "point to the network."
    )
    placement_daemons = gauge(
        "Daemons that this one takes into account, itself among them. All daemons should show the same numbers; "
        "impaired: it cannot reach the bucket.",
        standing=STANDINGS,
    )
    placement_topics = gauge(
        "Topics that this daemon owns or waits for. first: it ranks first for them. elsewhere: another daemon ranks "
        "first, and they are handed over once no daemon joins or leaves any more; look when this stays above 0 for an "
        "hour.",
        place=PLACES,
    )
    ownership_moves = counter(
        "Topics that this daemon handed over or took. moved: the other daemon claimed it. returned: it did not; look "
        "at its log. adopted: claimed here because the living daemon that ranks first did not; look at that one's "
        "log.",
        outcome=MOVES,
    )
    handover_seconds = histogram(
        "Time from the decision to hand a topic over until its release, in which the open segment is sealed and "
        "committed, in buckets to 6 h. After the release entries wait only for the claim of the new owner.",
        LONG_SECONDS_BUCKETS,
    )
