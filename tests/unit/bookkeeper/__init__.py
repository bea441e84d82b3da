"""Tests of the BookKeeper client: wire, digests, metadata, registration."""
