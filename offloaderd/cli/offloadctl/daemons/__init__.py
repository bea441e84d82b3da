"""Commands about daemons."""
