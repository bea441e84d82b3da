"""Policies out of a broker's configuration."""
