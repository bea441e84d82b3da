"""Managed ledgers of a Pulsar cluster, read through the BookKeeper client."""
