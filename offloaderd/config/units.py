"""Sizes as people write them: `64MiB`, `1.5 GiB`, `5242880`.

Units are IEC (KiB, MiB, GiB, TiB: powers of 1024) and SI (kB, MB, GB, TB: powers of 1000); case does not matter. A
size is a whole number of bytes, so a fraction that does not come to one is refused rather than rounded.
"""

from __future__ import annotations

import re
from fractions import Fraction

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12} | {
    unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), start=1)
}

_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)")


def parse_bytes(value: object) -> int:
    """Read a size given as text or as a whole number. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    factor = UNITS.get(match[2].lower() or "b") if match else None
    if match is None or factor is None:
        raise ValueError('not a size: write a whole number of bytes or one with a unit, such as "64MiB"')
    size = Fraction(match[1]) * factor
    if size.denominator != 1:
        raise ValueError("not a whole number of bytes")
    return int(size)


def format_bytes(size: int) -> str:
    """Write a size in the largest unit that divides it, as `parse_bytes` reads it."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)
