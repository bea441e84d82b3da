"""How far ahead of its reader a sequential read fetches."""

WINDOW_BYTES_MIN = 256 * 1024
"""A read begins with this much, at least one block: about what one round trip to S3 costs anyway."""


class ReadAhead:
    """How far a sequential read fetches ahead: more, the longer it goes on."""

    __slots__ = ("window_bytes",)

    def __init__(self) -> None:
        self.window_bytes = WINDOW_BYTES_MIN

    def grow(self, limit_bytes: int) -> None:
        """The consumer came back for more."""
        self.window_bytes = min(2 * self.window_bytes, max(WINDOW_BYTES_MIN, limit_bytes))
