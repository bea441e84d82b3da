"""The map of a topic: what is committed, and its edits."""
