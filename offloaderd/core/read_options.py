"""How a read is asked for."""

from __future__ import annotations

from enum import StrEnum

from offloaderd.core.errors import InvalidInput


class ReadPriority(StrEnum):
    """Which tier is asked first when both hold an entry (PIP-73, as Pulsar's code spells it)."""

    TIERED_STORAGE_FIRST = "tiered-storage-first"
    BOOKKEEPER_FIRST = "bookkeeper-first"

    @classmethod
    def parse(cls, text: str) -> ReadPriority:
        """Read a policy value; the PIP's own `tiered-first` is accepted. Raises InvalidInput."""
        if text == "tiered-first":
            return cls.TIERED_STORAGE_FIRST
        try:
            return cls(text)
        except ValueError:
            raise InvalidInput(f"unknown read priority {text!r}", hint=f"one of {', '.join(cls)}") from None
