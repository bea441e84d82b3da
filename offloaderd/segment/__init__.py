"""The offload engine: from the tailing buffer to a committed segment."""
