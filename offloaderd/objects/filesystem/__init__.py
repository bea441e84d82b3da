"""The object store in a directory."""
