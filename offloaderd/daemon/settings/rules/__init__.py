"""What has to hold between settings."""
