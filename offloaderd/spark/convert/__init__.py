"""Conversion of stored segments: the driver's side."""
