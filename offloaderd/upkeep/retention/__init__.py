"""Tier retention."""
