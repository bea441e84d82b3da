"""The metadata, from the bucket alone."""
