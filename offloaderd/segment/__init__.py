"""The segment pipeline: from a feed of entries to a committed segment."""
