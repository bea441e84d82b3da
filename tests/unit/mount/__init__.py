"""Tests of topics that come up in another cluster."""
