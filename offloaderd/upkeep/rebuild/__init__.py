"""Rebuild of the metadata from the bucket alone."""
