"""The base of all packages: errors, values, time, tasks, limits, retries and metrics; it imports no other package."""
