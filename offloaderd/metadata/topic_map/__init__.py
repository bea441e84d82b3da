"""The map of a topic's committed segments, and its edits."""
