"""Tests of direct reads."""
