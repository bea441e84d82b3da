"""Which daemons there are, who owns topics, and how topics move between daemons."""

from offloaderd.core.metrics.families import Families, counter, gauge, histogram
from offloaderd.core.metrics.values import LONG_SECONDS_BUCKETS

STANDINGS = ("working", "impaired", "draining")
PLACES = ("first", "elsewhere")
MOVES = ("moved", "returned", "adopted")
WAKE_CAUSES = ("source", "due", "used", "policy")


class PlacementMetrics(Families):
    """The part of the metrics that is about daemons and their topics."""

    ownership_topics = gauge("Topics that this daemon owns now.")
    topics_suspended = gauge(
        "Topics that this daemon owns and has suspended because they are idle (offload.suspend_after_s)."
    )
    topic_wakes = counter(
        "Topics that were taken up again, by what woke them. source: there is something new. due: a duty, or an hour "
        "has passed. used: a push, a read, a call. policy: another one holds.",
        cause=WAKE_CAUSES,
    )
    ownership_changes = counter(
        "Topics claimed and given up or lost. Rising steadily: sessions flap.", direction=("gained", "lost")
    )
    fenced_writes = counter(
        "Writes refused because another daemon owns the topic now. One after a pause is right; many: network."
    )
    placement_daemons = gauge(
        "Daemons that this one takes into account, itself among them. All daemons should show the same numbers; "
        "impaired: it cannot reach the bucket.",
        standing=STANDINGS,
    )
    placement_topics = gauge(
        "Topics that this daemon works on or waits for. first: it ranks first for them. elsewhere: another daemon "
        "does, and they are handed over when the daemons have settled; look when this stays above 0 for an hour.",
        place=PLACES,
    )
    ownership_moves = counter(
        "Topics that this daemon handed over. moved: the other one took it. returned: it did not, look at its log. "
        "adopted: taken from a daemon that lives and left it alone, look at that one's log.",
        outcome=MOVES,
    )
    handover_seconds = histogram(
        "Time from the decision to hand a topic over until it was released: its open segment is sealed and committed "
        "meanwhile. Entries wait for no longer than the new owner's claim after that. Buckets to 6 h.",
        LONG_SECONDS_BUCKETS,
    )
