"""The object store over Azure Blob Storage."""
