"""Schemas and values of messages."""
