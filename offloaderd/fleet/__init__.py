"""The daemons of a cluster and their topics: registration, placement, ownership, hand-over."""
