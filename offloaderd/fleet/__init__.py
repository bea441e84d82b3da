"""Which daemon works on which topic: registration, placement, ownership, hand-over."""
