"""The object store over S3."""
