"""Commands that read, find or append entries."""
