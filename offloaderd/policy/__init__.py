"""How topics are offloaded and read: one model of what may be said, its merge over levels, and what may not be said."""
