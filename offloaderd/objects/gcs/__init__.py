"""The object store over Google Cloud Storage."""
