"""Tests of captures: what topics need besides their entries."""
