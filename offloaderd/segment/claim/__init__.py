"""What an owner writes under its claim, each write fenced by the epoch."""
