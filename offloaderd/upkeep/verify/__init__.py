"""Verification of stored segments."""
