"""Stores and ledger sources, made from the settings."""
