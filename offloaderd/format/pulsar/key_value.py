"""A key and a value in one: how Pulsar stores a pair of schemas, and encodes a pair of contents `INLINE`. Pure.

| size | field |
|---|---|
| 4 | length of the key, big-endian; -1 for none |
| n | the key |
| 4 | length of the value; -1 for none |
| n | the value |

(org.apache.pulsar.common.schema.KeyValue, KeyValueSchemaInfo)
"""

_LENGTH_BYTES = 4


def split(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Return the key and the value. Raises ValueError."""
    key, rest = _part(data)
    value, left = _part(rest)
    if left:
        raise ValueError(f"{len(left)} bytes are left behind a pair")
    return key, value


def _part(data: bytes) -> tuple[bytes | None, bytes]:
    """Return the first part, and what is behind it."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)
    end = _LENGTH_BYTES + max(0, length)
    if len(data) < end or length < -1:
        raise ValueError(f"{len(data)} bytes are no part of a pair")
    return (None if length < 0 else data[_LENGTH_BYTES:end]), data[end:]
