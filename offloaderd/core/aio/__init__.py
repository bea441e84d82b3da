"""Tasks, events and signals on asyncio."""
