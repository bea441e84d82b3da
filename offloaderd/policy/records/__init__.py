"""Policies as stored, one module a node."""
