"""Declared tables that follow topics, and what the application that writes them says of them."""
