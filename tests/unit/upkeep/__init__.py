"""Tests of the care of what is stored."""
