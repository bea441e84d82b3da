"""Conversion of stored segments: the driver."""
