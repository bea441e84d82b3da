"""What every package may use: limits and retries; knows errors and time, and nothing else of ours."""
