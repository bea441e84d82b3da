"""Entries that were accepted and wait on disk, while the object store does not take them."""
