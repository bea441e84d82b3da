"""What the jobs of backfill and conversion share, and their executors' work."""
