"""The settings, one section a module."""
